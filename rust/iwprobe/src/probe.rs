//! One probe: a pure state machine. Segments and time in; segments and a verdict out.
//!
//! After the handshake comes an ACK, then the request as a segment of its own; then no ACK moves. The server sends its
//! window, stops, and at its timeout sends the first segment again: that ends the flight. One ACK of the highest byte
//! seen, with a window of two segments, brings new data if the window was the limit. RST.

use crate::flight::Flight;
use crate::segment::{FIN, RST, SYN, Segment, Sink};
use crate::stream::Stream;
use crate::talk::Talk;
use crate::verdict::{Verdict, note};

mod download;
mod handshake;
mod sending;
#[cfg(test)]
mod tests;
mod withheld;

const MS: u64 = 1_000_000;
/// Our window field, which has room for reminders, and its shift count if the server scales: 524,216 bytes.
const WINDOW: u16 = u16::MAX - MOST_REMINDERS;
const SCALE: u8 = 3;
const WINDOW_SCALED: u32 = (WINDOW as u32) << SCALE;
/// An earlier second SYN would hide that the server lost two SYN-ACKs: its third one comes after 3 s (RFC 6298).
const SYN_AGAIN: [u64; 2] = [3_500 * MS, 9_000 * MS];
/// A lost request is sent again after this time, at most so often.
const REQUEST_AGAIN: u64 = 1_000 * MS;
const MOST_REPEATS: u8 = 2;
/// A timer of Linux is not shorter than 200 ms, of others 1 s (RFC 6298): what comes again earlier was duplicated or
/// overtaken on its way.
const LEAST_TIMEOUT: u64 = 160 * MS;
/// Least wait for new data after our ACK.
const LEAST_CONFIRMATION: u64 = 1_000 * MS;
/// What the window held back leaves when our ACK arrives. Beside two round trips, one for queues and a sender that paces:
/// this for the turns of both hosts.
const CONFIRMATION_SLACK: u64 = 100 * MS;
/// Silence in a flight with a pause, before the server is reminded that it has more to send; and how often it is.
const REMINDER: u64 = 10 * MS;
const MOST_REMINDERS: u16 = 8;
/// MSS of a server that announces none (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// What is kept of an answer whose ACKs are withheld, for its head; and of a TLS handshake.
const PLAIN_ROOM: usize = 16_384;
const TLS_ROOM: usize = 131_072;

/// What to do with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Withhold the ACKs of the first answer.
    #[default]
    Window,
    /// Download, with an ACK every so many segments.
    Fetch,
    /// Download, wait, ask again, and withhold the ACKs of that answer.
    Again,
}

/// The numbers of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    /// What to do.
    pub mode: Mode,
    /// MSS option of the SYN.
    pub mss: u16,
    /// Delay of the handshake's ACK [ns].
    pub ack_delay: u64,
    /// Time limit from the first SYN [ns].
    pub limit: u64,
    /// Segments per ACK of a download.
    pub ack_every: u16,
    /// Time before the second request [ns].
    pub idle: u64,
    /// Most payload.
    pub most_bytes: u32,
    /// Arrivals to keep.
    pub arrivals: usize,
    /// Largest payload that the device can carry unmerged.
    pub device_payload: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Syn,
    /// SYN-ACK received, its ACK delayed.
    Delay,
    /// The flight whose ACKs are withheld.
    Flight,
    /// It ended; waits for new data after our ACK.
    Confirm,
    Fetch,
    Idle,
    Done,
}

/// What was measured; times in ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Numbers {
    /// Last SYN to SYN-ACK.
    pub rtt: Option<u64>,
    /// First SYN to SYN-ACK.
    pub handshake: Option<u64>,
    /// First segment of the flight to the retransmission.
    pub retransmission: Option<u64>,
    /// First SYN to the end.
    pub total: u64,
    /// Payload received, duplicates included.
    pub received: u32,
    /// Packets received and sent.
    pub packets_in: u32,
    /// Packets sent.
    pub packets_out: u32,
    /// MSS of the SYN-ACK.
    pub server_mss: Option<u16>,
    /// Window scale of the SYN-ACK.
    pub server_scale: Option<u8>,
    /// SYNs sent.
    pub syns: u8,
    /// How often the (last) request was sent.
    pub requests: u8,
    /// Bytes of the flight before the request.
    pub handshake_bytes: u32,
    /// Bits of [`note`].
    pub notes: u16,
}

