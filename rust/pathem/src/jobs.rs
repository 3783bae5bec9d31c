//! Control requests, and the answers, made in small steps so that packets do not wait for them.

use crate::config::{RawPair, check_params};
use crate::flows::Flow;
use crate::host::{monotonic_ns, realtime_ns};
use crate::packet_log::PacketLog;
use crate::path::PathStats;
use crate::router::Discards;
use crate::stats::EDGES_US;
use crate::world::World;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::path::PathBuf;

const NODES_PER_STEP: usize = 4;
const PAIRS_PER_STEP: usize = 16;
const FLOW_SLOTS_PER_STEP: usize = 512;
const MAX_TIMEOUT_MS: u64 = 3_600_000;

type PairNames = Vec<(String, String)>;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Snapshot {
        pairs: Option<PairNames>,
    },
    Flows {
        a: IpAddr,
        b: IpAddr,
    },
    ForgetFlows {
        a: IpAddr,
        b: IpAddr,
    },
    Idle {
        pairs: Option<PairNames>,
        timeout_ms: u64,
    },
    SetPair(RawPair),
    PacketLog {
        enable: bool,
        path: Option<PathBuf>,
    },
    Stop {},
}

/// What a request led to.
pub enum Started {
    /// The answer.
    Answer(Value),
    /// Work that gives the answer later.
    Job(Job),
}

/// When a job wants its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// At once.
    Now,
    /// After any delivery, but at this time at the latest, ns.
    Before(u64),
}

/// A request under way.
pub enum Job {
    /// A snapshot: counters were copied at one instant, and are being written out.
    Snapshot(Box<Snapshot>),
    /// A scan of the flow table.
    Flows(Scan),
    /// Waiting until nothing is in flight.
    Idle(Idle),
}

/// See [`Job::Snapshot`].
pub struct Snapshot {
    answer: Map<String, Value>,
    waiting_nodes: Vec<usize>,
    waiting_pairs: Vec<(usize, PathStats, usize)>,
    nodes: Vec<Value>,
    pairs: Vec<Value>,
}

/// See [`Job::Flows`].
pub struct Scan {
    a: IpAddr,
    b: IpAddr,
    next_slot: usize,
    forget: bool,
    flows: Vec<Value>,
    forgotten: u64,
}

/// See [`Job::Idle`].
pub struct Idle {
    links: Vec<usize>,
    started: u64,
    deadline: u64,
}

/// Reads one request line and starts it.
///
/// # Errors
/// One sentence for the peer.
pub fn start(line: &[u8], world: &mut World) -> Result<Started, String> {
    let request: Request = serde_json::from_slice(line).map_err(|error| {
        format!("bad request: {error}; send one JSON object per line with op and its fields (docs/design/pathem.md)")
    })?;
    match request {
        Request::Snapshot { pairs } => {
            let links = select(world, pairs)?;
            Ok(Started::Job(Job::Snapshot(Box::new(Snapshot::take(
                world, links,
            )))))
        }
        Request::Flows { a, b } => Ok(Started::Job(Job::Flows(Scan::new(a, b, false)))),
        Request::ForgetFlows { a, b } => Ok(Started::Job(Job::Flows(Scan::new(a, b, true)))),
        Request::Idle { pairs, timeout_ms } => {
            let links = select(world, pairs)?;
            let started = monotonic_ns();
            let deadline = started + timeout_ms.min(MAX_TIMEOUT_MS) * 1_000_000;
            Ok(Started::Job(Job::Idle(Idle {
                links,
                started,
                deadline,
            })))
        }
        Request::SetPair(pair) => set_pair(world, pair),
        Request::PacketLog { enable, path } => packet_log(world, enable, path),
        Request::Stop {} => {
            world.stopping = true;
            Ok(Started::Answer(json!({"stopping": true})))
        }
    }
}

fn select(world: &World, pairs: Option<PairNames>) -> Result<Vec<usize>, String> {
    let Some(pairs) = pairs else {
        return Ok((0..world.router.links.len()).collect());
    };
    pairs
        .iter()
        .map(|(from, to)| find(world, from, to))
        .collect()
}

