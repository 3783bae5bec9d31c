//! `h3get`: one HTTP/3 download over QUIC (`quiche`) from a forced address, one JSON document on standard output.
//!
//! The exit code is 0 whenever a document was printed: a failed download is a record, not an error.
//! It is 2 for wrong use, with one sentence on standard error. See `docs/design/h3get.md`.

mod args;
mod client;
mod codes;
mod failure;
mod quic;
mod reach;
mod response;
mod result;
mod socket;
mod text;
mod url;

use std::io::Write;
use std::process::ExitCode;

use args::Command;

const WRONG_USE: u8 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(text) => print(&text),
        Err(sentence) => {
            eprintln!("h3get: {sentence}");
            ExitCode::from(WRONG_USE)
        }
    }
}

/// Does what the command line asks for; gives the text for standard output, or what was wrong with the use.
fn run() -> Result<String, String> {
    let environment = std::env::var_os(reach::VARIABLE);
    match args::parse(lexopt::Parser::from_env(), environment.as_deref())? {
        Command::Help => Ok(args::HELP.to_owned()),
        Command::Version => Ok(format!(
            "h3get {} (quiche {})",
            env!("CARGO_PKG_VERSION"),
            quic::QUICHE_VERSION
        )),
        Command::Download(options) => {
            let record = client::download(&options)?;
            serde_json::to_string(&record)
                .map_err(|error| format!("cannot write the record: {error}"))
        }
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // the reader has gone: nobody is left to tell
    }
}
