//! State of one connection: everything that is remembered while its packets pass.

mod handshake;
mod key;
mod response;
mod times;

pub use key::Key;

use crate::answer::{Hello, Response};
use crate::ip::Datagram;
use crate::plain::Plain;
use crate::quic;
use crate::rounds::Rounds;
use crate::seq::raise;
use crate::series::Series;
use crate::side::Side;
use crate::tcp::{Segment, flag};
use crate::truth::TrueClass;
use crate::wireshark::{Conversation, Rules, WsClass};

/// How the client was identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleSource {
    /// The sender of a SYN, or the receiver of a SYN-ACK; for QUIC the sender of an Initial.
    Handshake,
    /// The port numbers.
    Ports,
}

/// How likely a connection is to have more packets, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Another connection has its endpoints: it can get no more packets.
    Replaced,
    /// Closed or reset some time ago.
    Over,
    /// Only one side ever sent.
    Unanswered,
    /// It is active.
    Live,
}

/// Handshake of a TCP connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Handshake {
    /// First SYN, ns.
    pub syn_ns: Option<i64>,
    /// Last SYN before the first SYN-ACK, ns.
    pub last_syn_ns: Option<i64>,
    /// First SYN-ACK, ns.
    pub syn_ack_ns: Option<i64>,
    /// First segment of the client with ACK, ns.
    pub ack_ns: Option<i64>,
    /// Flags of the first SYN.
    pub syn_flags: u16,
    /// Flags of the first SYN-ACK.
    pub syn_ack_flags: u16,
    /// Flags of the last SYN before the first SYN-ACK.
    pub last_syn_flags: u16,
    /// TSval of SYNs, to tell which one a SYN-ACK answers.
    first_syn_tsval: Option<u32>,
    /// Whether the SYN-ACK answers the first SYN, by its TSecr.
    pub answers_first: Option<bool>,
}

/// What happened to one packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct PacketVerdict {
    /// Sequence number relative to the connection's first; none for QUIC.
    pub relative_seq: Option<u32>,
    /// Payload, B.
    pub len: u32,
    /// Wireshark's class.
    pub ws: WsClass,
    /// What actually happened.
    pub truth: TrueClass,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its endpoints.
    pub key: Key,
    /// Index in order of first packets.
    pub number: u32,
    /// Direction of the client's packets.
    pub client: usize,
    /// How that was found.
    pub role_source: RoleSource,
    /// Both directions.
    pub sides: [Side; 2],
    /// Earliest packet, ns.
    pub first_ns: i64,
    /// Latest packet, ns.
    pub last_ns: i64,
    previous_ns: i64,
    /// Packets earlier than the one before.
    pub backwards: u64,
    /// TCP handshake.
    pub handshake: Handshake,
    /// Wireshark's view; TCP only.
    pub wireshark: Conversation,
    /// QUIC state; none for TCP.
    pub quic: Option<Box<quic::State>>,
    /// The server's answer with the most bytes before the one that goes on.
    best_response: Response,
    response: Response,
    best_rounds: Option<Box<Rounds>>,
    rounds: Option<Box<Rounds>>,
    last_client_data_ns: Option<i64>,
    /// What the client sent first.
    pub hello: Hello,
    /// Series, on request.
    pub series: Option<Box<Series>>,
    /// Whether a later connection has the same endpoints.
    pub is_replaced: bool,
}

/// Congestion Experienced, as the ECN field of the IP header (RFC 3168, section 5).
const CE: u8 = 3;
/// A connection that closed this long ago has no more packets: its last ACK and retransmitted FINs arrive sooner.
const CLOSED_NS: i64 = 2_000_000_000;

impl Connection {
    /// An empty connection whose first packet has this direction.
    #[must_use]
    pub fn new(key: Key, number: u32, now_ns: i64, with_series: bool) -> Self {
        Self {
            key,
            number,
            client: key.guess_client(),
            role_source: RoleSource::Ports,
            sides: [Side::default(), Side::default()],
            first_ns: now_ns,
            last_ns: now_ns,
            previous_ns: now_ns,
            backwards: 0,
            handshake: Handshake::default(),
            wireshark: Conversation::default(),
            quic: None,
            best_response: Response::default(),
            response: Response::default(),
            best_rounds: None,
            rounds: None,
            last_client_data_ns: None,
            hello: Hello::default(),
            series: with_series.then(Box::default),
            is_replaced: false,
        }
    }

    /// How likely more packets are.
    #[must_use]
    pub fn phase(&self, now_ns: i64) -> Phase {
        let has_reset = self.sides.iter().any(|side| side.rst > 0);
        let has_closed = has_reset || self.sides.iter().all(|side| side.fin > 0);
        if self.is_replaced {
            Phase::Replaced
        } else if has_closed && now_ns.saturating_sub(self.last_ns) > CLOSED_NS {
            Phase::Over
        } else if self.sides.iter().any(|side| side.packets == 0) {
            Phase::Unanswered
        } else {
            Phase::Live
        }
    }

