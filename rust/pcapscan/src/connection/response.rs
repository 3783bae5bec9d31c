//! The server's answers to requests.

use super::Connection;
use crate::answer::{BODY_BYTES, Response};
use crate::quic;
use crate::rounds::Rounds;
use std::ops::Range;

/// Sizes of a `close_notify` alert that has a segment of its own: 5 bytes of header, 2 of alert, and what protects it. A
/// server sends it when it gets to it: it ends no answer.
const CLOSE_NOTIFY_BYTES: [u32; 7] = [
    24, // TLS 1.3: its type, and a tag of 16 (RFC 8446, sections 5.2 and 6.1)
    23, // TLS 1.2 with ChaCha20: a tag of 16 (RFC 7905, section 2)
    31, // with GCM: 8 explicit bytes of the nonce, too (RFC 5288, section 3)
    // With CBC: an IV of 16, MAC and padding (RFC 5246, section 6.2.3.2), SHA-1, SHA-256 and SHA-384.
    53, 69, 85,
    57, // with SHA-1 behind what is encrypted (RFC 7366, section 3); the other two are as long as before
];

/// Sizes of a client's segments that are no requests where they come while the server answers: with TLS 1.3 an
/// acknowledgement of `SETTINGS` takes 31 bytes, a `WINDOW_UPDATE` 35, an acknowledgement of a `PING` 39 (RFC 9113,
/// section 6), two in records of their own up to 70.
const CONTROL_BYTES: Range<u32> = 31..72;

impl Connection {
    /// The server's answer with the most bytes; of QUIC the one that [`crate::quic::State`] found.
    #[must_use]
    pub fn answer(&self) -> Response {
        if let Some(state) = &self.quic {
            state.answer
        } else if self.response.bytes >= self.best_response.bytes {
            self.response
        } else {
            self.best_response
        }
    }

    /// How that answer went on over time; none before its first packet.
    #[must_use]
    pub fn answer_rounds(&self) -> Option<&Rounds> {
        let is_present = self.quic.is_some() || self.response.bytes >= self.best_response.bytes;
        let rounds = if is_present {
            &self.rounds
        } else {
            &self.best_rounds
        };
        rounds.as_deref()
    }

    /// Finds the server's answers; the packet has been counted. What was captured before ends none: the client has it,
    /// so its time says when the server asked whether it does (RFC 8985, section 7), not when the client had the answer.
    #[inline]
    pub(super) fn note_response(
        &mut self,
        direction: usize,
        len: u32,
        new_bytes: u32,
        was_missing: bool,
        now_ns: i64,
    ) {
        if direction == self.client {
            if self.response.first_ns == 0 {
                self.hello.add(new_bytes);
            }
            // A client that began with much more sent a ClientHello; without TLS all requests may be short. The first
            // answer is that to the ClientHello: what follows it is a request. The end of a request may be short too.
            let is_control = CONTROL_BYTES.contains(&len)
                && self.hello.bytes > 2 * u64::from(len)
                && self.best_response.bytes > 0;
            if !is_control || self.last_client_data_ns.is_some() {
                self.last_client_data_ns = Some(now_ns);
            }
            return;
        }
        if self.last_client_data_ns.is_some() || self.response.is_begun_by(new_bytes) {
            self.begin_response(new_bytes, now_ns);
        }
        // What fills a gap may have been sent before as a whole.
        let filling_bytes = if new_bytes > 0 { new_bytes } else { len };
        if was_missing && !CLOSE_NOTIFY_BYTES.contains(&filling_bytes) {
            self.response.last_ns = now_ns;
            self.response.ip_bytes = self.sides[direction].ip_bytes;
        }
        self.response.bytes += u64::from(new_bytes);
        if let Some(rounds) = &mut self.rounds {
            rounds.packet(len, new_bytes, now_ns);
        }
    }

    /// The data packet that was noted last was retransmitted, or marked.
    #[inline]
    pub(super) fn note_congestion(&mut self, direction: usize, is_congestion: bool) {
        if is_congestion
            && direction != self.client
            && let Some(rounds) = &mut self.rounds
        {
            rounds.lost();
        }
    }

    /// Notes a datagram of the server, which may be part of the answer of QUIC.
    pub(super) fn note_quic_round(&mut self, len: u32, is_marked: bool, now_ns: i64) {
        let Some(state) = &self.quic else {
            return;
        };
        if state.answer.first_bytes == 0 || len < quic::DATA_BYTES {
            return;
        }
        let (answer, rtt_ns) = (&state.answer, state.handshake_ns().unwrap_or(0));
        // It may turn out to have begun behind what was taken for its beginning.
        self.rounds
            .take_if(|rounds| rounds.start_ns != answer.first_ns);
        let rounds = self.rounds.get_or_insert_with(|| {
            let mut rounds = Box::new(Rounds::new(answer.first_ns, rtt_ns));
            if answer.first_ns != now_ns {
                let first_bytes = u32::try_from(answer.first_bytes).unwrap_or(len);
                rounds.packet(first_bytes, first_bytes, answer.first_ns);
            }
            rounds
        });
        rounds.packet(len, len, now_ns);
        if is_marked {
            rounds.lost();
        }
    }

