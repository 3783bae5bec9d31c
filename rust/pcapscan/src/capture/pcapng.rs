//! The pcapng format: sections, interfaces with their own link type and time resolution, packets.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 to 4.4; `wiretap/pcapng.c` of Wireshark 4.0 for the block types
//! that count as frames.

use super::frame::{LARGEST_RECORD, Next, Raw};
use super::window::Window;
use crate::link::LinkType;
use std::io;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Block types without packets that Wireshark numbers as frames: systemd journal, sysdig events, custom blocks.
const OTHER_FRAMES: [u32; 7] = [9, 0x204, 0x208, 0x216, 0x221, 0xbad, 0x4000_0bad];
/// A section may describe many interfaces, a hostile file endlessly many.
const MOST_INTERFACES: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: LinkType,
    snap_length: u32,
    units_per_second: u64,
    offset_s: i64,
}

/// State of a pcapng reader.
#[derive(Debug, Default)]
pub struct Pcapng {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

impl Pcapng {
    /// Whether these first bytes begin a pcapng file.
    #[must_use]
    pub fn recognises(head: &[u8]) -> bool {
        head.len() >= 12
            && head[..4] == SECTION_HEADER.to_be_bytes()
            && (head[8..12] == [0x1a, 0x2b, 0x3c, 0x4d] || head[8..12] == [0x4d, 0x3c, 0x2b, 0x1a])
    }

    /// Whether these are the first bytes of a pcapng file that is cut right there.
    #[must_use]
    pub fn may_begin(head: &[u8]) -> bool {
        (4..12).contains(&head.len()) && head[..4] == SECTION_HEADER.to_be_bytes()
    }

    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let word = [bytes[at], bytes[at + 1]];
        if self.big_endian {
            u16::from_be_bytes(word)
        } else {
            u16::from_le_bytes(word)
        }
    }

    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big_endian {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    }

    /// The next packet.
    pub fn next_record<'w>(&mut self, window: &'w mut Window) -> Next<'w> {
        match self.advance(window) {
            Ok(Step::Packet {
                total,
                from,
                captured,
                original,
                time_ns,
                link,
            }) => Next::Packet(Raw {
                time_ns,
                original: original.max(captured),
                link,
                data: &window.take(total)[from..from + captured as usize],
            }),
            Ok(Step::Frame) => Next::Other,
            Ok(Step::End) => Next::End,
            Ok(Step::Cut(reason)) => Next::Cut(reason),
            Err(error) => Next::Cut(error.to_string()),
        }
    }

    /// Handles blocks up to and including the next one that counts as a frame.
    fn advance(&mut self, window: &mut Window) -> io::Result<Step> {
        loop {
            if !window.ensure(12)? {
                return Ok(if window.bytes().is_empty() {
                    Step::End
                } else {
                    Step::cut("a block header")
                });
            }
            let head = window.bytes();
            if head[..4] == SECTION_HEADER.to_be_bytes() {
                match head[8..12] {
                    [0x1a, 0x2b, 0x3c, 0x4d] => self.big_endian = true,
                    [0x4d, 0x3c, 0x2b, 0x1a] => self.big_endian = false,
                    _ => {
                        return Ok(Step::Cut(
                            "a section header without its magic number, so the file is damaged"
                                .into(),
                        ));
                    }
                }
                self.interfaces.clear();
            }
            let (kind, length) = (self.u32(head, 0), self.u32(head, 4));
            let padded = (u64::from(length) + 3) & !3;
            if length < 12 {
                return Ok(Step::Cut(format!(
                    "a block claims {length} bytes, so the file is damaged"
                )));
            }
            match kind {
                INTERFACE | OBSOLETE_PACKET | ENHANCED_PACKET => {}
                // Without it no time of its connection can be told, and without the packet no count.
                SIMPLE_PACKET => {
                    return Ok(Step::Cut(
                        "a packet has no time (it is in a simple packet block)".into(),
                    ));
                }
                other => {
                    if !window.skip(padded)? {
                        return Ok(Step::cut("a block"));
                    }
                    if OTHER_FRAMES.contains(&other) {
                        return Ok(Step::Frame);
                    }
                    continue;
                }
            }
            let total = usize::try_from(padded).unwrap_or(usize::MAX);
            if !window.ensure(total)? {
                return Ok(Step::cut("a block"));
            }
            let block = &window.bytes()[..length as usize];
            if kind == INTERFACE {
                if !self.add_interface(block) {
                    return Ok(Step::Cut(
                        "an interface description is too short, so the file is damaged".into(),
                    ));
                }
                window.consume(total);
                continue;
            }
            return Ok(self.packet(kind, block, total));
        }
    }

    fn add_interface(&mut self, block: &[u8]) -> bool {
        if block.len() < 20 || self.interfaces.len() >= MOST_INTERFACES {
            return false;
        }
        let mut interface = Interface {
            link: LinkType(u32::from(self.u16(block, 8))),
            snap_length: self.u32(block, 12),
            units_per_second: 1_000_000,
            offset_s: 0,
        };
        let (mut at, end) = (16, block.len() - 4);
        while at + 4 <= end {
            let (code, length) = (self.u16(block, at), usize::from(self.u16(block, at + 2)));
            at += 4;
            if code == 0 || at + length > end {
                break;
            }
            let value = &block[at..at + length];
            match (code, length) {
                (9, 1) => interface.units_per_second = resolution(value[0]),
                (14, 8) => {
                    let bytes: [u8; 8] = value.try_into().expect("length is 8");
                    interface.offset_s = if self.big_endian {
                        i64::from_be_bytes(bytes)
                    } else {
                        i64::from_le_bytes(bytes)
                    };
                }
                _ => {}
            }
            at += (length + 3) & !3;
        }
        self.interfaces.push(interface);
        true
    }

    fn packet(&self, kind: u32, block: &[u8], total: usize) -> Step {
        let header = 28;
        if block.len() < header + 4 {
            return Step::Cut("a packet block is too short, so the file is damaged".into());
        }
        let number = if kind == OBSOLETE_PACKET {
            u32::from(self.u16(block, 8))
        } else {
            self.u32(block, 8)
        };
        let Some(interface) = self.interfaces.get(number as usize) else {
            return Step::Cut(format!(
                "a packet names interface {number}, which the file does not describe"
            ));
        };
        let room = u32::try_from(block.len() - header - 4).unwrap_or(u32::MAX);
        let units = u64::from(self.u32(block, 12)) << 32 | u64::from(self.u32(block, 16));
        let (captured, original) = (self.u32(block, 20), self.u32(block, 24));
        if captured > room || captured > LARGEST_RECORD.max(interface.snap_length.min(1 << 24)) {
            return Step::Cut(format!(
                "a packet claims {captured} bytes, so the file is damaged"
            ));
        }
        Step::Packet {
            total,
            from: header,
            captured,
            original,
            time_ns: interface.time_ns(units),
            link: interface.link,
        }
    }
}

