//! The flight whose ACKs are withheld, its end, and the ACK that asks for more.

use super::{
    CONFIRMATION_SLACK, DEFAULT_MSS, LEAST_TIMEOUT, MOST_REMINDERS, MOST_REPEATS, MS, Phase, Probe,
    REMINDER, SCALE, WINDOW,
};
use crate::segment::{Segment, Sink};
use crate::verdict::{Verdict, note};

impl Probe {
    pub(super) fn on_flight(
        &mut self,
        segment: &Segment,
        (start, end): (u32, u32),
        now: u64,
        arrival: u64,
        sink: &mut impl Sink,
    ) {
        if segment.length > 0 {
            if self.is_retransmission(start, end, arrival) {
                let after = arrival.saturating_sub(self.flight.first_at());
                self.numbers.retransmission = Some(after);
                self.end_flight(now, sink);
                return;
            }
            if self.flight.add(start, end, arrival) {
                self.note_size(segment);
                self.stream.write(start, segment.payload);
                self.converse(now, sink);
                let pause = arrival.saturating_sub(self.flight.first_at());
                if self.out.is_empty() && pause > MS.max(self.round_trip() / 2) {
                    self.wake = now.saturating_add(REMINDER);
                }
            }
        }
        if self.fin.is_some_and(|fin| fin == self.flight.contiguous()) {
            let verdict = if self.flight.is_empty() {
                Verdict::NoData
            } else {
                Verdict::LowerBound
            };
            self.finish(verdict, now, sink);
        }
    }

    /// After a pause Linux may keep the last segments of its window until an ACK comes, and sends them with any that is later
    /// than 1 ms (`tcp_tso_should_defer`). One that acknowledges nothing, and has a larger window, is no duplicate (RFC 5681,
    /// section 2), which would let another segment leave (RFC 3042).
    pub(super) fn remind(&mut self, sink: &mut impl Sink) {
        self.wake = u64::MAX;
        if self.reminders < MOST_REMINDERS && !self.flight.is_empty() {
            self.reminders += 1;
            self.send_ack(WINDOW + self.reminders, sink);
        }
    }

    /// The server's round trip, which includes the delay of our first ACK.
    fn round_trip(&self) -> u64 {
        self.numbers.rtt.unwrap_or(0) + self.plan.ack_delay
    }

    /// Whether the server's timer fired: a segment that was seen comes again, or the first hole is filled after a silence.
    ///
    /// As we acknowledge nothing, a timeout always sends the first segment; another one that was seen was duplicated on
    /// its way.
    pub(super) fn is_retransmission(&self, start: u32, end: u32, arrival: u64) -> bool {
        let flight = &self.flight;
        if flight.is_empty() || start > flight.contiguous() {
            return false;
        }
        if start == 0 && flight.has(0, 1) {
            return arrival.saturating_sub(flight.first_at()) >= LEAST_TIMEOUT;
        }
        let fills = start == flight.contiguous() && flight.has_hole() && !flight.has(start, end);
        fills && arrival.saturating_sub(flight.last_at()) >= LEAST_TIMEOUT
    }

    pub(super) fn note_size(&mut self, segment: &Segment) {
        if segment.merged || segment.length > self.plan.device_payload {
            self.numbers.notes |= note::MERGED;
        } else if segment.length > u32::from(self.plan.mss) {
            self.numbers.notes |= note::MSS_IGNORED;
        }
    }

    /// Passes whole runs of bytes to the conversation, and sends what it says.
    pub(super) fn converse(&mut self, now: u64, sink: &mut impl Sink) {
        let contiguous = self.flight.contiguous();
        let unsent = self.out.len();
        let was_requested = self.talk.is_requested();
        let ready = self.stream.ready(contiguous);
        if ready.is_empty() {
            return;
        }
        self.talk.input(ready, &mut self.out);
        self.stream.take(contiguous);
        if self.talk.is_requested() && !was_requested {
            self.numbers.handshake_bytes = self.flight.extent();
        }
        if self.out.len() > unsent {
            self.spoke_at = self.flight.extent();
            self.send_from(unsent, now, sink);
        }
    }