    #[cold]
    fn begin_response(&mut self, new_bytes: u32, now_ns: i64) {
        if let Some(request_ns) = self.last_client_data_ns.take() {
            // An answer comes a round trip after its request at the earliest; data that continues is not an answer.
            let silent_ns = now_ns.saturating_sub(self.response.last_ns);
            let rtt_ns = self.round_trip_ns();
            if self.response.bytes == 0 || silent_ns >= rtt_ns - rtt_ns / 8 {
                if self.response.bytes >= self.best_response.bytes {
                    self.best_rounds = self.rounds.take();
                }
                self.best_response = self.answer();
                self.response = Response {
                    last_ns: now_ns,
                    ip_bytes: self.sides[self.client ^ 1].ip_bytes,
                    request_ns,
                    ..Response::default()
                };
            }
        }
        if self.response.is_begun_by(new_bytes) {
            self.response.first_ns = now_ns;
            self.response.first_bytes = self.response.bytes + u64::from(new_bytes);
            self.response.is_head = new_bytes < BODY_BYTES;
            let rtt_ns = self.round_trip_ns();
            self.rounds = Some(Box::new(Rounds::new(now_ns, rtt_ns)));
        }
    }

    /// The initial round trip; where ACKs came sooner by an eighth, that of both ways' fastest, as the handshake waited
    /// for the address of a neighbour or in a queue. In both ways, because the capture may be anywhere on the path.
    fn round_trip_ns(&self) -> i64 {
        let initial_ns = self.wireshark.initial_rtt_ns();
        let [one, other] = self.sides.each_ref().map(|side| &side.rtt_ack);
        let fastest_ns = one.min_ns.saturating_add(other.min_ns);
        let is_slow = one.count > 0 && other.count > 0 && fastest_ns < initial_ns - initial_ns / 8;
        if is_slow { fastest_ns } else { initial_ns }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Packet, Writer};
    use crate::{Capture, Engine, Record, Settings};
    use std::io::Cursor;

    const MS: u64 = 1_000_000;
    /// Round trip of the path, ms.
    const RTT: u64 = 50;

    /// A connection with the client next to the capture.
    struct Path {
        writer: Writer,
        next: [u32; 2],
        id: u16,
    }

    impl Path {
        /// The handshake begins at 0; its SYN-ACK comes after `syn_rtt` ms.
        fn new(syn_rtt: u64) -> Self {
            let mut path = Self {
                writer: Writer::default(),
                next: [1000, 5000],
                id: 0,
            };
            path.segment(0, true, 0x02, 0);
            path.segment(syn_rtt, false, 0x12, 0);
            path.next = [1001, 5001];
            path.segment(syn_rtt, true, 0x10, 0);
            path
        }

        fn segment(&mut self, at: u64, from_client: bool, flags: u16, len: u16) {
            self.id += 1;
            let [seq, ack] = match (from_client, self.next) {
                (true, next) => next,
                (false, [client, server]) => [server, client],
            };
            self.writer.packet(&Packet {
                time_ns: at * MS,
                from_client,
                seq,
                ack,
                flags,
                window: 60_000,
                len,
                id: self.id,
                timestamps: None,
            });
            self.next[usize::from(!from_client)] += u32::from(len);
        }

        fn data(&mut self, at: u64, from_client: bool, len: u16) {
            self.segment(at, from_client, 0x18, len);
        }

        /// Two segments of the server and the client's ACK of them.
        fn flight(&mut self, at: u64) {
            self.data(at, false, 1448);
            self.data(at + 1, false, 1448);
            self.segment(at + 1, true, 0x10, 0);
        }

        /// First and last packet of the answer, ms, and its bytes.
        fn answer(&self) -> (i64, i64, u64) {
            let record = self.record();
            let ms = |ns: Option<i64>| ns.unwrap() / 1_000_000;
            let times = (record.response_first_ns, record.response_last_ns);
            (ms(times.0), ms(times.1), record.response_bytes)
        }

        fn record(&self) -> Record {
            let bytes = Cursor::new(self.writer.bytes().to_vec());
            let mut capture = Capture::from_reader(Box::new(bytes)).unwrap();
            let mut engine = Engine::new(Settings::default());
            engine.run(&mut capture, &mut (), u64::MAX);
            Record::new(engine.connections().next().unwrap(), false)
        }
    }

