//! One client: its requests, what is still to be sent of the answers, and its datagrams.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use quiche::h3;

use crate::access_log::Entry;
use crate::answer::{Body, Request, Responder, SERVER, is_logged, respond};
use crate::hosts::Service;
use crate::settings::Pace;
use crate::socket::Socket;
use crate::upstream::{Head, Upstream};

/// UDP payload of a full packet: 1500 bytes with an IPv6 header, as the lab's TCP servers fill their segments.
pub const DATAGRAM_BYTES: usize = 1_452;
/// Datagrams for one send call; the kernel takes at most 64, and 65,507 bytes.
const BURST: usize = 45;
/// Send calls in a row for one connection, before others get their turn.
const TURN: usize = 2;
/// A paced packet may leave so much before its time: waking up late then does not add up over a transfer.
const EARLY: Duration = Duration::from_micros(500);
const MOST_PACKET_NUMBER_BYTES: usize = 4;
/// How long what does not fill a packet waits for more of the window (RFC 1122, section 4.2.3.4: 0.1 to 1 s).
const LONGEST_HOLD: Duration = Duration::from_millis(100);
/// `H3_INTERNAL_ERROR` (RFC 9114, section 8.1).
const INTERNAL_ERROR: u64 = 0x102;

/// Memory for sending, shared by all connections.
pub struct Scratch {
    body: Vec<u8>,
    burst: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            body: vec![0; 1 << 16],
            burst: vec![0; (BURST + 1) * DATAGRAM_BYTES],
        }
    }
}

/// What is to be done after a connection has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// All that it may send now.
    All,
    /// Congestion control lets the next packet leave then.
    Paced(Instant),
    /// There is more; others should have their turn first.
    Part,
}

/// A client's connection.
pub struct Connection {
    pub quic: quiche::Connection,
    http: Option<h3::Connection>,
    exchanges: HashMap<u64, Exchange>,
    body_pace: Option<Pace>,
    /// What flow and congestion control let it send [bytes], as of the last datagram from the client.
    window: usize,
    held_since: Option<Instant>,
}

struct Exchange {
    /// Status and headers that have not been sent.
    head: Option<Head>,
    source: Source,
    head_only: bool,
    status: u16,
    sent: u64,
    /// How fast its body becomes available, and since when.
    pace: Option<(Pace, Instant)>,
    log: Option<Entry>,
}

enum Source {
    Here(Body),
    Upstream(Box<Upstream>),
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Waits,
    Ended,
}

impl Connection {
    pub fn new(quic: quiche::Connection, body_pace: Option<Pace>) -> Self {
        Self {
            quic,
            http: None,
            exchanges: HashMap::new(),
            body_pace,
            window: usize::MAX,
            held_since: None,
        }
    }

    /// Notes the window; call it after each datagram from the client and each time-out.
    pub fn note_window(&mut self) {
        let rooms = self
            .exchanges
            .keys()
            .map(|stream| self.quic.stream_capacity(*stream));
        self.window = rooms.flatten().max().unwrap_or(usize::MAX);
    }

    /// When what is held back is sent at the latest.
    pub fn hold_due(&self) -> Option<Instant> {
        self.held_since.map(|since| since + LONGEST_HOLD)
    }

