//! One client: its requests and its datagrams.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use quiche::{RecvInfo, h3};

use crate::burst::{BURST, Burst, DATAGRAM_BYTES};
use crate::exchange::{Exchange, Progress, Source};
use crate::hosts::Service;
use crate::settings::Pace;
use crate::socket::Socket;
use crate::upstream::Upstream;

/// Send calls in a row for one connection, before others get their turn.
const TURN: usize = 2;
/// A paced packet may leave so much before its time: waking up late then does not add up over a transfer.
const EARLY: Duration = Duration::from_micros(500);
const MOST_PACKET_NUMBER_BYTES: usize = 4;
/// Smaller datagrams have an acknowledgement alone.
const LEAST_DATA_BYTES: usize = 60;
/// How long what does not fill a packet waits for more of the window (RFC 1122, section 4.2.3.4: 0.1 to 1 s).
const LONGEST_HOLD: Duration = Duration::from_millis(100);

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
    /// A hold lasted longer than the round trip: it is the client's window that is small.
    never_holds: bool,
    /// Something is to be sent again, or to probe: nothing is held back then.
    repairs: bool,
    /// Packets lost so far.
    lost: usize,
    /// Bytes of datagrams with an acknowledgement alone, which the client does not acknowledge.
    acknowledgements: u64,
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
            never_holds: false,
            repairs: false,
            lost: 0,
            acknowledgements: 0,
        }
    }

    /// Takes a datagram from the client.
    pub fn receive(&mut self, data: &mut [u8], info: RecvInfo) -> quiche::Result<()> {
        self.quic.recv(data, info)?;
        self.note_window();
        Ok(())
    }

    /// To be called when the transport's timer is due.
    pub fn on_timeout(&mut self) {
        self.quic.on_timeout();
        self.note_window();
        self.repairs = true;
    }

    /// Notes the window and losses.
    fn note_window(&mut self) {
        let lost = self.quic.stats().lost;
        self.repairs |= lost > self.lost;
        self.lost = lost;
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
    /// Not where flow control is the limit: a client may announce more only after it has got what it allowed.
    /// Nor where something is lost or to be probed. quiche (0.30) queues what is to be sent again at any call of `send`;
    /// if there is no room for it and it is acknowledged meanwhile, as by a client that was late, its stream stays in the
    /// queue without data. Those of HTTP/3 itself come first, and then nothing of the answer is sent any more.
    fn holds(&mut self) -> bool {
        let silly = !self.never_holds
            && !self.repairs
            && !self.exchanges.is_empty()
            && self.window < DATAGRAM_BYTES;
        if !silly || !self.congestion_limits() {
            self.held_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *self.held_since.get_or_insert(now);
        if now < since + LONGEST_HOLD {
            return true;
        }
        self.held_since = None;
        let rtt = self.quic.path_stats().next().map(|path| path.rtt);
        self.never_holds = rtt.is_some_and(|rtt| rtt < LONGEST_HOLD);
        false
    }

    /// Whether less than two packets are left of the congestion window; it may be a little more, as quiche does not tell
    /// what is in flight.
    fn congestion_limits(&self) -> bool {
        let stats = self.quic.stats();
        let settled = stats.acked_bytes + stats.lost_bytes + self.acknowledgements;
        let in_flight = usize::try_from(stats.sent_bytes.saturating_sub(settled));
        let window = self.quic.path_stats().next().map_or(0, |path| path.cwnd);
        in_flight.is_ok_and(|bytes| bytes + 2 * DATAGRAM_BYTES > window)
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
                self.repairs = false;
                burst.send()?;
                return Ok(Sent::All);
            };
            if size < LEAST_DATA_BYTES {
                self.acknowledgements += size as u64;
            }
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
