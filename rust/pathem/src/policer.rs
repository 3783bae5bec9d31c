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

/// When the last packets of one connection passed, ns.
#[derive(Debug, Clone, Default)]
pub struct Passed(VecDeque<u64>);

impl Passed {
    /// Whether a packet that arrives now passes; if it does, it counts.
    pub fn admit(&mut self, policer: Policer, now: u64) -> bool {
        while self.0.len() >= policer.packets {
            match self.0.front() {
                Some(&oldest) if now < oldest + policer.every_ns => return false,
                _ => self.0.pop_front(),
            };
        }
        self.0.push_back(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_has_more_than_the_limit() {
        let policer = Policer {
            packets: 2,
            every_ns: 100,
        };
        let mut passed = Passed::default();
        let times: Vec<u64> = (1000..1500).step_by(10).collect();
        let through: Vec<u64> = times
            .iter()
            .copied()
            .filter(|&now| passed.admit(policer, now))
            .collect();
        assert_eq!(
            through,
            [1000, 1010, 1100, 1110, 1200, 1210, 1300, 1310, 1400, 1410]
        );
    }

    #[test]
    fn a_pause_gives_no_credit() {
        let policer = Policer {
            packets: 1,
            every_ns: 100,
        };
        let mut passed = Passed::default();
        let through = [5000, 9000, 9001, 9099, 9100].map(|now| passed.admit(policer, now));
        assert_eq!(through, [true, true, false, false, true]);
    }
}
