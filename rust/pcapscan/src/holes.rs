//! Gaps in one direction's data, open and filled, each with the packet that opened it.

use std::collections::VecDeque;

use crate::seq::{after, at_most, before};

/// Gaps remembered per direction, open ones and filled ones; beyond that the oldest is forgotten (what fills it then
/// counts as seen before).
pub(crate) const MOST_HOLES: usize = 256;

/// When a packet was sent, relative to others of its direction. Packed by hand: it is stored for every data packet,
/// and the processor stalls where narrow stores are loaded as one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamp {
    /// TSval, identification, whether there is a TSval, whether there is an identification.
    bits: u64,
    /// Number of the packet in its direction.
    pub packet: u64,
}

impl Stamp {
    #[inline]
    pub fn new(id: Option<u16>, tsval: Option<u32>, packet: u64) -> Self {
        let bits = u64::from(tsval.unwrap_or(0)) << 32
            | u64::from(id.unwrap_or(0)) << 16
            | u64::from(tsval.is_some()) << 1
            | u64::from(id.is_some());
        Self { bits, packet }
    }

    #[expect(clippy::cast_possible_truncation, reason = "bits 16 to 31")]
    pub fn id(self) -> Option<u16> {
        (self.bits & 1 != 0).then_some((self.bits >> 16) as u16)
    }

    pub fn tsval(self) -> Option<u32> {
        (self.bits & 2 != 0).then_some((self.bits >> 32) as u32)
    }
}

/// Missing bytes below the highest that was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hole {
    pub start: u32,
    pub end: u32,
    pub opened_ns: i64,
    pub opener: Stamp,
}

impl Hole {
    fn meets(&self, start: u32, end: u32) -> bool {
        before(self.start, end) && before(start, self.end)
    }
}

/// The gaps of one direction.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    open: Vec<Hole>,
    /// Filled ones, in the order of their filling: what comes there once more is judged by the same opener.
    filled: VecDeque<Hole>,
}

impl Holes {
    /// The first open gap that this range meets.
    pub fn find(&self, start: u32, end: u32) -> Option<Hole> {
        self.open
            .iter()
            .find(|hole| hole.meets(start, end))
            .copied()
    }

    /// The gap filled last that this range meets.
    pub fn find_filled(&self, start: u32, end: u32) -> Option<Hole> {
        let newest_first = self.filled.iter().rev();
        newest_first.copied().find(|hole| hole.meets(start, end))
    }

    pub fn open(&mut self, hole: Hole) {
        if self.open.len() == MOST_HOLES {
            self.open.remove(0);
        }
        self.open.push(hole);
    }

    /// Takes `start..end` out of the open gaps. Returns whether any of it was missing.
    pub fn fill(&mut self, start: u32, end: u32) -> bool {
        let (mut at, mut was_missing) = (0, false);
        while at < self.open.len() {
            let hole = self.open[at];
            if !hole.meets(start, end) {
                at += 1;
                continue;
            }
            was_missing = true;
            let keeps_left = before(hole.start, start);
            let keeps_right = after(hole.end, end);
            if self.filled.len() == MOST_HOLES {
                self.filled.pop_front();
            }
            self.filled.push_back(Hole {
                start: if keeps_left { start } else { hole.start },
                end: if keeps_right { end } else { hole.end },
                ..hole
            });
            match (keeps_left, keeps_right) {
                (false, false) => {
                    self.open.remove(at);
                    continue;
                }
                (true, false) => self.open[at].end = start,
                (false, true) => self.open[at].start = end,
                (true, true) => {
                    self.open[at].end = start;
                    if self.open.len() < MOST_HOLES {
                        at += 1;
                        self.open.insert(at, Hole { start: end, ..hole });
                    }
                }
            }
            at += 1;
        }
        debug_assert!(self.open.iter().all(|hole| at_most(hole.start, hole.end)));
        was_missing
    }

    /// Bytes of the open gaps.
    pub fn missing_bytes(&self) -> u64 {
        self.open
            .iter()
            .map(|hole| u64::from(hole.end.wrapping_sub(hole.start)))
            .sum()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.open.len()
    }
}
