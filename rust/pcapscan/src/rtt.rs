//! Round-trip times: summaries in bounded memory, and matching of TCP timestamps.

use crate::seq::{after, at_most};
use std::collections::VecDeque;

/// A power of two is cut into this many buckets, so a bucket is at most 0.8 % wide and its middle within 0.4 % of all
/// in it.
const PER_OCTAVE: usize = 128;
const OCTAVES: usize = 64;

/// Count, minimum, mean, maximum and percentiles of durations.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of samples.
    pub count: u64,
    /// Smallest, ns.
    pub min_ns: i64,
    /// Largest, ns.
    pub max_ns: i64,
    sum_ns: u64,
    /// Counts by octave, made when they are needed: a path takes three or four of them.
    octaves: Vec<Option<Box<[u32; PER_OCTAVE]>>>,
}

impl Summary {
    /// Adds a sample; those below 0 (a clock that went back) are dropped.
    #[inline]
    pub fn add(&mut self, duration_ns: i64) {
        let Ok(duration) = u64::try_from(duration_ns) else {
            return;
        };
        self.min_ns = if self.count == 0 {
            duration_ns
        } else {
            self.min_ns.min(duration_ns)
        };
        self.max_ns = self.max_ns.max(duration_ns);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration);
        let (octave, bucket) = Self::place(duration);
        match self.octaves.get_mut(octave) {
            Some(Some(counts)) => counts[bucket] = counts[bucket].saturating_add(1),
            _ => self.first_of(octave, bucket),
        }
    }

    #[cold]
    fn first_of(&mut self, octave: usize, bucket: usize) {
        if octave >= self.octaves.len() {
            self.octaves.resize_with(octave + 1, || None);
        }
        self.octaves[octave].get_or_insert_with(|| Box::new([0; PER_OCTAVE]))[bucket] = 1;
    }

    /// Octave and bucket of a duration; below 128 ns the buckets are 1 ns wide.
    #[inline]
    fn place(duration: u64) -> (usize, usize) {
        let top = (duration | 1).ilog2();
        let shift = top.saturating_sub(PER_OCTAVE.ilog2());
        #[expect(clippy::cast_possible_truncation, reason = "below 256 after the shift")]
        let bucket = (duration >> shift) as usize % PER_OCTAVE;
        let octave = if top < PER_OCTAVE.ilog2() {
            0
        } else {
            shift as usize + 1
        };
        debug_assert!(octave < OCTAVES);
        (octave, bucket)
    }

    /// The middle of a bucket, ns.
    fn middle(octave: usize, bucket: usize) -> f64 {
        if octave == 0 {
            return bucket as f64;
        }
        let width = 2f64.powi(i32::try_from(octave).unwrap_or(0) - 1);
        ((PER_OCTAVE + bucket) as f64 + 0.5) * width - 0.5
    }

    /// Arithmetic mean, ns.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// A quantile between 0 and 1, ns, by nearest rank; the middle of its bucket.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = (quantile * self.count as f64).ceil().max(1.0);
        let mut below = 0.0;
        for (octave, counts) in self.octaves.iter().enumerate() {
            for (bucket, &count) in counts.iter().flat_map(|counts| counts.iter()).enumerate() {
                below += f64::from(count);
                if below >= rank {
                    let middle = Self::middle(octave, bucket);
                    return Some(middle.clamp(self.min_ns as f64, self.max_ns as f64));
                }
            }
        }
        Some(self.max_ns as f64)
    }
}

/// TSvals remembered per direction. A tick is 1 ms or more, so this is seconds of unanswered sending.
const MOST_PENDING: usize = 4096;

/// The packets of one direction that carried a TSval.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// The TSval with [`Pending::VALID`]; 0 for none.
    key: u64,
    /// Whether it may start a sample: it acknowledges data.
    starts: bool,
    /// When the first was seen, ns.
    sent_ns: i64,
    /// ACK numbers of the first and of the last.
    first_ack: u32,
    last_ack: u32,
    /// Raw window of the last.
    last_window: u16,
}

/// TSvals that one side sent and the other did not echo yet, in order. The newest and the one that was echoed last are
/// kept apart, as nearly all packets repeat one of them.
#[derive(Debug, Default)]
pub struct Timestamps {
    echoed: Pending,
    newest: Pending,
    pending: VecDeque<Pending>,
}

impl Pending {
    const VALID: u64 = 1 << 32;

