//! Thousands of probes on one thread: requests from a pipe, packets from a ring, timers from a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::Arc;

use clientkit::Reach;
use rustc_hash::FxHashMap;
use rustls::ClientConfig;
use thiserror::Error;

use crate::args::Options;
use crate::clock::{Clocks, Random};
use crate::input::Input;
use crate::link::{Link, Stamp};
use crate::outbox::Outbox;
use crate::pace::Pace;
use crate::packet::{self, Parsed, Peer};
use crate::poll;
use crate::probe::Probe;
use crate::tls::Tls;
use crate::verdict::Verdict;
use crate::wire::{Request, RequestError, write_refusal, write_reply};

/// Packets that are read before timers and requests have their turn.
const PACKETS_AT_ONCE: usize = 512;
const REPLIES_AT_ONCE: usize = 1 << 16;
/// Headers of IPv4 and IPv6 with TCP.
const HEADERS: [u32; 2] = [40, 60];

/// Why the prober stopped.
#[derive(Debug, Error)]
pub enum ProberError {
    /// A request that is not valid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nobody reads, the device is gone, ...
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// A place for a connection; it and its memory are used again.
#[derive(Default)]
struct Slot {
    probe: Probe,
    number: u32,
    peer: Option<Peer>,
    link: usize,
    /// Time of its earliest entry among the timers.
    timer: u64,
}

/// The prober.
pub struct Prober {
    links: Vec<Link>,
    mtu: u32,
    options: Options,
    reach: Reach,
    tls: Arc<ClientConfig>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    open: FxHashMap<Peer, usize>,
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    outbox: Outbox,
    /// When probes may begin.
    beginnings: Option<Pace>,
    input: Input,
    replies: Vec<u8>,
    clocks: Clocks,
    /// A time by the monotonic clock at which no packet was waiting that waits now.
    emptied: u64,
    random: Random,
}

impl Prober {
    /// One without connections.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn new(
        links: Vec<Link>,
        mtu: u32,
        options: Options,
        reach: Reach,
        tls: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        Ok(Self {
            links,
            mtu,
            outbox: Outbox::new(options.packet_rate),
            beginnings: options.probe_rate.map(Pace::new),
            options,
            reach,
            tls,
            slots: Vec::new(),
            free: Vec::new(),
            open: FxHashMap::default(),
            timers: BinaryHeap::new(),
            input: Input::default(),
            replies: Vec::with_capacity(REPLIES_AT_ONCE),
            clocks: Clocks::now(),
            emptied: 0,
            random: Random::new()?,
        })
    }

    /// Runs until standard input has ended, and every probe.
    ///
    /// # Errors
    /// A request is not valid, or the system fails.
    pub fn run(&mut self) -> Result<(), ProberError> {
        loop {
            self.clocks = Clocks::now();
            let mut is_busy = self.receive();
            self.expire();
            if self.is_accepting() {
                is_busy |= self.begin_all()?;
            }
            self.send()?;
            self.reply()?;
            if self.input.is_over() && self.open.is_empty() && self.outbox.is_empty() {
                return Ok(());
            }
            if !is_busy {
                self.wait()?;
            }
        }
    }

    /// Whether new probes may begin: not while packets wait for their turn, which would delay those of open connections.
    fn is_accepting(&self) -> bool {
        self.outbox.is_empty() || !self.outbox.is_paced()
    }

    /// How many probes may begin now.
    fn allowed(&self) -> usize {
        self.beginnings.as_ref().map_or(PACKETS_AT_ONCE, |pace| {
            pace.allowed(self.clocks.monotonic).min(PACKETS_AT_ONCE)
        })
    }

    // Packets

