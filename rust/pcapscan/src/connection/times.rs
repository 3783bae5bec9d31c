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
        self.match_timestamps::<DIRECTION>(&Times::from(segment), true, true, now_ns);
    }

    /// Matches the timestamps of a segment; the round-trip time that ends with it, ns, if one does: it has to continue
    /// the data. What is not sent data, such as a copy, is in no round.
    #[inline]
    pub(super) fn match_segment(
        &mut self,
        direction: usize,
        segment: &Segment<'_>,
        is_sent: bool,
        continues: bool,
        now_ns: i64,
    ) -> Option<i64> {
        let times = Times::of(segment)?;
        match direction {
            0 => self.match_timestamps::<0>(&times, is_sent, continues, now_ns),
            _ => self.match_timestamps::<1>(&times, is_sent, continues, now_ns),
        }
    }

    /// Round-trip times and bounds of the data in flight from TSval and TSecr.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    fn match_timestamps<const DIRECTION: usize>(
        &mut self,
        segment: &Times,
        is_sent: bool,
        continues: bool,
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
        // With nothing in flight before it, this packet waited for the application or a timer, not for the ACK. So did
        // what repeats data or leaves a gap, if it is a tail loss probe (RFC 8985, section 7).
        let waited_for_ack = continues && after(segment.seq, echo.acks.1);
        let rtt_ns = echo.rtt_ns.filter(|_| waited_for_ack)?;
        other.rtt_timestamps.add(rtt_ns);
        if let Some(rounds) = rounds {
            rounds.rtt(rtt_ns);
        }
        Some(rtt_ns)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Packet, Writer};
    use crate::{Capture, Engine, Record, Settings};
    use std::io::Cursor;

    #[test]
    fn a_tail_loss_probe_ends_no_round_trip() {
        // Time [ms], place in the server's data, length, TSecr; the client's: place that it acknowledges. TSval is time.
        let data = |at, place, echo| (at, false, place, 1448, echo);
        let ack = |at, place| (at, true, place, 0, 0);
        let mut writer = Writer::default();
        for (at, from_client, place, len, echo) in [
            ack(50, 0),
            data(100, 0, 50),
            ack(100, 1448),
            data(101, 1448, 50),
            ack(101, 2896),
            data(150, 2896, 100),
            ack(150, 4344),
            // Two are lost; the server waits for two round trips and more after the last ACK, and repeats the third.
            data(325, 4344 + 2 * 1448, 150),
        ] {
            let [client, server] = [1001, 5001 + place];
            writer.packet(&Packet {
                time_ns: u64::from(at) * 1_000_000,
                from_client,
                seq: if from_client { client } else { server },
                ack: if from_client { server } else { client },
                flags: 0x10,
                window: 60_000,
                len,
                id: 0,
                timestamps: Some((at, echo)),
            });
        }
        let bytes = Cursor::new(writer.bytes().to_vec());
        let mut capture = Capture::from_reader(Box::new(bytes)).unwrap();
        let mut engine = Engine::new(Settings::default());
        engine.run(&mut capture, &mut (), u64::MAX);
        let client = Record::new(engine.connections().next().unwrap(), false).client;
        assert_eq!(
            (client.rtt_ts_count, client.rtt_ts_max_ns),
            (1, Some(50_000_000))
        );
    }
}
