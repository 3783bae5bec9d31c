//! Errors of capture files.

use std::fmt;
use std::io;

/// Why a file gives no records at all.
///
/// A file that is merely cut is not an error: its records are kept and the scan is flagged as truncated.
#[derive(Debug)]
pub enum ScanError {
    /// The file cannot be opened or read.
    Io(io::Error),
    /// The file has no bytes (after decompression).
    Empty,
    /// The first bytes are neither pcap nor pcapng, plain or compressed by gzip or zstd.
    NotACapture,
    /// A pcap file whose link type the engine does not know.
    LinkType(u32),
}

impl fmt::Display for ScanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(formatter, "cannot be read: {error}"),
            Self::Empty => write!(formatter, "is empty"),
            Self::NotACapture => write!(
                formatter,
                "is neither a pcap nor a pcapng capture (plain, gzip or zstd)"
            ),
            Self::LinkType(link) => write!(
                formatter,
                "has the link type {link}, which is not supported"
            ),
        }
    }
}

impl std::error::Error for ScanError {}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
