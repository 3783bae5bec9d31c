//! Our segments: ACKs, and the conversation's bytes until the server acknowledges them.

use super::{DEFAULT_MSS, MOST_REPEATS, Probe, REQUEST_AGAIN, WINDOW};
use crate::segment::{ACK, Outgoing, PSH, Segment, Sink};
use crate::verdict::note;

impl Probe {
    pub(super) fn send(&mut self, seq: u32, flags: u8, window: u16, sink: &mut impl Sink) {
        self.numbers.packets_out += 1;
        let ack = if flags & ACK == 0 {
            0
        } else {
            self.base.wrapping_add(self.acked)
        };
        sink.send(Outgoing {
            seq,
            ack,
            flags,
            window,
            syn: None,
            payload: &[],
        });
    }

    pub(super) fn send_ack(&mut self, window: u16, sink: &mut impl Sink) {
        self.send(self.next(), ACK, window, sink);
    }

    /// Our next sequence number.
    pub(super) fn next(&self) -> u32 {
        self.una
            .wrapping_add(u32::try_from(self.out.len()).unwrap_or(0))
    }

    /// Sends what is in `out` from an index, in segments of the server's MSS.
    pub(super) fn send_from(&mut self, from: usize, now: u64, sink: &mut impl Sink) {
        let mss = usize::from(self.numbers.server_mss.unwrap_or(DEFAULT_MSS).max(64));
        let mss = mss.min(self.plan.device_payload.max(64) as usize);
        let mut seq = self.una.wrapping_add(u32::try_from(from).unwrap_or(0));
        for payload in self.out[from..].chunks(mss) {
            self.numbers.packets_out += 1;
            sink.send(Outgoing {
                seq,
                ack: self.base.wrapping_add(self.acked),
                flags: ACK | PSH,
                window: WINDOW,
                syn: None,
                payload,
            });
            seq = seq.wrapping_add(u32::try_from(payload.len()).unwrap_or(0));
        }
        if from < self.out.len() {
            self.repeats = 0;
            self.numbers.requests = 1;
        }
        self.wake = now.saturating_add(REQUEST_AGAIN);
    }

    /// Sends what was not acknowledged in time again.
    pub(super) fn repeat_request(&mut self, now: u64, sink: &mut impl Sink) {
        if self.out.is_empty() || self.repeats == MOST_REPEATS {
            self.wake = u64::MAX;
            return;
        }
        let repeats = self.repeats + 1;
        self.send_from(0, now, sink);
        self.repeats = repeats;
        self.numbers.requests = repeats + 1;
        self.numbers.notes |= note::HELD_UP;
    }

    /// What the server acknowledges need not be sent again.
    pub(super) fn on_ack(&mut self, segment: &Segment) {
        if !segment.has(ACK) {
            return;
        }
        let covers = segment.ack.wrapping_sub(self.una) as usize;
        if covers > 0 && covers <= self.out.len() {
            self.out.drain(..covers);
            self.una = segment.ack;
        }
    }
}