/// One probe. [`begin`](Probe::begin) makes it new; its memory is kept.
#[derive(Default)]
pub struct Probe {
    plan: Plan,
    /// The conversation; the caller fills in the request before the start.
    pub talk: Talk,
    /// The flight, or the download.
    pub flight: Flight,
    /// What was measured.
    pub numbers: Numbers,
    stream: Stream,
    phase: Phase,
    verdict: Option<Verdict>,
    began: u64,
    syn_at: u64,
    /// When the next timer fires.
    wake: u64,
    isn: u32,
    /// What we sent and the server has not acknowledged, from sequence number `una`.
    out: Vec<u8>,
    una: u32,
    /// Sequence number of the flight's first byte.
    base: u32,
    /// Bytes of the flight that we have acknowledged, and how many segments came since.
    acked: u32,
    unacked_segments: u16,
    /// Offset of the server's FIN.
    fin: Option<u32>,
    repeats: u8,
    reminders: u16,
    /// When our ACK left.
    confirmed_at: Option<u64>,
    /// Extent of the flight when we last sent something.
    spoke_at: u32,
}

impl Probe {
    /// Starts: sends the SYN. `talk` has been reset, and has the request.
    pub fn begin(&mut self, plan: Plan, isn: u32, now: u64, sink: &mut impl Sink) {
        self.plan = plan;
        self.flight.reset(plan.arrivals, u32::from(plan.mss));
        self.numbers = Numbers::default();
        self.phase = Phase::Syn;
        self.verdict = None;
        (self.began, self.isn, self.una) = (now, isn, isn.wrapping_add(1));
        self.out.clear();
        (self.acked, self.unacked_segments, self.fin, self.repeats) = (0, 0, None, 0);
        (self.spoke_at, self.reminders) = (0, 0);
        self.stream.reset(match (self.talk.is_tls(), plan.mode) {
            (false, Mode::Window) => PLAIN_ROOM,
            (true, Mode::Window) => TLS_ROOM,
            // A download goes on behind a hole: all that the window lets come is needed once that is filled.
            _ => WINDOW_SCALED as usize,
        });
        self.send_syn(now, sink);
    }

    /// Its end, once it is reached.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// When [`on_timer`](Probe::on_timer) is to be called [ns].
    #[must_use]
    pub fn wake(&self) -> u64 {
        self.wake.min(self.began.saturating_add(self.plan.limit))
    }

    /// ICMP says that the server cannot be reached.
    pub fn on_unreachable(&mut self, port: bool, now: u64, sink: &mut impl Sink) {
        if self.phase == Phase::Syn {
            let verdict = if port {
                Verdict::ConnectionRefused
            } else {
                Verdict::Unreachable
            };
            self.finish(verdict, now, sink);
        }
    }

    /// The SYN, or the ACK that asks for more, has left.
    pub fn on_left(&mut self, now: u64) {
        if self.phase == Phase::Syn {
            self.syn_at = now;
        } else if self.phase == Phase::Confirm {
            self.confirmed_at = Some(now);
            let wait = LEAST_CONFIRMATION.max(3 * self.numbers.rtt.unwrap_or(0));
            self.wake = now.saturating_add(wait);
        }
    }

    /// A timer fired.
    pub fn on_timer(&mut self, now: u64, sink: &mut impl Sink) {
        if self.phase == Phase::Done {
            return;
        }
        if now >= self.began.saturating_add(self.plan.limit) {
            self.out_of_bounds(now, sink);
            return;
        }
        if now < self.wake {
            return;
        }
        match self.phase {
            Phase::Syn => self.send_syn(now, sink),
            Phase::Delay => self.open(now, sink),
            Phase::Flight if self.out.is_empty() => self.remind(sink),
            Phase::Flight | Phase::Fetch => self.repeat_request(now, sink),
            Phase::Confirm => self.finish(self.without_confirmation(), now, sink),
            Phase::Idle => self.ask_again(now, sink),
            Phase::Done => {}
        }
    }

