//! Wireshark's TCP sequence analysis: the same verdict on every segment.
//!
//! Written from the behaviour of `tcp_analyze_sequence_number` and `dissect_tcp` in
//! `epan/dissectors/packet-tcp.c`, versions 4.0.17 and 4.4.18. Names of state follow Wireshark's where a reader would
//! compare the two. A value of 0 means "unset" for `next_seq`, `last_ack` and `max_seq_to_be_acked`, as it does there.

mod class;
mod flow;
mod predict;
mod unacked;

pub use class::{CLASSES, Rules, WsClass, flags};

use crate::tcp::{Segment, flag};
use flow::{Flow, Scale};

/// The analysis of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// All marks, see [`flags`].
    pub flags: u16,
    /// The sequence number relative to the connection's first.
    pub relative_seq: u32,
    /// Time since the one segment that this ACK ends at was seen, ns.
    pub ack_rtt_ns: Option<i64>,
}

/// Wireshark's view of a TCP conversation. Direction 0 is that of the greater endpoint (address, then port).
#[derive(Debug, Default)]
pub struct Conversation {
    flows: [Flow; 2],
    last_syn_ns: i64,
    first_rtt_ns: i64,
    /// Whether a FIN with ACK or a RST was seen.
    has_ended: bool,
    has_mptcp: bool,
    mptcp_operations: u8,
}

impl Conversation {
    /// Whether this segment is a SYN of another connection on the same 4-tuple.
    #[inline]
    #[must_use]
    pub fn is_new_connection(&self, direction: usize, segment: &Segment<'_>) -> bool {
        let flow = &self.flows[direction];
        segment.flags & (flag::SYN | flag::ACK) == flag::SYN
            && flow.has_base_seq
            && segment.seq != flow.base_seq
    }

    /// The initial round-trip time: first segment with ACK and without SYN, minus the last SYN; ns, 0 if unknown.
    #[must_use]
    pub fn initial_rtt_ns(&self) -> i64 {
        self.first_rtt_ns
    }

    /// Takes the next segment of the conversation.
    #[inline]
    pub fn segment(
        &mut self,
        rules: Rules,
        direction: usize,
        segment: &Segment<'_>,
        now_ns: i64,
    ) -> Verdict {
        if rules == Rules::V4_4 && self.begins_anew(direction, segment) {
            *self = Self::default();
        }
        self.before_analysis(direction, segment);
        let mut verdict = Verdict {
            flags: 0,
            relative_seq: segment.seq,
            ack_rtt_ns: None,
        };
        if segment.has_len {
            self.set_base(direction, segment);
            (verdict.flags, verdict.ack_rtt_ns) = self.analyse(rules, direction, segment, now_ns);
            verdict.relative_seq = segment.seq.wrapping_sub(self.flows[direction].base_seq);
        }
        if segment.has_options {
            self.after_analysis(direction, segment, now_ns);
            if !segment.options.sack.is_empty() {
                verdict.flags = self.note_sack(rules, direction, segment, verdict.flags);
            }
        }
        // Wireshark gives up inside such a header: it remembers what it found, and shows nothing.
        if segment.is_cut || !segment.has_options {
            verdict.flags = 0;
        }
        verdict
    }

    /// Whether 4.4 begins another conversation here: a SYN after FIN or RST, or a SYN-ACK that does not fit. The
    /// connection is one by our count; a SYN with another sequence number began a new one before it came here.
    fn begins_anew(&self, direction: usize, segment: &Segment<'_>) -> bool {
        let flow = &self.flows[direction];
        segment.any(flag::SYN)
            && flow.has_base_seq
            && (self.has_ended || segment.seq != flow.base_seq)
    }

    fn before_analysis(&mut self, direction: usize, segment: &Segment<'_>) {
        let flow = &mut self.flows[direction];
        if segment.flags & (flag::SYN | flag::ACK) == flag::SYN && !flow.has_base_seq {
            // 4.4 treats this as the beginning, regardless of earlier segments.
            self.has_ended = false;
        }
        if segment.flags & flag::SYN != 0 && flow.has_base_seq {
            if segment.flags & flag::ACK != 0 {
                flow.base_seq = segment.seq;
            } else if segment.seq == flow.base_seq {
                // A RST may have moved it (Wireshark issue 17616).
                flow.next_seq = flow.max_seq_to_be_acked;
            }
        }
        flow.sack_count = 0;
    }

