//! The command line.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, value_parser};
use clientkit::Prefix;

/// Most arrivals in a reply.
const MOST_ARRIVALS: i64 = 4_096;

/// A debug build says so: Upshift refuses it, as it is too slow to measure with.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), ", debug build")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Measures initial windows: requests on standard input, replies on standard output (docs/design/iw.md).
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, PartialEq, Parser)]
#[command(name = "iwprobe", version = VERSION, args_override_self = true)]
pub struct Options {
    /// Device where packets leave and arrive
    #[arg(long)]
    pub device: String,
    /// Own source address, which this namespace's kernel does not have; one of each family at most
    #[arg(long = "address", value_name = "ADDRESS", required = true)]
    pub addresses: Vec<IpAddr>,
    /// Link-layer address that packets are sent to [default: none, for a device without a link layer (TUN)]
    #[arg(long, value_name = "MAC", value_parser = read_mac)]
    pub next_hop: Option<[u8; 6]>,
    /// Source ports
    #[arg(long, value_name = "LOW-HIGH", default_value = "32768-60999", value_parser = read_ports)]
    pub ports: RangeInclusive<u16>,
    /// Most packets sent per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = read_rate)]
    pub packet_rate: Option<f64>,
    /// Most probes begun per second; requests wait for their turn [default: no limit]
    #[arg(long, value_name = "N", value_parser = read_rate)]
    pub probe_rate: Option<f64>,
    /// Arrivals of segments that a reply has room for, up to 4096
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = value_parser!(u16).range(..=MOST_ARRIVALS).map(usize::from))]
    pub arrivals: usize,
    /// Addresses that may be contacted; may be repeated. UPSHIFT_ALLOWED_PREFIXES holds, too
    #[arg(long, value_name = "PREFIX")]
    pub allow: Vec<Prefix>,
}

impl Options {
    /// Reads the command line; ends the program where it is wrong (with 2), or asks for help.
    #[must_use]
    pub fn from_command_line() -> Self {
        Self::read(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn read<T: Into<std::ffi::OsString> + Clone>(
        words: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        let options = Self::try_parse_from(words)?;
        let ipv4 = options.addresses.iter().filter(|a| a.is_ipv4()).count();
        if ipv4 > 1 || options.addresses.len() - ipv4 > 1 {
            let sentence = "give --address once for each family";
            return Err(Self::command().error(ErrorKind::TooManyValues, sentence));
        }
        Ok(options)
    }
}

fn read_mac(text: &str) -> Result<[u8; 6], &'static str> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    let mac = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.ok_or("use six bytes in hex, separated by colons")
}

fn read_ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let ends = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    match ends {
        Some((low @ 1.., high)) if low <= high => Ok(low..=high),
        _ => Err("use LOW-HIGH, from 1 to 65535"),
    }
}

fn read_rate(text: &str) -> Result<f64, &'static str> {
    let rate = text.parse().ok();
    rate.filter(|rate| (1.0..=1e7).contains(rate))
        .ok_or("use a number from 1 to 10000000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, String> {
        let words = std::iter::once("iwprobe").chain(text.split_whitespace());
        Options::read(words).map_err(|error| error.to_string())
    }

    #[test]
    fn what_python_gives() {
        let text = "--device tun0 --ports 40000-40001 --address 198.18.1.250 --address fd00::1 --allow 198.18.0.0/15 \
            --next-hop 02:00:00:00:00:0a --packet-rate 100 --probe-rate 20 --arrivals 12";
        let options = parsed(text).unwrap();
        assert_eq!((options.ports, options.arrivals), (40_000..=40_001, 12));
        assert_eq!(
            (options.addresses.len(), options.next_hop),
            (2, Some([2, 0, 0, 0, 0, 10]))
        );
    }

    #[test]
    fn wrong_use_is_refused() {
        let needed = "--device a --address 198.18.0.1";
        for (text, sentence) in [
            ("--address 198.18.0.1", "--device <DEVICE>"),
            ("--device a", "--address <ADDRESS>"),
            (
                &format!("{needed} --address 198.18.0.2"),
                "give --address once for each family",
            ),
            ("--device a --address x", "invalid value 'x'"),
            (&format!("{needed} --next-hop 1:2"), "use six bytes in hex"),
            (&format!("{needed} --ports 9-8"), "use LOW-HIGH"),
            (&format!("{needed} --packet-rate 0"), "from 1 to 10000000"),
            (&format!("{needed} --packet-rate NaN"), "from 1 to 10000000"),
            (&format!("{needed} --probe-rate 0.5"), "from 1 to 10000000"),
            (
                &format!("{needed} --arrivals 4097"),
                "4097 is not in 0..=4096",
            ),
            (
                &format!("{needed} --allow z"),
                "z is not an IPv4 or IPv6 prefix",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