    #[inline]
    fn time(&mut self, now_ns: i64) {
        if now_ns < self.last_ns {
            self.time_back(now_ns);
        } else {
            self.last_ns = now_ns;
        }
        self.previous_ns = now_ns;
    }

    #[cold]
    fn time_back(&mut self, now_ns: i64) {
        self.backwards += u64::from(now_ns < self.previous_ns);
        self.first_ns = self.first_ns.min(now_ns);
    }

    /// Takes a plain segment that is what one expects next; `None`, and no change, where it is anything else. Returns
    /// its sequence number relative to the connection's first.
    #[inline]
    pub fn predicted(&mut self, direction: usize, segment: Plain<'_>, now_ns: i64) -> Option<u32> {
        // The direction is known where the code is made, so that both sides are at fixed places.
        match (direction, segment.is_empty()) {
            (0, true) => self.predicted_ack::<0>(segment, now_ns),
            (0, false) => self.predicted_data::<0>(segment, now_ns),
            (_, true) => self.predicted_ack::<1>(segment, now_ns),
            (_, false) => self.predicted_data::<1>(segment, now_ns),
        }
    }

    #[inline(never)] // inside the engine's loop there are not enough registers for it
    fn predicted_data<const DIRECTION: usize>(
        &mut self,
        segment: Plain<'_>,
        now_ns: i64,
    ) -> Option<u32> {
        if !self.sides[DIRECTION].truth.expects(segment.seq()) {
            return None;
        }
        let relative_seq = self
            .wireshark
            .predicted_data::<DIRECTION>(segment, now_ns)?;
        self.time(now_ns);
        let side = &mut self.sides[DIRECTION];
        side.count(segment.ip_bytes(), segment.len(), segment.ecn(), now_ns);
        self.note_response(DIRECTION, segment.len(), segment.len(), true, now_ns);
        self.note_congestion(DIRECTION, segment.ecn() == CE);
        let side = &mut self.sides[DIRECTION];
        side.note_data_window(segment.window());
        raise(&mut side.largest_window, segment.window());
        side.truth.predicted_data(segment, side.packets, now_ns);
        side.truth_counts[TrueClass::New as usize] += 1;
        self.match_plain::<DIRECTION>(segment, now_ns);
        Some(relative_seq)
    }

    #[inline(never)]
    fn predicted_ack<const DIRECTION: usize>(
        &mut self,
        segment: Plain<'_>,
        now_ns: i64,
    ) -> Option<u32> {
        let (relative_seq, ack_rtt_ns) =
            self.wireshark.predicted_ack::<DIRECTION>(segment, now_ns)?;
        self.time(now_ns);
        let side = &mut self.sides[DIRECTION];
        side.count(segment.ip_bytes(), 0, segment.ecn(), now_ns);
        raise(&mut side.largest_window, segment.window());
        side.truth.note_id(segment.id());
        side.truth_counts[TrueClass::None as usize] += 1;
        if let Some(rtt_ns) = ack_rtt_ns {
            self.note_ack_rtt(DIRECTION, rtt_ns, now_ns);
        }
        self.match_plain::<DIRECTION>(segment, now_ns);
        Some(relative_seq)
    }

    #[inline]
    fn note_ack_rtt(&mut self, direction: usize, rtt_ns: i64, now_ns: i64) {
        let other = &mut self.sides[direction ^ 1];
        // An ACK that was held back by a gap says nothing about the path.
        if other.last_retransmission_ns < now_ns.saturating_sub(rtt_ns) {
            other.rtt_ack.add(rtt_ns);
        }
    }

