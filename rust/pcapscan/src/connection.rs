//! State of one connection: everything that is remembered while its packets pass.

use crate::ip::Datagram;
use crate::plain::Plain;
use crate::quic;
use crate::seq::{after, distance, raise};
use crate::series::Series;
use crate::side::Side;
use crate::tcp::{Segment, flag};
use crate::truth::TrueClass;
use crate::wireshark::{Conversation, Rules, WsClass};

/// Two endpoints and a protocol. Direction 0 of a connection is from the greater endpoint to the lesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The greater endpoint's address, IPv4 in the low 32 bits.
    pub greater: u128,
    /// The lesser endpoint's address.
    pub lesser: u128,
    /// The ports, the greater endpoint's in the high half.
    pub ports: u32,
    /// IP version in the high half, transport protocol in the low.
    pub kind: u16,
}

impl Key {
    /// The key of a packet, and the packet's direction.
    #[inline]
    #[must_use]
    pub fn of(
        datagram: &Datagram<'_>,
        (source_port, destination_port): (u16, u16),
    ) -> (Self, usize) {
        let from_greater =
            (datagram.source, source_port) > (datagram.destination, destination_port);
        let ports = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let kind = datagram.kind;
        if from_greater {
            let ports = ports(source_port, destination_port);
            (
                Self {
                    greater: datagram.source,
                    lesser: datagram.destination,
                    ports,
                    kind,
                },
                0,
            )
        } else {
            let ports = ports(destination_port, source_port);
            (
                Self {
                    greater: datagram.destination,
                    lesser: datagram.source,
                    ports,
                    kind,
                },
                1,
            )
        }
    }

    /// The direction of a packet if it is of this connection.
    #[inline]
    #[must_use]
    pub fn direction(&self, datagram: &Datagram<'_>, ports: (u16, u16)) -> Option<usize> {
        if self.kind != datagram.kind {
            return None;
        }
        let (here, there) = (u32::from(ports.0), u32::from(ports.1));
        let (source, destination) = (datagram.source, datagram.destination);
        // An endpoint that talks to itself has direction 1, as in `of`.
        if source == self.lesser && destination == self.greater && self.ports == there << 16 | here
        {
            return Some(1);
        }
        (source == self.greater && destination == self.lesser && self.ports == here << 16 | there)
            .then_some(0)
    }

    /// Port of the sender of this direction's packets.
    #[must_use]
    pub fn port(&self, direction: usize) -> u16 {
        let [a, b, c, d] = self.ports.to_be_bytes();
        if direction == 0 {
            u16::from_be_bytes([a, b])
        } else {
            u16::from_be_bytes([c, d])
        }
    }

    /// Address of the sender of this direction's packets.
    #[must_use]
    pub fn address(&self, direction: usize) -> std::net::IpAddr {
        let value = if direction == 0 {
            self.greater
        } else {
            self.lesser
        };
        if self.kind >> 8 == 6 {
            std::net::IpAddr::V6(value.into())
        } else {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "an IPv4 address is in the low 32 bits"
            )]
            std::net::IpAddr::V4((value as u32).into())
        }
    }

    /// Which direction is the client's where no handshake tells: the server has the lower port below 1024 or one of
    /// the usual ones, else the lower port.
    fn guess_client(&self) -> usize {
        const USUAL: [u16; 6] = [3128, 4433, 5001, 8000, 8080, 8443];
        let rank = |port: u16| (port >= 1024 && !USUAL.contains(&port), port);
        usize::from(rank(self.port(0)) < rank(self.port(1)))
    }
}

/// How the client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleSource {
    /// The sender of a SYN, or the receiver of a SYN-ACK; for QUIC the sender of an Initial.
    Handshake,
    /// The port numbers.
    Ports,
}