    #[inline]
    fn key(tsval: u32) -> u64 {
        Self::VALID | u64::from(tsval)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    fn tsval(&self) -> Option<u32> {
        (self.key != 0).then_some(self.key as u32)
    }
}

/// The meaning of a TSecr.
#[derive(Debug, Clone, Copy)]
pub struct Echo {
    /// The sample that it ends, ns.
    pub rtt_ns: Option<i64>,
    /// The ACK numbers that the sender of this packet can have seen last: at least, at most.
    pub acks: (u32, u32),
    /// The raw window that it can have seen last.
    pub window: u16,
}

impl Timestamps {
    /// Notes a packet of this side.
    ///
    /// The other side's data, this side's ACK of it, the other side's next data: that is a sample. Whether there was
    /// data is told by the ACK number. The TSecr cannot tell: a delayed ACK echoes the *first* packet that it
    /// acknowledges (RFC 7323, section 4.3), and which packets share a TSval is a matter of the clock's phase.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn sent(&mut self, tsval: u32, ack: u32, window: u16, now_ns: i64) {
        if self.newest.key == Pending::key(tsval) {
            self.newest.last_ack = ack;
            self.newest.last_window = window;
        } else {
            self.begin(tsval, ack, window, now_ns);
        }
    }

    #[cold]
    fn begin(&mut self, tsval: u32, ack: u32, window: u16, now_ns: i64) {
        let mut starts = false;
        if let Some(newest_tsval) = self.newest.tsval() {
            // Only forward: an old TSval is a retransmission or was reordered.
            if !after(tsval, newest_tsval) {
                return;
            }
            starts = after(ack, self.newest.last_ack);
            if self.pending.len() == MOST_PENDING {
                self.pending.pop_front();
            }
            self.pending.push_back(self.newest);
        }
        self.newest = Pending {
            key: Pending::key(tsval),
            starts,
            sent_ns: now_ns,
            first_ack: ack,
            last_ack: ack,
            last_window: window,
        };
    }

    /// Notes that a packet of the other side without data echoes this TSval. It ends no sample.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn echoed_by_ack(&mut self, tsecr: u32) {
        if self.echoed.key != Pending::key(tsecr) && !self.pending.is_empty() {
            self.advance(tsecr);
        }
    }

    /// Matches the TSecr of a data packet of the other side. Only the first that echoes a TSval ends a sample.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn echoed_by_data(&mut self, tsecr: u32, now_ns: i64) -> Option<Echo> {
        let key = Pending::key(tsecr);
        if self.echoed.key != key && !self.pending.is_empty() {
            self.advance(tsecr);
        }
        let entry = if self.echoed.key == key {
            &mut self.echoed
        } else if self.newest.key == key {
            &mut self.newest
        } else {
            return None;
        };
        let is_sample = std::mem::take(&mut entry.starts);
        Some(Echo {
            rtt_ns: is_sample.then(|| now_ns.saturating_sub(entry.sent_ns)),
            acks: (entry.first_ack, entry.last_ack),
            window: entry.last_window,
        })
    }

    /// Drops what is older than this TSecr.
    #[cold]
    fn advance(&mut self, tsecr: u32) {
        while let Some(first) = self.pending.front()
            && first.tsval().is_some_and(|tsval| at_most(tsval, tsecr))
        {
            self.echoed = *first;
            self.pending.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_half_a_percent() {
        let mut summary = Summary::default();
        for n in 1..=1000 {
            summary.add(n * 1_000_000);
        }
        for quantile in [0.05, 0.5, 0.95, 0.99] {
            let exact = quantile * 1e9;
            let got = summary.quantile_ns(quantile).unwrap();
            assert!((got / exact - 1.0).abs() < 0.005, "{quantile}: {got}");
        }
        assert_eq!(summary.mean_ns(), Some(500_500_000.0));
        assert_eq!(
            (summary.min_ns, summary.max_ns, summary.count),
            (1_000_000, 1_000_000_000, 1000)
        );
    }

    #[test]
    fn first_use_of_a_tsval_starts_and_first_data_echo_ends() {
        let mut timestamps = Timestamps::default();
        timestamps.sent(u32::MAX - 1, 50, 50, 500);
        timestamps.sent(u32::MAX, 100, 50, 1_000);
        timestamps.sent(u32::MAX, 200, 60, 1_500);
        timestamps.sent(0, 300, 70, 2_000);
        timestamps.sent(1, 300, 70, 2_100);
        assert!(timestamps.echoed_by_data(u32::MAX - 2, 2_500).is_none());
        let first = timestamps.echoed_by_data(u32::MAX - 1, 2_500).unwrap();
        assert_eq!(first.rtt_ns, None, "it acknowledged nothing");
        let echo = timestamps.echoed_by_data(u32::MAX, 3_000).unwrap();
        assert_eq!(
            (echo.rtt_ns, echo.acks, echo.window),
            (Some(2_000), (100, 200), 60)
        );
        assert_eq!(
            timestamps.echoed_by_data(u32::MAX, 3_100).unwrap().rtt_ns,
            None
        );
        assert_eq!(
            timestamps.echoed_by_data(0, 3_200).unwrap().rtt_ns,
            Some(1_200)
        );
        assert_eq!(
            timestamps.echoed_by_data(1, 3_300).unwrap().rtt_ns,
            None,
            "a repeated ACK"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut timestamps = Timestamps::default();
        for n in 0..100_000 {
            timestamps.sent(n, 0, 0, 0);
        }
        assert_eq!(timestamps.pending.len(), MOST_PENDING);
    }
}