    /// Takes a TCP segment.
    #[inline]
    pub fn segment(
        &mut self,
        rules: Rules,
        direction: usize,
        datagram: &Datagram<'_>,
        segment: &Segment<'_>,
        now_ns: i64,
    ) -> PacketVerdict {
        self.time(now_ns);
        let last_syn_ns = self.handshake.last_syn_ns;
        if segment.any(flag::SYN) || self.handshake.ack_ns.is_none() {
            self.note_handshake(direction, segment, now_ns);
        }
        let has_handshake = self.handshake.ack_ns.is_some() || self.handshake.syn_ack_ns.is_none();
        let is_settled = has_handshake && self.series.is_none();
        let verdict = self.wireshark.segment(rules, direction, segment, now_ns);
        self.wireshark.prepare(is_settled);
        let side = &mut self.sides[direction];
        side.count(datagram.ip_bytes, segment.len, datagram.ecn, now_ns);
        side.count_flags(segment);
        if segment.any(flag::SYN) {
            self.note_scaling();
        }
        let side = &mut self.sides[direction];
        let ws = side.count_marks(verdict.flags);
        let continues = side.truth.expects(segment.seq);
        let truth = side.truth.segment(
            segment,
            datagram.id,
            side.packets,
            now_ns,
            self.wireshark.initial_rtt_ns(),
        );
        side.truth_counts[truth.class as usize] += 1;
        if truth.class == TrueClass::Retransmission {
            side.retransmitted_bytes += u64::from(truth.again);
            let is_whole = truth.again == segment.len;
            side.retransmitted_ip_bytes += u64::from(if is_whole {
                datagram.ip_bytes
            } else {
                truth.again
            });
            side.last_retransmission_ns = now_ns;
        }
        if truth.class == TrueClass::Duplicate {
            side.mark_copy(datagram.ip_bytes, segment.len, datagram.ecn);
            if segment.any(flag::SYN) {
                side.syn -= 1;
                self.handshake.last_syn_ns = last_syn_ns;
            }
            for side in &mut self.sides {
                side.truth.expect_copies();
            }
        }
        // Neither a duplicate nor the byte of a keep-alive is data that was sent, nor what is out of the window.
        let is_sent = matches!(
            truth.class,
            TrueClass::New | TrueClass::Retransmission | TrueClass::Reordered
        );
        if segment.len > 0 && is_sent {
            let new_bytes = if truth.was_missing {
                segment.len - truth.again
            } else {
                0
            };
            self.note_response(direction, segment.len, new_bytes, truth.was_missing, now_ns);
            // One byte that is sent again was the probe of a closed window (BSD, Windows), and is no loss.
            let is_again = truth.class == TrueClass::Retransmission && truth.again != 1;
            self.note_congestion(direction, is_again || datagram.ecn & 3 == CE);
        }
        if let Some(rtt_ns) = verdict.ack_rtt_ns {
            self.note_ack_rtt(direction, rtt_ns, now_ns);
        }
        let rtt = self.match_segment(direction, segment, is_sent, continues, now_ns);
        if let Some(series) = &mut self.series {
            let end = verdict.relative_seq.wrapping_add(segment.len);
            note_series(series, direction, datagram.ip_bytes, now_ns, rtt);
            if segment.len > 0 {
                series
                    .sequence
                    .push((now_ns, u8::from(direction == 1), end, truth.class as u8));
            }
        }
        PacketVerdict {
            relative_seq: Some(verdict.relative_seq),
            len: segment.len,
            ws,
            truth: truth.class,
        }
    }

    /// Takes a UDP datagram of a QUIC connection.
    pub fn quic_datagram(
        &mut self,
        direction: usize,
        datagram: &Datagram<'_>,
        payload: &[u8],
        now_ns: i64,
    ) -> PacketVerdict {
        self.time(now_ns);
        let len = datagram.length.saturating_sub(8);
        let side = &mut self.sides[direction];
        side.count(datagram.ip_bytes, len, datagram.ecn, now_ns);
        let role = usize::from(direction != self.client);
        let mut verdict = PacketVerdict {
            len,
            ..PacketVerdict::default()
        };
        let state = self.quic.as_mut();
        if state.is_some_and(|state| state.is_copy(role, payload, len)) {
            side.mark_copy(datagram.ip_bytes, len, datagram.ecn);
            side.truth_counts[TrueClass::Duplicate as usize] += 1;
            verdict.truth = TrueClass::Duplicate;
            return verdict;
        }
        let ip_bytes = side.ip_bytes;
        if role == 0 && self.sides[direction ^ 1].packets == 0 {
            self.hello.add(len);
        }
        let sample = self
            .quic
            .as_mut()
            .and_then(|state| state.datagram(role, payload, len, ip_bytes, now_ns));
        if role == 1 {
            self.note_quic_round(len, datagram.ecn & 3 == CE, now_ns);
        }
        if let Some(series) = &mut self.series {
            note_series(series, direction, datagram.ip_bytes, now_ns, sample);
        }
        verdict
    }

    /// Makes this a QUIC connection.
    pub fn begin_quic(&mut self, direction: usize, header: &quic::LongHeader) {
        self.quic = Some(Box::default());
        // A connection begins with the client's Initial. Where its beginning is missing, ports have to tell.
        let from_server = self.key.port(direction) < 1024 && self.key.port(direction ^ 1) >= 1024;
        if matches!(header.kind, quic::Kind::Initial | quic::Kind::ZeroRtt) && !from_server {
            self.client = direction;
            self.role_source = RoleSource::Handshake;
        }
    }
}

fn note_series(
    series: &mut Series,
    direction: usize,
    ip_bytes: u32,
    now_ns: i64,
    rtt: Option<i64>,
) {
    series.packet(now_ns, direction, ip_bytes);
    if let Some(rtt_ns) = rtt {
        series.rtt.push((now_ns, u8::from(direction == 1), rtt_ns));
    }
}
