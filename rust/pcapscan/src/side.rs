//! What is counted for each direction of a connection.

use crate::rtt::{Summary, Timestamps};
use crate::seq::raise;
use crate::tcp::{Segment, flag};
use crate::truth::{TRUE_CLASSES, Truth};
use crate::wireshark::{CLASSES, WsClass, flags};

/// Marks of Wireshark that are counts and no classes.
#[derive(Debug, Clone, Copy, Default)]
pub struct MarkCounts {
    /// Zero windows announced.
    pub zero_window: u64,
    /// Segments that reach the edge of the other side's window.
    pub window_full: u64,
    /// Window updates.
    pub window_update: u64,
    /// Segments after a gap.
    pub lost_segment: u64,
    /// ACKs of data that was not seen.
    pub acked_unseen: u64,
}

/// Options that a SYN or SYN-ACK carried.
#[derive(Debug, Clone, Copy, Default)]
pub struct SynOptions {
    /// Window, never scaled, B.
    pub window: u16,
    /// Maximum segment size, B.
    pub mss: Option<u16>,
    /// Window scale shift, at most 14 (RFC 7323, section 2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Whether the capture ends inside the header, so that it may have had options that are not here.
    pub is_cut: bool,
}

impl SynOptions {
    /// Whether an option was there; none where the capture ends before it could have been.
    #[must_use]
    pub fn known(&self, was_seen: bool) -> Option<bool> {
        (was_seen || !self.is_cut).then_some(was_seen)
    }
}

/// Data that the sender had in flight, as bounds by TSecr (see [`crate::rtt::Echo`]).
#[derive(Debug, Clone, Copy, Default)]
pub struct Flight {
    /// Data packets that gave bounds.
    pub count: u64,
    /// Largest lower bound, B.
    pub lower_max: u32,
    /// Largest upper bound, B.
    pub upper_max: u32,
    /// Sum of the lower bounds, B.
    pub lower_sum: u64,
    /// Sum of the upper bounds, B.
    pub upper_sum: u64,
    /// Data packets whose upper bound came within two full segments of the window.
    pub window_limited: u64,
}

/// One direction.
#[derive(Debug, Default)]
pub struct Side {
    /// Packets.
    pub packets: u64,
    /// IP bytes, without copies.
    pub ip_bytes: u64,
    /// IP bytes of copies ([`crate::truth::TrueClass::Duplicate`]).
    pub copied_ip_bytes: u64,
    /// TCP or UDP payload, without copies, B.
    pub payload_bytes: u64,
    /// Packets with payload.
    pub data_packets: u64,
    /// Largest payload, B.
    pub largest_payload: u32,
    /// Largest packet, IP bytes.
    pub largest_packet: u32,
    /// First packet with payload, ns; valid where there are data packets.
    pub first_data_ns: i64,
    /// Last packet with payload, ns; likewise.
    pub last_data_ns: i64,
    /// ECN field of the IP header: Not-ECT, ECT(1), ECT(0), CE.
    pub ecn: [u64; 4],
    /// Packets with payload whose ECN field is not Not-ECT.
    pub ecn_data: u64,
    /// Segments with ECE, without SYNs.
    pub ece: u64,
    /// Segments with CWR, without SYNs.
    pub cwr: u64,
    /// Segments with the AE bit, without SYNs.
    pub ae: u64,
    /// Whether a segment had an `AccECN` option.
    pub acc_ecn_option: bool,
    /// FINs.
    pub fin: u64,
    /// RSTs.
    pub rst: u64,
    /// SYNs (with or without ACK), without copies.
    pub syn: u64,
    /// Options of the first SYN or SYN-ACK.
    pub options: SynOptions,
    /// How far this side's windows are shifted, outside SYNs.
    pub window_shift: u8,
    /// Segments with SACK blocks, without those that have only a D-SACK block.
    pub sack_segments: u64,
    /// SACK blocks without D-SACK blocks.
    pub sack_blocks: u64,
    /// D-SACK blocks (RFC 2883).
    pub dsack_blocks: u64,
    /// Largest raw window outside SYNs.
    pub largest_window: u16,
    /// Raw window of the first segment with data, SYNs apart.
    pub first_data_window: Option<u16>,
    /// Packets by Wireshark's class.
    pub ws: [u64; CLASSES],
    /// Other marks of Wireshark.
    pub marks: MarkCounts,
    /// Packets by true class.
    pub truth_counts: [u64; TRUE_CLASSES],
    /// Payload that was retransmitted, B.
    pub retransmitted_bytes: u64,
    /// IP bytes of packets with only retransmitted payload, and the retransmitted payload of others, B.
    pub retransmitted_ip_bytes: u64,
    /// When data was last retransmitted, ns.
    pub last_retransmission_ns: i64,
    /// State of the true classes.
    pub truth: Truth,
    /// TSvals of this side that wait for their echo.
    pub timestamps: Timestamps,
    /// From this side's first use of a TSval to the first data packet that echoes it.
    pub rtt_timestamps: Summary,
    /// From this side's data to its ACK.
    pub rtt_ack: Summary,
    /// Bounds of what this side had in flight.
    pub flight: Flight,
}

