//! What actually happened to a segment: by the order of sending from IP-ID or TSval, not by arrival times.
//!
//! A segment that arrives behind the highest sequence number either overtook nothing and was retransmitted, or was
//! overtaken. The packet that opened the gap was sent right after the original of the missing bytes. So a filler sent
//! *after* the opener is a retransmission, one sent *before* it was reordered. IPv4 identification counts the packets
//! of a connection on Linux and many other systems; where it does not (random or zero), TSval is used, to a tick. A tie
//! goes by time: a retransmission cannot come sooner than a round trip after its gap opened, nor after its original.

use std::collections::VecDeque;

use crate::holes::{Hole, Holes, Stamp};
use crate::plain::Plain;
use crate::seq::{after, before, distance};
use crate::tcp::{Segment, flag};

/// No window is larger (RFC 7323, section 2.3): data further off does not belong to this connection.
const LARGEST_WINDOW: i32 = 1 << 30;
/// A counter of a connection or a host moves by a small step from packet to packet.
const LARGEST_ID_STEP: u16 = 1024;
/// Beyond this many numbers a 16-bit counter may have wrapped, so the newest packet is the reference instead.
const ID_HORIZON: u64 = 20_000;
/// A retransmission needs a round trip after its gap opened, or its original; the clock of the capture is not perfect.
const RTT_SHARE: f64 = 0.9;
const DEFAULT_RTT_NS: i64 = 3_000_000;
/// A copy may come so many packets later: the kernel hands them on in batches (its `dev_weight`).
pub const MOST_BEHIND: usize = 64;

/// What actually happened to a segment that takes sequence space. The set is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum TrueClass {
    /// Takes no sequence space, so it has no verdict.
    #[default]
    None,
    /// Data (or SYN, FIN) that was not sent before, in order or beyond a gap.
    New,
    /// Retransmitted, wholly or in part.
    Retransmission,
    /// Sent once, reordered on the path.
    Reordered,
    /// The same packet again: a network or capture duplicate.
    Duplicate,
    /// A keep-alive with one byte: that byte is a probe, not data.
    KeepAlive,
    /// Further than any window from the connection's data.
    OutOfWindow,
}

/// Number of true classes.
pub const TRUE_CLASSES: usize = 7;

impl TrueClass {
    /// All classes in the order of their numbers.
    pub const ALL: [Self; TRUE_CLASSES] = [
        Self::None,
        Self::New,
        Self::Retransmission,
        Self::Reordered,
        Self::Duplicate,
        Self::KeepAlive,
        Self::OutOfWindow,
    ];

    /// The name in the `true_class` column.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::New => "new",
            Self::Retransmission => "retransmission",
            Self::Reordered => "reordered",
            Self::Duplicate => "duplicate",
            Self::KeepAlive => "keep_alive",
            Self::OutOfWindow => "out_of_window",
        }
    }
}

/// The evidence for the class of an out-of-order segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evidence {
    /// IP-ID order.
    pub ip_id: u32,
    /// TSval order.
    pub tsval: u32,
    /// The bytes were seen before.
    pub seen: u32,
    /// The time since the gap opened.
    pub time: u32,
}

/// Data, SYN or FIN that was not sent before.
const NEW: Verdict = Verdict {
    class: TrueClass::New,
    again: 0,
    was_missing: true,
};

/// A packet that took sequence space.
#[derive(Debug, Clone, Copy)]
struct Sent {
    seq: u32,
    len: u32,
    stamp: Stamp,
    at_ns: i64,
}

/// State of one direction.
#[derive(Debug, Default)]
pub struct Truth {
    /// Number of the first packet.
    first: u32,
    high: u32,
    has_high: bool,
    /// Number of the SYN before the data, if it was captured, and of another SYN.
    isn: Option<u32>,
    other_isn: Option<u32>,
    newest: Stamp,
    /// The last packet that took sequence space.
    last_seq: u32,
    last_len: u32,
    last_stamp: Stamp,
    last_ns: i64,
    /// The last ones, where packets are captured twice.
    recent: Option<VecDeque<Sent>>,
    last_id: u16,
    has_last_id: bool,
    /// The last packet had this direction's `last_*`.
    id_steps: u32,
    /// Sum of these steps: a counter of a host, or of packets that were merged, moves by more than 1.
    id_stepped: u64,
    id_jumps: u32,
    holes: Holes,
    /// Counts of verdicts by evidence.
    pub evidence: Evidence,
}

/// A verdict, how many payload bytes were sent before, and whether any was missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The class.
    pub class: TrueClass,
    /// Payload bytes that were sent before, B.
    pub again: u32,
    /// Some of its bytes were not captured before. A retransmission has such bytes only if the original is missing.
    pub was_missing: bool,
}

impl Verdict {
    /// A segment of which nothing was missing, and nothing was sent again.
    fn nothing(class: TrueClass) -> Self {
        Self {
            class,
            ..Self::default()
        }
    }
}

