//! The engine: one pass over a capture.

use crate::capture::Capture;
use crate::capture::frame::{Next, Raw};
use crate::connection::{Connection, Key, PacketVerdict};
use crate::ip::{self, Skip, saturated};
use crate::lookup::Lookup;
use crate::plain::Plain;
use crate::quic;
use crate::sink::{PacketRow, Sink};
use crate::slots::Slots;
use crate::tcp;
use crate::truth::TrueClass;
use crate::wireshark::{Rules, WsClass};

/// Connections that are held at once. A SYN alone takes 3 KiB, a download about 12.
pub const MOST_CONNECTIONS: usize = 16_384;

/// What to do with a capture.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Which Wireshark `ws_class` agrees with.
    pub rules: Rules,
    /// Whether to keep time series.
    pub series: bool,
    /// Whether every packet takes the full way (see [`crate::plain`]): for tests of the short one.
    pub without_prediction: bool,
    /// Connections that are held at once, at least 1: beyond that, those that are over or were quiet longest leave.
    pub most_connections: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            series: false,
            without_prediction: false,
            most_connections: MOST_CONNECTIONS,
        }
    }
}

/// Packets that belong to no connection, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct Skipped {
    /// Not IP, or a header that is cut or bogus.
    pub not_ip: u64,
    /// Fragments of datagrams.
    pub fragments: u64,
    /// Transports other than TCP and QUIC (ICMP with the packets that it quotes among them).
    pub other: u64,
    /// Records of a link type that the engine does not know (pcapng only).
    pub unknown_link: u64,
}

/// State of a scan.
pub struct Engine {
    settings: Settings,
    connections: Slots,
    lookup: Lookup,
    /// On their way to the sink.
    #[expect(clippy::vec_box, reason = "they are handed over as they are")]
    leaving: Vec<Box<Connection>>,
    /// Connections that left.
    left: u64,
    /// Frames so far, as Wireshark counts.
    pub frames: u64,
    /// Why the file is truncated or damaged, where it is.
    pub cut: Option<String>,
    /// Packets outside connections.
    pub skipped: Skipped,
    unknown_links: Vec<u32>,
}

