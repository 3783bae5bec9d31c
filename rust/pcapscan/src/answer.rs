//! What is counted of a request and of its answer, for TCP and QUIC.

/// Data of the server that answers a request: it begins after client data and a silence of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Response {
    /// First data packet, ns.
    pub first_ns: i64,
    /// Last data packet, ns; a TLS `close_notify` does not count.
    pub last_ns: i64,
    /// IP bytes that the server has sent since the connection began, that packet included.
    pub ip_bytes: u64,
    /// New payload, B.
    pub bytes: u64,
    /// Payload of the first packet, B: it was on its way before the clock of a delivery rate starts.
    pub first_bytes: u64,
    /// The request's last packet, ns.
    pub request_ns: i64,
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
