//! IP packets with TCP segments: read and written. ICMP errors: read.
//!
//! Sources: RFC 791, RFC 8200 (IP), RFC 9293 (TCP), RFC 7323 (window scale), RFC 792, RFC 4443 (ICMP).

use std::net::IpAddr;

use crate::segment::{Outgoing, Segment};

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
const TTL: u8 = 64;
/// No flow is longer on its way than this many bytes of headers.
const TCP_HEADER: usize = 20;

/// One end's view of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The server.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Our port.
    pub local_port: u16,
}

/// What a packet to us is.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// A TCP segment.
    Segment(Peer, Segment<'a>),
    /// An ICMP error about a segment of ours; whether the port is meant.
    Unreachable(Peer, bool),
}

/// Whether a checksum is to be verified; a packet that never left this host may have none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Verify it.
    Verify,
    /// The kernel has verified it, or it is not filled in.
    Trust,
}

/// Reads an IP packet to `us`. `None`: not for us, not TCP, malformed, or corrupt.
///
/// `packet` may be truncated behind its headers (segments that a device merged).
#[must_use]
pub fn parse(packet: &[u8], us: IpAddr, checksum: Checksum) -> Option<Parsed<'_>> {
    let (from, to, protocol, length, payload) = match packet.first()? >> 4 {
        4 => parse_v4(packet)?,
        6 => parse_v6(packet)?,
        _ => return None,
    };
    if to != us {
        return None;
    }
    match protocol {
        TCP => {
            let whole = payload.len() == length;
            if checksum == Checksum::Verify && whole && !is_intact(from, to, payload) {
                return None;
            }
            parse_tcp(from, payload, length)
        }
        ICMP if from.is_ipv4() => parse_icmp(payload, 3, 3),
        ICMP6 if from.is_ipv6() => parse_icmp(payload, 1, 4),
        _ => None,
    }
}

type Ip<'a> = (IpAddr, IpAddr, u8, usize, &'a [u8]);

fn parse_v4(packet: &[u8]) -> Option<Ip<'_>> {
    let fixed: &[u8; 20] = packet.first_chunk()?;
    let header = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
    if header < 20 || total < header || fragment {
        return None;
    }
    let address = |at: usize| {
        let bytes: [u8; 4] = fixed[at..at + 4].try_into().unwrap_or_default();
        IpAddr::from(bytes)
    };
    let payload = packet.get(header..total.min(packet.len()))?;
    Some((address(12), address(16), fixed[9], total - header, payload))
}

fn parse_v6(packet: &[u8]) -> Option<Ip<'_>> {
    let fixed: &[u8; 40] = packet.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    let address = |at: usize| {
        let bytes: [u8; 16] = fixed[at..at + 16].try_into().unwrap_or_default();
        IpAddr::from(bytes)
    };
    let payload = packet.get(40..(40 + length).min(packet.len()))?;
    Some((address(8), address(24), fixed[6], length, payload))
}

fn parse_tcp(from: IpAddr, bytes: &[u8], length: usize) -> Option<Parsed<'_>> {
    let fixed: &[u8; TCP_HEADER] = bytes.first_chunk()?;
    let header = usize::from(fixed[12] >> 4) * 4;
    if header < TCP_HEADER || header > bytes.len() || header > length {
        return None;
    }
    let peer = Peer {
        address: from,
        port: u16::from_be_bytes([fixed[0], fixed[1]]),
        local_port: u16::from_be_bytes([fixed[2], fixed[3]]),
    };
    let mut segment = Segment {
        seq: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
        ack: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
        flags: fixed[13],
        mss: None,
        scale: None,
        length: u32::try_from(length - header).ok()?,
        payload: &bytes[header..],
        merged: false,
    };
    read_options(&bytes[TCP_HEADER..header], &mut segment);
    Some(Parsed::Segment(peer, segment))
}

