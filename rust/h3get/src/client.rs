//! The client `quiche`: its own options, and how it is called.

use std::path::PathBuf;
use std::time::Duration;

use clientkit::{Client, Record, Request, UsageError, Values};

use crate::download;
use crate::quic::{QUICHE_VERSION, QuicFacts, SetupError};

/// The largest window that may be asked for, bytes.
const MOST_WINDOW: u64 = 1 << 40;

/// What a download by quiche takes beside the common arguments.
#[derive(Debug)]
pub struct Quiche {
    /// Connection flow control window, bytes.
    pub max_data: u64,
    /// Stream flow control window, bytes.
    pub max_stream_data: u64,
    pub congestion_control: &'static str,
    /// Largest UDP payload to accept, bytes: the transport parameter `max_udp_payload_size`.
    pub max_udp_payload: u16,
    /// As asked for; see [`Quiche::idle_timeout`].
    idle_timeout: Option<Duration>,
    /// Whether the `ClientHello` offers a post-quantum key share too.
    pub post_quantum: bool,
    pub gro: bool,
    /// Receive buffer of the socket to request, bytes.
    pub receive_buffer: usize,
    pub keylog: Option<PathBuf>,
    /// Where to write a copy of request and response.
    pub dump: Option<PathBuf>,
}

impl Default for Quiche {
    fn default() -> Self {
        Self {
            max_data: 64 << 20,
            max_stream_data: 64 << 20,
            congestion_control: "cubic",
            max_udp_payload: 65527,
            idle_timeout: None,
            post_quantum: false,
            gro: true,
            receive_buffer: 16 << 20,
            keylog: None,
            dump: None,
        }
    }
}

impl Quiche {
    /// By default longer than the budget, so that the budget decides.
    pub fn idle_timeout(&self, request: &Request) -> Duration {
        self.idle_timeout
            .unwrap_or(request.budget + Duration::from_secs(5))
    }
}

impl Client for Quiche {
    const PROGRAM: &'static str = "h3get";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const NAME: &'static str = "quiche";
    const LIBRARY_VERSION: &'static str = QUICHE_VERSION;
    const ABOUT: &'static str =
        "one HTTP/3 download over QUIC, one JSON document on standard output";
    const OWN_OPTIONS: &'static str = "  \
  --max-data BYTES        connection flow control window (default 67108864)
  --max-stream-data BYTES stream flow control window (default 67108864)
  --cc NAME               reno, cubic or bbr2; governs what this client sends (default cubic)
  --max-udp-payload N     largest UDP payload to accept, 1200 to 65527 bytes (default 65527)
  --idle-timeout-s SECONDS  (default: five seconds more than the budget)
  --post-quantum 0|1      1 offers X25519MLKEM768 with X25519: a ClientHello of two datagrams (default 0)
  --receive-buffer BYTES  of the socket, as requested from the kernel (default 16777216)
  --no-gro                do not ask the kernel to merge datagrams (UDP_GRO)
  --keylog FILE           append TLS secrets, for reading a capture
  --dump FILE             write request, response headers and the first 10000 body bytes as JSON
";
    type Facts = QuicFacts;
    type Error = SetupError;

    fn take(&mut self, option: &str, values: &mut Values<'_>) -> Result<bool, UsageError> {
        match option {
            "max-data" => self.max_data = values.number(1..=MOST_WINDOW, "bytes")?,
            "max-stream-data" => self.max_stream_data = values.number(1..=MOST_WINDOW, "bytes")?,
            "cc" => self.congestion_control = values.one_of(&["reno", "cubic", "bbr2"])?,
            "max-udp-payload" => self.max_udp_payload = values.number(1200..=65527, "bytes")?,
            "idle-timeout-s" => self.idle_timeout = Some(values.seconds()?),
            "post-quantum" => self.post_quantum = values.one_of(&["0", "1"])? == "1",
            "receive-buffer" => {
                let bytes = values.number(1..=u64::from(u32::MAX >> 1), "bytes")?;
                self.receive_buffer = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
            "no-gro" => self.gro = false,
            "keylog" => self.keylog = Some(values.path()?),
            "dump" => self.dump = Some(values.path()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn download(&self, request: &Request) -> Result<Record<QuicFacts>, SetupError> {
        download::download(self, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_option_that_is_taken() {
        for line in Quiche::OWN_OPTIONS.lines() {
            assert!(line.starts_with("  --"), "{line:?}");
        }
        for name in [
            "max-data",
            "max-stream-data",
            "cc",
            "max-udp-payload",
            "idle-timeout-s",
            "post-quantum",
            "receive-buffer",
            "no-gro",
            "keylog",
            "dump",
        ] {
            assert!(
                Quiche::OWN_OPTIONS.contains(&format!("--{name} ")),
                "{name}"
            );
        }
    }
}
