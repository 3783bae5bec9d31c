//! What has been received of a flight: which bytes, in how many segments, when.

/// A segment's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds from the flight's first segment; negative if the clock says so.
    pub at_ns: i64,
    /// Offset behind its last byte.
    pub end: u32,
}

/// The segments received, by offset from the flight's first byte.
///
/// Memory is kept when it is [reset](Flight::reset), so that a connection costs no allocation.
#[derive(Debug, Default)]
pub struct Flight {
    /// Received bytes: disjoint, not adjacent, ascending.
    ranges: Vec<(u32, u32)>,
    seen: u32,
    largest: u32,
    /// Segments of that size.
    largest_count: u32,
    mss: u32,
    first_at: u64,
    last_at: u64,
    arrivals: Vec<Arrival>,
    room: usize,
    cut: bool,
}

impl Flight {
    /// Forgets everything. Arrivals of the next `room` segments are kept; `mss` is the announced one.
    pub fn reset(&mut self, room: usize, mss: u32) {
        self.ranges.clear();
        self.arrivals.clear();
        (self.seen, self.largest, self.first_at, self.last_at) = (0, 0, 0, 0);
        (self.largest_count, self.mss) = (0, mss);
        (self.room, self.cut) = (room, false);
    }

    /// Adds the bytes from `start` to `end`; false if all of them were there.
    pub fn add(&mut self, start: u32, end: u32, arrival: u64) -> bool {
        if start >= end || self.has(start, end) {
            return false;
        }
        if self.seen == 0 {
            self.first_at = arrival;
        }
        self.seen += 1;
        let size = end - start;
        if size > self.largest {
            (self.largest, self.largest_count) = (size, 1);
        } else if size == self.largest {
            self.largest_count += 1;
        }
        self.last_at = arrival;
        if self.arrivals.len() < self.room {
            let at_ns = arrival.wrapping_sub(self.first_at).cast_signed();
            self.arrivals.push(Arrival { at_ns, end });
        } else {
            self.cut = true;
        }
        self.insert(start, end);
        true
    }

    fn insert(&mut self, start: u32, end: u32) {
        if let Some(last) = self.ranges.last_mut()
            && last.1 == start
        {
            last.1 = end; // in order
            return;
        }
        let from = self.ranges.partition_point(|range| range.1 < start);
        let to = self.ranges.partition_point(|range| range.0 <= end);
        if from == to {
            self.ranges.insert(from, (start, end));
        } else {
            let joined = (
                start.min(self.ranges[from].0),
                end.max(self.ranges[to - 1].1),
            );
            self.ranges[from] = joined;
            self.ranges.drain(from + 1..to);
        }
    }

    /// Whether all bytes from `start` to `end` have been received.
    #[must_use]
    pub fn has(&self, start: u32, end: u32) -> bool {
        let at = self.ranges.partition_point(|range| range.1 < end);
        self.ranges
            .get(at)
            .is_some_and(|range| range.0 <= start && end <= range.1)
    }

    /// Whether nothing has been received.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The first missing byte.
    #[must_use]
    pub fn contiguous(&self) -> u32 {
        match self.ranges.first() {
            Some(&(0, end)) => end,
            _ => 0,
        }
    }

    /// The highest byte received, plus one.
    #[must_use]
    pub fn extent(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// Whether a byte below the extent is missing.
    #[must_use]
    pub fn has_hole(&self) -> bool {
        self.contiguous() < self.extent()
    }

    /// Size of a full segment: that of the largest payload if it was seen twice; else all that was seen may be the ends of
    /// writes, and it is the announced MSS.
    #[must_use]
    pub fn full(&self) -> u32 {
        if self.largest_count >= 2 {
            self.largest
        } else {
            self.largest.max(self.mss)
        }
    }

    /// Segments missing below the extent, as many as full ones need.
    #[must_use]
    pub fn holes(&self) -> u32 {
        let full = self.full();
        let mut before = 0;
        let mut missing = 0;
        for &(start, end) in &self.ranges {
            missing += (start - before).div_ceil(full.max(1));
            before = end;
        }
        missing
    }

    /// Segments received, and those missing.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.seen + self.holes()
    }

    /// Segments received.
    #[must_use]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// The largest payload [bytes].
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// When the first segment arrived [ns].
    #[must_use]
    pub fn first_at(&self) -> u64 {
        self.first_at
    }

    /// When the last new segment arrived [ns].
    #[must_use]
    pub fn last_at(&self) -> u64 {
        self.last_at
    }

    /// The first segments' arrivals.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// Whether there were more segments than arrivals were kept.
    #[must_use]
    pub fn arrivals_cut(&self) -> bool {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn received(segments: &[(u32, u32)]) -> Flight {
        let mut flight = Flight::default();
        flight.reset(4, 64);
        for (at, &(start, end)) in (10..).zip(segments) {
            flight.add(start, end, at);
        }
        flight
    }

    #[test]
    fn in_order() {
        let flight = received(&[(0, 64), (64, 128), (128, 150)]);
        assert_eq!((flight.contiguous(), flight.extent()), (150, 150));
        assert_eq!(
            (flight.segments(), flight.holes(), flight.largest()),
            (3, 0, 64)
        );
        let at: Vec<_> = flight
            .arrivals()
            .iter()
            .map(|arrival| arrival.at_ns)
            .collect();
        assert_eq!(at, [0, 1, 2]);
    }

    #[test]
    fn holes_count_as_the_largest_payload_fills_them() {
        let flight = received(&[(64, 128), (320, 384), (384, 400)]);
        assert_eq!((flight.contiguous(), flight.extent()), (0, 400));
        assert_eq!((flight.holes(), flight.segments()), (4, 7));
        assert!(flight.has_hole() && flight.has(64, 100) && !flight.has(60, 70));
    }

    #[test]
    fn a_hole_before_the_last_segment_only_is_filled_by_the_announced_size() {
        assert_eq!(received(&[(64, 127)]).segments(), 2);
        assert_eq!(received(&[(0, 32), (96, 128)]).segments(), 4);
    }

    #[test]
    fn no_more_arrivals_than_there_is_room_for() {
        let flight = received(&[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
        assert!(flight.arrivals().len() == 4 && flight.arrivals_cut());
    }

    proptest! {
        #[test]
        fn the_same_as_a_bitmap(segments in prop::collection::vec((0_u32..200, 1_u32..40), 0..60)) {
            let mut flight = Flight::default();
            flight.reset(0, 48);
            let mut bits = [false; 240];
            for (start, length) in segments {
                let range = start as usize..(start + length) as usize;
                let all = bits[range.clone()].iter().all(|bit| *bit);
                prop_assert_eq!(flight.has(start, start + length), all);
                prop_assert_eq!(flight.add(start, start + length, 0), !all);
                bits[range].fill(true);
                let extent = bits.iter().rposition(|bit| *bit).map_or(0, |at| at + 1);
                let contiguous = bits.iter().position(|bit| !bit).unwrap();
                prop_assert_eq!(flight.extent() as usize, extent);
                prop_assert_eq!(flight.contiguous() as usize, contiguous);
                prop_assert_eq!(flight.has_hole(), contiguous < extent);
            }
        }
    }
}
