//! `h3get`: one HTTP/3 download over QUIC (`quiche`) from a forced address, one JSON document on standard output.
//!
//! What it shares with other clients is in the crate `clientkit`. See `docs/design/h3get.md`.

mod acks;
mod download;
mod dump;
mod ending;
mod exchange;
mod options;
mod order;
mod quic;

use std::process::ExitCode;

use clientkit::{Client, Library, Record, Request};

use crate::options::Quiche;
use crate::quic::{QuicFacts, SetupError};

impl Client for Quiche {
    const PROGRAM: &'static str = "h3get";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const LIBRARY: Library = quic::LIBRARY;
    const ABOUT: &'static str =
        "One HTTP/3 download over QUIC, one JSON document on standard output";
    type Facts = QuicFacts;
    type Error = SetupError;

    fn download(&self, request: &Request) -> Result<Record<QuicFacts>, SetupError> {
        download::download(self, request)
    }
}

fn main() -> ExitCode {
    clientkit::main::<Quiche>()
}
