//! Counters and histograms. All are cumulative, so a client subtracts two snapshots.

use serde::Serialize;
use std::collections::VecDeque;

/// Lower edges of the lateness buckets, in microseconds. Bucket i holds values in [edge i, edge i+1);
/// the last one has no upper edge.
pub const EDGES_US: [u64; 22] = [
    0, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1_000, 2_000, 3_000, 5_000, 7_000, 10_000,
    20_000, 30_000, 50_000, 70_000, 100_000,
];

const WORST_KEPT: usize = 8;
const RECENT_KEPT: usize = 64;
const RECENT_FROM_NS: u64 = 1_000_000;

/// A histogram of durations with the fixed buckets of [`EDGES_US`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Number of values.
    pub count: u64,
    /// Sum of all values, ns.
    pub sum_ns: u64,
    /// Largest value since the start, ns.
    pub max_ns: u64,
    /// Values per bucket.
    pub buckets: [u64; EDGES_US.len()],
}

impl Histogram {
    /// Adds one duration.
    pub fn add(&mut self, duration_ns: u64) {
        let micros = duration_ns / 1000;
        let bucket = EDGES_US.partition_point(|&edge| edge <= micros) - 1;
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration_ns);
        self.max_ns = self.max_ns.max(duration_ns);
    }
}

/// One long duration and when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// Length, ns.
    pub duration_ns: u64,
    /// End, ns of the monotonic clock.
    pub at_ns: u64,
}

/// A histogram that also remembers when the longest values happened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Stalls {
    /// All values.
    pub histogram: Histogram,
    /// The 8 longest since the start, longest first.
    pub worst: Vec<Stall>,
    /// The last 64 of at least 1 ms, oldest first.
    pub recent: VecDeque<Stall>,
}

impl Stalls {
    /// Adds one duration that ended at `at_ns`.
    pub fn add(&mut self, duration_ns: u64, at_ns: u64) {
        self.histogram.add(duration_ns);
        let stall = Stall { duration_ns, at_ns };
        if duration_ns >= RECENT_FROM_NS {
            if self.recent.len() == RECENT_KEPT {
                self.recent.pop_front();
            }
            self.recent.push_back(stall);
        }
        let is_full = self.worst.len() == WORST_KEPT;
        if !is_full
            || self
                .worst
                .last()
                .is_some_and(|last| last.duration_ns < duration_ns)
        {
            let place = self
                .worst
                .partition_point(|other| other.duration_ns >= duration_ns);
            self.worst.insert(place, stall);
            self.worst.truncate(WORST_KEPT);
        }
    }
}

/// What became of a packet that a path was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Carried unchanged.
    Delivered,
    /// Carried, with Congestion Experienced set by the AQM.
    Marked,
    /// Lost by the loss law.
    Loss,
    /// Dropped: the queue was full.
    Tail,
    /// Dropped by the AQM, as it was not ECN-capable.
    Aqm,
    /// Dropped: the emulator's memory limit was reached. Never part of a programmed path.
    Overflow,
    /// Accepted, but the kernel refused it at delivery. Never part of a programmed path.
    WriteError,
}

impl Verdict {
    /// The name in the packet log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Marked => "marked",
            Self::Loss => "loss",
            Self::Tail => "tail",
            Self::Aqm => "aqm",
            Self::Overflow => "overflow",
            Self::WriteError => "write_error",
        }
    }
}

/// Packet counters of a path or of a flow.
///
/// `in_packets` = `delivered_packets` + `loss` + `tail` + `aqm` + `overflow` + `write_errors` + packets in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Packets offered.
    pub in_packets: u64,
    /// Their IP bytes.
    pub in_bytes: u64,
    /// Packets written to the receiving node.
    pub delivered_packets: u64,
    /// Their IP bytes.
    pub delivered_bytes: u64,
    /// Packets lost by the loss law.
    pub loss: u64,
    /// Packets dropped by the full queue.
    pub tail: u64,
    /// Packets dropped by the AQM.
    pub aqm: u64,
    /// Packets that the AQM marked (those that arrived with CE set count too).
    pub marked: u64,
    /// Packets dropped because the emulator's memory limit was reached.
    pub overflow: u64,
    /// Packets that the kernel refused at delivery.
    pub write_errors: u64,
}

impl Counters {
    /// Counts a packet of this many IP bytes with the verdict it met on arrival.
    pub fn arrived(&mut self, length: u64, verdict: Verdict) {
        self.in_packets += 1;
        self.in_bytes += length;
        match verdict {
            Verdict::Loss => self.loss += 1,
            Verdict::Tail => self.tail += 1,
            Verdict::Aqm => self.aqm += 1,
            Verdict::Overflow => self.overflow += 1,
            Verdict::Marked => self.marked += 1,
            Verdict::Delivered | Verdict::WriteError => {}
        }
    }

    /// Counts the end of a packet that was in flight.
    pub fn finished(&mut self, length: u64, written: bool) {
        if written {
            self.delivered_packets += 1;
            self.delivered_bytes += length;
        } else {
            self.write_errors += 1;
        }
    }

    /// Packets that left the path in any way.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.delivered_packets
            + self.loss
            + self.tail
            + self.aqm
            + self.overflow
            + self.write_errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_half_open() {
        let mut histogram = Histogram::default();
        for micros in [0, 9, 10, 99_999, 100_000, 10_000_000] {
            histogram.add(micros * 1000);
        }
        assert_eq!(histogram.buckets[0], 2);
        assert_eq!(histogram.buckets[1], 1);
        assert_eq!(histogram.buckets[20], 1);
        assert_eq!(histogram.buckets[21], 2);
        assert_eq!((histogram.count, histogram.max_ns), (6, 10_000_000_000));
    }

    #[test]
    fn stalls_keep_the_worst_in_order_and_a_bounded_number() {
        let mut stalls = Stalls::default();
        for value in 0..1000u64 {
            stalls.add((value * 7919 % 1000) * 1_000_000, value);
        }
        let worst: Vec<u64> = stalls
            .worst
            .iter()
            .map(|s| s.duration_ns / 1_000_000)
            .collect();
        assert_eq!(worst, [999, 998, 997, 996, 995, 994, 993, 992]);
        assert_eq!(stalls.recent.len(), 64);
        assert_eq!(stalls.recent.back().map(|s| s.at_ns), Some(999));
    }
}
