//! Reading IP headers, and marking Congestion Experienced.
//!
//! Sources: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 3168 (ECN), RFC 1624 (incremental checksum).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

const IPV6_FRAGMENT: u8 = 44;
const IPV6_AUTHENTICATION: u8 = 51;
const MAX_EXTENSION_HEADERS: usize = 8;
const TCP_SYN: u8 = 0x02;

/// A directed flow: the 5-tuple as it stands in the packet.
///
/// The ports are 0 for fragments and for every protocol but TCP and UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IP protocol number (for IPv6: of the first header that is not an extension).
    pub protocol: u8,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
}

/// The two ECN bits of the IP header (RFC 3168, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable transport.
    NotEct,
    /// ECT(1).
    Ect1,
    /// ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    fn from_bits(octet: u8) -> Self {
        match octet & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }

    /// Whether an AQM may mark this packet instead of dropping it.
    #[must_use]
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }
}

/// What the emulator needs to know of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The directed flow.
    pub flow: FlowKey,
    /// The ECN bits.
    pub ecn: Ecn,
    /// The initial sequence number, if this is a TCP segment with SYN set (SYN or SYN-ACK).
    pub syn_isn: Option<u32>,
    /// Whether this is a TCP segment with payload.
    pub has_payload: bool,
}

impl Header {
    /// Whether this is link-local, multicast, broadcast or unsourced chatter, which the lab never carries.
    #[must_use]
    pub fn is_chatter(&self) -> bool {
        let FlowKey { src, dst, .. } = self.flow;
        dst.is_multicast() || src.is_unspecified() || is_local_only(src) || is_local_only(dst)
    }
}

fn is_local_only(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Reads the headers of one IP packet. `None`: not a well-formed IPv4 or IPv6 packet of exactly this length.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Header> {
    match packet.first()? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => None,
    }
}

fn parse_v4(packet: &[u8]) -> Option<Header> {
    let fixed = packet.get(..20)?;
    let header_length = usize::from(fixed[0] & 0x0f) * 4;
    let total_length = usize::from(be16(fixed, 2)?);
    if header_length < 20 || total_length != packet.len() || header_length > total_length {
        return None;
    }
    let fragment = be16(fixed, 6)? & 0x3fff != 0;
    let src = Ipv4Addr::from_bits(be32(fixed, 12)?);
    let dst = Ipv4Addr::from_bits(be32(fixed, 16)?);
    let payload = if fragment {
        &[]
    } else {
        &packet[header_length..]
    };
    let ecn = Ecn::from_bits(fixed[1]);
    Some(with_transport(
        src.into(),
        dst.into(),
        fixed[9],
        ecn,
        payload,
    ))
}

fn parse_v6(packet: &[u8]) -> Option<Header> {
    let fixed = packet.get(..40)?;
    if usize::from(be16(fixed, 4)?) + 40 != packet.len() {
        return None;
    }
    let src = Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[8..24]).ok()?);
    let dst = Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[24..40]).ok()?);
    let (protocol, payload) = skip_extensions(fixed[6], &packet[40..]);
    let ecn = Ecn::from_bits(fixed[1] >> 4);
    Some(with_transport(
        src.into(),
        dst.into(),
        protocol,
        ecn,
        payload,
    ))
}

/// Skips IPv6 extension headers. Stops at a fragment header, as fragments have no usable ports.
fn skip_extensions(mut next: u8, mut rest: &[u8]) -> (u8, &[u8]) {
    for _ in 0..MAX_EXTENSION_HEADERS {
        if !matches!(next, 0 | 43 | IPV6_FRAGMENT | IPV6_AUTHENTICATION | 60) {
            return (next, rest);
        }
        let &[following, size, ..] = rest else {
            return (next, &[]);
        };
        if next == IPV6_FRAGMENT {
            return (following, &[]);
        }
        let length = if next == IPV6_AUTHENTICATION {
            (usize::from(size) + 2) * 4
        } else {
            (usize::from(size) + 1) * 8
        };
        next = following;
        rest = rest.get(length..).unwrap_or(&[]);
    }
    (next, &[])
}

fn with_transport(src: IpAddr, dst: IpAddr, protocol: u8, ecn: Ecn, payload: &[u8]) -> Header {
    let ports = match protocol {
        TCP | UDP => be16(payload, 0).zip(be16(payload, 2)),
        _ => None,
    };
    let (sport, dport) = ports.unwrap_or((0, 0));
    let has_payload = protocol == TCP
        && payload.get(12).is_some_and(|offset| {
            let header_length = usize::from(offset >> 4) * 4;
            header_length >= 20 && payload.len() > header_length
        });
    let is_syn = protocol == TCP && payload.get(13).is_some_and(|flags| flags & TCP_SYN != 0);
    Header {
        flow: FlowKey {
            src,
            dst,
            protocol,
            sport,
            dport,
        },
        ecn,
        syn_isn: if is_syn { be32(payload, 4) } else { None },
        has_payload,
    }
}

/// Sets Congestion Experienced in place, as [`set_ecn`].
pub fn mark_ce(packet: &mut [u8]) {
    set_ecn(packet, Ecn::Ce);
}

/// The ECN bits of an IP packet; `None` for anything else.
#[must_use]
pub fn ecn_of(packet: &[u8]) -> Option<Ecn> {
    match packet {
        [first, second, ..] if *first >> 4 == 4 => Some(Ecn::from_bits(*second)),
        [first, second, ..] if *first >> 4 == 6 => Some(Ecn::from_bits(*second >> 4)),
        _ => None,
    }
}

/// Where the TCP header of an IP packet is, options included. `None`: not a whole TCP header right behind the IP header.
#[must_use]
pub fn tcp_header(packet: &[u8]) -> Option<Range<usize>> {
    let (protocol, is_fragment, start) = match packet.first()? >> 4 {
        4 => (
            *packet.get(9)?,
            be16(packet, 6)? & 0x3fff != 0,
            usize::from(packet[0] & 0x0f) * 4,
        ),
        6 => (*packet.get(6)?, false, 40),
        _ => return None,
    };
    if protocol != TCP || is_fragment {
        return None;
    }
    let length = usize::from(*packet.get(start + 12)? >> 4) * 4;
    let whole = start..start + length;
    (length >= 20 && packet.len() >= whole.end).then_some(whole)
}

/// Sets the ECN bits in place; an IPv4 header checksum that was right stays right.
///
/// The packet must have passed [`parse`]; anything else is left alone.
pub fn set_ecn(packet: &mut [u8], ecn: Ecn) {
    match packet {
        [first, tos, _, _, _, _, _, _, _, _, sum_high, sum_low, ..] if *first >> 4 == 4 => {
            let before = u16::from_be_bytes([*first, *tos]);
            *tos = *tos & !3 | ecn.bits();
            let after = u16::from_be_bytes([*first, *tos]);
            let sum = update_checksum(u16::from_be_bytes([*sum_high, *sum_low]), before, after);
            [*sum_high, *sum_low] = sum.to_be_bytes();
        }
        [first, second, ..] if *first >> 4 == 6 => {
            *second = *second & !0x30 | ecn.bits() << 4;
        }
        _ => {}
    }
}

/// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
pub(crate) fn update_checksum(sum: u16, before: u16, after: u16) -> u16 {
    let mut total = u32::from(!sum) + u32::from(!before) + u32::from(after);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    !u16::try_from(total).unwrap_or(u16::MAX)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let slice = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(slice.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let slice = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(slice.try_into().ok()?))
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
