//! A policer per connection: no more than so many packets in any span of time.

use std::collections::VecDeque;

/// A limit on the packets of each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policer {
    /// How many packets pass within any span of `every_ns`.
    pub packets: usize,
    /// The span, ns.
    pub every_ns: u64,
}

/// When the last packets of one connection arrived, ns.
#[derive(Debug, Clone, Default)]
pub struct Arrived(VecDeque<u64>);

impl Arrived {
    /// Whether a packet that arrives now passes: if fewer than the limit arrived within the span before, those that
    /// did not pass among them. So a sender that goes on too fast gets nothing more through until it pauses.
    pub fn admit(&mut self, policer: Policer, now: u64) -> bool {
        while self.0.len() >= policer.packets {
            let oldest = self.0.pop_front();
            if oldest.is_some_and(|oldest| now < oldest + policer.every_ns) {
                self.0.push_back(now);
                return false;
            }
        }
        self.0.push_back(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_gets_no_more_through() {
        let policer = Policer {
            packets: 2,
            every_ns: 100,
        };
        let mut arrived = Arrived::default();
        let times: Vec<u64> = (1000..1500).step_by(10).collect();
        let through: Vec<u64> = times
            .iter()
            .copied()
            .filter(|&now| arrived.admit(policer, now))
            .collect();
        assert_eq!(through, [1000, 1010]);
    }

    #[test]
    fn a_pause_gives_no_credit() {
        let policer = Policer {
            packets: 1,
            every_ns: 100,
        };
        let mut arrived = Arrived::default();
        let through = [5000, 9000, 9001, 9099, 9199, 9298].map(|now| arrived.admit(policer, now));
        assert_eq!(through, [true, true, false, false, true, false]);
    }
}
