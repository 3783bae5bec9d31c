//! Downloads with ACKs, and the second request after an idle time.

use super::{Mode, Phase, Probe, WINDOW, WINDOW_SCALED};
use crate::segment::{Segment, Sink};
use crate::verdict::Verdict;

impl Probe {
    /// A segment of a download: an ACK every so many, at once if something is missing or came again (RFC 5681, section
    /// 4.2); no timer.
    pub(super) fn on_download(
        &mut self,
        segment: &Segment,
        (start, end): (u32, u32),
        now: u64,
        arrival: u64,
        sink: &mut impl Sink,
    ) {
        let had_hole = self.flight.has_hole();
        if segment.length > 0 {
            let is_new = self.flight.add(start, end, arrival);
            if is_new {
                self.note_size(segment);
                self.stream.write(start, segment.payload);
                self.converse(now, sink);
                self.unacked_segments += 1;
            }
            let at_once =
                !is_new || had_hole || self.flight.has_hole() || self.phase == Phase::Idle;
            if at_once || self.unacked_segments >= self.plan.ack_every {
                self.acknowledge(sink);
            }
        }
        let closed = self.fin.is_some_and(|fin| fin == self.flight.contiguous());
        if self.phase == Phase::Idle {
            if closed {
                self.finish(Verdict::NoData, now, sink);
            }
        } else if closed || self.talk.answer.is_complete() {
            self.downloaded(closed, now, sink);
        }
    }

    fn acknowledge(&mut self, sink: &mut impl Sink) {
        self.acked = self.flight.contiguous();
        self.unacked_segments = 0;
        self.send_ack(WINDOW, sink);
    }

    fn downloaded(&mut self, closed: bool, now: u64, sink: &mut impl Sink) {
        if self.flight.is_empty() || closed && self.plan.mode == Mode::Again {
            self.finish(Verdict::NoData, now, sink);
        } else if self.plan.mode == Mode::Fetch {
            self.finish(Verdict::Complete, now, sink);
        } else {
            self.acknowledge(sink);
            self.phase = Phase::Idle;
            self.wake = now.saturating_add(self.plan.idle);
        }
    }

    /// The second request: what follows is a flight.
    pub(super) fn ask_again(&mut self, now: u64, sink: &mut impl Sink) {
        if self.flight.has_hole() {
            self.finish(Verdict::NoData, now, sink); // it still sends the first answer
            return;
        }
        let received = self.flight.extent();
        self.base = self.base.wrapping_add(received);
        self.acked = 0;
        self.flight
            .reset(self.plan.arrivals, u32::from(self.plan.mss));
        self.stream.reset(WINDOW_SCALED as usize);
        (self.numbers.requests, self.spoke_at) = (0, 0);
        self.phase = Phase::Flight;
        let unsent = self.out.len();
        self.talk.ask(&mut self.out);
        self.send_from(unsent, now, sink);
    }
}
