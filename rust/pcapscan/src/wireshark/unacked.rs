//! Segments that were seen and not yet acknowledged, in one direction.

use crate::seq::{after, at_most};

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
/// scans all of it for each ACK; which segments are in it is the same.
///
/// A ring, as nearly every packet of a download adds to its end: a `VecDeque` does not know that its size is a power of
/// two, nor which number its last entry had.
#[derive(Debug, Default)]
pub struct UnackedList {
    /// As many as a power of two, or none.
    slots: Vec<Unacked>,
    head: usize,
    len: usize,
    /// Where the last segment ends; unset if there is none.
    last_next: u32,
}

impl UnackedList {
    /// Whether another segment would be stored.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.len < MOST_SEGMENTS
    }

    /// Whether nothing waits for an ACK.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slot of a segment by its place in the list.
    #[inline]
    fn slot(&self, place: usize) -> usize {
        (self.head + place) & self.slots.len().wrapping_sub(1)
    }

    fn segments(&self) -> impl DoubleEndedIterator<Item = Unacked> + ExactSizeIterator {
        (0..self.len).map(|place| self.slots[self.slot(place)])
    }

    /// Stores a segment.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn push(&mut self, seq: u32, next: u32, time_ns: i64) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let is_last = self.len == 0 || at_most(self.last_next, next);
        let at = self.slot(self.len);
        self.slots[at] = Unacked::new(seq, next, time_ns);
        self.len += 1;
        if is_last {
            self.last_next = next;
        } else {
            self.sink();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut slots: Vec<_> = self.segments().collect();
        slots.resize((2 * self.len).max(16), Unacked::new(0, 0, 0));
        self.slots = slots;
        self.head = 0;
    }

    /// Brings the last segment to its place.
    #[cold]
    fn sink(&mut self) {
        for place in (1..self.len).rev() {
            let (here, before) = (self.slot(place), self.slot(place - 1));
            if at_most(self.slots[before].next(), self.slots[here].next()) {
                break;
            }
            self.slots.swap(before, here);
        }
    }

    /// Removes what this ACK covers. Returns when the one segment that ends exactly there was seen, ns.
    #[inline]
    pub fn acknowledge(&mut self, ack: u32) -> Option<i64> {
        let (mut matches, mut time_ns) = (0, 0);
        while self.len > 0 {
            let first = self.slots[self.head];
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
            self.head = self.slot(1);
            self.len -= 1;
        }
        // Two segments with the same end: which one the ACK answers is ambiguous (Karn's rule).
        (matches == 1).then_some(time_ns)
    }

    /// An ACK in the middle of segments.
    #[cold]
    fn shorten(&mut self, ack: u32) {
        for place in 0..self.len {
            let at = self.slot(place);
            let segment = self.slots[at];
            if !after(ack, segment.seq()) {
                break;
            }
            self.slots[at] = Unacked::new(ack, segment.next(), segment.time_ns);
        }
    }

    /// Whether one stored segment covers all of `seq..end`.
    #[must_use]
    pub fn covers(&self, seq: u32, end: u32) -> bool {
        self.segments()
            .any(|segment| !after(segment.seq(), seq) && at_most(end, segment.next()))
    }

    /// The end of the run of adjoining segments that begins at `from`, if there is one.
    #[must_use]
    pub fn run_from(&self, from: u32) -> Option<u32> {
        let mut end = from;
        for segment in self.segments() {
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
        assert!(list.is_empty());
    }

    #[test]
    fn grows_while_its_head_moves_and_keeps_the_order() {
        let mut list = UnackedList::default();
        for n in 0..1000u32 {
            list.push(n * 10, n * 10 + 10, i64::from(n));
            if n % 3 == 0 {
                assert_eq!(list.acknowledge(n / 3 * 10 + 10), Some(i64::from(n / 3)));
            }
        }
        list.push(5_000, 5_005, 7_000);
        let ends: Vec<_> = list.segments().map(Unacked::next).collect();
        assert_eq!(ends.len(), 1000 - 334 + 1);
        assert!(ends.is_sorted());
        assert_eq!(list.acknowledge(5_005), Some(7_000));
    }

    #[test]
    fn a_repeated_segment_gives_no_sample() {
        let mut list = UnackedList::default();
        list.push(0, 10, 1);
        list.push(0, 10, 2);
        assert_eq!(list.acknowledge(10), None);
    }
}
