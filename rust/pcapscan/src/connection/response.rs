//! The server's answers to requests.

use super::Connection;
use crate::answer::Response;
use crate::quic;
use crate::rounds::Rounds;

/// Sizes of a `close_notify` alert that has a segment of its own: TLS 1.3, and TLS 1.2 with an AEAD of 8 explicit nonce
/// bytes (RFC 8446, sections 5.2 and 6.1; RFC 5288, section 3). A server sends it when it gets to it: it ends no answer.
const CLOSE_NOTIFY_BYTES: [u32; 2] = [24, 31];

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

    /// Finds the server's answers. What was captured before ends none: the client has it, so its time says when the
    /// server asked whether it does (RFC 8985, section 7), not when the client had the answer.
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
            self.last_client_data_ns = Some(now_ns);
            return;
        }
        if self.last_client_data_ns.is_some() || self.response.first_ns == 0 {
            self.begin_response(new_bytes, now_ns);
        }
        if was_missing && !CLOSE_NOTIFY_BYTES.contains(&new_bytes) {
            self.response.last_ns = now_ns;
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
        let between = |from: Option<i64>, to: Option<i64>| to?.checked_sub(from?);
        let rtt_ns = between(state.initial_ns[0], state.initial_ns[1]).unwrap_or(0);
        let rounds = self
            .rounds
            .get_or_insert_with(|| Box::new(Rounds::new(now_ns, rtt_ns)));
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
            let rtt_ns = self.wireshark.initial_rtt_ns();
            if self.response.bytes == 0 || silent_ns >= rtt_ns - rtt_ns / 8 {
                if self.response.bytes >= self.best_response.bytes {
                    self.best_rounds = self.rounds.take();
                }
                self.best_response = self.answer();
                self.rounds = Some(Box::new(Rounds::new(now_ns, rtt_ns)));
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
            let rtt_ns = self.wireshark.initial_rtt_ns();
            self.rounds = Some(Box::new(Rounds::new(now_ns, rtt_ns)));
        }
    }
}
