//! The client's own options.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, value_parser};
use clientkit::{Request, parse_seconds};

/// The largest window that may be asked for, bytes.
const MOST_WINDOW: u64 = 1 << 40;
const WINDOW: u64 = 64 << 20;

/// What a download by quiche takes beside the common arguments.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
pub struct Quiche {
    /// Connection flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_data: u64,
    /// Stream flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_stream_data: u64,
    /// Congestion control of what this client sends
    #[arg(long = "cc", value_name = "NAME", default_value = "cubic", value_parser = ["reno", "cubic", "bbr2"])]
    pub congestion_control: String,
    /// Largest UDP payload to accept (the transport parameter max_udp_payload_size), 1200 to 65527 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 65527, value_parser = value_parser!(u16).range(1200..=65527))]
    pub max_udp_payload: u16,
    /// Idle timeout, s [default: five seconds more than the budget]
    #[arg(long = "idle-timeout-s", value_name = "SECONDS", value_parser = parse_seconds)]
    idle_timeout: Option<Duration>,
    /// 1 offers X25519MLKEM768 with X25519: a ClientHello of two datagrams
    #[arg(long, value_name = "0|1", default_value = "0", action = ArgAction::Set,
          value_parser = PossibleValuesParser::new(["0", "1"]).map(|value| value == "1"))]
    pub post_quantum: bool,
    /// Receive buffer of the socket, as requested from the kernel, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub receive_buffer: u32,
    /// Do not ask the kernel to merge datagrams (UDP_GRO)
    #[arg(long = "no-gro", action = ArgAction::SetFalse)]
    pub gro: bool,
    /// Append TLS secrets, for reading a capture
    #[arg(long, value_name = "FILE")]
    pub keylog: Option<PathBuf>,
    /// Write request, response headers and the first 10000 body bytes as JSON
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
}

impl Quiche {
    /// By default longer than the budget, so that the budget decides.
    pub fn idle_timeout(&self, request: &Request) -> Duration {
        self.idle_timeout
            .unwrap_or(request.budget + Duration::from_secs(5))
    }
}
