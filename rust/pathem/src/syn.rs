//! What a SYN or SYN-ACK carries: the account of the server's end for the proof of treatment.
//!
//! Sources: RFC 9293 (flags, MSS), RFC 7323 (window scale, timestamps), RFC 2018 (SACK permitted),
//! RFC 3168, section 6.1.1 (an ECN-setup SYN has ECE and CWR, an ECN-setup SYN-ACK ECE alone).

use crate::packet::tcp_header;
use serde::Serialize;
use std::ops::Range;

pub(crate) const FLAGS: usize = 13;
pub(crate) const CHECKSUM: usize = 16;
const OPTIONS: usize = 20;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const CWR: u8 = 0x80;

/// Kinds of TCP options.
pub mod kind {
    pub(crate) const END: u8 = 0;
    /// No operation.
    pub const NOP: u8 = 1;
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
}

/// What a SYN (or SYN-ACK) asks for (or agrees to).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Syn {
    /// Whether it is an ECN-setup SYN or SYN-ACK.
    pub ecn: bool,
    /// SACK permitted.
    pub sack: bool,
    /// Window scale shift.
    pub window_scale: Option<u8>,
    /// Timestamps.
    pub timestamps: bool,
    /// Maximum segment size, B.
    pub mss: Option<u16>,
    /// Window, unscaled, B.
    pub window: u16,
}

impl Syn {
    /// Reads an IP packet. `None`: not a SYN.
    #[must_use]
    pub fn read(packet: &[u8]) -> Option<Self> {
        let header = packet.get(tcp_header(packet)?)?;
        let flags = header[FLAGS];
        if flags & SYN == 0 {
            return None;
        }
        let wanted = if flags & ACK == 0 { ECE | CWR } else { ECE };
        let mut syn = Self {
            ecn: flags & (ECE | CWR) == wanted,
            sack: false,
            window_scale: None,
            timestamps: false,
            mss: None,
            window: u16::from_be_bytes([header[14], header[15]]),
        };
        for (kind, at) in options(header) {
            match (kind, &header[at]) {
                (kind::SACK_PERMITTED, _) => syn.sack = true,
                (kind::WINDOW_SCALE, [_, _, shift]) => syn.window_scale = Some(*shift),
                (kind::TIMESTAMPS, _) => syn.timestamps = true,
                (kind::MSS, [_, _, high, low]) => syn.mss = Some(u16::from_be_bytes([*high, *low])),
                _ => {}
            }
        }
        Some(syn)
    }
}

/// Kind and place of each option of a TCP header, NOPs among them. Ends at what is malformed.
pub(crate) fn options(header: &[u8]) -> impl Iterator<Item = (u8, Range<usize>)> + use<> {
    let mut ranges = Vec::new();
    let mut at = OPTIONS;
    while let Some(&kind) = header.get(at).filter(|&&kind| kind != kind::END) {
        let length = match kind {
            kind::NOP => 1,
            _ => header.get(at + 1).map_or(0, |&length| usize::from(length)),
        };
        let is_whole = length > usize::from(kind != kind::NOP) && at + length <= header.len();
        if !is_whole {
            break;
        }
        ranges.push((kind, at..at + length));
        at += length;
    }
    ranges.into_iter()
}
