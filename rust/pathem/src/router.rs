//! The network without I/O: packets in, verdicts and due packets out.

use crate::config::Config;
use crate::flows::FlowTable;
use crate::packet;
use crate::path::{Arrival, InFlight, Params, Path};
use crate::prefix::Prefix;
use crate::stats::Verdict;
use crate::syn::Syn;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

/// Approximate memory of a packet in flight in addition to its bytes.
const PACKET_OVERHEAD: u64 = 256;
const POOL_SIZE: usize = 4096;

/// Packets from a node that no path carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Discards {
    /// The source address is not one of the node's.
    pub spoofed: u64,
    /// No node has the destination address, or no path leads to it.
    pub no_route: u64,
    /// Link-local, multicast, broadcast or without a source.
    pub ignored: u64,
    /// Not a well-formed IPv4 or IPv6 packet.
    pub malformed: u64,
}

/// A node as the router sees it.
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// What it sent in vain.
    pub discards: Discards,
}

/// A path and its ends.
pub struct Link {
    /// Index of the sending node.
    pub from: usize,
    /// Index of the receiving node.
    pub to: usize,
    /// The path.
    pub path: Path,
}

/// The fate of one packet, as the packet log writes it.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Index of the link.
    pub link: usize,
    /// Arrival, ns.
    pub time_in: u64,
    /// Programmed and actual delivery, ns; none if dropped on arrival.
    pub out: Option<(u64, u64)>,
    /// IP bytes.
    pub length: usize,
    /// Its fate.
    pub verdict: Verdict,
    /// Occupancy that it met, IP bytes without itself.
    pub occupancy: u64,
    /// Its 5-tuple.
    pub key: packet::FlowKey,
    /// Its index in the connection.
    pub index: u64,
}

/// A packet that is due now.
pub struct Delivery {
    /// Index of the link.
    pub link: usize,
    /// Index of the receiving node.
    pub to: usize,
    /// The packet.
    pub packet: InFlight,
}

/// All nodes, paths and flows.
pub struct Router {
    /// The nodes, in the order of the configuration.
    pub nodes: Vec<NodeState>,
    /// The paths, in the order of the configuration.
    pub links: Vec<Link>,
    /// The flows.
    pub flows: FlowTable,
    owners: HashMap<IpAddr, usize>,
    prefixes: Vec<(Prefix, usize)>,
    /// Link index by `from * nodes + to`.
    routes: Vec<Option<usize>>,
    /// (due, link) of the first packet of each link that has any.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    pool: Vec<Vec<u8>>,
    in_flight_packets: u64,
    in_flight_bytes: u64,
    memory_limit: u64,
}

