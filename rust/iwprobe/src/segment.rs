//! TCP segments as the state machine sees them.

/// FIN.
pub const FIN: u8 = 0x01;
/// SYN.
pub const SYN: u8 = 0x02;
/// RST.
pub const RST: u8 = 0x04;
/// PSH.
pub const PSH: u8 = 0x08;
/// ACK.
pub const ACK: u8 = 0x10;

/// A segment received. Its checksum was right.
#[derive(Debug, Clone, Copy, Default)]
pub struct Segment<'a> {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; meaningless without ACK.
    pub ack: u32,
    /// Flags.
    pub flags: u8,
    /// MSS option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub scale: Option<u8>,
    /// Length of the payload; more than `payload` has if the device merged segments.
    pub length: u32,
    /// The payload.
    pub payload: &'a [u8],
    /// Several segments that a device merged: their number is not known.
    pub merged: bool,
}

impl Segment<'_> {
    /// Whether all these flags are set.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// A segment to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: u8,
    /// The window field.
    pub window: u16,
    /// A SYN's options: MSS, and window scaling with it.
    pub syn: Option<Announced>,
    /// The payload.
    pub payload: &'a [u8],
}

/// Options of a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// MSS [bytes].
    pub mss: u16,
    /// Shift count of our windows.
    pub scale: u8,
}

/// What sends segments.
pub trait Sink {
    /// Sends one.
    fn send(&mut self, segment: Outgoing<'_>);

    /// Tells [`Probe::on_left`](crate::probe::Probe::on_left) when the last one leaves: it may wait for its turn.
    fn tell_when_left(&mut self);
}