    /// Whether the next packet would be cut to what is left of the window, with more to come.
    ///
    /// Silly window avoidance (RFC 1122, section 4.2.3.4), as in TCP: otherwise each acknowledgement is answered by a
    /// full packet and a fragment, so that clients that acknowledge often get more packets.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        let holds = !self.exchanges.is_empty()
            && self.window < DATAGRAM_BYTES
            && self.hold_due().is_none_or(|due| now < due);
        self.held_since = holds.then(|| self.held_since.unwrap_or(now));
        holds
    }

    /// Whether something is being fetched for it.
    pub fn fetches(&self) -> bool {
        self.upstreams().next().is_some()
    }

    /// When the next piece of a paced body is available.
    pub fn body_due(&self) -> Option<Instant> {
        let waiting = self.exchanges.values();
        waiting.filter_map(Exchange::body_due).min()
    }

    fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.exchanges
            .values()
            .filter_map(|exchange| match &exchange.source {
                Source::Upstream(upstream) => Some(&**upstream),
                Source::Here(_) => None,
            })
    }

    /// What to poll for it besides the UDP sockets.
    pub fn poll_descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.upstreams()
            .filter(|upstream| upstream.interest() != PollFlags::empty())
            .map(|upstream| PollFd::new(upstream.as_fd(), upstream.interest()))
    }

    /// Takes requests, and gives the transport as much of the answers as flow and congestion control let it have.
    pub fn answer(&mut self, peer: SocketAddr, service: &Service, scratch: &mut Scratch) {
        if self.http.is_none() && (self.quic.is_established() || self.quic.is_in_early_data()) {
            self.http = h3::Config::new()
                .and_then(|config| h3::Connection::with_transport(&mut self.quic, &config))
                .ok();
        }
        let Some(http) = self.http.as_mut() else {
            return;
        };
        loop {
            match http.poll(&mut self.quic) {
                Ok((stream, h3::Event::Headers { list, .. })) => {
                    // A second header section is trailers.
                    self.exchanges
                        .entry(stream)
                        .or_insert_with(|| Exchange::new(&list, peer, service, self.body_pace));
                }
                Ok((stream, h3::Event::Data)) => {
                    // No request of ours has a body: read, so that flow control lets the stream end.
                    while http
                        .recv_body(&mut self.quic, stream, &mut scratch.body)
                        .is_ok()
                    {}
                }
                Ok((stream, h3::Event::Reset(_))) => {
                    if let Some(exchange) = self.exchanges.remove(&stream) {
                        exchange.end(service);
                    }
                }
                Ok(_) => {}
                Err(_) => break, // nothing more, or the connection is closing
            }
        }
        let quic = &mut self.quic;
        self.exchanges.retain(|stream, exchange| {
            let waits = exchange.advance(http, quic, *stream, &mut scratch.body) == Progress::Waits;
            if !waits {
                exchange.end(service);
            }
            waits
        });
    }

    /// Sends what may be sent now, in bursts of datagrams of one size.
    pub fn send(
        &mut self,
        socket: &Socket,
        peer: SocketAddr,
        scratch: &mut Scratch,
    ) -> Result<Sent, Errno> {
        let mut burst = Burst::new(&mut scratch.burst, socket, peer);
        while burst.calls < TURN {
            if let Some(release) = self.quic.get_next_release_time()
                && let Some(at) = release.time(Instant::now() + EARLY)
                && !release.can_burst()
            {
                burst.send()?;
                return Ok(Sent::Paced(at.checked_sub(EARLY / 2).unwrap_or(at)));
            }
            let room = if self.holds() {
                // Too short for a packet: quiche then knows that the window is the limit, and goes on opening it.
                let header = 1 + self.quic.destination_id().len();
                &mut burst.room()[..header + MOST_PACKET_NUMBER_BYTES]
            } else {
                burst.room()
            };
            let Ok((size, to)) = self.quic.send(room) else {
                burst.send()?;
                return Ok(Sent::All);
            };
            self.window = self.window.saturating_sub(size);
            burst.add(size, to.to)?;
        }
        burst.send()?;
        Ok(Sent::Part)
    }

    /// Ends what it was sending, when it is closed.
    pub fn end(&mut self, service: &Service) {
        for (_, exchange) in self.exchanges.drain() {
            exchange.end(service);
        }
    }
}

impl Exchange {
    fn new(list: &[h3::Header], peer: SocketAddr, service: &Service, pace: Option<Pace>) -> Self {
        let request = Request::new(list);
        let (head, source) = match respond(&request, service) {
            Responder::Here(answer) => {
                let (status, fields) = (answer.status, answer.fields);
                (Some(Head { status, fields }), Source::Here(answer.body))
            }
            Responder::Upstream(address) => match Upstream::ask(address, &request, peer) {
                Ok(upstream) => (None, Source::Upstream(Box::new(upstream))),
                Err(error) => {
                    eprintln!("h3serve: {error}");
                    (Some(bad_gateway()), Source::Here(Body::empty()))
                }
            },
        };
        Self {
            head,
            source,
            head_only: request.is_head(),
            status: 0,
            sent: 0,
            pace: pace.map(|pace| (pace, Instant::now())),
            log: is_logged(&request, service).then(|| Entry::new(request, peer.ip())),
        }
    }

    fn advance(
        &mut self,
        http: &mut h3::Connection,
        quic: &mut quiche::Connection,
        stream: u64,
        scratch: &mut [u8],
    ) -> Progress {
        if let Source::Upstream(upstream) = &mut self.source {
            match upstream.advance() {
                Ok(head) => self.head = head.or(self.head.take()),
                Err(error) => {
                    eprintln!("h3serve: {error}");
                    if self.status != 0 {
                        let _ =
                            quic.stream_shutdown(stream, quiche::Shutdown::Write, INTERNAL_ERROR);
                        return Progress::Ended;
                    }
                    self.head = Some(bad_gateway());
                    self.source = Source::Here(Body::empty());
                }
            }
        }
        if let Some(head) = &self.head {
            let bodiless = self.head_only || self.is_empty();
            match http.send_response(quic, stream, &head.list(), bodiless) {
                Ok(()) => {
                    self.status = head.status;
                    self.head = None;
                    if bodiless {
                        return Progress::Ended;
                    }
                }
                Err(h3::Error::Done | h3::Error::StreamBlocked) => return Progress::Waits,
                Err(_) => return Progress::Ended, // the client gave this stream up
            }
        }
        if self.status == 0 {
            return Progress::Waits;
        }
        self.send_body(http, quic, stream, scratch)
    }

