//! Which addresses this client may send packets to.
//!
//! Two lists are enforced together: the `--allow` prefixes and those in the environment. An address must be inside
//! one prefix of *each* list that is given, so a command line can narrow what its surroundings permit, never widen it.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use crate::text::one_line;

/// Environment variable with comma-separated prefixes.
pub const VARIABLE: &str = "UPSHIFT_ALLOWED_PREFIXES";

/// Text that is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0} is not an IPv4 or IPv6 prefix")]
pub struct PrefixError(String);

/// The environment's prefixes are not valid; ignoring them could contact addresses that should be excluded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReachError {
    /// The variable is not UTF-8.
    #[error("{VARIABLE} is not text")]
    NotText,
    /// The variable is set, yet empty.
    #[error("{VARIABLE} is set but names no prefix; unset it or name one")]
    Empty,
    /// One of its entries is not a prefix.
    #[error("{VARIABLE}: {0}")]
    Prefix(#[from] PrefixError),
}

/// An IPv4 or IPv6 prefix. Host bits are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    network: IpAddr,
    /// Number of leading bits that count.
    length: u8,
}

impl Prefix {
    /// Whether `address` is inside; an IPv4-mapped IPv6 address is judged as the IPv4 address it reaches.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.length);
                u32::from(network).checked_shr(shift) == u32::from(address).checked_shr(shift)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.length);
                u128::from(network).checked_shr(shift) == u128::from(address).checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let wrong = || PrefixError(one_line(text));
        let (network, length) = match text.split_once('/') {
            Some((network, length)) => (network, Some(length)),
            None => (text, None),
        };
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let most: u8 = if network.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().map_err(|_| wrong())?,
            None => most,
        };
        if length > most {
            Err(wrong())
        } else {
            Ok(Self { network, length })
        }
    }
}

/// The lists of prefixes that are in force; none means that every address may be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    lists: Vec<Vec<Prefix>>,
}

impl Reach {
    /// Joins the command line's prefixes with the environment's.
    ///
    /// # Errors
    /// The environment's variable is set but holds no prefix, or something else.
    pub fn new(command_line: Vec<Prefix>, environment: Option<&OsStr>) -> Result<Self, ReachError> {
        let mut lists = Vec::new();
        if !command_line.is_empty() {
            lists.push(command_line);
        }
        if let Some(value) = environment {
            let text = value.to_str().ok_or(ReachError::NotText)?;
            let list = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            let list: Vec<Prefix> = list.map(str::parse).collect::<Result<_, _>>()?;
            if list.is_empty() {
                return Err(ReachError::Empty);
            }
            lists.push(list);
        }
        Ok(Self { lists })
    }

    /// Whether packets may go to `address`.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        self.lists
            .iter()
            .all(|list| list.iter().any(|prefix| prefix.contains(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn edges_of_prefixes() {
        let lab = prefix("198.18.0.0/15");
        assert!(lab.contains(address("198.18.0.0")) && lab.contains(address("198.19.255.255")));
        assert!(!lab.contains(address("198.17.255.255")) && !lab.contains(address("198.20.0.0")));
        assert!(prefix("0.0.0.0/0").contains(address("8.8.8.8")));
        assert!(prefix("::/0").contains(address("2001:db8::1")));
        assert!(
            !prefix("::/0").contains(address("8.8.8.8"))
                && !prefix("0.0.0.0/0").contains(address("::1"))
        );
        assert!(prefix("127.0.0.1").contains(address("127.0.0.1")));
        assert!(!prefix("127.0.0.1").contains(address("127.0.0.2")));
        assert!(prefix("fd00:198:18::/48").contains(address("fd00:198:18:ffff::1")));
        assert!(!prefix("fd00:198:18::/48").contains(address("fd00:198:19::1")));
        assert!(
            prefix("198.18.0.1/15").contains(address("198.19.0.1")),
            "host bits are ignored"
        );
    }

    #[test]
    fn mapped_addresses_do_not_slip_through() {
        assert!(!prefix("::/0").contains(address("::ffff:8.8.8.8")));
        assert!(prefix("198.18.0.0/15").contains(address("::ffff:198.18.0.1")));
    }

    #[test]
    fn bad_prefixes() {
        for bad in [
            "",
            "/8",
            "1.2.3.4/33",
            "::/129",
            "1.2.3/8",
            "1.2.3.4/x",
            "1.2.3.4/-1",
            "1.2.3.4/8/8",
            "host",
        ] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn both_lists_are_enforced() {
        let environment = OsStr::new("127.0.0.0/8, 198.18.0.0/15");
        let only_environment = Reach::new(vec![], Some(environment)).unwrap();
        assert!(
            only_environment.permits(address("198.18.0.1"))
                && !only_environment.permits(address("8.8.8.8"))
        );
        let both = Reach::new(vec![prefix("0.0.0.0/0")], Some(environment)).unwrap();
        assert!(both.permits(address("127.0.0.1")) && !both.permits(address("8.8.8.8")));
        let narrowed = Reach::new(vec![prefix("127.0.0.0/8")], Some(environment)).unwrap();
        assert!(!narrowed.permits(address("198.18.0.1")));
        assert!(Reach::default().permits(address("8.8.8.8")));
    }

    #[test]
    fn an_empty_or_wrong_variable_is_refused() {
        for bad in ["", " , ", "lab", "10.0.0.0/8,x"] {
            assert!(
                Reach::new(vec![], Some(OsStr::new(bad))).is_err(),
                "{bad:?}"
            );
        }
    }
}
