//! `quinnget`: one HTTP/3 download over QUIC (`quinn`) from a forced address, one JSON document on standard output.
//!
//! What it shares with other clients is in the crate `clientkit`. See `docs/design/quinnget.md`.

mod download;
mod ending;
mod exchange;
mod link;
mod options;
mod quic;
mod tls;

use std::process::ExitCode;

use clientkit::{Client, Library, Record, Request};

use crate::options::{Quinn, SetupError};
use crate::quic::{LIBRARY, QuicFacts};

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
