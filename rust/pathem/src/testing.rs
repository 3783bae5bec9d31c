//! Packets and paths for the unit tests.

use crate::config::{self, Config};
use crate::packet::{TCP, UDP};
use std::net::Ipv4Addr;

/// An IPv4 UDP packet of this many bytes in all (at least 28).
pub fn udp_v4(src: &str, dst: &str, sport: u16, dport: u16, tos: u8, length: usize) -> Vec<u8> {
    let mut packet = ipv4(src, dst, UDP, tos, length);
    packet[20..22].copy_from_slice(&sport.to_be_bytes());
    packet[22..24].copy_from_slice(&dport.to_be_bytes());
    packet
}

/// An IPv4 TCP segment of 40 bytes.
pub fn tcp_v4(
    src: &str,
    dst: &str,
    sport: u16,
    dport: u16,
    flags: u8,
    sequence: u32,
    tos: u8,
) -> Vec<u8> {
    let mut packet = ipv4(src, dst, TCP, tos, 40);
    packet[20..22].copy_from_slice(&sport.to_be_bytes());
    packet[22..24].copy_from_slice(&dport.to_be_bytes());
    packet[24..28].copy_from_slice(&sequence.to_be_bytes());
    packet[33] = flags;
    packet
}

/// An IPv6 UDP packet from `fd00:198:18:1::1` to `fd00:198:18:2::2`.
pub fn udp_v6(sport: u16, dport: u16, ecn: u8, length: usize) -> Vec<u8> {
    let mut packet = vec![0u8; length];
    packet[0] = 0x60;
    packet[1] = ecn << 4 | 0x05;
    packet[4..6].copy_from_slice(&u16::try_from(length - 40).expect("short").to_be_bytes());
    packet[6] = UDP;
    packet[8..16].copy_from_slice(&[0xfd, 0, 0x01, 0x98, 0, 0x18, 0, 1]);
    packet[23] = 1;
    packet[24..32].copy_from_slice(&[0xfd, 0, 0x01, 0x98, 0, 0x18, 0, 2]);
    packet[39] = 2;
    packet[40..42].copy_from_slice(&sport.to_be_bytes());
    packet[42..44].copy_from_slice(&dport.to_be_bytes());
    packet
}

/// A TCP segment with these flags, ECN bits and options (whole words), window 64,240 and right checksums.
pub fn tcp_syn(flags: u8, ecn: u8, options: &[u8]) -> Vec<u8> {
    let mut packet = ipv4("198.18.1.1", "198.18.2.2", TCP, ecn, 40 + options.len());
    packet[20..24].copy_from_slice(&[0x0f, 0xa0, 1, 187]);
    packet[32] = u8::try_from(5 + options.len() / 4).expect("short") << 4;
    packet[33] = flags;
    packet[34..36].copy_from_slice(&64_240u16.to_be_bytes());
    packet[40..].copy_from_slice(options);
    let sum = !tcp_sum(&packet);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Whether a TCP segment in an IPv4 packet without IP options has the right checksum.
pub fn tcp_checksum_is_right(packet: &[u8]) -> bool {
    tcp_sum(packet) == 0xffff
}

/// RFC 9293, section 3.1: over the addresses, the protocol, the length and the segment.
fn tcp_sum(packet: &[u8]) -> u16 {
    let length = u16::try_from(packet.len() - 20).expect("short");
    let mut bytes = packet[12..].to_vec();
    bytes.extend_from_slice(&[0, TCP]);
    bytes.extend_from_slice(&length.to_be_bytes());
    ones_sum(&bytes)
}

fn ipv4(src: &str, dst: &str, protocol: u8, tos: u8, length: usize) -> Vec<u8> {
    let mut packet = vec![0u8; length];
    packet[0] = 0x45;
    packet[1] = tos;
    packet[2..4].copy_from_slice(&u16::try_from(length).expect("short").to_be_bytes());
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&src.parse::<Ipv4Addr>().expect("address").octets());
    packet[16..20].copy_from_slice(&dst.parse::<Ipv4Addr>().expect("address").octets());
    let sum = !ones_sum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Whether an IPv4 header of 20 bytes has the right checksum.
pub fn checksum_is_right(packet: &[u8]) -> bool {
    ones_sum(&packet[..20]) == 0xffff
}

fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// Two nodes, `a` (198.18.1.1) and `b` (198.18.2.2), with these pairs.
pub fn two_nodes(pairs: &str) -> Config {
    let text = format!(
        r#"{{"schema":1,"nodes":[
        {{"name":"a","netns":"/n/a","device":"tun0","addresses":["198.18.1.1","fd00:198:18:1::1"]}},
        {{"name":"b","netns":"/n/b","device":"tun0","addresses":["198.18.2.2","fd00:198:18:2::2"]}}],
        "pairs":[{pairs}]}}"#
    );
    config::parse(&text).expect("a good configuration")
}