fn find(world: &World, from: &str, to: &str) -> Result<usize, String> {
    world.router.find_link(from, to).ok_or_else(|| {
        format!("there is no pair {from:?} to {to:?}; use a pair of the configuration")
    })
}

fn set_pair(world: &mut World, pair: RawPair) -> Result<Started, String> {
    let link = find(world, &pair.from, &pair.to)?;
    let params = check_params("set_pair", pair, world.compensation_ns).map_err(|error| error.0)?;
    world.router.set_params(link, params);
    Ok(Started::Answer(
        json!({"set": true, "monotonic_ns": monotonic_ns()}),
    ))
}

fn packet_log(world: &mut World, enable: bool, path: Option<PathBuf>) -> Result<Started, String> {
    let mut stopped = Value::Null;
    if let Some(mut old) = world.log.take() {
        old.flush()
            .map_err(|error| format!("packet log: {error}"))?;
        stopped = old.status();
    }
    if enable {
        let path = path.ok_or("packet_log: path is missing; give the file to write")?;
        let log = PacketLog::create(&path)
            .map_err(|error| format!("packet log {}: {error}", path.display()))?;
        world.log = Some(log);
    }
    Ok(Started::Answer(
        json!({"enabled": enable, "stopped": stopped}),
    ))
}

impl Job {
    /// Does a small piece of work. Gives the answer when it is done.
    pub fn step(&mut self, world: &mut World) -> Option<Value> {
        match self {
            Self::Snapshot(snapshot) => snapshot.step(world),
            Self::Flows(scan) => scan.step(world),
            Self::Idle(idle) => idle.step(world),
        }
    }

    /// When [`Job::step`] should be called again.
    #[must_use]
    pub fn wish(&self, world: &World) -> Wish {
        match self {
            Self::Idle(idle) if idle.in_flight(world) > 0 => Wish::Before(idle.deadline),
            _ => Wish::Now,
        }
    }
}

impl Snapshot {
    fn take(world: &World, links: Vec<usize>) -> Self {
        let mut waiting_nodes: Vec<usize> = if links.len() == world.router.links.len() {
            (0..world.ports.len()).collect()
        } else {
            let ends = links.iter().map(|&link| &world.router.links[link]);
            ends.flat_map(|link| [link.from, link.to]).collect()
        };
        waiting_nodes.sort_unstable();
        waiting_nodes.dedup();
        waiting_nodes.reverse(); // taken from the end
        let copy = |link: usize| {
            let path = &world.router.links[link].path;
            (link, path.stats, path.in_flight())
        };
        Self {
            answer: head(world),
            waiting_nodes,
            waiting_pairs: links.into_iter().rev().map(copy).collect(),
            nodes: Vec::new(),
            pairs: Vec::new(),
        }
    }

    fn step(&mut self, world: &World) -> Option<Value> {
        for _ in 0..NODES_PER_STEP {
            let Some(node) = self.waiting_nodes.pop() else {
                break;
            };
            self.nodes.push(node_value(world, node));
        }
        for _ in 0..PAIRS_PER_STEP {
            let Some((link, stats, in_flight)) = self.waiting_pairs.pop() else {
                break;
            };
            self.pairs.push(pair_value(world, link, &stats, in_flight));
        }
        if !(self.waiting_nodes.is_empty() && self.waiting_pairs.is_empty()) {
            return None;
        }
        let mut answer = std::mem::take(&mut self.answer);
        answer.insert("nodes".into(), std::mem::take(&mut self.nodes).into());
        answer.insert("pairs".into(), std::mem::take(&mut self.pairs).into());
        Some(answer.into())
    }
}

