//! What both formats give: frames, or the end.

use crate::link::LinkType;

/// Wireshark's `WTAP_MAX_PACKET_SIZE_STANDARD`: a longer record means that the file is broken.
pub const LARGEST_RECORD: u32 = 262_144;

/// One packet as the file has it.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a> {
    /// Capture time, ns since the Unix epoch.
    pub time_ns: i64,
    /// Length on the wire, B.
    pub original: u32,
    /// How `data` begins.
    pub link: LinkType,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// What comes next in a capture file.
#[derive(Debug)]
pub enum Next<'a> {
    /// A packet.
    Packet(Raw<'a>),
    /// A record without a packet that Wireshark numbers as a frame.
    Other,
    /// The regular end.
    End,
    /// The file is truncated or damaged here; what came before is good.
    Cut(String),
}
