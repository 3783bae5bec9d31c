//! Header prediction: nearly all packets of a download are plain segments of a known connection, in order and with the
//! timestamps option alone. They take a fast path through the engine; all others take the full one, and both
//! leave the same state behind (a test compares them on every sample capture).

use crate::link::LinkType;

/// Ethernet, IPv4 without options, TCP with NOP NOP TS.
const HEADERS: usize = 14 + 20 + 32;

/// A TCP segment with ACK (and perhaps PSH) as its only flag and timestamps as its only option, in an unfragmented IPv4
/// packet on Ethernet. It stays where it is: fields are read when they are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a> {
    head: &'a [u8; HEADERS],
}

impl<'a> Plain<'a> {
    /// Reads a frame; `None` if it is not that plain.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    #[must_use]
    pub fn read(link: LinkType, frame: &'a [u8], original: u32) -> Option<Self> {
        let plain = Self {
            head: frame.first_chunk()?,
        };
        // Fields are compared several at once.
        let has = |at: usize, mask: u32, value: u32| plain.word(at) & mask == value;
        let is_plain = link == LinkType::ETHERNET
            // IPv4, header of 20 bytes; the type of service may be any.
            && has(12, 0xffff_ff00, 0x0800_4500)
            // No offset, no "more fragments"; "don't fragment" and the time to live may be any.
            && has(20, 0x3fff_00ff, u32::from(crate::ip::TCP))
            // Header of 32 bytes, ACK and perhaps PSH; the window may be any.
            && has(46, 0xfff7_0000, 0x8010_0000)
            && has(54, u32::MAX, 0x0101_080a)
            && plain.ip_bytes() >= 52
            && plain.ip_bytes() + 14 <= original;
        is_plain.then_some(plain)
    }

    #[inline]
    fn raw(self, at: usize) -> [u8; 4] {
        std::array::from_fn(|i| self.head[at + i])
    }

    #[inline]
    fn half(self, at: usize) -> u16 {
        u16::from_be_bytes([self.head[at], self.head[at + 1]])
    }

    #[inline]
    fn word(self, at: usize) -> u32 {
        u32::from_be_bytes(self.raw(at))
    }

    /// Source and destination address as on the wire.
    #[inline]
    #[must_use]
    pub fn addresses(self) -> u64 {
        u64::from(self.word(26)) << 32 | u64::from(self.word(30))
    }

    /// Source and destination port as on the wire.
    #[inline]
    #[must_use]
    pub fn ports(self) -> u32 {
        self.word(34)
    }

    /// IPv4 total length.
    #[inline]
    #[must_use]
    pub fn ip_bytes(self) -> u32 {
        self.half(16).into()
    }

    /// Payload, B.
    #[inline]
    #[must_use]
    pub fn len(self) -> u32 {
        self.ip_bytes() - 52
    }

    /// Whether the payload is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// ECN field.
    #[inline]
    #[must_use]
    pub fn ecn(self) -> u8 {
        self.head[15] & 3
    }

    /// Identification.
    #[inline]
    #[must_use]
    pub fn id(self) -> u16 {
        self.half(18)
    }

    /// Sequence number.
    #[inline]
    #[must_use]
    pub fn seq(self) -> u32 {
        self.word(38)
    }

    /// Acknowledgment number.
    #[inline]
    #[must_use]
    pub fn ack(self) -> u32 {
        self.word(42)
    }

    /// Raw window.
    #[inline]
    #[must_use]
    pub fn window(self) -> u16 {
        self.half(48)
    }

    /// TSval.
    #[inline]
    #[must_use]
    pub fn tsval(self) -> u32 {
        self.word(58)
    }

    /// TSecr.
    #[inline]
    #[must_use]
    pub fn tsecr(self) -> u32 {
        self.word(62)
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