/// The part of a snapshot that is taken at its instant.
fn head(world: &World) -> Map<String, Value> {
    let router = &world.router;
    let now = monotonic_ns();
    let sum = |field: fn(&Discards) -> u64| {
        router
            .nodes
            .iter()
            .map(|node| field(&node.discards))
            .sum::<u64>()
    };
    let (packets, bytes) = router.in_flight();
    let value = json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "monotonic_ns": now,
        "realtime_ns": realtime_ns(),
        "uptime_ns": now - world.started_ns,
        "lateness_edges_us": EDGES_US,
        "global": {
            "spoofed": sum(|discards| discards.spoofed),
            "no_route": sum(|discards| discards.no_route),
            "ignored": sum(|discards| discards.ignored),
            "malformed": sum(|discards| discards.malformed),
            "in_flight_packets": packets,
            "in_flight_bytes": bytes,
            "flows": router.flows.len(),
            "flows_evicted": router.flows.evicted(),
            "scheduling": world.scheduling,
            "wakeup": world.wakeups,
            "iteration": world.iterations,
            "packet_log": world.log.as_ref().map(PacketLog::status),
        },
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn node_value(world: &World, node: usize) -> Value {
    let (state, port) = (&world.router.nodes[node], &world.ports[node]);
    let discards = state.discards;
    json!({
        "name": state.name,
        "device": port.device,
        "alive": port.alive,
        "device_counters": port.tun.stats().read(),
        "spoofed": discards.spoofed,
        "no_route": discards.no_route,
        "ignored": discards.ignored,
        "malformed": discards.malformed,
    })
}

fn pair_value(world: &World, link: usize, stats: &PathStats, in_flight: usize) -> Value {
    let (from, to) = (world.router.links[link].from, world.router.links[link].to);
    let mut value = serde_json::to_value(stats).unwrap_or_default();
    value["from"] = world.router.nodes[from].name.clone().into();
    value["to"] = world.router.nodes[to].name.clone().into();
    value["in_flight_packets"] = in_flight.into();
    value
}

impl Scan {
    fn new(a: IpAddr, b: IpAddr, forget: bool) -> Self {
        Self {
            a,
            b,
            next_slot: 0,
            forget,
            flows: Vec::new(),
            forgotten: 0,
        }
    }

    fn step(&mut self, world: &mut World) -> Option<Value> {
        let table = &mut world.router.flows;
        let end = table.slots().min(self.next_slot + FLOW_SLOTS_PER_STEP);
        for slot in self.next_slot..end {
            let Some(flow) = table.at(slot, self.a, self.b) else {
                continue;
            };
            if self.forget {
                table.remove(slot);
                self.forgotten += 1;
            } else {
                self.flows.push(flow_value(flow));
            }
        }
        self.next_slot = end;
        if end < table.slots() {
            return None;
        }
        Some(if self.forget {
            json!({"forgotten": self.forgotten})
        } else {
            json!({"monotonic_ns": monotonic_ns(), "flows": std::mem::take(&mut self.flows)})
        })
    }
}

fn flow_value(flow: &Flow) -> Value {
    let mut value = serde_json::to_value(flow.counters).unwrap_or_default();
    value["src"] = flow.key.src.to_string().into();
    value["dst"] = flow.key.dst.to_string().into();
    value["protocol"] = flow.key.protocol.into();
    value["sport"] = flow.key.sport.into();
    value["dport"] = flow.key.dport.into();
    value["connections"] = flow.connections.into();
    value["next_index"] = flow.next_index.into();
    value["first_seen_ns"] = flow.first_seen_ns.into();
    value["last_seen_ns"] = flow.last_seen_ns.into();
    value["lateness_max_ns"] = flow.lateness_max_ns.into();
    value
}

impl Idle {
    fn in_flight(&self, world: &World) -> usize {
        self.links
            .iter()
            .map(|&link| world.router.links[link].path.in_flight())
            .sum()
    }

    /// Idle means: nothing on the paths, and the senders' devices were seen empty after the request.
    fn step(&self, world: &World) -> Option<Value> {
        let now = monotonic_ns();
        let in_flight = self.in_flight(world);
        let is_drained = self.links.iter().all(|&link| {
            let port = &world.ports[world.router.links[link].from];
            !port.alive || port.empty_at >= self.started
        });
        let is_idle = in_flight == 0 && is_drained;
        (is_idle || now >= self.deadline).then(
            || json!({"idle": is_idle, "in_flight_packets": in_flight, "waited_ns": now - self.started}),
        )
    }
}
