//! A client: its name, its options besides the common arguments, and its download.

use std::error::Error;

use clap::Args;
use serde::Serialize;

use crate::arguments::Request;
use crate::record::{Library, Record};

/// One download program. Its value holds the client's own options.
pub trait Client: Args {
    /// The name of the program, e.g. `h3get`.
    const PROGRAM: &'static str;
    /// The version of the program.
    const VERSION: &'static str;
    /// The client's QUIC or HTTP library.
    const LIBRARY: Library;
    /// One line for `--help`.
    const ABOUT: &'static str;

    /// The client's data about the connection, for the document.
    type Facts: Serialize;
    /// Wrong use that is found only at the download (a CA file that cannot be read): one sentence.
    type Error: Error;

    /// Downloads once, from an address that may be contacted. A failed download is a record, too.
    ///
    /// # Errors
    /// Wrong use; nothing was sent.
    fn download(&self, request: &Request) -> Result<Record<Self::Facts>, Self::Error>;
}
