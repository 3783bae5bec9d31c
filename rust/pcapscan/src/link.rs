//! Link layers: where the IP header begins.

/// A link type as `LINKTYPE_*` of <https://www.tcpdump.org/linktypes.html> numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkType(pub u32);

impl LinkType {
    /// BSD loopback, the address family in host byte order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// PPP in HDLC-like framing.
    pub const PPP: Self = Self(9);
    /// Raw IP (also 12 and 14, which are platform numbers of the same).
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback, the address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture.
    pub const SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux cooked capture, version 2.
    pub const SLL2: Self = Self(276);

    /// Whether the engine finds IP in frames of this type.
    #[must_use]
    pub fn is_known(self) -> bool {
        matches!(
            self.0,
            0 | 1 | 9 | 12 | 14 | 101 | 108 | 113 | 228 | 229 | 276
        )
    }

    /// The offset of the IP header in a frame; `None` if it does not carry IP.
    #[inline]
    #[must_use]
    pub fn ip_offset(self, frame: &[u8]) -> Option<usize> {
        match self {
            Self::ETHERNET => ethernet(frame),
            Self(12 | 14) | Self::RAW | Self::IPV4 | Self::IPV6 => Some(0),
            Self::SLL => by_protocol(be16(frame, 14)?, frame, 16),
            Self::SLL2 => by_protocol(be16(frame, 0)?, frame, 20),
            Self::NULL | Self::LOOP => loopback(frame),
            Self::PPP => {
                let from = if frame.starts_with(&[0xff, 0x03]) {
                    2
                } else {
                    0
                };
                ppp(frame, from)
            }
            _ => None,
        }
    }
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[inline]
fn ethernet(frame: &[u8]) -> Option<usize> {
    by_protocol(be16(frame, 12)?, frame, 14)
}

/// Skips tags from an `EtherType` on; `at` is where its payload begins.
#[inline]
fn by_protocol(protocol: u16, frame: &[u8], at: usize) -> Option<usize> {
    match protocol {
        0x0800 | 0x86dd => Some(at),
        _ => by_rare_protocol(protocol, frame, at),
    }
}

#[cold]
fn by_rare_protocol(mut protocol: u16, frame: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match protocol {
            0x0800 | 0x86dd => return Some(at),
            // 802.1Q, 802.1ad (QinQ) and its older numbers.
            0x8100 | 0x88a8 | 0x9100 | 0x9200 => {
                protocol = be16(frame, at + 2)?;
                at += 4;
            }
            // MPLS: labels up to the bottom of the stack, then IP.
            0x8847 | 0x8848 => {
                while frame.get(at + 2)? & 1 == 0 {
                    at += 4;
                }
                at += 4;
                return matches!(frame.get(at)? >> 4, 4 | 6).then_some(at);
            }
            // PPPoE session.
            0x8864 => return ppp(frame, at + 6),
            // A length, so 802.3: LLC and SNAP.
            length if length <= 1500 => {
                if frame.get(at..at + 6)? != [0xaa, 0xaa, 0x03, 0, 0, 0] {
                    return None;
                }
                protocol = be16(frame, at + 6)?;
                if protocol <= 1500 {
                    return None;
                }
                at += 8;
            }
            _ => return None,
        }
    }
}

fn ppp(frame: &[u8], at: usize) -> Option<usize> {
    let first = *frame.get(at)?;
    // A protocol number may be compressed to one byte, which is then odd (RFC 1661, section 6.5).
    let (protocol, length) = if first & 1 == 1 {
        (u16::from(first), 1)
    } else {
        (be16(frame, at)?, 2)
    };
    matches!(protocol, 0x21 | 0x57).then_some(at + length)
}

/// The address family of BSD loopback: 2 is IPv4 everywhere, IPv6 has many numbers.
fn loopback(frame: &[u8]) -> Option<usize> {
    let word: [u8; 4] = frame.get(..4)?.try_into().ok()?;
    let family = u32::from_le_bytes(word).min(u32::from_be_bytes(word));
    matches!(family, 2 | 10 | 24 | 28 | 30).then_some(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(prefix: &[u8], length: usize) -> Vec<u8> {
        let mut frame = prefix.to_vec();
        frame.resize(length, 0x45);
        frame
    }

    #[test]
    fn ethernet_tags_are_walked() {
        let mut frame = vec![0; 12];
        frame.extend([0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2, 0x08, 0x00]);
        assert_eq!(LinkType::ETHERNET.ip_offset(&with(&frame, 60)), Some(22));
        assert_eq!(LinkType::ETHERNET.ip_offset(&frame[..15]), None);
    }

    #[test]
    fn other_links() {
        assert_eq!(LinkType::SLL2.ip_offset(&with(&[0x08, 0x00], 40)), Some(20));
        assert_eq!(LinkType::NULL.ip_offset(&[0, 0, 0, 2]), Some(4));
        assert_eq!(LinkType::NULL.ip_offset(&[30, 0, 0, 0]), Some(4));
        assert_eq!(LinkType::RAW.ip_offset(&[]), Some(0));
        assert_eq!(LinkType::PPP.ip_offset(&[0xff, 3, 0, 0x21]), Some(4));
        assert_eq!(LinkType(105).ip_offset(&[0; 60]), None);
        let mut mpls = vec![0; 12];
        mpls.extend([0x88, 0x47, 0, 0, 0, 0, 0, 0, 1, 0, 0x45]);
        assert_eq!(LinkType::ETHERNET.ip_offset(&mpls), Some(22));
    }
}