impl Truth {
    /// Takes the next segment of this direction, its `packet`-th. `rtt_ns` is 0 where unknown.
    #[inline]
    pub fn segment(
        &mut self,
        segment: &Segment<'_>,
        id: Option<u16>,
        packet: u64,
        now_ns: i64,
        rtt_ns: i64,
    ) -> Verdict {
        let space = segment.space();
        if space == 0 {
            // RSTs and SYNs come from another place in the kernel.
            if let Some(id) = id.filter(|_| !segment.any(flag::RST)) {
                self.note_id(id);
            }
            return Verdict::default();
        }
        let tsval = segment.options.timestamps.map(|(value, _)| value);
        let stamp = Stamp::new(id, tsval, packet);
        let (start, end) = (segment.seq, segment.seq.wrapping_add(space));
        let is_repeat = match id {
            Some(id) if id != 0 => {
                self.has_last_id && id == self.last_id || self.newest.id() == Some(id)
            }
            _ => tsval == self.last_stamp.tsval() && is_soon(self.last_ns, now_ns, rtt_ns),
        };
        let verdict = if !self.has_high || (start == self.high && !segment.any(flag::SYN)) {
            if !self.has_high {
                self.first = start;
                self.isn = segment.any(flag::SYN).then_some(start);
            }
            self.advance(end, stamp);
            NEW
        } else if is_repeat && (start, segment.len) == (self.last_seq, self.last_len)
            || self.is_copy(start, segment.len, stamp, now_ns, rtt_ns)
        {
            Verdict::nothing(TrueClass::Duplicate)
        } else {
            self.off_order(segment, start, end, stamp, now_ns, rtt_ns)
        };
        (self.last_seq, self.last_len) = (start, segment.len);
        (self.last_stamp, self.last_ns) = (stamp, now_ns);
        if self.recent.is_some() && verdict.class != TrueClass::Duplicate {
            self.keep_last();
        }
        if let Some(id) = id.filter(|_| !segment.any(flag::SYN)) {
            self.note_id(id);
        }
        verdict
    }

    /// Packets of this connection are captured twice: from now on a copy is found behind other packets, too.
    #[cold]
    pub fn expect_copies(&mut self) {
        self.recent.get_or_insert_default();
    }

    /// Whether a packet is a copy of one of the last: with the same identification or, where that is missing or 0,
    /// TSval.
    fn is_copy(&self, seq: u32, len: u32, stamp: Stamp, now_ns: i64, rtt_ns: i64) -> bool {
        let is_same = |sent: &Sent| match stamp.id() {
            Some(id) if id != 0 => sent.stamp.id() == Some(id),
            _ => stamp.tsval() == sent.stamp.tsval() && is_soon(sent.at_ns, now_ns, rtt_ns),
        };
        let mut recent = self.recent.iter().flatten();
        recent.any(|sent| (sent.seq, sent.len) == (seq, len) && is_same(sent))
    }

    /// Keeps the last packet for [`Truth::is_copy`].
    #[cold]
    fn keep_last(&mut self) {
        let recent = self.recent.get_or_insert_default();
        if recent.len() == MOST_BEHIND {
            recent.pop_front();
        }
        recent.push_back(Sent {
            seq: self.last_seq,
            len: self.last_len,
            stamp: self.last_stamp,
            at_ns: self.last_ns,
        });
    }

    /// Whether data that begins here is in order, so that [`Truth::predicted_data`] may take it.
    #[inline]
    #[must_use]
    pub fn expects(&self, seq: u32) -> bool {
        self.has_high && seq == self.high
    }

