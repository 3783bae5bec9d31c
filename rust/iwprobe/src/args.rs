//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use clientkit::{Prefix, PrefixError};
use thiserror::Error;

/// Help.
pub const USAGE: &str = "usage: iwprobe --device DEVICE --address ADDRESS [--address ADDRESS] [--next-hop MAC]
               [--ports LOW-HIGH] [--packet-rate N] [--probe-rate N] [--arrivals N]
               [--allow PREFIX]...

Measures initial windows: requests on standard input, replies on standard output (docs/design/iw.md).
  --device DEVICE     where packets leave and arrive
  --address ADDRESS   own source address, which this namespace's kernel does not have; one of each family at most
  --next-hop MAC      link-layer address that packets are sent to; none: a device without a link layer (TUN)
  --ports LOW-HIGH    source ports; default 32768-60999
  --packet-rate N     most packets sent per second
  --probe-rate N      most probes begun per second; requests wait for their turn
  --arrivals N        arrivals of segments that a reply has room for, up to 4096; default 0
  --allow PREFIX      addresses that may be contacted; may be repeated. UPSHIFT_ALLOWED_PREFIXES holds, too";

/// Most arrivals in a reply.
const MOST_ARRIVALS: usize = 4_096;

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// Network device.
    pub device: String,
    /// Own addresses, one of each family at most.
    pub addresses: Vec<IpAddr>,
    /// Link-layer address of the next hop.
    pub next_hop: Option<[u8; 6]>,
    /// Source ports.
    pub ports: RangeInclusive<u16>,
    /// Most packets per second.
    pub packet_rate: Option<f64>,
    /// Most probes begun per second.
    pub probe_rate: Option<f64>,
    /// Arrivals in a reply.
    pub arrivals: usize,
    /// Prefixes that may be contacted.
    pub allow: Vec<Prefix>,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Probe.
    Run(Options),
    /// Print [`USAGE`].
    Help,
    /// Print the version.
    Version,
}

/// Why a command line is not valid.
#[derive(Debug, Error)]
pub enum UsageError {
    /// An unknown option, or a value that cannot be read.
    #[error("{0}")]
    Syntax(#[from] lexopt::Error),
    /// No device.
    #[error("--device is missing")]
    NoDevice,
    /// No address, or two of a family.
    #[error("give --address once for each family")]
    Addresses,
    /// Not a MAC address.
    #[error("--next-hop {0:?} is not six bytes in hex, separated by colons")]
    NextHop(String),
    /// Not a range of ports.
    #[error("--ports {0:?} is not LOW-HIGH")]
    Ports(String),
    /// Not a rate.
    #[error("{0} is not a number from 1 to 10000000")]
    Rate(&'static str),
    /// Too many.
    #[error("--arrivals is above 4096")]
    Arrivals,
    /// Not a prefix.
    #[error("--allow: {0}")]
    Prefix(#[from] PrefixError),
}

/// Reads the arguments after the program's name.
///
/// # Errors
/// They are not valid.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    use lexopt::prelude::*;

    let mut device = None;
    let mut options = Options {
        device: String::new(),
        addresses: Vec::new(),
        next_hop: None,
        ports: 32_768..=60_999,
        packet_rate: None,
        probe_rate: None,
        arrivals: 0,
        allow: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("device") => device = Some(parser.value()?.string()?),
            Long("address") => options.addresses.push(parser.value()?.parse()?),
            Long("next-hop") => options.next_hop = Some(read_mac(parser.value()?.string()?)?),
            Long("ports") => options.ports = read_ports(parser.value()?.string()?)?,
            Long("packet-rate") => options.packet_rate = Some(parser.value()?.parse()?),
            Long("probe-rate") => options.probe_rate = Some(parser.value()?.parse()?),
            Long("arrivals") => options.arrivals = parser.value()?.parse()?,
            Long("allow") => options.allow.push(parser.value()?.string()?.parse()?),
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            _ => return Err(argument.unexpected().into()),
        }
    }
    options.device = device.ok_or(UsageError::NoDevice)?;
    let of_family = |ipv4| {
        options
            .addresses
            .iter()
            .filter(move |a| a.is_ipv4() == ipv4)
            .count()
    };
    if options.addresses.is_empty() || of_family(true) > 1 || of_family(false) > 1 {
        return Err(UsageError::Addresses);
    }
    for (name, rate) in [
        ("--packet-rate", options.packet_rate),
        ("--probe-rate", options.probe_rate),
    ] {
        if rate.is_some_and(|rate| !(1.0..=1e7).contains(&rate)) {
            return Err(UsageError::Rate(name));
        }
    }
    if options.arrivals > MOST_ARRIVALS {
        return Err(UsageError::Arrivals);
    }
    Ok(Command::Run(options))
}

fn read_mac(text: String) -> Result<[u8; 6], UsageError> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    let mac = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.ok_or(UsageError::NextHop(text))
}

fn read_ports(text: String) -> Result<RangeInclusive<u16>, UsageError> {
    let ends = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    match ends {
        Some((low @ 1.., high)) if low <= high => Ok(low..=high),
        _ => Err(UsageError::Ports(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Command, UsageError> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_python_gives() {
        let text = "--device tun0 --ports 40000-40001 --address 198.18.1.250 --address fd00::1 --allow 198.18.0.0/15 \
            --next-hop 02:00:00:00:00:0a --packet-rate 100 --probe-rate 20 --arrivals 12";
        let Ok(Command::Run(options)) = parsed(text) else {
            panic!("not accepted");
        };
        assert_eq!((options.ports, options.arrivals), (40_000..=40_001, 12));
        assert_eq!(
            (options.addresses.len(), options.next_hop),
            (2, Some([2, 0, 0, 0, 0, 10]))
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, said) in [
            ("--address 198.18.0.1", "--device is missing"),
            ("--device a", "give --address once"),
            (
                "--device a --address 198.18.0.1 --address 198.18.0.2",
                "once for each family",
            ),
            ("--device a --address x", "x"),
            (
                "--device a --address 198.18.0.1 --next-hop 1:2",
                "is not six bytes",
            ),
            (
                "--device a --address 198.18.0.1 --ports 9-8",
                "is not LOW-HIGH",
            ),
            (
                "--device a --address 198.18.0.1 --packet-rate 0",
                "--packet-rate is not",
            ),
            (
                "--device a --address 198.18.0.1 --packet-rate NaN",
                "--packet-rate is not",
            ),
            (
                "--device a --address 198.18.0.1 --probe-rate 0.5",
                "--probe-rate is not",
            ),
            (
                "--device a --address 198.18.0.1 --arrivals 4097",
                "above 4096",
            ),
            ("--device a --address 198.18.0.1 --allow z", "z is not"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
