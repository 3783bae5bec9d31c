//! Wireshark's TCP sequence analysis: the same verdict on every segment.
//!
//! Written from the behaviour of `tcp_analyze_sequence_number` and `dissect_tcp` in
//! `epan/dissectors/packet-tcp.c`, versions 4.0.17 and 4.4.18. Names of state follow Wireshark's where a reader would
//! compare the two. A value of 0 means "unset" for `next_seq`, `last_ack` and `max_seq_to_be_acked`, as it does there.

mod class;
mod unacked;

pub use class::{CLASSES, WsClass, flags};

use crate::plain::Plain;
use crate::seq::{after, at_most, before};
use crate::tcp::{MOST_SACK_BLOCKS, Segment, flag};
use unacked::UnackedList;

/// Which Wireshark to agree with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rules {
    /// 4.0 (checked against 4.0.17).
    #[default]
    V4_0,
    /// 4.4 (written from 4.4.18).
    V4_4,
}

/// Fast retransmissions follow the last segment of the other side within this time.
const FAST_LIMIT_NS: u64 = 20_000_000;
/// The limit for out of order where the handshake was not seen.
const REORDER_LIMIT_NS: u64 = 3_000_000;
const SPECIAL: u16 = flag::SYN | flag::FIN | flag::RST;

/// Window scaling of one side as Wireshark knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Unknown,
    Off,
    Shift(u8),
}

/// What Wireshark remembers of one direction.
#[derive(Debug)]
struct Flow {
    next_seq: u32,
    last_ack: u32,
    max_seq_to_be_acked: u32,
    /// Duplicate ACKs; unsigned, so the -1 that an ACK of unseen data sets in 4.0 counts as "at least 2".
    dup_acks: u32,
    /// Raw window; the initial value is no window that a header can have.
    window: u32,
    base_seq: u32,
    has_base_seq: bool,
    is_first_ack: bool,
    last_ack_len: u32,
    scale: Scale,
    last_flags: u16,
    mptcp: u8,
    sack_count: u8,
    /// See [`Conversation::prepare`].
    is_ready: bool,
    shift: u8,
    /// Where the window that this side announced ends.
    edge: u32,
    next_seq_time_ns: i64,
    last_ack_time_ns: i64,
    sack: [(u32, u32); MOST_SACK_BLOCKS],
    unacked: UnackedList,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            next_seq: 0,
            last_ack: 0,
            max_seq_to_be_acked: 0,
            dup_acks: 0,
            window: u32::MAX,
            base_seq: 0,
            has_base_seq: false,
            is_first_ack: false,
            last_ack_len: 0,
            scale: Scale::Unknown,
            last_flags: 0,
            mptcp: 0,
            sack_count: 0,
            is_ready: false,
            shift: 0,
            edge: 0,
            next_seq_time_ns: 0,
            last_ack_time_ns: 0,
            sack: [(0, 0); MOST_SACK_BLOCKS],
            unacked: UnackedList::default(),
        }
    }
}

/// What the analysis says about a segment.
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

    /// The initial round-trip time: first segment that is an ACK and no SYN, minus the last SYN; ns, 0 where unknown.
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

    /// Takes a plain segment with data where nothing can be said about it but that it came; `None`, and no change,
    /// where something might be. Returns the relative sequence number.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the short way")]
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

    /// As [`Conversation::predicted_data`], for a segment without data. Returns also the time that the ACK tells.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the short way")]
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

    /// Finds out beforehand what [`Flow::predicts`] wants to know; it changes with unusual segments only. `is_settled`
    /// says whether anything else stands against the short way.
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

    fn before_analysis(&mut self, direction: usize, segment: &Segment<'_>) {
        let flow = &mut self.flows[direction];
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
        if segment.options.mptcp != 0 {
            self.has_mptcp = true;
            self.mptcp_operations |= segment.options.mptcp;
        }
    }

    /// `dissect_tcpopt_sack`. 4.4 stores edges relative to the other side's first sequence number, though it compares
    /// them with absolute numbers later, and turns a window update that has SACK blocks into a duplicate ACK.
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