    /// A handshake of TLS 1.3 with a request of `request` bytes: the answer comes after 3 round trips.
    fn requested(syn_rtt: u64, request: u16) -> Path {
        let mut path = Path::new(syn_rtt);
        path.data(syn_rtt, true, 517);
        path.data(syn_rtt + RTT, false, 1448);
        path.data(syn_rtt + RTT + 1, true, 80);
        path.data(syn_rtt + RTT + 1, true, request);
        path
    }

    #[test]
    fn ip_bytes_are_counted_up_to_the_answers_last_data() {
        let mut path = requested(RTT, 200);
        assert_eq!(path.record().response_ip_bytes, Some(40 + 1488));
        path.flight(150);
        path.flight(200);
        let until_last_data = Some(40 + 5 * 1488);
        assert_eq!(path.record().response_ip_bytes, until_last_data);
        path.segment(203, false, 0x10, 0);
        path.data(205, false, 24); // close_notify
        assert_eq!(path.record().response_ip_bytes, until_last_data);
        path.data(206, true, 200);
        path.flight(256); // another answer, which is smaller
        assert_eq!(path.record().response_ip_bytes, until_last_data);
    }

    #[test]
    fn an_answer_begins_with_its_body() {
        // Session tickets, then SETTINGS, while the server thinks; the head may come by itself.
        let mut path = requested(RTT, 200);
        path.data(150, false, 510);
        path.data(151, false, 60);
        path.data(300, false, 400);
        path.flight(350);
        path.data(400, false, 500);
        path.flight(450);
        assert_eq!(path.answer(), (350, 451, 510 + 60 + 400 + 500 + 4 * 1448));
        let record = path.record();
        assert_eq!(record.response_first_bytes, 510 + 60 + 400 + 1448);
        assert_eq!(record.round_bytes[0], 2 * 1448);
        // None is long enough for a body.
        let mut path = requested(RTT, 200);
        for at in 150..160 {
            path.data(at, false, 536);
        }
        assert_eq!(path.answer(), (150, 159, 5360));
        assert_eq!(path.record().response_first_bytes, 536);
        // Nor are two that were merged once the head is over.
        for at in 160..170 {
            path.data(at, false, 536);
        }
        path.data(170, false, 1072);
        assert_eq!(path.answer(), (150, 170, 22 * 536));
    }

    #[test]
    fn control_frames_of_http_2_split_no_answer() {
        for control in [31, 35, 39, 44, 70] {
            let mut path = requested(RTT, 200);
            for round in 3..6 {
                path.flight(round * RTT);
                path.data(round * RTT + 2, true, control);
            }
            assert_eq!(path.answer(), (150, 251, 6 * 1448), "{control}");
        }
    }

    #[test]
    fn what_is_captured_twice_and_keep_alives_are_no_data() {
        let mut path = requested(RTT, 200);
        path.flight(150);
        path.next[0] -= 1;
        path.data(170, true, 1); // a keep-alive: one byte before the next
        for (at, back) in [(250, 0), (250, 1), (251, 0), (252, 2)] {
            path.id -= back;
            path.next[1] -= u32::from(back) * 1448;
            path.data(at, false, 1448);
        }
        assert_eq!(path.answer(), (150, 251, 4 * 1448));
    }

    #[test]
    fn a_close_notify_that_was_lost_ends_no_answer_either() {
        let mut path = requested(RTT, 200);
        path.flight(150);
        path.next[1] += 24;
        path.segment(152, false, 0x11, 0); // FIN
        path.next[1] -= 24;
        path.data(402, false, 24);
        assert_eq!(path.answer(), (150, 151, 2 * 1448));
    }

    #[test]
    fn a_slow_handshake_merges_no_answers() {
        for syn_rtt in [50, 58, 62, 1050] {
            let mut path = requested(syn_rtt, 200);
            path.flight(syn_rtt + 102);
            path.flight(syn_rtt + 152);
            let began = i64::try_from(syn_rtt).unwrap() + 102;
            assert_eq!(path.answer(), (began, began + 51, 4 * 1448), "{syn_rtt}");
        }
    }

    #[test]
    fn requests_begin_an_answer() {
        // The first one over TLS may be short, as may all without.
        let mut path = requested(RTT, 40);
        path.flight(150);
        assert_eq!(path.answer(), (150, 151, 2 * 1448));
        let mut path = Path::new(RTT);
        path.data(50, true, 47);
        path.data(100, false, 300);
        path.data(101, true, 53);
        path.flight(151);
        assert_eq!(path.answer(), (151, 152, 2 * 1448));
        path.data(153, true, 53);
        path.flight(203);
        path.data(205, false, 100);
        assert_eq!(path.answer(), (203, 205, 2 * 1448 + 100));
        // A later one over TLS is longer than control frames; its end may be short.
        let mut path = requested(RTT, 200);
        path.data(150, false, 300);
        path.data(151, true, 1448);
        path.data(152, true, 40);
        path.flight(202);
        assert_eq!(path.answer(), (202, 203, 2 * 1448));
    }
}
