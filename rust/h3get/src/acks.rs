//! When acknowledgements leave: one for every second packet of a body that comes in order, as RFC 9000, section 13.2.2,
//! recommends and as TCP does (RFC 9293, section 3.8.6.3). quiche would acknowledge each packet.

use std::time::Duration;

/// Packets that one acknowledgement covers.
const PACKETS: usize = 2;
/// The longest that a single packet waits for its acknowledgement; less than the `max_ack_delay` of 25 ms that quiche
/// tells the server, so that a slow path's packets are acknowledged one by one.
const DELAY: Duration = Duration::from_millis(5);

/// Packets that came since the last acknowledgement.
#[derive(Debug, Default)]
pub struct Acks {
    packets: usize,
    since: Duration,
    at_once: bool,
}

impl Acks {
    /// Packets came. Those that bring nothing in order (a gap, a repetition, a frame that is no data) are acknowledged
    /// at once: RFC 9000, section 13.2.1.
    pub const fn received(&mut self, packets: usize, in_order: bool, now: Duration) {
        if packets == 0 {
            return;
        }
        if self.packets == 0 {
            self.since = now;
        }
        self.packets += packets;
        self.at_once |= !in_order;
    }

    /// How long to wait for another packet before the acknowledgement leaves; `None` if it is to leave now.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        if self.at_once || self.packets == 0 || self.packets >= PACKETS {
            return None;
        }
        (self.since + DELAY)
            .checked_sub(now)
            .filter(|left| !left.is_zero())
    }

    /// Everything has been acknowledged.
    pub fn sent(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn every_second_packet_is_acknowledged() {
        let mut acks = Acks::default();
        assert_eq!(acks.wait(ms(10)), None, "what else is due is sent");
        acks.received(1, true, ms(10));
        assert_eq!(acks.wait(ms(11)), Some(ms(4)));
        acks.received(1, true, ms(12));
        assert_eq!(acks.wait(ms(12)), None);
        acks.sent();
        acks.received(7, true, ms(20));
        assert_eq!(acks.wait(ms(20)), None);
    }

    #[test]
    fn a_packet_does_not_wait_for_long() {
        let mut acks = Acks::default();
        acks.received(1, true, ms(10));
        acks.received(0, true, ms(14));
        assert_eq!(acks.wait(ms(14)), Some(ms(1)));
        assert_eq!(acks.wait(ms(15)), None);
        assert_eq!(acks.wait(ms(99)), None);
    }

    #[test]
    fn a_gap_is_acknowledged_at_once() {
        let mut acks = Acks::default();
        acks.received(1, false, ms(10));
        assert_eq!(acks.wait(ms(10)), None);
        acks.sent();
        acks.received(1, true, ms(11));
        assert_eq!(acks.wait(ms(11)), Some(DELAY));
    }
}