impl Flow {
    /// Whether a plain segment continues this flow, with nothing to say about its windows and ACK.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the short way")]
    fn predicts(&self, reverse: &Self, segment: Plain<'_>) -> bool {
        self.is_ready
            && segment.seq() == self.next_seq
            && segment.window() != 0
            && !reverse.unseen(segment.ack())
    }

    /// Remembers what each plain segment leaves.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the short way")]
    fn remember(&mut self, segment: Plain<'_>, now_ns: i64) {
        self.window = u32::from(segment.window());
        self.edge = self.last_ack.wrapping_add(self.window << self.shift);
        self.last_ack_time_ns = now_ns;
        self.last_flags = 0;
        self.sack_count = 0;
    }

    /// Marks that come from windows, keep-alives and repeated ACKs.
    #[inline]
    fn window_marks(
        &mut self,
        rules: Rules,
        reverse: &mut Self,
        segment: &Segment<'_>,
        mptcp: Option<u8>,
    ) -> u16 {
        let (seq, ack, len) = (segment.seq, segment.ack, segment.len);
        let window = u32::from(segment.window);
        if len == 1 && seq == self.next_seq && reverse.window == 0 {
            return flags::ZERO_WINDOW_PROBE;
        }
        let mut marks = 0;
        if self.next_seq != 0 && after(seq, self.next_seq) && !segment.any(flag::RST) {
            marks |= flags::LOST_SEGMENT;
        }
        if segment.any(SPECIAL) {
            return marks;
        }
        if window == 0 {
            marks |= flags::ZERO_WINDOW;
        }
        if len <= 1 && seq == self.next_seq.wrapping_sub(1) {
            marks |= flags::KEEP_ALIVE;
        }
        if len > 0 {
            if reverse.scale != Scale::Unknown && seq.wrapping_add(len) == reverse.window_edge() {
                marks |= flags::WINDOW_FULL;
            }
            return marks;
        }
        if seq != self.next_seq {
            return marks;
        }
        if ack == self.last_ack {
            if window != 0 && window != self.window {
                return marks | flags::WINDOW_UPDATE;
            }
            if window != 0 {
                if reverse.last_flags & flags::KEEP_ALIVE != 0 {
                    return marks | flags::KEEP_ALIVE_ACK;
                }
                if mptcp.is_some_and(|operations| operations != self.mptcp) {
                    return marks;
                }
                // 4.0 neutralises the -1 that an ACK of unseen data left.
                let neutralised = rules == Rules::V4_0 && self.dup_acks == u32::MAX;
                self.dup_acks = if neutralised {
                    1
                } else {
                    self.dup_acks.wrapping_add(1)
                };
                return marks | flags::DUP_ACK;
            }
        }
        let consumed = rules == Rules::V4_4 && ack == self.last_ack.wrapping_add(1);
        if window == 0
            && self.window == 0
            && (ack == self.last_ack || consumed)
            && reverse.last_flags & flags::ZERO_WINDOW_PROBE != 0
        {
            if consumed {
                reverse.next_seq = ack;
                reverse.max_seq_to_be_acked = ack;
            }
            marks |= flags::ZERO_WINDOW_PROBE_ACK;
        }
        marks
    }

    /// Whether this is an ACK of data that this side was not seen to send.
    #[inline]
    fn unseen(&self, ack: u32) -> bool {
        self.max_seq_to_be_acked != 0 && after(ack, self.max_seq_to_be_acked)
    }

    /// Where the window that this side announced last ends.
    fn window_edge(&self) -> u32 {
        let shift = match self.scale {
            Scale::Shift(shift) if !self.is_first_ack => shift,
            _ => 0,
        };
        self.last_ack
            .wrapping_add(self.window.checked_shl(u32::from(shift)).unwrap_or(0))
    }