    fn set_base(&mut self, direction: usize, segment: &Segment<'_>) {
        let flow = &mut self.flows[direction];
        if !flow.has_base_seq {
            let is_syn = segment.any(flag::SYN);
            flow.base_seq = if is_syn {
                segment.seq
            } else {
                segment.seq.wrapping_sub(1)
            };
            flow.has_base_seq = true;
        }
        let reverse = &mut self.flows[direction ^ 1];
        if !reverse.has_base_seq && segment.any(flag::ACK) {
            reverse.base_seq = segment.ack.wrapping_sub(1);
            reverse.has_base_seq = true;
        }
    }

    fn analyse(
        &mut self,
        rules: Rules,
        direction: usize,
        segment: &Segment<'_>,
        now_ns: i64,
    ) -> (u16, Option<i64>) {
        let mptcp = self.has_mptcp.then_some(self.mptcp_operations);
        let first_rtt_ns = self.first_rtt_ns;
        let (forward, reverse) = two(&mut self.flows, direction);
        let mut marks = forward.window_marks(rules, reverse, segment, mptcp);
        if segment.ack != forward.last_ack {
            forward.dup_acks = 0;
        }
        marks |= forward.acked_unseen(rules, reverse, segment);
        if (segment.len > 0 || segment.any(flag::SYN | flag::FIN)) && marks & flags::KEEP_ALIVE == 0
        {
            marks |= forward.order(rules, reverse, segment, now_ns, first_rtt_ns);
        }
        forward.advance(segment, now_ns, marks);
        if let Some(operations) = mptcp {
            forward.mptcp = operations;
        }
        (
            marks,
            reverse
                .unacked
                .acknowledge(segment.ack)
                .map(|seen| now_ns.saturating_sub(seen)),
        )
    }

    fn after_analysis(&mut self, direction: usize, segment: &Segment<'_>, now_ns: i64) {
        let both = segment.flags & (flag::SYN | flag::ACK);
        if both & flag::SYN != 0 {
            if both & flag::ACK == 0 {
                self.last_syn_ns = now_ns;
            }
            self.flows[direction].is_first_ack = true;
            self.note_scale(direction, segment);
        } else if both == flag::ACK {
            if self.last_syn_ns != 0 && self.first_rtt_ns == 0 {
                self.first_rtt_ns = now_ns.saturating_sub(self.last_syn_ns);
            }
            self.flows[direction].is_first_ack = false;
        }
        let is_fin_ack = segment.flags & (flag::FIN | flag::ACK) == flag::FIN | flag::ACK;
        self.has_ended |= is_fin_ack || segment.any(flag::RST);
        if segment.options.mptcp != 0 {
            self.has_mptcp = true;
            self.mptcp_operations |= segment.options.mptcp;
        }
    }

    /// `dissect_tcpopt_sack`. 4.4 stores edges relative to the other side's first sequence number, though it compares
    /// them with absolute ones later, and turns a window update that has SACK blocks into a duplicate ACK.
    #[cold]
    fn note_sack(
        &mut self,
        rules: Rules,
        direction: usize,
        segment: &Segment<'_>,
        marks: u16,
    ) -> u16 {
        if rules == Rules::V4_0 {
            return marks;
        }
        let base = self.flows[direction ^ 1].base_seq;
        let ignores = self.has_mptcp && self.mptcp_operations != self.flows[direction].mptcp;
        let flow = &mut self.flows[direction];
        flow.sack_count = 0;
        for (slot, (left, right)) in flow.sack.iter_mut().zip(segment.options.sack_blocks()) {
            *slot = (left.wrapping_sub(base), right.wrapping_sub(base));
            flow.sack_count += 1;
        }
        if marks & flags::WINDOW_UPDATE == 0 || ignores {
            return marks;
        }
        flow.dup_acks = flow.dup_acks.wrapping_add(1);
        marks & !flags::WINDOW_UPDATE | flags::DUP_ACK
    }

    /// `verify_tcp_window_scaling`: scaling needs the option in both SYNs.
    fn note_scale(&mut self, direction: usize, segment: &Segment<'_>) {
        if let Some(shift) = segment.options.window_scale {
            self.flows[direction].scale = Scale::Shift(shift);
        }
        if segment.is_cut {
            return;
        }
        if self.flows[direction].scale == Scale::Unknown {
            self.flows[0].scale = Scale::Off;
            self.flows[1].scale = Scale::Off;
        } else if segment.any(flag::ACK) && self.flows[direction ^ 1].scale == Scale::Off {
            self.flows[direction].scale = Scale::Off;
        }
    }
}

/// The flow of this direction, and the other.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "with a constant direction it is nothing"
)]
fn two(flows: &mut [Flow; 2], direction: usize) -> (&mut Flow, &mut Flow) {
    let [zero, one] = flows;
    if direction == 0 {
        (zero, one)
    } else {
        (one, zero)
    }
}
