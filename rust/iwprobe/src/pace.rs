//! A rate that holds in every second.

#![allow(
    clippy::cast_possible_truncation, // times and counts as numbers with a fraction, never negative
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

const SECOND: f64 = 1e9;
/// What may happen together, as a share of a second.
const TOGETHER: f64 = 0.002;

/// When the next packets may leave, or the next probes begin. Times are monotonic [ns].
pub struct Pace {
    interval: f64,
    together: f64,
    next: f64,
}

impl Pace {
    /// `rate`: most in any second.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        let together = (rate * TOGETHER).floor().max(1.0);
        Self {
            interval: SECOND / (rate - together).max(1.0),
            together,
            next: 0.0,
        }
    }

    /// Time from which the next one is allowed.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next as u64
    }

    /// How many are allowed now.
    #[must_use]
    pub fn allowed(&self, now: u64) -> usize {
        let now = now as f64;
        if now < self.next {
            return 0;
        }
        let credit = 1.0 + (now - self.next) / self.interval;
        credit.min(self.together) as usize
    }

    /// Counts what was done.
    pub fn took(&mut self, now: u64, count: usize) {
        let oldest = now as f64 - (self.together - 1.0) * self.interval;
        self.next = self.next.max(oldest) + count as f64 * self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_the_rate() {
        for rate in [1.0_f64, 10.0, 400.0, 5_000.0] {
            let mut pace = Pace::new(rate);
            let mut sent = Vec::new();
            let mut now = 5_000_000_000;
            for step in 0..300_000 {
                now += if step % 5_000 == 4_999 {
                    2_000_000_000
                } else {
                    37_000
                }; // with pauses
                let count = pace.allowed(now);
                pace.took(now, count);
                sent.extend(std::iter::repeat_n(now, count));
            }
            let mut first = 0;
            for last in 0..sent.len() {
                while sent[last] - sent[first] >= 1_000_000_000_u64 {
                    first += 1;
                }
                assert!((last - first + 1) as f64 <= rate, "{rate}");
            }
            assert!(
                sent.len() as f64 > 0.5 * rate * 10.0,
                "{rate}: {}",
                sent.len()
            );
        }
    }
}
