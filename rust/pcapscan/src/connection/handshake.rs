//! The handshake of a TCP connection, and who is the client.

use super::{Connection, RoleSource};
use crate::tcp::{Segment, flag};

impl Connection {
    /// Windows are scaled where both SYNs offer it (RFC 7323, section 2.2).
    #[cold]
    pub(super) fn note_scaling(&mut self) {
        let offers = self.sides.each_ref().map(|side| side.options.window_scale);
        let is_scaled = offers[0].is_some() && offers[1].is_some();
        for (side, offer) in self.sides.iter_mut().zip(offers) {
            side.window_shift = offer.filter(|_| is_scaled).unwrap_or(0);
        }
    }

    #[cold]
    pub(super) fn note_handshake(&mut self, direction: usize, segment: &Segment<'_>, now_ns: i64) {
        let handshake = &mut self.handshake;
        let timestamps = segment.options.timestamps;
        match (segment.any(flag::SYN), segment.any(flag::ACK)) {
            (true, false) => {
                if handshake.syn_ns.is_none() && handshake.syn_ack_ns.is_none()
                    || self.role_source == RoleSource::Ports
                {
                    self.client = direction;
                    self.role_source = RoleSource::Handshake;
                }
                if handshake.syn_ns.is_none() {
                    handshake.syn_ns = Some(now_ns);
                    handshake.syn_flags = segment.flags;
                    handshake.first_syn_tsval = timestamps.map(|(value, _)| value);
                }
                if handshake.syn_ack_ns.is_none() {
                    handshake.last_syn_ns = Some(now_ns);
                    handshake.last_syn_flags = segment.flags;
                }
            }
            (true, true) => {
                if self.role_source == RoleSource::Ports {
                    self.client = direction ^ 1;
                    self.role_source = RoleSource::Handshake;
                }
                if handshake.syn_ack_ns.is_none() {
                    handshake.syn_ack_ns = Some(now_ns);
                    handshake.syn_ack_flags = segment.flags;
                    handshake.answers_first = match (timestamps, handshake.first_syn_tsval) {
                        (Some((_, echo)), Some(first)) => Some(echo == first),
                        _ => None,
                    };
                }
            }
            (false, true)
                if direction == self.client
                    && handshake.syn_ack_ns.is_some()
                    && !segment.any(flag::RST) =>
            {
                handshake.ack_ns = Some(now_ns);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Packet, Writer};
    use crate::{Capture, Engine, Record, Settings};
    use std::io::Cursor;

    #[test]
    fn a_syn_ack_accepts_what_the_syn_requested_that_it_answers() {
        // A retransmitted SYN without ECN, as the kernel's tcp_ecn_fallback makes it.
        for (echo, accepted) in [(1, true), (1001, false)] {
            let mut writer = Writer::default();
            for (time_ns, flags, timestamps) in [
                (1, 0xc2, (1, 0)),
                (1_000_000_001, 0x02, (1001, 0)),
                (1_050_000_001, 0x52, (9, echo)),
            ] {
                let from_client = flags & 0x10 == 0;
                writer.packet(&Packet {
                    time_ns,
                    from_client,
                    seq: if from_client { 1000 } else { 5000 },
                    ack: if from_client { 0 } else { 1001 },
                    flags,
                    window: 60_000,
                    len: 0,
                    id: 0,
                    timestamps: Some(timestamps),
                });
            }
            let bytes = Cursor::new(writer.bytes().to_vec());
            let mut capture = Capture::from_reader(Box::new(bytes)).unwrap();
            let mut engine = Engine::new(Settings::default());
            engine.run(&mut capture, &mut (), u64::MAX);
            let record = Record::new(engine.connections().next().unwrap(), false);
            assert_eq!(record.ecn_accepted, Some(accepted));
            assert_eq!(record.ecn_fallback, Some(true));
        }
    }
}