impl Engine {
    /// An engine without packets.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            connections: Slots::default(),
            leaving: Vec::new(),
            left: 0,
            lookup: Lookup::new(!settings.without_prediction),
            frames: 0,
            cut: None,
            skipped: Skipped::default(),
            unknown_links: Vec::new(),
        }
    }

    /// Takes records until the end, or until `limit` frames are done; false at the end.
    pub fn run<S: Sink>(&mut self, capture: &mut Capture, sink: &mut S, limit: u64) -> bool {
        loop {
            if let Some((pcap, bytes)) = capture.at_hand() {
                let mut rest = bytes;
                while self.frames < limit
                    && let Some(raw) = pcap.split(&mut rest)
                {
                    self.frames += 1;
                    self.record(&raw, sink);
                }
                let done = bytes.len() - rest.len();
                capture.pass(done);
            }
            if self.frames >= limit {
                return true;
            }
            match capture.next_record() {
                Next::Packet(raw) => {
                    self.frames += 1;
                    self.record(&raw, sink);
                }
                Next::Other => self.frames += 1,
                Next::End => return false,
                Next::Cut(reason) => {
                    self.cut = Some(reason);
                    return false;
                }
            }
        }
    }

    /// Takes one packet, which is frame number `frames`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as for Engine::predicted")]
    pub fn record<S: Sink>(&mut self, raw: &Raw<'_>, sink: &mut S) {
        if let Some(plain) = Plain::read(raw.link, raw.data, raw.original)
            && let Some((slot, direction, relative_seq)) = self.predicted(plain, raw.time_ns)
        {
            let verdict = PacketVerdict {
                relative_seq: Some(relative_seq),
                len: plain.len(),
                ws: WsClass::None,
                truth: if plain.is_empty() {
                    TrueClass::None
                } else {
                    TrueClass::New
                },
            };
            self.emit(raw.time_ns, slot, direction, verdict, sink);
            return;
        }
        self.full(raw, sink);
    }

    /// The fast path of a plain segment. Returns its connection, direction and relative sequence number.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "its result is made for sinks; one that drops packets should cost nothing"
    )]
    fn predicted(&mut self, plain: Plain<'_>, now_ns: i64) -> Option<(u32, usize, u32)> {
        let (slot, direction) = self.lookup.plain(plain)?;
        let connection = self.connections.find(slot)?;
        let relative_seq = connection.predicted(direction, plain, now_ns)?;
        Some((slot, direction, relative_seq))
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a sink that drops packets should cost nothing"
    )]
    fn emit<S: Sink>(
        &self,
        time_ns: i64,
        slot: u32,
        direction: usize,
        verdict: PacketVerdict,
        sink: &mut S,
    ) {
        let connection = &self.connections[slot];
        sink.packet(&PacketRow {
            frame: self.frames,
            time_ns,
            connection: connection.number,
            from_client: connection.client == direction,
            verdict,
        });
    }

    /// The full way.
    #[inline(never)]
    fn full<S: Sink>(&mut self, raw: &Raw<'_>, sink: &mut S) {
        let Some(offset) = raw.link.ip_offset(raw.data) else {
            self.no_ip(raw);
            return;
        };
        let Some(bytes) = raw.data.get(offset..) else {
            self.skipped.not_ip += 1;
            return;
        };
        let mut datagram = ip::Datagram::default();
        let original = raw.original.saturating_sub(saturated(offset));
        if let Err(reason) = ip::parse(bytes, original, &mut datagram) {
            match reason {
                Skip::NotIp => self.skipped.not_ip += 1,
                Skip::Fragment => self.skipped.fragments += 1,
                Skip::OtherProtocol => self.skipped.other += 1,
            }
            return;
        }
        let done = if datagram.protocol() == ip::TCP {
            self.tcp(&datagram, raw.time_ns)
        } else {
            self.udp(&datagram, raw.time_ns)
        };
        for connection in self.leaving.drain(..) {
            self.left += 1;
            sink.leaves(connection);
        }
        let Some((slot, direction, verdict)) = done else {
            return;
        };
        self.emit(raw.time_ns, slot, direction, verdict, sink);
    }

    #[cold]
    fn no_ip(&mut self, raw: &Raw<'_>) {
        if raw.link.is_known() {
            self.skipped.not_ip += 1;
            return;
        }
        self.skipped.unknown_link += 1;
        if !self.unknown_links.contains(&raw.link.0) && self.unknown_links.len() < 8 {
            self.unknown_links.push(raw.link.0);
        }
    }

    #[inline]
    fn tcp(
        &mut self,
        datagram: &ip::Datagram<'_>,
        now_ns: i64,
    ) -> Option<(u32, usize, PacketVerdict)> {
        let mut segment = tcp::Segment::default();
        if !tcp::parse(datagram.bytes, datagram.length, &mut segment) {
            self.skipped.not_ip += 1;
            return None;
        }
        let ports = (segment.source_port, segment.destination_port);
        let (mut slot, direction) = self.lookup.find(datagram, ports).unwrap_or_else(|| {
            let (key, direction) = Key::of(datagram, ports);
            (self.create(key, now_ns), direction)
        });
        if segment.any(tcp::flag::SYN) {
            let connection = &self.connections[slot];
            if connection.wireshark.is_new_connection(direction, &segment) {
                slot = self.create(connection.key, now_ns);
            }
        }
        let connection = &mut self.connections[slot];
        let verdict =
            connection.segment(self.settings.rules, direction, datagram, &segment, now_ns);
        Some((slot, direction, verdict))
    }

    fn udp(
        &mut self,
        datagram: &ip::Datagram<'_>,
        now_ns: i64,
    ) -> Option<(u32, usize, PacketVerdict)> {
        let Some((head, payload)) = datagram.bytes.split_first_chunk::<8>() else {
            self.skipped.not_ip += 1;
            return None;
        };
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let ports = (half(0), half(2));
        let known = self.lookup.find(datagram, ports);
        let is_long = payload.first().is_some_and(|first| first & 0x80 != 0);
        let header = if is_long {
            quic::long_header(payload)
        } else {
            None
        };
        let (slot, direction) = match (known, header) {
            (Some(found), None) => found,
            (Some((slot, direction)), Some(header)) => {
                let connection = &self.connections[slot];
                let starts_anew = direction == connection.client
                    && connection
                        .quic
                        .as_ref()
                        .is_some_and(|state| state.is_new_connection(&header));
                let slot = if starts_anew {
                    self.create_quic(connection.key, direction, &header, now_ns)
                } else {
                    slot
                };
                (slot, direction)
            }
            (None, Some(header))
                if quic::begins_connection(&header, datagram.length.saturating_sub(8)) =>
            {
                let (key, direction) = Key::of(datagram, ports);
                (self.create_quic(key, direction, &header, now_ns), direction)
            }
            (None, _) => {
                self.skipped.other += 1;
                return None;
            }
        };
        let verdict = self.connections[slot].quic_datagram(direction, datagram, payload, now_ns);
        Some((slot, direction, verdict))
    }

    fn create_quic(
        &mut self,
        key: Key,
        direction: usize,
        header: &quic::LongHeader,
        now_ns: i64,
    ) -> u32 {
        let slot = self.create(key, now_ns);
        self.connections[slot].begin_quic(direction, header);
        slot
    }

    #[cold]
    fn create(&mut self, key: Key, now_ns: i64) -> u32 {
        if self.connections.held() >= self.settings.most_connections {
            self.make_room(now_ns);
        }
        let slot = self.connections.add(key, now_ns, self.settings.series);
        if let Some(earlier) = self.lookup.insert(key, slot) {
            self.connections[earlier].is_replaced = true;
        }
        slot
    }

    /// Lets a quarter of the connections leave, those first that no packet will miss.
    fn make_room(&mut self, now_ns: i64) {
        let mut ranked = self.connections.ranked(now_ns);
        let leaving = (ranked.len() / 4).max(1);
        ranked.select_nth_unstable(leaving - 1);
        ranked.truncate(leaving);
        ranked.sort_unstable_by_key(|&(_, _, number, _)| number);
        for (_, _, _, slot) in ranked {
            if let Some(connection) = self.connections.take(slot) {
                self.lookup.remove(&connection.key, slot);
                self.leaving.push(connection);
            }
        }
        self.lookup.forget_recent();
    }

    /// The connections that are held, in order of their first packets.
    #[must_use = "it only looks"]
    pub fn connections(&self) -> impl ExactSizeIterator<Item = &Connection> {
        let mut held: Vec<_> = self.connections.iter().collect();
        held.sort_unstable_by_key(|connection| connection.number);
        held.into_iter()
    }

    /// Gives the sink the connections that are held, in order of their first packets: the capture is over.
    pub fn finish<S: Sink>(&mut self, sink: &mut S) {
        let mut held = self.connections.take_all();
        held.sort_unstable_by_key(|connection| connection.number);
        for connection in held {
            sink.leaves(connection);
        }
    }

    /// Sentences about what a reader should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(reason) = &self.cut {
            warnings.push(format!(
                "{reason}; the {} frames before are kept",
                self.frames
            ));
        }
        if self.left > 0 {
            warnings.push(format!(
                "more than {} connections at once: {} that were over or quiet longest were written before the end, \
                 and later packets of theirs count as new connections",
                self.settings.most_connections, self.left
            ));
        }
        for link in &self.unknown_links {
            warnings.push(format!(
                "frames of link type {link} were skipped, the engine does not know it"
            ));
        }
        warnings
    }
}
