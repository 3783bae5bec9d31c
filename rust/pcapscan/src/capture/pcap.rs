//! The classic pcap format: microseconds or nanoseconds, both byte orders.
//!
//! Source: draft-ietf-opsawg-pcap; `wiretap/libpcap.c` of Wireshark 4.0 for the limit on record lengths.

use super::frame::{LARGEST_RECORD, Next, Raw};
use super::window::Window;
use crate::link::LinkType;

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// What a pcap file's header says.
#[derive(Debug, Clone, Copy)]
pub struct Pcap {
    big_endian: bool,
    /// Nanoseconds per unit of the fraction field.
    fraction_ns: i64,
    /// The link type of all packets.
    pub link: LinkType,
    largest: u32,
}

impl Pcap {
    /// Whether these first bytes begin a pcap file.
    #[must_use]
    pub fn recognises(head: &[u8]) -> bool {
        head.len() >= 4 && Self::magic(head).is_some()
    }

    fn magic(head: &[u8]) -> Option<(bool, i64)> {
        match [head[0], head[1], head[2], head[3]] {
            [0xa1, 0xb2, 0xc3, 0xd4] => Some((true, 1000)),
            [0xd4, 0xc3, 0xb2, 0xa1] => Some((false, 1000)),
            [0xa1, 0xb2, 0x3c, 0x4d] => Some((true, 1)),
            [0x4d, 0x3c, 0xb2, 0xa1] => Some((false, 1)),
            _ => None,
        }
    }

    /// Parses the file header and moves past it; `None` if it is cut.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub fn open(window: &mut Window) -> std::io::Result<Option<Self>> {
        if !window.ensure(FILE_HEADER)? {
            return Ok(None);
        }
        let head = window.take(FILE_HEADER);
        let Some((big_endian, fraction_ns)) = Self::magic(head) else {
            return Ok(None);
        };
        let number = |at: usize| {
            let word = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            if big_endian {
                u32::from_be_bytes(word)
            } else {
                u32::from_le_bytes(word)
            }
        };
        // The upper bits tell about the frame check sequence.
        let link = LinkType(number(20) & 0x03ff_ffff);
        Ok(Some(Self {
            big_endian,
            fraction_ns,
            link,
            largest: LARGEST_RECORD.max(number(16).min(1 << 24)),
        }))
    }

    /// Takes the first record off `rest` where it is there as a whole.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "as a call it would copy its result, which costs more than the parsing"
    )]
    pub fn split<'w>(&self, rest: &mut &'w [u8]) -> Option<Raw<'w>> {
        let (captured, original, time_ns) = self.header(rest)?;
        if captured > self.largest {
            return None;
        }
        let (record, behind) = rest.split_at_checked(RECORD_HEADER + captured as usize)?;
        *rest = behind;
        Some(Raw {
            time_ns,
            // Some writers leave the original length 0 or too small.
            original: original.max(captured),
            link: self.link,
            data: &record[RECORD_HEADER..],
        })
    }

    /// Captured length, original length and time of a record.
    #[inline]
    fn header(&self, bytes: &[u8]) -> Option<(u32, u32, i64)> {
        let head = bytes.first_chunk::<RECORD_HEADER>()?;
        // Two words at a time: one swap of 64 bits does for both.
        let pair = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
        let (time, lengths) = if self.big_endian {
            (
                u64::from_be(pair(0)).rotate_left(32),
                u64::from_be(pair(8)).rotate_left(32),
            )
        } else {
            (u64::from_le(pair(0)), u64::from_le(pair(8)))
        };
        let (seconds, fraction) = halves(time);
        let (captured, original) = halves(lengths);
        let time_ns = i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * self.fraction_ns;
        Some((captured, original, time_ns))
    }

    /// The next record.
    pub fn next_record<'w>(&self, window: &'w mut Window) -> Next<'w> {
        match window.ensure(RECORD_HEADER) {
            Ok(true) => {}
            Ok(false) if window.bytes().is_empty() => return Next::End,
            Ok(false) => return Next::Cut("the file ends inside a record header".into()),
            Err(error) => return Next::Cut(error.to_string()),
        }
        let Some((captured, original, time_ns)) = self.header(window.bytes()) else {
            return Next::End;
        };
        if captured > self.largest {
            return Next::Cut(format!(
                "a record claims {captured} bytes, so the file is damaged"
            ));
        }
        match window.ensure(RECORD_HEADER + captured as usize) {
            Ok(true) => Next::Packet(Raw {
                time_ns,
                original: original.max(captured),
                link: self.link,
                data: &window.take(RECORD_HEADER + captured as usize)[RECORD_HEADER..],
            }),
            Ok(false) => Next::Cut("the file ends inside a record".into()),
            Err(error) => Next::Cut(error.to_string()),
        }
    }
}

/// The lower and the upper half of a word.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
