//! How a probe ends.

/// The closed vocabulary; the numbers are codes of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The window was the limit: a retransmission, then new data after our ACK.
    Limited = 0,
    /// The data was the limit: FIN within the flight, or nothing new after our ACK.
    LowerBound = 1,
    /// Our receive window was the limit.
    WindowBound = 2,
    /// The server's retransmission timer fired before its answer had begun.
    Late = 3,
    /// No payload.
    NoData = 4,
    /// RST after the handshake.
    Reset = 5,
    /// A download was received whole.
    Complete = 6,
    /// RST in answer to the SYN, or ICMP port unreachable.
    ConnectionRefused = 7,
    /// No SYN-ACK.
    ConnectTimeout = 8,
    /// ICMP says so.
    Unreachable = 9,
    /// Outside the allowed prefixes, or of no family that we have an address of.
    AddressRefused = 10,
}

/// Bits of the reply: what else was seen.
pub mod note {
    /// A payload above the announced MSS.
    pub const MSS_IGNORED: u16 = 1;
    /// Segments were merged: the kernel says so, or a payload is above the device's MTU.
    pub const MERGED: u16 = 2;
    /// The server closed.
    pub const FIN: u16 = 4;
    /// `Location` is longer than a reply can hold.
    pub const LOCATION_CUT: u16 = 8;
    /// The TLS handshake failed.
    pub const TLS_FAILED: u16 = 16;
    /// SYN or request were sent again, or the SYN-ACK came more than once.
    pub const HELD_UP: u16 = 32;
    /// There are more segments than arrivals.
    pub const ARRIVALS_CUT: u16 = 64;
}
