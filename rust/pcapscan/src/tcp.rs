//! TCP headers and options.

use crate::ip::saturated;

/// Flag bits of bytes 12 and 13 of the header (RFC 9293, section 3.1; AE: RFC 9768).
pub mod flag {
    /// FIN.
    pub const FIN: u16 = 0x001;
    /// SYN.
    pub const SYN: u16 = 0x002;
    /// RST.
    pub const RST: u16 = 0x004;
    /// ACK.
    pub const ACK: u16 = 0x010;
    /// ECE (ECN echo).
    pub const ECE: u16 = 0x040;
    /// CWR (congestion window reduced).
    pub const CWR: u16 = 0x080;
    /// AE (accurate ECN).
    pub const AE: u16 = 0x100;
}

/// SACK blocks that fit the option space (RFC 2018, section 3).
pub const MOST_SACK_BLOCKS: usize = 4;

/// A TCP segment without its payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Segment<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number, also where the ACK flag is not set.
    pub ack: u32,
    /// Flags, see [`flag`].
    pub flags: u16,
    /// Window as in the header.
    pub window: u16,
    /// Payload, B.
    pub len: u32,
    /// Whether the packet is long enough for its own header; else it is not analysed.
    pub has_len: bool,
    /// Whether the header says at least 20 bytes.
    pub has_options: bool,
    /// Whether the capture ends inside the header, before its options are over.
    pub is_cut: bool,
    /// Options.
    pub options: Options<'a>,
}

/// TCP options.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// TSval, TSecr (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// Maximum segment size, B (RFC 9293, section 3.7.1).
    pub mss: Option<u16>,
    /// Window scale shift as sent (RFC 7323, section 2.2).
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018).
    pub sack_permitted: bool,
    /// SACK blocks as on the wire, see [`Options::sack_blocks`]; empty if there are none.
    pub sack: &'a [u8],
    /// An `AccECN` option (RFC 9768, section 3.2.3; kinds 172 and 174).
    pub acc_ecn: bool,
    /// MPTCP operations (RFC 8684) as bits in the order of Wireshark's `mp_operations`.
    pub mptcp: u8,
}

impl Segment<'_> {
    /// Whether any of these flags is set.
    #[inline]
    #[must_use]
    pub fn any(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Sequence space that the segment takes: payload, SYN and FIN.
    #[inline]
    #[must_use]
    pub fn space(&self) -> u32 {
        self.len + u32::from(self.any(flag::SYN)) + u32::from(self.any(flag::FIN))
    }
}

/// Parses a segment of `length` bytes of which `bytes` were captured; false where the fixed header is cut.
///
/// It fills a segment instead of returning one: copies of it would cost more than the parsing.
#[inline]
pub fn parse<'a>(bytes: &'a [u8], length: u32, segment: &mut Segment<'a>) -> bool {
    let Some(head) = bytes.first_chunk::<16>() else {
        return false;
    };
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let header = usize::from(head[12] >> 4) * 4;
    segment.source_port = half(0);
    segment.destination_port = half(2);
    segment.seq = word(4);
    segment.ack = word(8);
    segment.flags = half(12) & 0x1ff;
    segment.window = half(14);
    segment.len = length.saturating_sub(saturated(header));
    segment.has_len = length >= saturated(header);
    segment.has_options = header >= 20;
    if header > 20
        && segment.has_len
        && let Some(options) = bytes.get(20..header.min(bytes.len()))
    {
        let is_over = segment.options.parse(options);
        segment.is_cut = header > bytes.len() && !is_over;
    } else {
        segment.is_cut = bytes.len() < 20.max(header);
    }
    true
}

impl<'a> Options<'a> {
    /// The SACK blocks: left and right edges.
    #[must_use = "it only looks"]
    pub fn sack_blocks(&self) -> impl ExactSizeIterator<Item = (u32, u32)> {
        let (blocks, _) = self.sack.as_chunks::<8>();
        blocks.iter().map(|block| pair(*block))
    }

    /// Whether the options were over before their bytes were.
    #[inline]
    fn parse(&mut self, bytes: &'a [u8]) -> bool {
        // Nearly every segment of a Linux host has NOP NOP TS and nothing else.
        if let Some(plain) = bytes.first_chunk::<12>()
            && bytes.len() == 12
            && plain[..4] == [1, 1, 8, 10]
        {
            let word = |at: usize| {
                u32::from_be_bytes([plain[at], plain[at + 1], plain[at + 2], plain[at + 3]])
            };
            self.timestamps = Some((word(4), word(8)));
            return false;
        }
        self.parse_options(bytes)
    }

    #[cold]
    fn parse_options(&mut self, mut bytes: &'a [u8]) -> bool {
        while let [kind, after @ ..] = bytes {
            match kind {
                0 => return true,
                1 => {
                    bytes = after;
                    continue;
                }
                _ => {}
            }
            let Some(&length) = after.first() else {
                return false;
            };
            let length = usize::from(length);
            if length < 2 || length > bytes.len() {
                return length < 2;
            }
            self.one(*kind, &bytes[2..length]);
            bytes = &bytes[length..];
        }
        false
    }

    fn one(&mut self, kind: u8, value: &'a [u8]) {
        match (kind, value) {
            (2, [high, low]) => self.mss = Some(u16::from_be_bytes([*high, *low])),
            (3, [shift]) => self.window_scale = Some(*shift),
            (4, []) => self.sack_permitted = true,
            (5, blocks) => self.sack = &blocks[..blocks.len().min(MOST_SACK_BLOCKS * 8) / 8 * 8],
            (8, value) if value.len() == 8 => {
                self.timestamps = value.first_chunk().map(|value| pair(*value));
            }
            (30, [first, ..]) => {
                // MP_CAPABLE, MP_JOIN, DSS, ADD_ADDR, REMOVE_ADDR, MP_PRIO, MP_FAIL, MP_FASTCLOSE.
                self.mptcp |= 1u8.checked_shl(u32::from(first >> 4)).unwrap_or(0);
            }
            (172 | 174, _) => self.acc_ecn = true,
            _ => {}
        }
    }
}

#[inline]
fn pair(bytes: [u8; 8]) -> (u32, u32) {
    let both = u64::from_be_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
    ((both >> 32) as u32, both as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_syn() {
        let mut bytes = vec![0; 20];
        bytes[12] = 0xa0;
        bytes[13] = 0x02;
        bytes.extend([
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
        ]);
        let mut segment = Segment::default();
        assert!(parse(&bytes, 40, &mut segment));
        assert_eq!(segment.options.mss, Some(1460));
        assert!(segment.options.sack_permitted);
        assert_eq!(segment.options.timestamps, Some((9, 0)));
        assert_eq!(segment.options.window_scale, Some(7));
        assert_eq!((segment.len, segment.space()), (0, 1));
    }

    #[test]
    fn cut_and_bogus_options_are_harmless() {
        for length in 0..=8 {
            let mut options = Options::default();
            options.parse_options(&[5, 34, 0, 0, 0, 1, 0, 0][..length]);
            assert_eq!(options.sack_blocks().len(), 0);
        }
        let mut options = Options::default();
        options.parse_options(&[3, 0, 7]);
        assert_eq!(options.window_scale, None);
    }
}