    /// Whether an answer by TLS has begun. Behind a hole nothing can be read: then any data after the request has.
    pub(super) fn has_begun(&self) -> bool {
        let beyond = self.flight.has_hole() && self.flight.extent() > self.spoke_at;
        !self.talk.is_tls() || self.talk.has_begun() || self.talk.has_spoken() && beyond
    }

    /// The flight is complete. Unless its verdict is certain, one ACK of the highest byte seen.
    pub(super) fn end_flight(&mut self, now: u64, sink: &mut impl Sink) {
        let largest = self.flight.largest();
        if self.talk.has_spoken() && !self.has_begun() {
            self.finish(Verdict::Late, now, sink);
        } else if self.fin.is_some()
            || self.is_window_full()
            || self.flight.seen() > 1 && 2 * largest < u32::from(self.plan.mss.min(DEFAULT_MSS))
        {
            // Only small segments: an application that writes slowly. A sender with enough data fills all but the last.
            self.finish(self.without_confirmation(), now, sink);
        } else {
            self.acked = self.flight.extent();
            self.phase = Phase::Confirm;
            self.repeats = 0;
            self.confirmed_at = None;
            self.confirm(sink);
        }
    }

    pub(super) fn is_window_full(&self) -> bool {
        self.flight.extent() + self.flight.largest() > self.acked.saturating_add(self.window())
    }

    /// The verdict of a flight with data whose end was not confirmed.
    pub(super) fn without_confirmation(&self) -> Verdict {
        if self.is_window_full() {
            Verdict::WindowBound
        } else if self.talk.is_tls() && !self.has_begun() {
            Verdict::Late
        } else {
            Verdict::LowerBound
        }
    }

    pub(super) fn confirm(&mut self, sink: &mut impl Sink) {
        let two = 2 * self.flight.largest().max(u32::from(self.plan.mss));
        let field = if self.numbers.server_scale.is_some() {
            two.div_ceil(1 << SCALE)
        } else {
            two
        };
        self.send_ack(u16::try_from(field).unwrap_or(WINDOW), sink);
        sink.tell_when_left();
        self.wake = u64::MAX; // until it has left
    }

    /// Data after our ACK, by `now`: an arrival is of another clock where the device stamps packets.
    pub(super) fn on_confirmation(
        &mut self,
        end: u32,
        length: u32,
        now: u64,
        sink: &mut impl Sink,
    ) {
        if length > 0 && end > self.acked {
            // What comes later had not been written before, and what comes before our ACK has left was not held back.
            let limit = 2 * self.round_trip() + CONFIRMATION_SLACK;
            let since = self.confirmed_at.and_then(|at| now.checked_sub(at));
            let is_late = since.is_none_or(|since| since > limit);
            // A short segment after one: the end of the answer, which Nagle's algorithm holds back, and not the window.
            let flight = &self.flight;
            let has_short = flight.extent() < flight.segments().saturating_mul(flight.full());
            let is_end = has_short && length < flight.full() && length != flight.largest();
            let verdict = if is_late || is_end {
                Verdict::LowerBound
            } else {
                Verdict::Limited
            };
            self.finish(verdict, now, sink);
        } else if self.fin.is_some_and(|fin| fin <= self.acked) {
            self.finish(Verdict::LowerBound, now, sink);
        } else if length > 0 && self.repeats < MOST_REPEATS && self.wake < u64::MAX {
            // The server repeats what we acknowledged more than a round trip ago: our ACK was lost.
            let rtt = self.numbers.rtt.unwrap_or(0).max(LEAST_TIMEOUT);
            if self
                .confirmed_at
                .is_some_and(|at| now.saturating_sub(at) > rtt)
            {
                self.repeats += 1;
                self.confirm(sink);
            }
        }
    }
}