    /// Bytes of the body that are available and were not sent.
    fn available(&self) -> usize {
        let Some((pace, since)) = self.pace else {
            return usize::MAX;
        };
        let available = pace.available(since.elapsed()).saturating_sub(self.sent);
        usize::try_from(available).unwrap_or(usize::MAX)
    }

    fn body_due(&self) -> Option<Instant> {
        let (pace, since) = self.pace.filter(|_| self.available() == 0)?;
        Some(since + pace.due(self.sent))
    }

    fn is_empty(&self) -> bool {
        match &self.source {
            Source::Here(body) => body.left() == 0,
            Source::Upstream(upstream) => upstream.has_ended() && upstream.waiting().is_empty(),
        }
    }

    fn send_body(
        &mut self,
        http: &mut h3::Connection,
        quic: &mut quiche::Connection,
        stream: u64,
        scratch: &mut [u8],
    ) -> Progress {
        loop {
            let room = match quic.stream_capacity(stream) {
                Ok(room) => room.min(scratch.len()).min(self.available()),
                Err(_) => return Progress::Ended,
            };
            let (piece, last) = match &self.source {
                Source::Here(body) => match body.peek(&mut scratch[..room]) {
                    Ok(piece) => (piece, piece.len() as u64 == body.left()),
                    Err(error) => {
                        eprintln!("h3serve: a file cannot be read: {error}");
                        let _ =
                            quic.stream_shutdown(stream, quiche::Shutdown::Write, INTERNAL_ERROR);
                        return Progress::Ended;
                    }
                },
                Source::Upstream(upstream) => (upstream.waiting(), upstream.has_ended()),
            };
            if piece.is_empty() && !last {
                return Progress::Waits;
            }
            let size = piece.len();
            match http.send_body(quic, stream, piece, last) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    match &mut self.source {
                        Source::Here(body) => body.advance(sent),
                        Source::Upstream(upstream) => upstream.consume(sent),
                    }
                    if last && sent == size {
                        return Progress::Ended;
                    }
                }
                Err(h3::Error::Done | h3::Error::StreamBlocked) => return Progress::Waits,
                Err(_) => return Progress::Ended,
            }
        }
    }

    fn end(&self, service: &Service) {
        let log: Option<&File> = match service {
            Service::Hosts { access_log, .. } => access_log.as_ref(),
            Service::Fixed { .. } => None,
        };
        if let (Some(log), Some(entry)) = (log, &self.log) {
            entry.write(log, self.status, self.sent);
        }
    }
}

impl Head {
    fn list(&self) -> Vec<h3::Header> {
        let status = self.status.to_string();
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| h3::Header::new(name.as_bytes(), value));
        std::iter::once(h3::Header::new(b":status", status.as_bytes()))
            .chain(fields)
            .collect()
    }
}

fn bad_gateway() -> Head {
    Head {
        status: 502,
        fields: vec![("server".to_owned(), SERVER.as_bytes().to_vec())],
    }
}

/// Datagrams of one size for one address, which leave by one system call.
struct Burst<'a> {
    data: &'a mut [u8],
    filled: usize,
    count: usize,
    segment: usize,
    socket: &'a Socket,
    to: SocketAddr,
    calls: usize,
}

impl<'a> Burst<'a> {
    fn new(data: &'a mut [u8], socket: &'a Socket, to: SocketAddr) -> Self {
        Self {
            data,
            filled: 0,
            count: 0,
            segment: 0,
            socket,
            to,
            calls: 0,
        }
    }

    /// Where the next datagram is to be written.
    fn room(&mut self) -> &mut [u8] {
        &mut self.data[self.filled..self.filled + DATAGRAM_BYTES]
    }

    /// Takes the datagram that was written to `room`.
    fn add(&mut self, size: usize, to: SocketAddr) -> Result<(), Errno> {
        if self.count > 0 && (size > self.segment || to != self.to) {
            // Only the last one may be shorter than the others: this one begins another burst.
            let start = self.filled;
            self.send()?;
            self.data.copy_within(start..start + size, 0);
        }
        if self.count == 0 {
            self.segment = size;
            self.to = to;
        }
        self.filled += size;
        self.count += 1;
        if size < self.segment || self.count == BURST {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Errno> {
        if self.count > 0 {
            self.socket
                .send(&self.data[..self.filled], self.segment, self.to)?;
            self.calls += 1;
        }
        (self.filled, self.count) = (0, 0);
        Ok(())
    }
}
