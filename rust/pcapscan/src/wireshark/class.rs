//! Wireshark's versions, and names for its marks.

/// The Wireshark version to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rules {
    /// 4.0 (checked against 4.0.17).
    #[default]
    V4_0,
    /// 4.4 (checked against 4.4.19).
    V4_4,
}

/// Marks of `tcp.analysis.*`. Several may be set on one segment.
pub mod flags {
    /// `tcp.analysis.retransmission` alone.
    pub const RETRANSMISSION: u16 = 1;
    /// `tcp.analysis.fast_retransmission` (Wireshark then sets `retransmission` too).
    pub const FAST: u16 = 1 << 1;
    /// `tcp.analysis.spurious_retransmission` (Wireshark then sets `retransmission` too).
    pub const SPURIOUS: u16 = 1 << 2;
    /// `tcp.analysis.out_of_order`.
    pub const OUT_OF_ORDER: u16 = 1 << 3;
    /// `tcp.analysis.keep_alive`.
    pub const KEEP_ALIVE: u16 = 1 << 4;
    /// `tcp.analysis.keep_alive_ack`.
    pub const KEEP_ALIVE_ACK: u16 = 1 << 5;
    /// `tcp.analysis.duplicate_ack`.
    pub const DUP_ACK: u16 = 1 << 6;
    /// `tcp.analysis.zero_window_probe`.
    pub const ZERO_WINDOW_PROBE: u16 = 1 << 7;
    /// `tcp.analysis.zero_window_probe_ack`.
    pub const ZERO_WINDOW_PROBE_ACK: u16 = 1 << 8;
    /// `tcp.analysis.zero_window`: a count, not a class.
    pub const ZERO_WINDOW: u16 = 1 << 9;
    /// `tcp.analysis.window_full`: a count, not a class.
    pub const WINDOW_FULL: u16 = 1 << 10;
    /// `tcp.analysis.window_update`: a count, not a class.
    pub const WINDOW_UPDATE: u16 = 1 << 11;
    /// `tcp.analysis.lost_segment`: a count, not a class.
    pub const LOST_SEGMENT: u16 = 1 << 12;
    /// `tcp.analysis.ack_lost_segment`: a count, not a class.
    pub const ACKED_UNSEEN: u16 = 1 << 13;
}

/// The class of a segment: the most specific of Wireshark's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum WsClass {
    /// No class.
    #[default]
    None,
    /// Repeats data, by exclusion of what follows.
    Retransmission,
    /// Repeats data that at least two duplicate ACKs asked for within 20 ms.
    FastRetransmission,
    /// Repeats data that was acknowledged before.
    SpuriousRetransmission,
    /// Fills a gap soon after it opened.
    OutOfOrder,
    /// No or one byte, one before the next expected.
    KeepAlive,
    /// Answers a keep-alive.
    KeepAliveAck,
    /// Repeats an ACK with an unchanged window.
    DupAck,
    /// One byte into a closed window.
    ZeroWindowProbe,
    /// Answers such a probe.
    ZeroWindowProbeAck,
}

/// Number of classes, [`WsClass::None`] among them.
pub const CLASSES: usize = 10;

impl WsClass {
    /// All classes in the order of their numbers.
    pub const ALL: [Self; CLASSES] = [
        Self::None,
        Self::Retransmission,
        Self::FastRetransmission,
        Self::SpuriousRetransmission,
        Self::OutOfOrder,
        Self::KeepAlive,
        Self::KeepAliveAck,
        Self::DupAck,
        Self::ZeroWindowProbe,
        Self::ZeroWindowProbeAck,
    ];

    /// The most specific class of these marks.
    #[inline]
    #[must_use]
    pub fn of(marks: u16) -> Self {
        const ORDER: [(u16, WsClass); CLASSES - 1] = [
            (flags::FAST, WsClass::FastRetransmission),
            (flags::SPURIOUS, WsClass::SpuriousRetransmission),
            (flags::RETRANSMISSION, WsClass::Retransmission),
            (flags::OUT_OF_ORDER, WsClass::OutOfOrder),
            (flags::ZERO_WINDOW_PROBE_ACK, WsClass::ZeroWindowProbeAck),
            (flags::ZERO_WINDOW_PROBE, WsClass::ZeroWindowProbe),
            (flags::KEEP_ALIVE_ACK, WsClass::KeepAliveAck),
            (flags::KEEP_ALIVE, WsClass::KeepAlive),
            (flags::DUP_ACK, WsClass::DupAck),
        ];
        if marks.trailing_zeros() >= 9 {
            // All other marks are counts.
            return Self::None;
        }
        ORDER
            .iter()
            .find(|(mark, _)| marks & mark != 0)
            .map_or(Self::None, |&(_, class)| class)
    }

    /// The name in the `ws_class` column; empty for none.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Retransmission => "retransmission",
            Self::FastRetransmission => "fast_retransmission",
            Self::SpuriousRetransmission => "spurious_retransmission",
            Self::OutOfOrder => "out_of_order",
            Self::KeepAlive => "keep_alive",
            Self::KeepAliveAck => "keep_alive_ack",
            Self::DupAck => "dup_ack",
            Self::ZeroWindowProbe => "zero_window_probe",
            Self::ZeroWindowProbeAck => "zero_window_probe_ack",
        }
    }
}
