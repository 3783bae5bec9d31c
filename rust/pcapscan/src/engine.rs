//! The engine: one pass over a capture.

use crate::capture::{Capture, Next, Raw};
use crate::connection::{Connection, Key, PacketVerdict};
use crate::error::ScanError;
use crate::ip::{self, Skip, saturated};
use crate::lookup::Lookup;
use crate::plain::Plain;
use crate::quic;
use crate::tcp;
use crate::truth::TrueClass;
use crate::wireshark::{Rules, WsClass};
use std::path::Path;

/// What to do with a capture.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Which Wireshark `ws_class` agrees with.
    pub rules: Rules,
    /// Whether to keep time series.
    pub series: bool,
    /// Whether every packet takes the full way (see [`crate::plain`]): for tests of the short one.
    pub without_prediction: bool,
}

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

/// Receives packets as they are classified.
pub trait Sink {
    /// Takes one packet.
    fn packet(&mut self, row: &PacketRow);
}

/// Drops packets.
impl Sink for () {
    #[inline]
    fn packet(&mut self, _row: &PacketRow) {}
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
    #[expect(
        clippy::vec_box,
        reason = "a connection is large, and growing the vector must not copy it"
    )]
    connections: Vec<Box<Connection>>,
    lookup: Lookup,
    /// Frames so far, as Wireshark counts.
    pub frames: u64,
    /// Why the file is cut or damaged, where it is.
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
            connections: Vec::new(),
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
            && let Some((number, direction, relative_seq)) = self.predicted(plain, raw.time_ns)
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
            self.emit(raw.time_ns, number, direction, verdict, sink);
            return;
        }
        self.full(raw, sink);
    }

    /// The short way of a plain segment. Returns its connection, direction and relative sequence number.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "its result is made for sinks; one that drops packets should cost nothing"
    )]
    fn predicted(&mut self, plain: Plain<'_>, now_ns: i64) -> Option<(u32, usize, u32)> {
        let (number, direction) = self.lookup.plain(plain)?;
        let connection = self.connections.get_mut(number as usize)?;
        let relative_seq = connection.predicted(direction, plain, now_ns)?;
        Some((number, direction, relative_seq))
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a sink that drops packets should cost nothing"
    )]
    fn emit<S: Sink>(
        &self,
        time_ns: i64,
        number: u32,
        direction: usize,
        verdict: PacketVerdict,
        sink: &mut S,
    ) {
        let from_client = self
            .connections
            .get(number as usize)
            .is_some_and(|c| c.client == direction);
        sink.packet(&PacketRow {
            frame: self.frames,
            time_ns,
            connection: number,
            from_client,
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
        let Some((number, direction, verdict)) = done else {
            return;
        };
        self.emit(raw.time_ns, number, direction, verdict, sink);
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
        let (mut number, direction) = self.lookup.find(datagram, ports).unwrap_or_else(|| {
            let (key, direction) = Key::of(datagram, ports);
            (self.create(key, now_ns), direction)
        });
        if segment.any(tcp::flag::SYN) {
            let connection = &self.connections[number as usize];
            if connection.wireshark.is_new_connection(direction, &segment) {
                number = self.create(connection.key, now_ns);
            }
        }
        let connection = &mut self.connections[number as usize];
        let verdict =
            connection.segment(self.settings.rules, direction, datagram, &segment, now_ns);
        Some((number, direction, verdict))
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
        let (number, direction) = match (known, header) {
            (Some(found), None) => found,
            (Some((number, direction)), Some(header)) => {
                let connection = &self.connections[number as usize];
                let starts_anew = direction == connection.client
                    && connection
                        .quic
                        .as_ref()
                        .is_some_and(|state| state.is_new_connection(&header));
                let number = if starts_anew {
                    self.create_quic(connection.key, direction, &header, now_ns)
                } else {
                    number
                };
                (number, direction)
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
        let verdict =
            self.connections[number as usize].quic_datagram(direction, datagram, payload, now_ns);
        Some((number, direction, verdict))
    }

    fn create_quic(
        &mut self,
        key: Key,
        direction: usize,
        header: &quic::LongHeader,
        now_ns: i64,
    ) -> u32 {
        let number = self.create(key, now_ns);
        self.connections[number as usize].begin_quic(direction, header);
        number
    }

    #[cold]
    fn create(&mut self, key: Key, now_ns: i64) -> u32 {
        let number = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        self.connections.push(Box::new(Connection::new(
            key,
            number,
            now_ns,
            self.settings.series,
        )));
        self.lookup.insert(key, number);
        number
    }

    /// The connections in order of their first packets.
    #[must_use = "it only looks"]
    pub fn connections(&self) -> impl ExactSizeIterator<Item = &Connection> {
        self.connections.iter().map(Box::as_ref)
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
        for link in &self.unknown_links {
            warnings.push(format!(
                "frames of link type {link} were skipped, the engine does not know it"
            ));
        }
        warnings
    }
}

/// Scans a capture file.
///
/// # Errors
/// The file cannot be read, is empty, or is no capture.
pub fn scan(path: &Path, settings: Settings) -> Result<Engine, ScanError> {
    let mut capture = Capture::open(path)?;
    let mut engine = Engine::new(settings);
    engine.run(&mut capture, &mut (), u64::MAX);
    Ok(engine)
}
