//! The handshake: SYN, SYN-ACK, a delayed ACK, the request.

use super::{Mode, Phase, Probe, SCALE, SYN_AGAIN, WINDOW};
use crate::segment::{ACK, Announced, Outgoing, RST, SYN, Segment, Sink};
use crate::verdict::{Verdict, note};

impl Probe {
    pub(super) fn send_syn(&mut self, now: u64, sink: &mut impl Sink) {
        self.syn_at = now;
        let sent = usize::from(self.numbers.syns);
        self.wake = SYN_AGAIN
            .get(sent)
            .map_or(u64::MAX, |after| self.began.saturating_add(*after));
        self.numbers.syns += 1;
        if sent > 0 {
            self.numbers.notes |= note::HELD_UP;
        }
        self.numbers.packets_out += 1;
        sink.send(Outgoing {
            seq: self.isn,
            ack: 0,
            flags: SYN,
            window: WINDOW,
            syn: Some(Announced {
                mss: self.plan.mss,
                scale: SCALE,
            }),
            payload: &[],
        });
        sink.tell_when_left();
    }

    pub(super) fn on_syn_ack(&mut self, segment: &Segment, now: u64, sink: &mut impl Sink) {
        if !segment.has(ACK) || segment.ack != self.una {
            return;
        }
        if segment.has(RST) {
            self.finish(Verdict::ConnectionRefused, now, sink);
        } else if segment.has(SYN) {
            self.numbers.rtt = Some(now.saturating_sub(self.syn_at));
            self.numbers.handshake = Some(now.saturating_sub(self.began));
            (self.numbers.server_mss, self.numbers.server_scale) = (segment.mss, segment.scale);
            self.base = segment.seq.wrapping_add(1);
            self.phase = Phase::Delay;
            self.wake = now.saturating_add(self.plan.ack_delay);
            if self.plan.ack_delay == 0 {
                self.open(now, sink);
            }
        }
    }

    pub(super) fn on_second_syn_ack(&mut self, segment: &Segment, sink: &mut impl Sink) {
        self.numbers.notes |= note::HELD_UP;
        let ours = segment.has(ACK) && segment.seq.wrapping_add(1) == self.base;
        if ours && self.phase == Phase::Flight && self.flight.is_empty() {
            self.send_ack(WINDOW, sink);
        }
    }

    /// The ACK, then the request as a segment of its own.
    pub(super) fn open(&mut self, now: u64, sink: &mut impl Sink) {
        self.phase = match self.plan.mode {
            Mode::Window => Phase::Flight,
            Mode::Fetch | Mode::Again => Phase::Fetch,
        };
        self.send_ack(WINDOW, sink);
        self.talk.open(&mut self.out);
        self.send_from(0, now, sink);
    }
}