    /// Takes a plain segment with data that is in order.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn predicted_data(&mut self, segment: Plain<'_>, packet: u64, now_ns: i64) {
        self.newest = Stamp::new(Some(segment.id()), Some(segment.tsval()), packet);
        self.high = segment.seq().wrapping_add(segment.len());
        (self.last_seq, self.last_len) = (segment.seq(), segment.len());
        (self.last_stamp, self.last_ns) = (self.newest, now_ns);
        if self.recent.is_some() {
            self.keep_last();
        }
        self.note_id(segment.id());
    }

    #[inline]
    fn advance(&mut self, end: u32, stamp: Stamp) {
        self.high = end;
        self.has_high = true;
        self.newest = stamp;
    }

    /// Notes an identification number; even a packet without data moves the counter.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn note_id(&mut self, id: u16) {
        if self.has_last_id {
            // Small steps back are reordering, not another kind of number, and a copy has the same one.
            let step = id.wrapping_sub(self.last_id).cast_signed().unsigned_abs();
            if (1..=LARGEST_ID_STEP).contains(&step) {
                self.id_steps += 1;
                self.id_stepped += u64::from(step);
            } else if step > 0 || id == 0 {
                self.id_jumps += 1;
            }
        }
        self.last_id = id;
        self.has_last_id = true;
    }

    /// Whether identification numbers count this direction's packets.
    fn ids_count(&self) -> bool {
        self.id_steps >= 3 && u64::from(self.id_steps) >= 8 * u64::from(self.id_jumps)
    }

    #[cold]
    fn off_order(
        &mut self,
        segment: &Segment<'_>,
        start: u32,
        end: u32,
        stamp: Stamp,
        now_ns: i64,
        rtt_ns: i64,
    ) -> Verdict {
        if let Some(isn) = self.isn {
            // Two servers, or one that forgot the first SYN: which SYN-ACK holds is told by the first data.
            if segment.any(flag::SYN) && start != isn {
                let is_again = self.other_isn.replace(start) == Some(start);
                return if is_again {
                    Verdict::nothing(TrueClass::Retransmission)
                } else {
                    NEW
                };
            }
            let near = |isn: u32| distance(start, isn).unsigned_abs();
            if let Some(other) = self.other_isn
                && self.high == isn.wrapping_add(1)
                && near(other) < near(isn)
            {
                (self.isn, self.high) = (Some(other), other.wrapping_add(1));
            }
        }
        let far = distance(start, self.high);
        if !(-LARGEST_WINDOW..=LARGEST_WINDOW).contains(&far) {
            return Verdict::nothing(TrueClass::OutOfWindow);
        }
        if far > 0 {
            self.holes.open(Hole {
                start: self.high,
                end: start,
                opened_ns: now_ns,
                opener: stamp,
            });
        }
        if far >= 0 {
            self.advance(end, stamp);
            return NEW;
        }
        if segment.len == 1 && far == -1 && !segment.any(flag::SYN | flag::FIN) {
            return Verdict::nothing(TrueClass::KeepAlive);
        }
        if after(end, self.high) {
            // The tail is new, so the packet was built now and its head is retransmitted.
            let again = self.high.wrapping_sub(start).min(segment.len);
            self.holes.fill(start, end);
            self.advance(end, stamp);
            return Verdict {
                class: TrueClass::Retransmission,
                again,
                was_missing: true,
            };
        }
        let class = self.judge(start, end, stamp, now_ns, rtt_ns);
        let was_missing = self.holes.fill(start, end);
        Verdict {
            class,
            again: if class == TrueClass::Retransmission {
                segment.len
            } else {
                0
            },
            was_missing,
        }
    }

    fn judge(&mut self, start: u32, end: u32, stamp: Stamp, now_ns: i64, rtt_ns: i64) -> TrueClass {
        let sent_again = |is_later| {
            if is_later {
                TrueClass::Retransmission
            } else {
                TrueClass::Reordered
            }
        };
        let hole = self.holes.find(start, end);
        // What was seen before may itself have been overtaken, so the newest packet is the last resort.
        let known = hole.or_else(|| self.holes.find_filled(start, end));
        let opener = known.map_or(self.newest, |hole| hole.opener);
        if self.ids_count() {
            let numbers = (stamp.packet - opener.packet).saturating_mul(self.id_stepped);
            let aged = numbers / u64::from(self.id_steps) > ID_HORIZON;
            let reference = if aged { self.newest } else { opener };
            if let (Some(id), Some(other)) = (stamp.id(), reference.id())
                && id != other
            {
                self.evidence.ip_id += 1;
                if known.is_none() && self.was_in_turn(start, end, other.wrapping_sub(id)) {
                    return TrueClass::Duplicate;
                }
                return sent_again(id.wrapping_sub(other).cast_signed() > 0);
            }
        }
        if let (Some(tsval), Some(other)) = (stamp.tsval(), opener.tsval())
            && tsval != other
        {
            self.evidence.tsval += 1;
            return sent_again(after(tsval, other));
        }
        let Some(hole) = hole else {
            self.evidence.seen += 1;
            return TrueClass::Retransmission;
        };
        self.evidence.time += 1;
        sent_again(!is_soon(hole.opened_ns, now_ns, rtt_ns))
    }

    /// Whether a packet that meets no gap, sent `earlier` packets before the newest, was sent when its bytes were new:
    /// these packets can have carried what lies behind it. So it came then, and was not overtaken: this is a copy.
    fn was_in_turn(&self, start: u32, end: u32, earlier: u16) -> bool {
        let behind = u64::from(self.high.wrapping_sub(end));
        // What precedes the first packet of a capture may have been overtaken by it; numbers wrap.
        let precedes = before(start, self.first) && after(self.high, self.first);
        earlier.cast_signed() > 0
            && !precedes
            && behind <= u64::from(earlier) * u64::from(end.wrapping_sub(start))
    }

    /// Bytes that are still missing below the highest that was seen.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.holes.missing_bytes()
    }
}

/// Whether so little time has passed that nothing can have been retransmitted in answer to what came before. `rtt_ns`
/// is 0 where unknown.
fn is_soon(before_ns: i64, now_ns: i64, rtt_ns: i64) -> bool {
    let rtt_ns = if rtt_ns > 0 { rtt_ns } else { DEFAULT_RTT_NS };
    let age_ns = now_ns.saturating_sub(before_ns);
    age_ns >= 0 && (age_ns as f64) < rtt_ns as f64 * RTT_SHARE
}

#[cfg(test)]
#[path = "truth_tests.rs"]
mod tests;
