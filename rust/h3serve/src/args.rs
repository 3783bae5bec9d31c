//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use crate::settings::{Settings, SettingsError};

pub const USAGE: &str = "usage: h3serve --listen ADDRESS:PORT... (--cert CHAIN.pem --key KEY.pem | --hosts HOSTS.json)
               [--cc cubic|reno|bbr2] [--initial-window PACKETS] [--settings FILE.json]
               [--bytes N] [--status CODE] [--alpn NAME]

Serves HTTP/3 with quiche. Prints `listening ADDRESS:PORT` when ready.
  --listen ADDRESS:PORT  may be repeated
  --hosts HOSTS.json     hosts with their certificates and files, or the upstream cache (docs/design/h3serve.md)
  --cc NAME              congestion control; default cubic
  --initial-window N     initial congestion window [packets]; default 10
  --settings FILE.json   read for each new connection: congestion_control, initial_window_packets,
                         hystart, body_pace
For tests and benchmarks, instead of --hosts: any path of any host gets the same answer.
  --bytes N              body of each answer [bytes], zeros; default 0
  --status CODE          status of each answer; default 200
  --alpn NAME            the only ALPN protocol accepted; default h3";

/// Where the answers come from.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// A file that describes hosts.
    Hosts(PathBuf),
    /// The same answer for everything.
    Fixed {
        certificate: PathBuf,
        key: PathBuf,
        bytes: u64,
        status: u16,
    },
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub listen: Vec<SocketAddr>,
    pub source: Source,
    pub settings: Settings,
    pub settings_file: Option<PathBuf>,
    pub alpn: String,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Serve(Options),
    Help,
    Version,
}

/// Why a command line is not valid.
#[derive(Debug, Error)]
pub enum UsageError {
    #[error("{0}")]
    Syntax(#[from] lexopt::Error),
    #[error("--listen is missing")]
    NoAddress,
    #[error("give --hosts, or both --cert and --key")]
    NoSource,
    #[error("{0}")]
    Setting(#[from] SettingsError),
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    use lexopt::prelude::*;

    let mut listen: Vec<SocketAddr> = Vec::new();
    let (mut certificate, mut key, mut hosts) = (None, None, None);
    let (mut bytes, mut status, mut alpn) = (0, 200, "h3".to_owned());
    let (mut settings, mut settings_file) = (Settings::default(), None);
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("listen") => listen.push(parser.value()?.parse()?),
            Long("cert") => certificate = Some(PathBuf::from(parser.value()?)),
            Long("key") => key = Some(PathBuf::from(parser.value()?)),
            Long("hosts") => hosts = Some(PathBuf::from(parser.value()?)),
            Long("cc") => settings.set("congestion_control", &parser.value()?.string()?)?,
            Long("initial-window") => {
                settings.set("initial_window_packets", &parser.value()?.string()?)?;
            }
            Long("settings") => settings_file = Some(PathBuf::from(parser.value()?)),
            Long("bytes") => bytes = parser.value()?.parse()?,
            Long("status") => status = parser.value()?.parse()?,
            Long("alpn") => alpn = parser.value()?.string()?,
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            _ => return Err(argument.unexpected().into()),
        }
    }
    if listen.is_empty() {
        return Err(UsageError::NoAddress);
    }
    let source = match (hosts, certificate, key) {
        (Some(hosts), None, None) => Source::Hosts(hosts),
        (None, Some(certificate), Some(key)) => Source::Fixed {
            certificate,
            key,
            bytes,
            status,
        },
        _ => return Err(UsageError::NoSource),
    };
    Ok(Command::Serve(Options {
        listen,
        source,
        settings,
        settings_file,
        alpn,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Command, UsageError> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_is_missing_is_told() {
        for (text, said) in [
            ("--cert c --key k", "--listen is missing"),
            ("--listen [::1]:443 --cert c", "give --hosts, or both"),
            (
                "--listen [::1]:443 --hosts h --cert c --key k",
                "give --hosts, or both",
            ),
            ("--listen nowhere --hosts h", "nowhere"),
            (
                "--listen [::1]:443 --hosts h --cc vegas",
                "unknown congestion_control \"vegas\"; use cubic, reno or bbr2",
            ),
            (
                "--listen [::1]:443 --hosts h --initial-window 0",
                "from 1 to 1000",
            ),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn several_addresses_and_settings() {
        let text = "--listen 127.0.0.1:1 --listen [::1]:2 --hosts h --cc bbr2 --initial-window 32";
        let Ok(Command::Serve(options)) = parsed(text) else {
            panic!("not accepted");
        };
        assert_eq!(options.listen.len(), 2);
        assert_eq!(options.settings.initial_window_packets, 32);
        assert_eq!(options.settings.congestion_control.name(), "bbr2");
    }
}