impl Router {
    /// The network of a configuration, empty.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let count = config.nodes.len();
        let (mut owners, mut prefixes) = (HashMap::new(), Vec::new());
        for (number, node) in config.nodes.iter().enumerate() {
            owners.extend(node.addresses.iter().map(|&address| (address, number)));
            prefixes.extend(node.prefixes.iter().map(|&prefix| (prefix, number)));
        }
        let mut routes = vec![None; count * count];
        for (number, pair) in config.pairs.iter().enumerate() {
            routes[pair.from * count + pair.to] = Some(number);
        }
        let nodes = config.nodes.iter().map(|node| NodeState {
            name: node.name.clone(),
            discards: Discards::default(),
        });
        let links = config.pairs.iter().map(|pair| Link {
            from: pair.from,
            to: pair.to,
            path: Path::new(pair.params.clone()),
        });
        Self {
            nodes: nodes.collect(),
            links: links.collect(),
            flows: FlowTable::default(),
            owners,
            prefixes,
            routes,
            heads: BinaryHeap::new(),
            pool: Vec::new(),
            in_flight_packets: 0,
            in_flight_bytes: 0,
            memory_limit: config.memory_limit_bytes,
        }
    }

    /// The link between two nodes, by name.
    #[must_use]
    pub fn find_link(&self, from: &str, to: &str) -> Option<usize> {
        let index = |name: &str| self.nodes.iter().position(|node| node.name == name);
        self.routes[index(from)? * self.nodes.len() + index(to)?]
    }

    /// Replaces the parameters of a link for packets that arrive from now on.
    pub fn set_params(&mut self, link: usize, params: Params) {
        self.links[link].path.set_params(params);
    }

    /// Packets in flight and their IP bytes.
    #[must_use]
    pub fn in_flight(&self) -> (u64, u64) {
        (self.in_flight_packets, self.in_flight_bytes)
    }

    /// When the next packet is due, ns.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.heads.peek().map(|&Reverse((due, _))| due)
    }

    /// Takes a packet that a node sent. Returns a record if a path dropped it.
    ///
    /// `now` must not go back between calls. The packet may be changed (marked, rewritten).
    pub fn ingress(&mut self, node: usize, bytes: &mut [u8], now: u64) -> Option<Record> {
        let (link, header) = self.route(node, bytes)?;
        let (flow, position) = self.flows.arrive(&header, now);
        let is_admitted = match self.links[link].path.params().policer {
            Some(policer) => self.flows.admit(flow, policer, now),
            None => true,
        };
        let length = bytes.len();
        let has_room =
            (self.in_flight_packets + 1) * PACKET_OVERHEAD + self.in_flight_bytes + length as u64
                <= self.memory_limit;
        let key = header.flow;
        let syn = header.syn_isn.and_then(|_| Syn::read(bytes));
        let arrival = Arrival {
            now,
            bytes: &mut *bytes,
            ecn: header.ecn,
            flow,
            key,
            position,
            is_admitted,
        };
        let path = &mut self.links[link].path;
        let was_empty = path.in_flight() == 0;
        let pool = &mut self.pool;
        let decision = path.offer(arrival, has_room, || pool.pop().unwrap_or_default());
        self.flows
            .count_arrival(flow, length as u64, decision.verdict);
        let is_accepted = matches!(decision.verdict, Verdict::Delivered | Verdict::Marked);
        if let Some(sent) = syn {
            let delivered = is_accepted.then(|| Syn::read(bytes)).flatten();
            self.flows.remember_syn(flow, sent, delivered);
        }
        if is_accepted {
            self.in_flight_packets += 1;
            self.in_flight_bytes += length as u64;
            if let Some(due) = path.next_due().filter(|_| was_empty) {
                self.heads.push(Reverse((due, link)));
            }
            return None;
        }
        Some(Record {
            link,
            time_in: now,
            out: None,
            length,
            verdict: decision.verdict,
            occupancy: decision.occupancy,
            key,
            index: position.index,
        })
    }

    /// Takes the next packet that is due.
    pub fn pop_due(&mut self, now: u64) -> Option<Delivery> {
        let &Reverse((due, link)) = self.heads.peek()?;
        if due > now {
            return None;
        }
        self.heads.pop();
        let Link { to, path, .. } = self.links.get_mut(link)?;
        let packet = path.pop_due(now)?;
        if let Some(next) = path.next_due() {
            self.heads.push(Reverse((next, link)));
        }
        self.in_flight_packets -= 1;
        self.in_flight_bytes -= packet.bytes.len() as u64;
        Some(Delivery {
            link,
            to: *to,
            packet,
        })
    }

    /// Counts a packet that [`Router::pop_due`] gave, after the attempt to write it at `now`.
    pub fn finish(&mut self, delivery: Delivery, now: u64, written: bool) -> Record {
        let Delivery { link, packet, .. } = delivery;
        let length = packet.bytes.len();
        let lateness = self.links[link].path.finish(&packet, now, written);
        self.flows
            .count_end(packet.flow, length as u64, written, lateness);
        let record = Record {
            link,
            time_in: packet.arrived,
            out: Some((packet.due, now)),
            length,
            verdict: match (written, packet.marked) {
                (false, _) => Verdict::WriteError,
                (true, true) => Verdict::Marked,
                (true, false) => Verdict::Delivered,
            },
            occupancy: packet.occupancy,
            key: packet.key,
            index: packet.index,
        };
        if self.pool.len() < POOL_SIZE {
            self.pool.push(packet.bytes);
        }
        record
    }

    fn route(&mut self, node: usize, bytes: &[u8]) -> Option<(usize, packet::Header)> {
        let Some(header) = packet::parse(bytes) else {
            self.nodes[node].discards.malformed += 1;
            return None;
        };
        if header.is_chatter() {
            self.nodes[node].discards.ignored += 1;
            return None;
        }
        if self.owner(header.flow.src) != Some(node) {
            self.nodes[node].discards.spoofed += 1;
            return None;
        }
        let count = self.nodes.len();
        let link = self
            .owner(header.flow.dst)
            .and_then(|to| self.routes[node * count + to]);
        if link.is_none() {
            self.nodes[node].discards.no_route += 1;
        }
        Some((link?, header))
    }

    /// The node that has the address. Prefixes are few and do not overlap, so they are searched one by one.
    fn owner(&self, address: IpAddr) -> Option<usize> {
        let inside = || {
            self.prefixes
                .iter()
                .find(|(prefix, _)| prefix.contains(address))
        };
        let single = self.owners.get(&address).copied();
        single.or_else(|| inside().map(|&(_, node)| node))
    }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
