//! Matching of TCP timestamps: round-trip times, and bounds of the data in flight.

use super::Connection;
use crate::plain::Plain;
use crate::seq::{after, distance, raise};
use crate::tcp::{Segment, flag};

/// What the matching of timestamps needs of a segment.
struct Times {
    tsval: u32,
    tsecr: u32,
    seq: u32,
    ack: u32,
    window: u16,
    len: u32,
}

impl Times {
    /// From a segment with timestamps and ACK that is neither SYN nor RST.
    fn of(segment: &Segment<'_>) -> Option<Self> {
        let (tsval, tsecr) = segment.options.timestamps?;
        let Segment {
            seq,
            ack,
            window,
            len,
            ..
        } = *segment;
        let is_usual = segment.any(flag::ACK) && !segment.any(flag::SYN | flag::RST);
        is_usual.then_some(Self {
            tsval,
            tsecr,
            seq,
            ack,
            window,
            len,
        })
    }
}

impl From<Plain<'_>> for Times {
    #[inline]
    fn from(segment: Plain<'_>) -> Self {
        Self {
            tsval: segment.tsval(),
            tsecr: segment.tsecr(),
            seq: segment.seq(),
            ack: segment.ack(),
            window: segment.window(),
            len: segment.len(),
        }
    }
}

impl Connection {
    /// As [`Connection::match_segment`], for a plain segment of a direction that is known where the code is made.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub(super) fn match_plain<const DIRECTION: usize>(&mut self, segment: Plain<'_>, now_ns: i64) {
        self.match_timestamps::<DIRECTION>(&Times::from(segment), true, now_ns);
    }

    /// Matches the timestamps of a segment; the round-trip time that ends with it, ns, if one does. What is not sent
    /// data, such as a copy, is in no round.
    #[inline]
    pub(super) fn match_segment(
        &mut self,
        direction: usize,
        segment: &Segment<'_>,
        is_sent: bool,
        now_ns: i64,
    ) -> Option<i64> {
        let times = Times::of(segment)?;
        match direction {
            0 => self.match_timestamps::<0>(&times, is_sent, now_ns),
            _ => self.match_timestamps::<1>(&times, is_sent, now_ns),
        }
    }

    /// Round-trip times and bounds of the data in flight from TSval and TSecr.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    fn match_timestamps<const DIRECTION: usize>(
        &mut self,
        segment: &Times,
        is_sent: bool,
        now_ns: i64,
    ) -> Option<i64> {
        let (tsval, tsecr) = (segment.tsval, segment.tsecr);
        let [zero, one] = &mut self.sides;
        let (this, other) = if DIRECTION == 0 {
            (zero, one)
        } else {
            (one, zero)
        };
        if segment.len == 0 {
            other.timestamps.echoed_by_ack(tsecr);
            this.timestamps
                .sent(tsval, segment.ack, segment.window, now_ns);
            return None;
        }
        let echo = other.timestamps.echoed_by_data(tsecr, now_ns);
        this.timestamps
            .sent(tsval, segment.ack, segment.window, now_ns);
        let echo = echo?;
        let end = segment.seq.wrapping_add(segment.len);
        let flight = |ack: u32| distance(end, ack).max(0).cast_unsigned();
        let (upper, lower) = (flight(echo.acks.0), flight(echo.acks.1));
        let bounds = &mut this.flight;
        bounds.count += 1;
        raise(&mut bounds.lower_max, lower);
        raise(&mut bounds.upper_max, upper);
        bounds.lower_sum += u64::from(lower);
        bounds.upper_sum += u64::from(upper);
        let window = u64::from(echo.window) << other.window_shift;
        // Packets that the host merged are larger than any segment.
        let mss = other.options.mss.unwrap_or(u16::MAX);
        let mss = u64::from(this.largest_payload).min(mss.into());
        let is_window_limited = u64::from(upper) + 2 * mss > window;
        bounds.window_limited += u64::from(is_window_limited);
        let is_in_rounds = is_sent && DIRECTION != self.client;
        let mut rounds = self.rounds.as_mut().filter(|_| is_in_rounds);
        if let Some(rounds) = &mut rounds {
            rounds.flight(is_window_limited);
        }
        // With nothing in flight before it, this packet waited for the application or a timer, not for the ACK.
        let rtt_ns = echo.rtt_ns.filter(|_| after(segment.seq, echo.acks.1))?;
        other.rtt_timestamps.add(rtt_ns);
        if let Some(rounds) = rounds {
            rounds.rtt(rtt_ns);
        }
        Some(rtt_ns)
    }
}