    fn receive(&mut self) -> bool {
        let mut is_busy = false;
        for index in 0..self.links.len() {
            let Self {
                links,
                slots,
                open,
                outbox,
                clocks,
                emptied,
                timers,
                ..
            } = self;
            let link = &mut links[index];
            let us = link.us;
            let mut ended = Vec::new();
            let count = link.receive(PACKETS_AT_ONCE, |bytes, stamp, checksum| {
                let Some(mut parsed) = packet::parse(bytes, us, checksum) else {
                    return;
                };
                if let Parsed::Segment(_, segment) = &mut parsed {
                    segment.merged = stamp.merged;
                }
                let (Parsed::Segment(peer, _) | Parsed::Unreachable(peer, _)) = &parsed;
                let Some(&at) = open.get(peer) else {
                    return;
                };
                let slot = &mut slots[at];
                let probe = &mut slot.probe;
                let mut sender = outbox.to(us, peer);
                let (now, arrival) = times(clocks, *emptied, stamp);
                match &parsed {
                    Parsed::Segment(_, segment) => {
                        probe.on_segment(segment, now, arrival, &mut sender);
                    }
                    Parsed::Unreachable(_, port) => probe.on_unreachable(*port, now, &mut sender),
                }
                if probe.verdict().is_some() {
                    ended.push(at);
                    open.remove(peer);
                } else if probe.wake() < slot.timer {
                    slot.timer = probe.wake();
                    timers.push(Reverse((slot.timer, at)));
                }
            });
            is_busy |= count == PACKETS_AT_ONCE;
            for at in ended {
                self.end(at);
            }
        }
        if !is_busy {
            self.emptied = self.clocks.monotonic;
        }
        is_busy
    }

    /// Sends what may leave now, and tells probes when it did.
    fn send(&mut self) -> Result<(), ProberError> {
        let Self {
            links,
            slots,
            open,
            outbox,
            timers,
            ..
        } = self;
        let now = Clocks::now().monotonic;
        let left = |peer: &Peer| {
            if let Some(&at) = open.get(peer) {
                let slot = &mut slots[at];
                slot.probe.on_left(now);
                slot.timer = slot.probe.wake();
                timers.push(Reverse((slot.timer, at)));
            }
        };
        outbox
            .flush(links, now, left)
            .map_err(|error| ProberError::System("cannot send", error))
    }

    // Timers

    fn expire(&mut self) {
        let now = self.clocks.monotonic;
        while let Some(&Reverse((time, at))) = self.timers.peek() {
            if time > now {
                return;
            }
            self.timers.pop();
            let slot = &mut self.slots[at];
            let Some(peer) = slot.peer else {
                continue;
            };
            if slot.timer != time {
                continue;
            }
            if slot.probe.wake() <= now {
                let us = self.links[slot.link].us;
                slot.probe.on_timer(now, &mut self.outbox.to(us, &peer));
                if slot.probe.verdict().is_some() {
                    self.open.remove(&peer);
                    self.end(at);
                    continue;
                }
            }
            self.schedule(at);
        }
    }

    /// An entry of the heap for a probe. Later ones are made when it is due, as timers are mostly put off.
    fn schedule(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.timer = slot.probe.wake();
        self.timers.push(Reverse((slot.timer, at)));
    }

    // Requests and replies

    fn begin_all(&mut self) -> Result<bool, ProberError> {
        let input = self.input.take();
        let mut rest = &input[..];
        let mut begun = 0;
        let allowed = self.allowed();
        while begun < allowed && self.is_accepting() {
            let Some((request, length)) = Request::read(rest)? else {
                break;
            };
            if !self.begin(&request) {
                break; // no free port
            }
            rest = &rest[length..];
            begun += 1;
        }
        if let Some(pace) = &mut self.beginnings {
            pace.took(self.clocks.monotonic, begun);
        }
        let taken = input.len() - rest.len();
        self.input.give_back(input, taken);
        if self.input.is_ended() && allowed > 0 && begun == 0 && self.open.is_empty() {
            self.input.clear(); // half a request
        }
        Ok(begun == PACKETS_AT_ONCE)
    }

