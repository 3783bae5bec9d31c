//! `h3get`: one HTTP/3 download over QUIC (`quiche`) from a forced address, one JSON document on standard output.
//!
//! What it shares with other clients is in the crate `clientkit`. See `docs/design/h3get.md`.

mod acks;
mod client;
mod download;
mod dump;
mod ending;
mod exchange;
mod order;
mod quic;
mod socket;

use std::process::ExitCode;

fn main() -> ExitCode {
    clientkit::main::<client::Quiche>()
}