    /// A segment was received.
    ///
    /// `now` is when it arrived by the monotonic clock, or, where the device stamps packets, when it was read; `arrival` is
    /// its time stamp, for intervals within a flight. Both in ns, of clocks that may differ.
    pub fn on_segment(&mut self, segment: &Segment, now: u64, arrival: u64, sink: &mut impl Sink) {
        self.numbers.packets_in += 1;
        match self.phase {
            Phase::Done => {}
            Phase::Syn => self.on_syn_ack(segment, now, sink),
            _ if segment.has(RST) => self.on_reset(segment, now, sink),
            _ if segment.has(SYN) => self.on_second_syn_ack(segment, sink),
            Phase::Delay => {}
            _ => {
                self.on_ack(segment);
                self.on_data(segment, now, arrival, sink);
                if self.numbers.received >= self.plan.most_bytes {
                    self.out_of_bounds(now, sink);
                }
            }
        }
    }

    // Receiving

    fn on_reset(&mut self, segment: &Segment, now: u64, sink: &mut impl Sink) {
        let offset = segment.seq.wrapping_sub(self.base);
        if offset > self.acked.saturating_add(self.window()) && offset != u32::MAX {
            return; // not in the window (RFC 9293, section 3.10.7.4)
        }
        self.numbers.notes |= note::FIN;
        let verdict = match self.phase {
            Phase::Confirm => Verdict::LowerBound,
            _ => Verdict::Reset,
        };
        self.phase = Phase::Done;
        self.finish(verdict, now, sink);
    }

    /// Our receive window [bytes].
    fn window(&self) -> u32 {
        if self.numbers.server_scale.is_some() {
            WINDOW_SCALED
        } else {
            u32::from(WINDOW)
        }
    }

    fn on_data(&mut self, segment: &Segment, now: u64, arrival: u64, sink: &mut impl Sink) {
        let start = segment.seq.wrapping_sub(self.base);
        let is_old = start.cast_signed() < 0;
        let end = start.wrapping_add(segment.length);
        self.numbers.received = self.numbers.received.saturating_add(segment.length);
        if is_old {
            self.on_old(segment, sink);
            return;
        }
        if end > self.acked.saturating_add(self.window()) {
            return; // beyond our window
        }
        if segment.has(FIN) {
            self.fin = Some(end);
            self.numbers.notes |= note::FIN;
        }
        match self.phase {
            Phase::Flight => self.on_flight(segment, (start, end), now, arrival, sink),
            Phase::Confirm => self.on_confirmation(end, segment.length, now, sink),
            Phase::Fetch | Phase::Idle => {
                self.on_download(segment, (start, end), now, arrival, sink);
            }
            _ => {}
        }
    }

    /// Data from before the flight: a keep-alive, or the end of the first answer again, whose ACK was lost.
    fn on_old(&mut self, segment: &Segment, sink: &mut impl Sink) {
        let repeated = segment.length > 0 && self.plan.mode == Mode::Again;
        if repeated && matches!(self.phase, Phase::Flight | Phase::Idle) {
            self.send_ack(WINDOW, sink);
        }
    }

    // The end

    /// The time is over, or the server has sent as much as it may.
    fn out_of_bounds(&mut self, now: u64, sink: &mut impl Sink) {
        let verdict = match self.phase {
            Phase::Done => return,
            Phase::Syn => Verdict::ConnectTimeout,
            Phase::Confirm => self.without_confirmation(),
            Phase::Flight | Phase::Fetch if !self.flight.is_empty() => self.without_confirmation(),
            _ => Verdict::NoData,
        };
        self.finish(verdict, now, sink);
    }

    /// Ends, by RST if there is a connection.
    fn finish(&mut self, verdict: Verdict, now: u64, sink: &mut impl Sink) {
        if !matches!(self.phase, Phase::Syn | Phase::Done) {
            self.send(self.una, RST, 0, sink);
            if !self.out.is_empty() {
                // Which one is valid depends on whether our last segment arrived (RFC 5961, section 3.2).
                self.send(self.next(), RST, 0, sink);
            }
        }
        self.phase = Phase::Done;
        if self.talk.tls_failed() {
            self.numbers.notes |= note::TLS_FAILED;
        }
        if self.flight.arrivals_cut() && self.plan.arrivals > 0 {
            self.numbers.notes |= note::ARRIVALS_CUT;
        }
        self.numbers.total = now.saturating_sub(self.began);
        self.verdict = Some(verdict);
    }
}
