//! Header prediction: nearly all packets of a download are plain segments of a known connection, in order and with the
//! timestamps option alone. They take a short way through the engine; whatever is unusual takes the full one, and both
//! leave the same state behind (a test compares them on every sample capture).

use crate::link::LinkType;

/// Ethernet, IPv4 without options, TCP with NOP NOP TS.
const HEADERS: usize = 14 + 20 + 32;

/// A TCP segment with ACK (and perhaps PSH) as its only flag and timestamps as its only option, in an unfragmented IPv4
/// packet on Ethernet.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    /// Source and destination address as on the wire.
    pub addresses: u64,
    /// Source and destination port as on the wire.
    pub ports: u32,
    /// IPv4 total length.
    pub ip_bytes: u32,
    /// ECN field.
    pub ecn: u8,
    /// Identification.
    pub id: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Raw window.
    pub window: u16,
    /// Payload, B.
    pub len: u32,
    /// TSval.
    pub tsval: u32,
    /// TSecr.
    pub tsecr: u32,
}

impl Plain {
    /// Reads a frame; `None` where it is not that plain.
    #[inline]
    #[must_use]
    pub fn read(link: LinkType, frame: &[u8], original: u32) -> Option<Self> {
        let head = frame.first_chunk::<HEADERS>()?;
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let ip_bytes = u32::from(half(16));
        // Offset and "more fragments"; "don't fragment" does not matter.
        let is_fragment = half(20) << 2 != 0;
        let is_plain = link == LinkType::ETHERNET
            && half(12) == 0x0800
            && head[14] == 0x45
            && !is_fragment
            && head[23] == crate::ip::TCP
            && half(46) & 0xfff7 == 0x8010
            && word(54) == 0x0101_080a
            && ip_bytes >= 52
            && ip_bytes + 14 <= original;
        if !is_plain {
            return None;
        }
        Some(Self {
            addresses: u64::from(word(26)) << 32 | u64::from(word(30)),
            ports: word(34),
            ip_bytes,
            ecn: head[15] & 3,
            id: half(18),
            seq: word(38),
            ack: word(42),
            window: half(48),
            len: ip_bytes - 52,
            tsval: word(58),
            tsecr: word(62),
        })
    }

    /// A slot in a table of `2^bits` entries; the two directions of a connection have their own.
    #[inline]
    #[must_use]
    pub fn slot(addresses: u64, ports: u32, bits: u32) -> usize {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio
        let mixed = (addresses ^ u64::from(ports).rotate_left(24)).wrapping_mul(MIX);
        #[expect(clippy::cast_possible_truncation, reason = "few bits are left")]
        ((mixed >> (64 - bits)) as usize)
    }
}