impl Side {
    /// Counts a packet.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn count(&mut self, ip_bytes: u32, payload: u32, ecn: u8, now_ns: i64) {
        self.packets += 1;
        self.ip_bytes += u64::from(ip_bytes);
        self.payload_bytes += u64::from(payload);
        self.ecn[usize::from(ecn & 3)] += 1;
        raise(&mut self.largest_packet, ip_bytes);
        if payload > 0 {
            if self.data_packets == 0 {
                self.first_data_ns = now_ns;
            }
            self.data_packets += 1;
            self.ecn_data += u64::from(ecn & 3 != 0);
            raise(&mut self.largest_payload, payload);
            self.last_data_ns = now_ns;
        }
    }

    /// The packet that was counted last is a copy: only the number of packets keeps it.
    #[cold]
    pub fn mark_copy(&mut self, ip_bytes: u32, payload: u32, ecn: u8) {
        self.ip_bytes -= u64::from(ip_bytes);
        self.copied_ip_bytes += u64::from(ip_bytes);
        self.payload_bytes -= u64::from(payload);
        self.ecn[usize::from(ecn & 3)] -= 1;
        if payload > 0 {
            self.data_packets -= 1;
            self.ecn_data -= u64::from(ecn & 3 != 0);
        }
    }

    /// Counts Wireshark's marks.
    #[inline]
    pub fn count_marks(&mut self, marks: u16) -> WsClass {
        if marks == 0 {
            return WsClass::None;
        }
        let class = WsClass::of(marks);
        self.ws[class as usize] += 1;
        let add = |mark, counter: &mut u64| *counter += u64::from(marks & mark != 0);
        add(flags::ZERO_WINDOW, &mut self.marks.zero_window);
        add(flags::WINDOW_FULL, &mut self.marks.window_full);
        add(flags::WINDOW_UPDATE, &mut self.marks.window_update);
        add(flags::LOST_SEGMENT, &mut self.marks.lost_segment);
        add(flags::ACKED_UNSEEN, &mut self.marks.acked_unseen);
        class
    }

    /// Keeps the window of the first segment with data.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn note_data_window(&mut self, window: u16) {
        if self.first_data_window.is_none() {
            self.first_data_window = Some(window);
        }
    }

    /// Counts flags and SACK blocks.
    #[inline]
    pub fn count_flags(&mut self, segment: &Segment<'_>) {
        const RARE: u16 = flag::SYN | flag::FIN | flag::RST | flag::ECE | flag::CWR | flag::AE;
        if segment.flags & RARE != 0 {
            self.count_rare_flags(segment);
        }
        // The window of a SYN is never scaled (RFC 7323, section 2.2), not even of one with data (TCP Fast Open).
        if segment.flags & flag::SYN == 0 {
            self.largest_window = self.largest_window.max(segment.window);
            if segment.len > 0 {
                self.note_data_window(segment.window);
            }
        }
        if !segment.options.sack.is_empty() {
            self.count_sack(segment);
        }
        self.acc_ecn_option |= segment.options.acc_ecn;
    }

    #[cold]
    fn count_rare_flags(&mut self, segment: &Segment<'_>) {
        self.fin += u64::from(segment.any(flag::FIN));
        self.rst += u64::from(segment.any(flag::RST));
        if !segment.any(flag::SYN) {
            self.ece += u64::from(segment.any(flag::ECE));
            self.cwr += u64::from(segment.any(flag::CWR));
            self.ae += u64::from(segment.any(flag::AE));
            return;
        }
        if self.syn == 0 {
            self.options = SynOptions {
                window: segment.window,
                mss: segment.options.mss,
                window_scale: segment.options.window_scale.map(|shift| shift.min(14)),
                sack_permitted: segment.options.sack_permitted,
                timestamps: segment.options.timestamps.is_some(),
                is_cut: segment.is_cut,
            };
        }
        self.syn += 1;
    }

    /// The first block is a D-SACK where it lies below the ACK or inside the second (RFC 2883, section 4).
    #[cold]
    fn count_sack(&mut self, segment: &Segment<'_>) {
        use crate::seq::at_most;
        let mut blocks = segment.options.sack_blocks();
        let count = blocks.len() as u64;
        let Some((left, right)) = blocks.next() else {
            return;
        };
        let inside =
            |(outer_left, outer_right)| at_most(outer_left, left) && at_most(right, outer_right);
        let is_dsack = at_most(right, segment.ack) || blocks.next().is_some_and(inside);
        self.dsack_blocks += u64::from(is_dsack);
        let others = count - u64::from(is_dsack);
        self.sack_blocks += others;
        self.sack_segments += u64::from(others > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_syn_with_data_is_not_scaled() {
        let mut side = Side::default();
        for (flags, window) in [(flag::SYN, 64_240), (flag::ACK, 502), (flag::ACK, 600)] {
            side.count_flags(&Segment {
                flags,
                window,
                len: 100,
                ..Segment::default()
            });
        }
        assert_eq!(side.first_data_window, Some(502));
        assert_eq!((side.options.window, side.largest_window), (64_240, 600));
    }
}
