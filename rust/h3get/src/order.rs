//! What the order of the body tells about losses. QUIC never repeats a packet, and its numbers are encrypted.

/// So many packets after a gap show that the missing one is lost and not only late (RFC 9002, section 6.1.1).
const PACKETS: usize = 3;

/// Counts the times that a part of the body was missing.
#[derive(Debug, Default)]
pub struct Order {
    /// Packets since the last one that brought the next part of the body.
    behind: usize,
    /// How often a packet was lost. Several losses within a round trip are one, as for congestion control.
    pub loss_episodes: u64,
}

impl Order {
    /// Packets came, and brought the next part of the body, or did not.
    pub const fn received(&mut self, packets: usize, in_order: bool) {
        if packets == 0 {
            return;
        }
        if in_order {
            self.behind = 0;
            return;
        }
        let before = self.behind;
        self.behind += packets;
        if before < PACKETS && self.behind >= PACKETS {
            self.loss_episodes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_stays_is_a_loss() {
        let mut order = Order::default();
        for (packets, in_order) in [(2, true), (1, false), (1, false), (4, true)] {
            order.received(packets, in_order);
        }
        assert_eq!(order.loss_episodes, 0, "only reordered");
        for (packets, in_order) in [(2, false), (5, false), (0, true), (9, false), (1, true)] {
            order.received(packets, in_order);
        }
        assert_eq!(order.loss_episodes, 1);
        order.received(3, false);
        assert_eq!(order.loss_episodes, 2);
    }
}
