//! The client's own options, and what keeps a download from starting.

use std::path::PathBuf;

use clap::{Args, value_parser};
use clientkit::one_line;
use thiserror::Error;

/// The largest window that may be asked for, bytes.
const MOST_WINDOW: u64 = 1 << 40;
const WINDOW: u64 = 64 << 20;

/// What a download by quinn takes beside the common arguments.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
pub struct Quinn {
    /// Connection flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_data: u64,
    /// Stream flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_stream_data: u64,
    /// Receive buffer of the socket, as requested from the kernel, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub receive_buffer: u32,
}

/// What keeps a download from starting: one sentence each.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error("{} is not a readable PEM file with CA certificates", one_line(&.0.display().to_string()))]
    Ca(PathBuf),
    #[error("TLS refused its configuration: {0}")]
    Tls(#[from] rustls::Error),
    #[error("TLS lacks the cipher of QUIC's first packets")]
    NoInitialCipher(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
    #[error("quinn refused its configuration: {0}")]
    Quinn(#[from] quinn::ConfigError),
    #[error("quinn refused to connect: {0}")]
    Connect(#[from] quinn::ConnectError),
    #[error("a window is too large for QUIC: {0}")]
    Window(#[from] quinn::VarIntBoundsExceeded),
    #[error("the URL cannot be requested over HTTP/3: {0}")]
    Url(#[from] http::Error),
    #[error("the runtime did not start: {0}")]
    Runtime(#[from] std::io::Error),
    #[error(transparent)]
    Confine(std::io::Error),
}