/// A stretch of server data that answers a request: it begins after client data and a silence of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Response {
    /// First data packet, ns.
    pub first_ns: i64,
    /// Last data packet, ns.
    pub last_ns: i64,
    /// New payload, B.
    pub bytes: u64,
    /// Payload of the first packet, B: it was on its way before the clock of a delivery rate starts.
    pub first_bytes: u64,
    /// The request's last packet, ns.
    pub request_ns: i64,
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
    /// Whether the SYN-ACK answers the first SYN, as TSecr tells.
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
    /// What really happened.
    pub truth: TrueClass,
}

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
    /// Of a segment with timestamps and ACK that is neither SYN nor RST.
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

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its endpoints.
    pub key: Key,
    /// Index in order of first packets.
    pub number: u32,
    /// Direction of the client's packets.
    pub client: usize,
    /// How that was told.
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
    last_client_data_ns: Option<i64>,
    /// Series, on request.
    pub series: Option<Box<Series>>,
}

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
            last_client_data_ns: None,
            series: with_series.then(Box::default),
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
        self.note_response(DIRECTION, segment.len(), now_ns);
        let side = &mut self.sides[DIRECTION];
        side.count(segment.ip_bytes(), segment.len(), segment.ecn(), now_ns);
        raise(&mut side.largest_window, segment.window());
        side.truth.predicted_data(segment, side.packets);
        side.truth_counts[TrueClass::New as usize] += 1;
        self.match_timestamps::<DIRECTION>(&Times::from(segment), now_ns);
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
        self.match_timestamps::<DIRECTION>(&Times::from(segment), now_ns);
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
        if segment.len > 0 {
            self.note_response(
                direction,
                segment.len - truth.again.min(segment.len),
                now_ns,
            );
        }
        if let Some(rtt_ns) = verdict.ack_rtt_ns {
            self.note_ack_rtt(direction, rtt_ns, now_ns);
        }
        let rtt = Times::of(segment).and_then(|times| match direction {
            0 => self.match_timestamps::<0>(&times, now_ns),
            _ => self.match_timestamps::<1>(&times, now_ns),
        });
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

    /// Windows are scaled where both SYNs offer it (RFC 7323, section 2.2).
    #[cold]
    fn note_scaling(&mut self) {
        let offers = self.sides.each_ref().map(|side| side.options.window_scale);
        let is_scaled = offers[0].is_some() && offers[1].is_some();
        for (side, offer) in self.sides.iter_mut().zip(offers) {
            side.window_shift = offer.filter(|_| is_scaled).unwrap_or(0);
        }
    }

    #[cold]
    fn note_handshake(&mut self, direction: usize, segment: &Segment<'_>, now_ns: i64) {
        let handshake = &mut self.handshake;
        let timestamps = segment.options.timestamps;
        match (segment.any(flag::SYN), segment.any(flag::ACK)) {
            (true, false) => {
                if handshake.syn_ns.is_none() && handshake.syn_ack_ns.is_none()
                    || self.role_source == RoleSource::Ports
                {
                    self.client = direction;
                    self.role_source = RoleSource::Handshake;
                }
                if handshake.syn_ns.is_none() {
                    handshake.syn_ns = Some(now_ns);
                    handshake.syn_flags = segment.flags;
                    handshake.first_syn_tsval = timestamps.map(|(value, _)| value);
                }
                if handshake.syn_ack_ns.is_none() {
                    handshake.last_syn_ns = Some(now_ns);
                    handshake.last_syn_flags = segment.flags;
                }
            }
            (true, true) => {
                if self.role_source == RoleSource::Ports {
                    self.client = direction ^ 1;
                    self.role_source = RoleSource::Handshake;
                }
                if handshake.syn_ack_ns.is_none() {
                    handshake.syn_ack_ns = Some(now_ns);
                    handshake.syn_ack_flags = segment.flags;
                    handshake.answers_first = match (timestamps, handshake.first_syn_tsval) {
                        (Some((_, echo)), Some(first)) => Some(echo == first),
                        _ => None,
                    };
                }
            }
            (false, true)
                if direction == self.client
                    && handshake.syn_ack_ns.is_some()
                    && !segment.any(flag::RST) =>
            {
                handshake.ack_ns = Some(now_ns);
            }
            _ => {}
        }
    }

    /// The server's answer with the most bytes.
    #[must_use]
    pub fn answer(&self) -> Response {
        if self.response.bytes >= self.best_response.bytes {
            self.response
        } else {
            self.best_response
        }
    }

    /// Finds the server's answers.
    #[inline]
    fn note_response(&mut self, direction: usize, new_bytes: u32, now_ns: i64) {
        if direction == self.client {
            self.last_client_data_ns = Some(now_ns);
            return;
        }
        if self.last_client_data_ns.is_some() || self.response.first_ns == 0 {
            self.begin_response(new_bytes, now_ns);
        }
        self.response.last_ns = now_ns;
        self.response.bytes += u64::from(new_bytes);
    }

    #[cold]
    fn begin_response(&mut self, new_bytes: u32, now_ns: i64) {
        if let Some(request_ns) = self.last_client_data_ns.take() {
            // An answer comes a round trip after its request at the earliest; data that flows on is no answer.
            let silent_ns = now_ns.saturating_sub(self.response.last_ns);
            let rtt_ns = self.wireshark.initial_rtt_ns();
            if self.response.bytes == 0 || silent_ns >= rtt_ns - rtt_ns / 8 {
                self.best_response = self.answer();
                self.response = Response {
                    first_ns: now_ns,
                    last_ns: now_ns,
                    bytes: 0,
                    first_bytes: u64::from(new_bytes),
                    request_ns,
                };
            }
        }
        if self.response.first_ns == 0 {
            self.response.first_ns = now_ns;
            self.response.first_bytes = u64::from(new_bytes);
        }
    }

    /// Round-trip times and bounds of the data in flight from TSval and TSecr.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the short way")]
    fn match_timestamps<const DIRECTION: usize>(
        &mut self,
        segment: &Times,
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
        let mss = u64::from(this.largest_payload);
        bounds.window_limited += u64::from(u64::from(upper) + 2 * mss > window);
        // With nothing in flight before it, this packet waited for the application or a timer, not for the ACK.
        let rtt_ns = echo.rtt_ns.filter(|_| after(segment.seq, echo.acks.1))?;
        other.rtt_timestamps.add(rtt_ns);
        Some(rtt_ns)
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
        self.sides[direction].count(datagram.ip_bytes, len, datagram.ecn, now_ns);
        let role = usize::from(direction != self.client);
        let sample = self
            .quic
            .as_mut()
            .and_then(|state| state.datagram(role, payload, now_ns));
        if let Some(series) = &mut self.series {
            note_series(series, direction, datagram.ip_bytes, now_ns, sample);
        }
        PacketVerdict {
            relative_seq: None,
            len,
            ..PacketVerdict::default()
        }
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