    /// Begins a probe; false if there is no port.
    fn begin(&mut self, request: &Request) -> bool {
        let ipv6 = request.address.is_ipv6();
        let link = self.links.iter().position(|link| link.us.is_ipv6() == ipv6);
        let Some(link) = link.filter(|_| self.reach.permits(request.address)) else {
            write_refusal(
                request.number,
                Verdict::AddressRefused,
                self.options.arrivals,
                &mut self.replies,
            );
            return true;
        };
        let Some(peer) = self.free_peer(request) else {
            return false;
        };
        let tls = request.tls.then(|| self.new_tls(request)).flatten();
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let isn = self.random.draw();
        let slot = &mut self.slots[at];
        (slot.number, slot.peer, slot.link) = (request.number, Some(peer), link);
        slot.probe.talk.reset(tls);
        request.write_http(&mut slot.probe.talk.request);
        let mut plan = request.plan;
        plan.arrivals = self.options.arrivals;
        plan.device_payload = self.mtu - HEADERS[usize::from(ipv6)];
        let us = self.links[link].us;
        slot.probe.begin(
            plan,
            isn,
            self.clocks.monotonic,
            &mut self.outbox.to(us, &peer),
        );
        self.open.insert(peer, at);
        self.schedule(at);
        true
    }

    fn new_tls(&self, request: &Request) -> Option<Box<Tls>> {
        let tls = Tls::new(&self.tls, request.host)
            .or_else(|_| Tls::new(&self.tls, &request.address.to_string())); // no name: without SNI
        tls.ok().map(Box::new)
    }

    /// A connection's two ends, with a free port of ours.
    fn free_peer(&mut self, request: &Request) -> Option<Peer> {
        let (low, high) = (*self.options.ports.start(), *self.options.ports.end());
        let count = u32::from(high - low) + 1;
        let first = self.random.draw() % count;
        (0..count).find_map(|step| {
            let offset = u16::try_from((first + step) % count).ok()?;
            let peer = Peer {
                address: request.address,
                port: request.port,
                local_port: low + offset,
            };
            (!self.open.contains_key(&peer)).then_some(peer)
        })
    }

    /// Replies for a probe that has ended, and frees its place.
    fn end(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let verdict = slot.probe.verdict().unwrap_or(Verdict::NoData);
        write_reply(
            slot.number,
            verdict,
            &slot.probe,
            self.options.arrivals,
            &mut self.replies,
        );
        slot.peer = None;
        slot.probe.talk.reset(None);
        self.free.push(at);
    }

    fn reply(&mut self) -> Result<(), ProberError> {
        if !self.replies.is_empty() {
            let mut out = io::stdout().lock();
            out.write_all(&self.replies)
                .and_then(|()| out.flush())
                .map_err(|error| ProberError::System("standard output", error))?;
            self.replies.clear();
        }
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) -> Result<(), ProberError> {
        let is_allowed = self.allowed() > 0;
        let wants_input = !self.input.is_ended() && self.is_accepting() && is_allowed;
        let links = self.links.iter();
        let mut fds: Vec<_> = links.map(|link| poll::readable(link.fd())).collect();
        if wants_input {
            fds.push(poll::readable(self.input.fd()));
        }
        let timer = self.timers.peek().map(|Reverse((time, _))| *time);
        let begins = self.beginnings.as_ref();
        let begins = begins
            .filter(|_| !is_allowed && !self.input.is_over())
            .map(Pace::next);
        let wake = [timer, self.outbox.wake(), begins];
        let wake = wake.into_iter().flatten().min();
        let now = Clocks::now().monotonic;
        poll::sleep(&mut fds, wake.map(|wake| wake.saturating_sub(now)));
        if wants_input && fds.last().is_some_and(|fd| fd.revents != 0) {
            self.input
                .read()
                .map_err(|error| ProberError::System("standard input", error))?;
        }
        Ok(())
    }
}

/// When a packet, which is not from before `since`, arrived by the monotonic clock, and its time stamp for intervals
/// within a flight.
fn times(clocks: &Clocks, since: u64, stamp: Stamp) -> (u64, u64) {
    if stamp.by_device {
        (clocks.monotonic, stamp.ns)
    } else {
        let at = clocks.monotonic_of(stamp.ns, since);
        (at, at)
    }
}