fn read_options(mut options: &[u8], segment: &mut Segment) {
    while let [kind, rest @ ..] = options {
        match (kind, rest) {
            (0, _) => return,
            (1, _) => options = rest,
            (_, [size, ..]) if (2..=options.len()).contains(&usize::from(*size)) => {
                match &options[..usize::from(*size)] {
                    [2, 4, high, low] => segment.mss = Some(u16::from_be_bytes([*high, *low])),
                    [3, 3, shift] => segment.scale = Some(*shift),
                    _ => {}
                }
                options = &options[usize::from(*size)..];
            }
            _ => return,
        }
    }
}

/// An ICMP "destination unreachable" quotes our IP and TCP headers.
fn parse_icmp(bytes: &[u8], unreachable: u8, port_code: u8) -> Option<Parsed<'_>> {
    let (head, quoted) = bytes.split_at_checked(8)?;
    if head[0] != unreachable {
        return None;
    }
    let (_, to, protocol, _, ports) = match quoted.first()? >> 4 {
        4 => parse_v4(quoted)?,
        6 => parse_v6(quoted)?,
        _ => return None,
    };
    let &[a, b, c, d, ..] = ports else {
        return None;
    };
    let peer = Peer {
        address: to,
        port: u16::from_be_bytes([c, d]),
        local_port: u16::from_be_bytes([a, b]),
    };
    (protocol == TCP).then_some(Parsed::Unreachable(peer, head[1] == port_code))
}

/// Appends an IP packet with a segment to `peer`.
pub fn write(us: IpAddr, peer: &Peer, segment: &Outgoing, out: &mut Vec<u8>) {
    let options = if segment.syn.is_some() { 8 } else { 0 };
    let length = TCP_HEADER + options + segment.payload.len();
    write_ip(us, peer.address, length, out);
    let start = out.len();
    out.extend_from_slice(&peer.local_port.to_be_bytes());
    out.extend_from_slice(&peer.port.to_be_bytes());
    out.extend_from_slice(&segment.seq.to_be_bytes());
    out.extend_from_slice(&segment.ack.to_be_bytes());
    let words = if options == 0 { 5 } else { 7 };
    out.extend_from_slice(&[words << 4, segment.flags]);
    out.extend_from_slice(&segment.window.to_be_bytes());
    out.extend_from_slice(&[0; 4]); // checksum, urgent pointer
    if let Some(syn) = segment.syn {
        let [high, low] = syn.mss.to_be_bytes();
        out.extend_from_slice(&[2, 4, high, low, 1, 3, 3, syn.scale]);
    }
    out.extend_from_slice(segment.payload);
    let sum = !fold(pseudo(us, peer.address, length) + add(&out[start..]));
    out[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
}

fn write_ip(from: IpAddr, to: IpAddr, length: usize, out: &mut Vec<u8>) {
    let start = out.len();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(20 + length).unwrap_or(u16::MAX).to_be_bytes();
            out.extend_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, TCP, 0, 0]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
            let sum = !fold(add(&out[start..]));
            out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let size = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
            out.extend_from_slice(&[0x60, 0, 0, 0, size[0], size[1], TCP, TTL]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        _ => {}
    }
}

fn is_intact(from: IpAddr, to: IpAddr, segment: &[u8]) -> bool {
    fold(pseudo(from, to, segment.len()) + add(segment)) == 0xffff
}

/// The sum of a pseudo header.
fn pseudo(from: IpAddr, to: IpAddr, length: usize) -> u64 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => add(&address.octets()),
        IpAddr::V6(address) => add(&address.octets()),
    };
    address(from) + address(to) + u64::from(TCP) + length as u64
}

