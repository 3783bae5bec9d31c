//! What the order of the body tells about losses. QUIC never repeats a packet, and its numbers are encrypted.

/// So many packets behind a gap show that the missing one is lost and not only late (RFC 9002, section 6.1.1).
const PACKETS: u64 = 3;

/// Counts the times that a part of the body was missing.
#[derive(Debug, Default)]
pub struct Order {
    /// Bytes of the packets that came since the last look at the body.
    bytes: u64,
    /// The largest packet so far, bytes.
    largest: u64,
    /// How often packets were lost.
    pub loss_episodes: u64,
}

impl Order {
    /// A packet came, of so many bytes.
    pub fn received(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.largest = self.largest.max(bytes as u64);
    }

    /// With the packets that came, the next so many bytes of the body could be read. Where they fill a gap, these are more
    /// than they have themselves (of which headers take about a 32nd): what waited behind it. What brings nothing
    /// (acknowledgements, probes of a larger MTU, repetitions) waits for nothing.
    pub const fn read(&mut self, read: u64) {
        let waited = read.saturating_sub(self.bytes - self.bytes / 32);
        self.loss_episodes += (waited > PACKETS * self.largest * 9 / 10) as u64;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(received: &[(usize, usize, u64)]) -> u64 {
        let mut order = Order::default();
        for &(packets, bytes, read) in received {
            for _ in 0..packets {
                order.received(bytes / packets);
            }
            order.read(read);
        }
        order.loss_episodes
    }

    #[test]
    fn a_gap_that_is_filled_late_was_a_loss() {
        assert_eq!(after(&[(2, 2400, 2300), (4, 4800, 0), (1, 1200, 5700)]), 1);
        let twice = [(3, 3600, 0), (1, 1200, 4500), (5, 6000, 0), (2, 2400, 8000)];
        assert_eq!(after(&twice), 2);
    }

    #[test]
    fn a_gap_in_a_burst_that_is_taken_in_at_once_was_a_loss() {
        assert_eq!(after(&[(9, 10800, 2300), (1, 1200, 9200)]), 1);
        assert_eq!(after(&[(9, 10800, 2300), (5, 6000, 13_800)]), 1);
    }

    #[test]
    fn a_gap_of_several_packets_is_filled_one_by_one() {
        let filled = [
            (5, 6000, 0),
            (1, 1200, 1150),
            (1, 1200, 1150),
            (1, 1200, 6900),
        ];
        assert_eq!(after(&filled), 1);
    }

    #[test]
    fn a_gap_that_is_filled_soon_was_reordering() {
        assert_eq!(after(&[(2, 2400, 0), (1, 1200, 3500), (4, 4800, 4700)]), 0);
        let (probe, early, late) = ((1, 1200, 0), (1, 1200, 0), (1, 1200, 2300));
        assert_eq!(after(&[probe, probe, probe, early, late]), 0);
    }

    #[test]
    fn acknowledgements_are_behind_no_gap() {
        let (ack, next, early, late) = ((1, 45, 0), (1, 1200, 1150), (1, 1200, 0), (1, 1200, 2300));
        assert_eq!(after(&[ack, ack, ack, next, early, late]), 0);
        assert_eq!(after(&[early, ack, ack, late]), 0);
    }

    #[test]
    fn what_comes_again_was_not_lost() {
        assert_eq!(after(&[(4, 4800, 0), (1, 1200, 1100)]), 0);
    }
}
