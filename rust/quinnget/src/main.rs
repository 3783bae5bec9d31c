//! `quinnget`: one HTTP/3 download over QUIC (`quinn`) from a forced address, one JSON document on standard output.
//!
//! What it shares with other clients is in the crate `clientkit`. See `docs/design/quinnget.md`.

mod download;
mod ending;
mod exchange;
mod link;
mod quic;
mod tls;

use std::process::ExitCode;

use clap::{Args, value_parser};
use clientkit::{Client, Library, Record, Request};

use crate::quic::{LIBRARY, QuicFacts, SetupError};

/// The largest window that may be asked for, bytes.
const MOST_WINDOW: u64 = 1 << 40;
const WINDOW: u64 = 64 << 20;

/// What a download by quinn takes beside the common arguments.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
struct Quinn {
    /// Connection flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    max_data: u64,
    /// Stream flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    max_stream_data: u64,
    /// Receive buffer of the socket, as requested from the kernel, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    receive_buffer: u32,
}

impl Client for Quinn {
    const PROGRAM: &'static str = "quinnget";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const LIBRARY: Library = LIBRARY;
    const ABOUT: &'static str =
        "One HTTP/3 download over QUIC by quinn, one JSON document on standard output";
    type Facts = QuicFacts;
    type Error = SetupError;

    fn download(&self, request: &Request) -> Result<Record<QuicFacts>, SetupError> {
        download::download(self, request)
    }
}

fn main() -> ExitCode {
    clientkit::main::<Quinn>()
}
