//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::settings::{CongestionControl, Settings, initial_window};

/// A debug build says so: Upshift refuses it, as it is too slow to be measured against.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (quiche 0.30.0), debug build")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (quiche 0.30.0)")
};

/// Serves HTTP/3 with quiche. Prints `listening ADDRESS:PORT` when ready.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Parser)]
#[command(version = VERSION, args_override_self = true)]
pub struct Options {
    /// Where to listen; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT", required = true)]
    pub listen: Vec<SocketAddr>,
    /// Hosts with their certificates and files, or the upstream cache (docs/design/h3serve.md)
    #[arg(long, value_name = "HOSTS.json", required_unless_present = "cert", conflicts_with_all = ["cert", "key"])]
    pub hosts: Option<PathBuf>,
    /// For tests, instead of --hosts: the certificate of all hosts; any path of any host gets the same answer
    #[arg(long, value_name = "CHAIN.pem", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "KEY.pem", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Body of each answer with --cert, zeros, bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub bytes: u64,
    /// Status of each answer with --cert
    #[arg(long, value_name = "CODE", default_value_t = 200)]
    pub status: u16,
    /// Congestion control: cubic, reno or bbr2
    #[arg(long = "cc", value_name = "NAME", default_value = "cubic")]
    congestion_control: CongestionControl,
    /// Initial congestion window, packets
    #[arg(long, value_name = "N", default_value = "10", value_parser = initial_window)]
    initial_window: usize,
    /// Read for each new connection: congestion_control, initial_window_packets, hystart, body_pace
    #[arg(long = "settings", value_name = "FILE.json")]
    pub settings_file: Option<PathBuf>,
    /// The only ALPN protocol accepted
    #[arg(long, value_name = "NAME", default_value = "h3")]
    pub alpn: String,
}

impl Options {
    /// The settings of connections, without those of the file.
    pub fn settings(&self) -> Settings {
        Settings {
            congestion_control: self.congestion_control,
            initial_window_packets: self.initial_window,
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, String> {
        let words = std::iter::once("h3serve").chain(text.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn wrong_use_is_refused() {
        for (text, sentence) in [
            ("--cert c --key k", "--listen <ADDRESS:PORT>"),
            ("--listen [::1]:443", "--hosts <HOSTS.json>"),
            ("--listen [::1]:443 --cert c", "--key <KEY.pem>"),
            (
                "--listen [::1]:443 --hosts h --key k",
                "cannot be used with",
            ),
            ("--listen nowhere --hosts h", "invalid value 'nowhere'"),
            (
                "--listen [::1]:443 --hosts h --cc vegas",
                "unknown congestion_control \"vegas\"; use cubic, reno or bbr2",
            ),
            (
                "--listen [::1]:443 --hosts h --initial-window 0",
                "from 1 to 1000",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(sentence), "{error}");
        }
    }

    #[test]
    fn several_addresses_and_settings() {
        let text = "--listen 127.0.0.1:1 --listen [::1]:2 --hosts h --cc bbr2 --initial-window 32";
        let options = parsed(text).unwrap();
        let settings = options.settings();
        assert_eq!(options.listen.len(), 2);
        assert_eq!(settings.initial_window_packets, 32);
        assert_eq!(settings.congestion_control.name(), "bbr2");
    }
}
