//! What the order of the body tells about losses. QUIC never repeats a packet, and its numbers are encrypted.

/// So many packets after a gap show that the missing one is lost and not only late (RFC 9002, section 6.1.1).
const PACKETS: usize = 3;
/// Datagrams below this carry acknowledgements and no part of a body: they are behind no gap.
const DATA_BYTES: usize = 100;

/// Counts the times that a part of the body was missing.
#[derive(Debug, Default)]
pub struct Order {
    /// Packets that came since the last look at the body and may have a part of it, and the bytes of all.
    packets: usize,
    bytes: u64,
    /// Packets since the last gap was filled that did not bring the next part of the body.
    behind: usize,
    /// How often packets were lost. Several losses within a round trip are one, as for congestion control.
    pub loss_episodes: u64,
}

impl Order {
    /// A packet came, of so many bytes.
    pub const fn received(&mut self, bytes: usize) {
        self.packets += (bytes >= DATA_BYTES) as usize;
        self.bytes += bytes as u64;
    }

    /// With the packets that came, the next so many bytes of the body could be read. More than they have themselves can be
    /// read where they fill a gap; packets that bring nothing may also be repetitions.
    pub const fn read(&mut self, read: u64) {
        let (packets, bytes) = (self.packets, self.bytes);
        (self.packets, self.bytes) = (0, 0);
        if read == 0 {
            self.behind += packets;
        } else if read > bytes {
            self.loss_episodes += (self.behind >= PACKETS) as u64;
            self.behind = 0;
        }
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