/// Ones' complement sum of 16-bit words (RFC 1071), not folded.
fn add(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(last));
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{ACK, Announced, SYN};
    use proptest::prelude::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ends(ipv6: bool) -> (IpAddr, Peer) {
        let (us, them) = if ipv6 {
            ("fd00:198:18::1", "fd00:198:18::2")
        } else {
            ("198.18.0.1", "198.18.0.2")
        };
        let peer = Peer {
            address: address(them),
            port: 80,
            local_port: 4711,
        };
        (address(us), peer)
    }

    #[test]
    fn a_syn_byte_by_byte() {
        let (us, peer) = ends(false);
        let mut packet = Vec::new();
        let segment = Outgoing {
            seq: 0x0102_0304,
            ack: 0,
            flags: SYN,
            window: 65_535,
            syn: Some(Announced { mss: 64, scale: 3 }),
            payload: &[],
        };
        write(us, &peer, &segment, &mut packet);
        let ip = "45000030 00004000 4006aea0 c6120001 c6120002"; // checksum computed by hand
        let tcp = "12670050 01020304 00000000 7002ffff";
        let hex = |from: usize, to: usize| {
            let words = packet[from..to].as_chunks::<4>().0;
            let words = words
                .iter()
                .map(|word| format!("{:08x}", u32::from_be_bytes(*word)));
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(hex(0, 8), ip[..17]);
        assert_eq!(hex(12, 20), ip[27..]);
        assert_eq!(hex(20, 36), tcp);
        assert_eq!(hex(40, 48), "02040040 01030303");
        assert_eq!(fold(add(&packet[..20])), 0xffff);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            ipv6: bool, seq: u32, ack: u32, flags in 0_u8..64, window: u16,
            payload in prop::collection::vec(any::<u8>(), 0..80), mss in prop::option::of(any::<u16>()),
        ) {
            let (us, peer) = ends(ipv6);
            let mut packet = Vec::new();
            let syn = mss.map(|mss| Announced { mss, scale: 3 });
            let outgoing = Outgoing { seq, ack, flags, window, syn, payload: &payload };
            write(us, &peer, &outgoing, &mut packet);
            // Read as the other end would.
            let parsed = parse(&packet, peer.address, Checksum::Verify);
            let Some(Parsed::Segment(back, segment)) = parsed else {
                panic!("not read");
            };
            prop_assert_eq!(back, Peer { address: us, port: peer.local_port, local_port: peer.port });
            prop_assert_eq!((segment.seq, segment.ack, segment.flags), (seq, ack, flags));
            prop_assert_eq!((segment.mss, segment.scale), (mss, mss.map(|_| 3)));
            prop_assert_eq!((segment.payload, segment.length as usize), (&payload[..], payload.len()));
            for at in 0..packet.len() {
                let mut corrupt = packet.clone();
                corrupt[at] ^= 1;
                let parsed = parse(&corrupt, peer.address, Checksum::Verify);
                let ip = if ipv6 { 8 } else { 12 }; // the rest of an IP header is not summed up by us
                prop_assert!(parsed.is_none() || at < ip);
            }
        }

        #[test]
        fn anything_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), first in 0x45_u8..0x61) {
            let mut packet = bytes;
            if let Some(byte) = packet.first_mut() {
                *byte = first;
            }
            let _ = parse(&packet, address("198.18.0.1"), Checksum::Trust);
        }
    }

    #[test]
    fn icmp_about_our_syn() {
        let (us, peer) = ends(false);
        let segment = Outgoing {
            seq: 1,
            ack: 0,
            flags: ACK,
            window: 0,
            syn: None,
            payload: &[],
        };
        let mut quoted = Vec::new();
        write(us, &peer, &segment, &mut quoted);
        for (code, port) in [(1, false), (3, true)] {
            let mut packet = vec![
                0x45, 0, 0, 56, 0, 0, 0, 0, 64, ICMP, 0, 0, 198, 19, 0, 9, 198, 18, 0, 1,
            ];
            packet.extend_from_slice(&[3, code, 0, 0, 0, 0, 0, 0]);
            packet.extend_from_slice(&quoted[..28]);
            let parsed = parse(&packet, us, Checksum::Verify);
            assert!(
                matches!(parsed, Some(Parsed::Unreachable(to, at)) if to == peer && at == port)
            );
        }
    }
}
