//! The client's own options.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, value_parser};
use clientkit::{Request, Windows, parse_seconds};

/// What a download by quiche takes beside the common arguments.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
pub struct Quiche {
    #[command(flatten)]
    pub windows: Windows,
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
