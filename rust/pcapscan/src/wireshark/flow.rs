//! One direction of a conversation as Wireshark sees it, and the tests of its segments.

use super::class::{Rules, flags};
use super::unacked::UnackedList;
use crate::seq::{after, at_most, before};
use crate::tcp::{MOST_SACK_BLOCKS, Segment, flag};

/// Fast retransmissions follow the last segment of the other side within this time.
const FAST_LIMIT_NS: u64 = 20_000_000;
/// The limit for out of order where the handshake was not seen.
const REORDER_LIMIT_NS: u64 = 3_000_000;
const SPECIAL: u16 = flag::SYN | flag::FIN | flag::RST;

/// Window scaling of one side as Wireshark knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Unknown,
    Off,
    Shift(u8),
}

/// What Wireshark remembers of one direction.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) next_seq: u32,
    pub(super) last_ack: u32,
    pub(super) max_seq_to_be_acked: u32,
    /// Duplicate ACKs; unsigned, so the -1 that an ACK of unseen data sets in 4.0 counts as "at least 2".
    pub(super) dup_acks: u32,
    /// Raw window; the initial value is not a valid window.
    pub(super) window: u32,
    pub(super) base_seq: u32,
    pub(super) has_base_seq: bool,
    pub(super) is_first_ack: bool,
    pub(super) last_ack_len: u32,
    pub(super) scale: Scale,
    pub(super) last_flags: u16,
    pub(super) mptcp: u8,
    pub(super) sack_count: u8,
    /// See [`Conversation::prepare`].
    pub(super) is_ready: bool,
    pub(super) shift: u8,
    /// Where the window that this side announced ends.
    pub(super) edge: u32,
    pub(super) next_seq_time_ns: i64,
    pub(super) last_ack_time_ns: i64,
    pub(super) sack: [(u32, u32); MOST_SACK_BLOCKS],
    pub(super) unacked: UnackedList,
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

impl Flow {
    /// Marks that come from windows, keep-alives and repeated ACKs.
    #[inline]
    pub(super) fn window_marks(
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
    pub(super) fn unseen(&self, ack: u32) -> bool {
        self.max_seq_to_be_acked != 0 && after(ack, self.max_seq_to_be_acked)
    }

    /// Where the window that this side announced last ends.
    pub(super) fn window_edge(&self) -> u32 {
        let shift = match self.scale {
            Scale::Shift(shift) if !self.is_first_ack => shift,
            _ => 0,
        };
        self.last_ack
            .wrapping_add(self.window.checked_shl(u32::from(shift)).unwrap_or(0))
    }

    /// An ACK of data that was not seen.
    #[inline]
    pub(super) fn acked_unseen(
        &mut self,
        rules: Rules,
        reverse: &mut Self,
        segment: &Segment<'_>,
    ) -> u16 {
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
    pub(super) fn order(
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
    pub(super) fn advance(&mut self, segment: &Segment<'_>, now_ns: i64, marks: u16) {
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
