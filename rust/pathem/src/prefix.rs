//! Prefixes: blocks of addresses that a node owns beside its single addresses.

use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 or IPv6 prefix without host bits, written as `198.19.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Prefix {
    network: IpAddr,
    length: u8,
}

impl Prefix {
    /// Whether the address lies in the prefix.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let host_bits = 32 - u32::from(self.length);
                let differs = network.to_bits() ^ address.to_bits();
                differs.checked_shr(host_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let host_bits = 128 - u32::from(self.length);
                let differs = network.to_bits() ^ address.to_bits();
                differs.checked_shr(host_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Whether the two prefixes have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// Whether all of it lies in the lab's prefixes.
    #[must_use]
    pub fn is_in_lab(&self) -> bool {
        let shortest = if self.network.is_ipv4() { 15 } else { 48 };
        self.length >= shortest && is_lab_address(self.network)
    }
}

/// Whether the lab may carry packets of this address: 198.18.0.0/15 (RFC 2544) or `fd00:198:18::/48`.
#[must_use]
pub fn is_lab_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            first == 198 && second & 0xfe == 18
        }
        IpAddr::V6(v6) => matches!(v6.segments(), [0xfd00, 0x0198, 0x0018, ..]),
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a prefix; write it as 198.19.0.0/16");
        let (network, length) = text.split_once('/').ok_or_else(wrong)?;
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let length: u8 = length.parse().map_err(|_| wrong())?;
        let (bits, is_whole) = match network {
            IpAddr::V4(v4) => (32, host_part(v4.to_bits().into(), 32, length)),
            IpAddr::V6(v6) => (128, host_part(Ipv6Addr::to_bits(v6), 128, length)),
        };
        if length > bits {
            return Err(wrong());
        }
        if is_whole != 0 {
            return Err(format!(
                "{text:?} has bits behind the prefix; set them to 0"
            ));
        }
        Ok(Self { network, length })
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.length)
    }
}

/// The bits of an address of `bits` bits behind the first `length` ones.
fn host_part(address: u128, bits: u8, length: u8) -> u128 {
    let host_bits = u32::from(bits.saturating_sub(length));
    address & !u128::MAX.checked_shl(host_bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn has(text: &str, address: &str) -> bool {
        prefix(text).contains(address.parse().expect("an address"))
    }

    #[test]
    fn holds_its_addresses_and_no_other() {
        assert!(has("198.19.16.0/20", "198.19.16.0") && has("198.19.16.0/20", "198.19.31.255"));
        assert!(!has("198.19.16.0/20", "198.19.15.255") && !has("198.19.16.0/20", "198.19.32.0"));
        assert!(has("198.19.0.1/32", "198.19.0.1") && !has("198.19.0.1/32", "198.19.0.2"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && !has("0.0.0.0/0", "fd00:198:18::1"));
        assert!(
            has("fd00:198:18::/112", "fd00:198:18::ffff")
                && !has("fd00:198:18::/112", "fd00:198:18::1:0")
        );
        assert!(has("::/0", "fd00::1") && has("fd00::1/128", "fd00::1"));
    }

    #[test]
    fn overlap_is_one_inside_the_other() {
        let (large, small, other) = (
            prefix("198.19.0.0/16"),
            prefix("198.19.8.0/24"),
            prefix("198.18.0.0/16"),
        );
        assert!(large.overlaps(&small) && small.overlaps(&large) && !large.overlaps(&other));
    }

    #[test]
    fn lab_is_all_or_nothing() {
        assert!(prefix("198.18.0.0/15").is_in_lab() && prefix("fd00:198:18::/48").is_in_lab());
        for text in [
            "198.16.0.0/12",
            "198.20.0.0/16",
            "fd00:198::/32",
            "::/0",
            "10.0.0.0/8",
        ] {
            assert!(!prefix(text).is_in_lab(), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_prefix() {
        for text in [
            "198.19.0.0",
            "198.19.0.0/33",
            "198.19.0/16",
            "x/8",
            "fd00::/129",
            "198.19.0.0/-1",
        ] {
            let sentence = text.parse::<Prefix>().expect_err(text);
            assert!(sentence.contains("198.19.0.0/16"), "{sentence}");
        }
        for text in ["198.19.0.1/16", "fd00:198:18::1/64", "128.0.0.0/0"] {
            let sentence = text.parse::<Prefix>().expect_err(text);
            assert!(sentence.contains("set them to 0"), "{sentence}");
        }
    }
}