    /// An ACK of data that was not seen.
    #[inline]
    fn acked_unseen(&mut self, rules: Rules, reverse: &mut Self, segment: &Segment<'_>) -> u16 {
        if !segment.any(flag::ACK) || !reverse.unseen(segment.ack) {
            return 0;
        }
        match rules {
            Rules::V4_0 => {
                if before(reverse.max_seq_to_be_acked, reverse.next_seq) {
                    reverse.max_seq_to_be_acked = reverse.next_seq;
                    return flags::ACKED_UNSEEN;
                }
                let is_first = reverse.dup_acks == 0;
                reverse.dup_acks = u32::MAX;
                if is_first { flags::ACKED_UNSEEN } else { 0 }
            }
            Rules::V4_4 => {
                let reopens = segment.ack == self.last_ack.wrapping_add(1)
                    && segment.seq == self.next_seq
                    && reverse.last_flags & flags::ZERO_WINDOW_PROBE != 0;
                if reopens {
                    reverse.next_seq = segment.ack;
                    reverse.max_seq_to_be_acked = segment.ack;
                    return flags::WINDOW_UPDATE;
                }
                reverse.max_seq_to_be_acked =
                    reverse.unacked.run_from(segment.ack).unwrap_or(segment.ack);
                flags::ACKED_UNSEEN
            }
        }
    }

    /// Retransmission, fast or spurious retransmission, or out of order; the first that fits.
    #[inline]
    fn order(
        &self,
        rules: Rules,
        reverse: &Self,
        segment: &Segment<'_>,
        now_ns: i64,
        first_rtt_ns: i64,
    ) -> u16 {
        let (seq, len) = (segment.seq, segment.len);
        let end = seq.wrapping_add(len);
        let probed = len > 1 && self.next_seq.wrapping_sub(1) == seq;
        let behind = self.next_seq != 0 && before(seq, self.next_seq) && !probed;
        if len > 0 && reverse.last_ack != 0 && at_most(end, reverse.last_ack) {
            return flags::SPURIOUS;
        }
        if !behind {
            return 0;
        }
        // Unsigned as in Wireshark: a clock that goes back makes these huge.
        let since_reverse = now_ns
            .wrapping_sub(reverse.last_ack_time_ns)
            .cast_unsigned();
        if reverse.dup_acks >= 2 && since_reverse < FAST_LIMIT_NS {
            if reverse.last_ack == seq {
                return flags::FAST;
            }
            let blocks = &reverse.sack[..usize::from(reverse.sack_count)];
            let is_sacked = blocks
                .iter()
                .any(|&(left, right)| seq >= left && end <= right);
            if rules == Rules::V4_4 && !blocks.is_empty() && !is_sacked {
                return flags::FAST;
            }
        }
        let limit_ns = if first_rtt_ns == 0 {
            REORDER_LIMIT_NS
        } else {
            first_rtt_ns.cast_unsigned()
        };
        if now_ns.wrapping_sub(self.next_seq_time_ns).cast_unsigned() < limit_ns {
            let ends_there =
                self.next_seq == end.wrapping_add(u32::from(segment.any(flag::SYN | flag::FIN)));
            let is_reordered = match rules {
                Rules::V4_0 => !ends_there,
                Rules::V4_4 => {
                    !self.unacked.covers(seq, end) && (!ends_there || self.last_ack_len == 0)
                }
            };
            if is_reordered {
                return flags::OUT_OF_ORDER;
            }
        }
        flags::RETRANSMISSION
    }

    /// Remembers the segment.
    #[inline]
    fn advance(&mut self, segment: &Segment<'_>, now_ns: i64, marks: u16) {
        let has_special = segment.any(flag::SYN | flag::FIN);
        let mut next_seq = segment.seq.wrapping_add(segment.len);
        if (segment.len > 0 || has_special) && self.unacked.has_room() {
            next_seq = next_seq.wrapping_add(u32::from(has_special));
            self.unacked.push(segment.seq, next_seq, now_ns);
        }
        if self.next_seq == 0 || after(next_seq, self.next_seq.wrapping_add(u32::from(has_special)))
        {
            self.last_ack_len = segment.len;
        }
        let is_probe = marks & flags::ZERO_WINDOW_PROBE != 0;
        if !is_probe && (self.next_seq == 0 || after(next_seq, self.next_seq)) {
            self.next_seq = next_seq;
            self.next_seq_time_ns = now_ns;
        }
        if !is_probe && (self.max_seq_to_be_acked == 0 || segment.seq == self.max_seq_to_be_acked) {
            self.max_seq_to_be_acked = self.next_seq;
        }
        self.window = u32::from(segment.window);
        self.last_ack = segment.ack;
        self.last_ack_time_ns = now_ns;
        self.last_flags = marks;
    }
}
