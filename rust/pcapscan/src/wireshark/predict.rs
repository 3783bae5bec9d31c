//! The fast path of plain segments (see [`crate::plain`]) through the analysis.

use super::flow::{Flow, Scale};
use super::{Conversation, two};
use crate::plain::Plain;
use crate::seq::at_most;

impl Conversation {
    /// Takes a plain segment with data that cannot have any marks; `None`, and no change,
    /// if it might have some. Returns the relative sequence number.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn predicted_data<const DIRECTION: usize>(
        &mut self,
        segment: Plain<'_>,
        now_ns: i64,
    ) -> Option<u32> {
        let (forward, reverse) = two(&mut self.flows, DIRECTION);
        let (seq, ack, len) = (segment.seq(), segment.ack(), segment.len());
        let end = seq.wrapping_add(len);
        let is_quiet = ack == forward.last_ack && reverse.unacked.is_empty();
        let repeats = reverse.last_ack != 0 && at_most(end, reverse.last_ack);
        if !forward.predicts(reverse, segment)
            || !is_quiet
            || repeats
            || len == 1
            || end == reverse.edge
            || !forward.unacked.has_room()
        {
            return None;
        }
        forward.unacked.push(seq, end, now_ns);
        forward.next_seq = end;
        forward.next_seq_time_ns = now_ns;
        // Behind a gap it stays where the gap begins.
        if forward.max_seq_to_be_acked == seq {
            forward.max_seq_to_be_acked = end;
        }
        forward.last_ack_len = len;
        forward.is_ready = end != 0;
        forward.remember(segment, now_ns);
        Some(seq.wrapping_sub(forward.base_seq))
    }

    /// As [`Conversation::predicted_data`], for a segment without data. Also returns the round-trip time of the ACK.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn predicted_ack<const DIRECTION: usize>(
        &mut self,
        segment: Plain<'_>,
        now_ns: i64,
    ) -> Option<(u32, Option<i64>)> {
        let (forward, reverse) = two(&mut self.flows, DIRECTION);
        if !forward.predicts(reverse, segment) || segment.ack() == forward.last_ack {
            return None;
        }
        forward.dup_acks = 0;
        forward.last_ack = segment.ack();
        forward.remember(segment, now_ns);
        let seen = reverse.unacked.acknowledge(segment.ack());
        Some((
            segment.seq().wrapping_sub(forward.base_seq),
            seen.map(|seen_ns| now_ns.saturating_sub(seen_ns)),
        ))
    }

    /// Computes in advance what the fast path needs; it changes with unusual segments only. `is_settled`
    /// says whether the fast path is otherwise allowed.
    pub fn prepare(&mut self, is_settled: bool) {
        let is_settled =
            is_settled && !self.has_mptcp && (self.first_rtt_ns != 0 || self.last_syn_ns == 0);
        let has_bases = self.flows[0].has_base_seq && self.flows[1].has_base_seq;
        for flow in &mut self.flows {
            let is_begun =
                flow.next_seq != 0 && flow.max_seq_to_be_acked != 0 && !flow.is_first_ack;
            flow.is_ready = is_settled && has_bases && is_begun;
            flow.shift = match flow.scale {
                Scale::Shift(shift) if !flow.is_first_ack => shift.min(31),
                _ => 0,
            };
            flow.edge = flow.window_edge();
        }
    }
}

impl Flow {
    /// Whether a plain segment continues this flow, with nothing to say about its windows and ACK.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    fn predicts(&self, reverse: &Self, segment: Plain<'_>) -> bool {
        self.is_ready
            && segment.seq() == self.next_seq
            && segment.window() != 0
            && !reverse.unseen(segment.ack())
    }

    /// Remembers what each plain segment leaves.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    fn remember(&mut self, segment: Plain<'_>, now_ns: i64) {
        self.window = u32::from(segment.window());
        self.edge = self.last_ack.wrapping_add(self.window << self.shift);
        self.last_ack_time_ns = now_ns;
        self.last_flags = 0;
        self.sack_count = 0;
    }
}
