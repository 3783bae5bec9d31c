//! Where the engine's results go: packets as they are classified, connections as they leave.

use crate::connection::{Connection, PacketVerdict};

/// One packet of a connection.
#[derive(Debug, Clone, Copy)]
pub struct PacketRow {
    /// Frame number as Wireshark counts, from 1.
    pub frame: u64,
    /// Capture time, ns since the Unix epoch.
    pub time_ns: i64,
    /// Number of the connection.
    pub connection: u32,
    /// Whether the client sent it.
    pub from_client: bool,
    /// Its classes.
    pub verdict: PacketVerdict,
}

/// Receives packets as they are classified, and connections as they leave.
pub trait Sink {
    /// Takes one packet.
    fn packet(&mut self, row: &PacketRow);

    /// Takes a connection that no packet will find any more, before the end of the capture.
    fn leaves(&mut self, _connection: Box<Connection>) {}
}

/// Drops packets.
impl Sink for () {
    #[inline]
    fn packet(&mut self, _row: &PacketRow) {}
}