impl Interface {
    fn time_ns(&self, units: u64) -> i64 {
        let per_second = self.units_per_second;
        let seconds = i64::try_from(units / per_second)
            .unwrap_or(i64::MAX)
            .saturating_add(self.offset_s);
        let rest = units % per_second;
        let nanos = match per_second {
            1_000_000 => rest * 1000,
            1_000_000_000 => rest,
            _ => u64::try_from(u128::from(rest) * 1_000_000_000 / u128::from(per_second))
                .unwrap_or(0),
        };
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanos.cast_signed())
    }
}

/// Units per second of an `if_tsresol` byte: a negative power of 10, or of 2 where the top bit is set.
fn resolution(byte: u8) -> u64 {
    let power = u32::from(byte & 0x7f);
    let units = if byte & 0x80 == 0 {
        10u64.checked_pow(power)
    } else {
        2u64.checked_pow(power)
    };
    units.unwrap_or(u64::MAX)
}

enum Step {
    Packet {
        total: usize,
        from: usize,
        captured: u32,
        original: u32,
        time_ns: i64,
        link: LinkType,
    },
    Frame,
    End,
    Cut(String),
}

impl Step {
    fn cut(inside: &str) -> Self {
        Self::Cut(format!("the file ends inside {inside}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn custom_blocks_are_frames_as_for_wireshark() {
        let block = |kind: u32, body: [u8; 16]| {
            let length = 28u32.to_le_bytes();
            [&kind.to_le_bytes()[..], &length, &body, &length].concat()
        };
        let mut section = [0; 16];
        section[..4].copy_from_slice(&[0x4d, 0x3c, 0x2b, 0x1a]);
        let kinds = [0xbad, 5, 0x4000_0bad].map(|kind| block(kind, [0; 16]));
        let bytes = [block(SECTION_HEADER, section), kinds.concat()].concat();
        let mut window = Window::new(Box::new(Cursor::new(bytes)));
        let mut pcapng = Pcapng::default();
        for _ in 0..2 {
            assert!(matches!(pcapng.next_record(&mut window), Next::Other));
        }
        assert!(matches!(pcapng.next_record(&mut window), Next::End));
    }
}
