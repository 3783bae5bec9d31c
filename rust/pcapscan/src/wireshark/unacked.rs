//! Segments that were seen and not yet acknowledged, in one direction.

use crate::seq::{after, at_most};
use std::collections::VecDeque;

/// Wireshark's `TCP_MAX_UNACKED_SEGMENTS`.
pub const MOST_SEGMENTS: usize = 10_000;

/// A segment. Both sequence numbers share a word: the processor stalls where two narrow stores are loaded as one.
#[derive(Debug, Clone, Copy)]
struct Unacked {
    range: u64,
    time_ns: i64,
}

impl Unacked {
    #[inline]
    fn new(seq: u32, next: u32, time_ns: i64) -> Self {
        Self {
            range: u64::from(seq) << 32 | u64::from(next),
            time_ns,
        }
    }

    #[inline]
    fn seq(self) -> u32 {
        (self.range >> 32) as u32
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    fn next(self) -> u32 {
        self.range as u32
    }
}

/// The list, in order of the sequence number that follows each segment. Wireshark keeps it in order of arrival and
/// walks all of it for each ACK; which segments are in it is the same.
#[derive(Debug, Default)]
pub struct UnackedList {
    segments: VecDeque<Unacked>,
}

impl UnackedList {
    /// Whether another segment would be stored.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.segments.len() < MOST_SEGMENTS
    }

    /// Whether nothing waits for an ACK.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Stores a segment.
    #[inline]
    pub fn push(&mut self, seq: u32, next: u32, time_ns: i64) {
        let segment = Unacked::new(seq, next, time_ns);
        if self
            .segments
            .back()
            .is_none_or(|last| at_most(last.next(), next))
        {
            self.segments.push_back(segment);
        } else {
            self.insert(segment);
        }
    }

    #[cold]
    fn insert(&mut self, segment: Unacked) {
        let place = self
            .segments
            .iter()
            .rposition(|other| at_most(other.next(), segment.next()));
        self.segments.insert(place.map_or(0, |at| at + 1), segment);
    }

    /// Removes what this ACK covers. Returns when the one segment that ends exactly there was seen, ns.
    #[inline]
    pub fn acknowledge(&mut self, ack: u32) -> Option<i64> {
        let (mut matches, mut time_ns) = (0, 0);
        while let Some(first) = self.segments.front() {
            if !at_most(first.next(), ack) {
                if after(ack, first.seq()) {
                    self.shorten(ack);
                }
                break;
            }
            if first.next() == ack {
                matches += 1;
                time_ns = first.time_ns;
            }
            self.segments.pop_front();
        }
        // Two segments with the same end: which one the ACK answers is ambiguous (Karn's rule).
        (matches == 1).then_some(time_ns)
    }

    /// An ACK in the middle of segments.
    #[cold]
    fn shorten(&mut self, ack: u32) {
        for segment in &mut self.segments {
            if !after(ack, segment.seq()) {
                break;
            }
            *segment = Unacked::new(ack, segment.next(), segment.time_ns);
        }
    }

    /// Whether one stored segment covers all of `seq..end`.
    #[must_use]
    pub fn covers(&self, seq: u32, end: u32) -> bool {
        self.segments
            .iter()
            .any(|segment| !after(segment.seq(), seq) && at_most(end, segment.next()))
    }

    /// The end of the run of adjoining segments that begins at `from`, if there is one.
    #[must_use]
    pub fn run_from(&self, from: u32) -> Option<u32> {
        let mut end = from;
        for segment in &self.segments {
            if segment.seq() == end {
                end = segment.next();
            }
        }
        (end != from).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledges_across_the_wrap_and_out_of_order() {
        let mut list = UnackedList::default();
        list.push(0xffff_fff0, 4, 1);
        list.push(20, 30, 2);
        list.push(4, 20, 3);
        assert!(list.covers(5, 19));
        assert!(!list.covers(5, 21));
        assert_eq!(list.run_from(4), Some(30));
        assert_eq!(list.acknowledge(20), Some(3));
        assert_eq!(list.acknowledge(25), None);
        assert!(!list.covers(20, 26) && list.covers(25, 30));
        assert_eq!(list.acknowledge(30), Some(2));
        assert!(list.segments.is_empty());
    }

    #[test]
    fn a_repeated_segment_gives_no_sample() {
        let mut list = UnackedList::default();
        list.push(0, 10, 1);
        list.push(0, 10, 2);
        assert_eq!(list.acknowledge(10), None);
    }
}
