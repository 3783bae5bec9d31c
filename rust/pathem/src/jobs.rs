//! Control requests, and the answers, made in small steps so that packets do not wait for them.

use crate::answer::{List, write_line};
use crate::config::{RawPair, check_params};
use crate::config_error::ConfigError;
use crate::flows::Flow;
use crate::host::monotonic_ns;
use crate::packet_log::PacketLog;
use crate::snapshot::Snapshot;
use crate::world::World;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

const FLOW_SLOTS_PER_STEP: usize = 64;
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

/// Why a request is refused: one sentence for the peer.
#[derive(Debug, Error)]
pub enum RequestError {
    /// Not a request.
    #[error(
        "bad request: {0}; send one JSON object per line with op and its fields (docs/design/pathem.md)"
    )]
    Malformed(serde_json::Error),
    /// A pair that the configuration does not have.
    #[error("no pair {from:?} to {to:?} in the configuration")]
    UnknownPair {
        /// The sending node.
        from: String,
        /// The receiving node.
        to: String,
    },
    /// The properties of a pair are refused.
    #[error(transparent)]
    Pair(#[from] ConfigError),
    /// The present packet log cannot be written.
    #[error("packet log: {0}")]
    Flush(io::Error),
    /// A packet log without a file.
    #[error("packet_log: path is missing; give the file to write")]
    NoLogPath,
    /// The packet log cannot be created.
    #[error("packet log {}: {error}", .path.display())]
    Log {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
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

/// See [`Job::Flows`].
pub struct Scan {
    a: IpAddr,
    b: IpAddr,
    next_slot: usize,
    forget: bool,
    flows: List,
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
pub fn start(line: &[u8], world: &mut World) -> Result<Started, RequestError> {
    let request: Request = serde_json::from_slice(line).map_err(RequestError::Malformed)?;
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

fn select(world: &World, pairs: Option<PairNames>) -> Result<Vec<usize>, RequestError> {
    let Some(pairs) = pairs else {
        return Ok((0..world.router.links.len()).collect());
    };
    pairs
        .iter()
        .map(|(from, to)| find(world, from, to))
        .collect()
}

fn find(world: &World, from: &str, to: &str) -> Result<usize, RequestError> {
    let link = world.router.find_link(from, to);
    link.ok_or_else(|| RequestError::UnknownPair {
        from: from.to_owned(),
        to: to.to_owned(),
    })
}

fn set_pair(world: &mut World, pair: RawPair) -> Result<Started, RequestError> {
    let link = find(world, &pair.from, &pair.to)?;
    let params = check_params("set_pair", pair, world.compensation_ns)?;
    world.router.set_params(link, params);
    Ok(Started::Answer(
        json!({"set": true, "monotonic_ns": monotonic_ns()}),
    ))
}

fn packet_log(
    world: &mut World,
    enable: bool,
    path: Option<PathBuf>,
) -> Result<Started, RequestError> {
    let mut stopped = Value::Null;
    if let Some(mut old) = world.log.take() {
        old.flush().map_err(RequestError::Flush)?;
        stopped = old.status();
    }
    if enable {
        let path = path.ok_or(RequestError::NoLogPath)?;
        let log = PacketLog::create(&path).map_err(|error| RequestError::Log { path, error })?;
        world.log = Some(log);
    }
    Ok(Started::Answer(
        json!({"enabled": enable, "stopped": stopped}),
    ))
}

impl Job {
    /// Does a small piece of work and writes what it has of the answer. True: the line is complete.
    pub fn step(&mut self, world: &mut World, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Snapshot(snapshot) => snapshot.step(world, out),
            Self::Flows(scan) => scan.step(world, out),
            Self::Idle(idle) => idle.step(world, out),
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

impl Scan {
    fn new(a: IpAddr, b: IpAddr, forget: bool) -> Self {
        Self {
            a,
            b,
            next_slot: 0,
            forget,
            flows: List::default(),
            forgotten: 0,
        }
    }

    fn step(&mut self, world: &mut World, out: &mut Vec<u8>) -> bool {
        if self.next_slot == 0 && !self.forget {
            out.extend_from_slice(
                format!("{{\"monotonic_ns\":{},\"flows\":", monotonic_ns()).as_bytes(),
            );
        }
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
                self.flows.add(out, &flow_value(flow));
            }
        }
        self.next_slot = end;
        if end < table.slots() {
            return false;
        }
        if self.forget {
            write_line(out, &json!({"forgotten": self.forgotten}));
        } else {
            self.flows.close(out);
            out.extend_from_slice(b"}\n");
        }
        true
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
    value["ecn_sent"] = flow.ecn_sent.into();
    value["syn_sent"] = json!(flow.syn_sent);
    value["syn_delivered"] = json!(flow.syn_delivered);
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
    fn step(&self, world: &World, out: &mut Vec<u8>) -> bool {
        let now = monotonic_ns();
        let in_flight = self.in_flight(world);
        let is_drained = self.links.iter().all(|&link| {
            let port = &world.ports[world.router.links[link].from];
            !port.alive || port.empty_at >= self.started
        });
        let is_idle = in_flight == 0 && is_drained;
        let is_done = is_idle || now >= self.deadline;
        if is_done {
            write_line(
                out,
                &json!({"idle": is_idle, "in_flight_packets": in_flight, "waited_ns": now - self.started}),
            );
        }
        is_done
    }
}
