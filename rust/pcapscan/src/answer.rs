//! What is counted of a request and of its answer, for TCP and QUIC.

/// A server's packets with at least so much payload carry a body: they are full but for the last one, and a full one of
/// QUIC has 1,200 bytes or more (RFC 9000, section 14). Settings, session tickets, acknowledgements and most heads are
/// smaller, and may come before the server has the body.
pub const BODY_BYTES: u32 = 1000;

/// More than this in smaller segments of TCP is a body in small segments, of which two were merged, and no head.
const MOST_HEAD_BYTES: u64 = 8192;

/// Data of the server that answers a request: it begins after client data and a silence of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Response {
    /// First data packet that carries a body, ns; the first one if none does.
    pub first_ns: i64,
    /// Last data packet, ns; a TLS `close_notify` does not count.
    pub last_ns: i64,
    /// IP bytes that the server has sent since the connection began, that packet included.
    pub ip_bytes: u64,
    /// New payload, B.
    pub bytes: u64,
    /// Payload up to and with that packet, B: it was on its way before the clock of a delivery rate starts.
    pub first_bytes: u64,
    /// Whether none of TCP carried a body so far.
    pub is_head: bool,
    /// The request's last packet, ns.
    pub request_ns: i64,
}

impl Response {
    /// Whether a segment of TCP with so much new payload is its first one, or the first one that carries its body.
    #[inline]
    #[must_use]
    pub fn is_begun_by(&self, new_bytes: u32) -> bool {
        let is_body = self.is_head && new_bytes >= BODY_BYTES && self.bytes <= MOST_HEAD_BYTES;
        self.first_ns == 0 || is_body
    }
}

/// What a client sent before the server's first answer, TCP's handshake apart: its `ClientHello`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hello {
    /// New payload, B.
    pub bytes: u64,
    /// Packets with new payload.
    pub packets: u64,
}

impl Hello {
    /// Adds a packet.
    pub fn add(&mut self, new_bytes: u32) {
        self.bytes += u64::from(new_bytes);
        self.packets += u64::from(new_bytes > 0);
    }
}
