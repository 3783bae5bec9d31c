//! The answer to a `snapshot` request.

use crate::answer::{List, write};
use crate::host::{cpu_ns, monotonic_ns, realtime_ns};
use crate::packet_log::PacketLog;
use crate::path::PathStats;
use crate::router::Discards;
use crate::stats::EDGES_US;
use crate::world::World;
use serde_json::{Value, json};

const NODES_PER_STEP: usize = 4;
const PAIRS_PER_STEP: usize = 16;

/// A snapshot under way: the counters of all pairs were copied at one instant, and are being written out.
pub struct Snapshot {
    head: Option<Value>,
    waiting_nodes: Vec<usize>,
    waiting_pairs: Vec<(usize, PathStats, usize)>,
    nodes: List,
    pairs: List,
}

impl Snapshot {
    /// Copies the counters of these links.
    #[must_use]
    pub fn take(world: &World, links: Vec<usize>) -> Self {
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
            head: Some(head(world)),
            waiting_nodes,
            waiting_pairs: links.into_iter().rev().map(copy).collect(),
            nodes: List::default(),
            pairs: List::default(),
        }
    }

    /// Writes a part. True: the line is complete.
    pub fn step(&mut self, world: &World, out: &mut Vec<u8>) -> bool {
        if let Some(head) = self.head.take() {
            write(out, &head);
            out.pop(); // the closing brace
            out.extend_from_slice(b",\"nodes\":");
        }
        for _ in 0..NODES_PER_STEP {
            let Some(node) = self.waiting_nodes.pop() else {
                break;
            };
            self.nodes.add(out, &node_value(world, node));
        }
        for _ in 0..PAIRS_PER_STEP {
            if !self.waiting_nodes.is_empty() {
                return false;
            }
            if self.nodes.close(out) {
                out.extend_from_slice(b",\"pairs\":");
            }
            let Some((link, stats, in_flight)) = self.waiting_pairs.pop() else {
                break;
            };
            self.pairs
                .add(out, &pair_value(world, link, &stats, in_flight));
        }
        if !self.waiting_pairs.is_empty() {
            return false;
        }
        self.pairs.close(out);
        out.extend_from_slice(b"}\n");
        true
    }
}

/// The part of a snapshot that is taken at its instant.
fn head(world: &World) -> Value {
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
    json!({
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
            "cpu_ns": cpu_ns(),
            "scheduling": world.scheduling,
            "cpus_awake": world.awake.status(),
            "wakeup": world.wakeups,
            "lead_ns": world.lead.present_ns(),
            "iteration": world.iterations,
            "packet_log": world.log.as_ref().map(PacketLog::status),
        },
    })
}

fn node_value(world: &World, node: usize) -> Value {
    let (state, port) = (&world.router.nodes[node], &world.ports[node]);
    let discards = state.discards;
    json!({
        "name": state.name,
        "device": port.device,
        "alive": port.alive,
        "device_counters": port.tun.counters(),
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
