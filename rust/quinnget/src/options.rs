//! The client's own options, and what keeps a download from starting.

use clap::Args;
use clientkit::{UnreadableCa, Windows};
use thiserror::Error;

/// What a download by quinn takes beside the common arguments.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
pub struct Quinn {
    #[command(flatten)]
    pub windows: Windows,
}

/// What keeps a download from starting: one sentence each.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error(transparent)]
    Ca(#[from] UnreadableCa),
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
