//! The running network: the router with its devices, log and event-loop statistics.

use crate::awake::Awake;
use crate::config::Config;
use crate::host::{Scheduling, monotonic_ns};
use crate::lead::Lead;
use crate::packet_log::PacketLog;
use crate::router::Router;
use crate::stats::Stalls;
use crate::tun::{Tun, TunError};
use thiserror::Error;

/// Largest packet that a read can give, bytes. Lab devices have MTU 1500; a larger one would still be read whole.
const MAX_PACKET: usize = 65_575;

/// A node whose device is refused.
#[derive(Debug, Error)]
#[error("node {node}: {error}")]
pub struct NodeError {
    /// Its name.
    pub node: String,
    /// Why.
    pub error: TunError,
}

/// Everything that the event loop works on and that the control peer may ask about.
pub struct World {
    /// Paths and flows.
    pub router: Router,
    /// The devices, in the order of the configuration's nodes.
    pub ports: Vec<Port>,
    /// The packet log, if one is open.
    pub log: Option<PacketLog>,
    /// How late the loop woke for its timer.
    pub wakeups: Stalls,
    /// How much earlier than a packet is due the loop wakes.
    pub lead: Lead,
    /// When the packet arrived that woke the loop, ns; none if none did, or if it has been read.
    pub first_arrival: Option<u64>,
    /// How long one iteration of the loop took.
    pub iterations: Stalls,
    /// What the host granted.
    pub scheduling: Scheduling,
    /// Keeps the CPUs awake.
    pub awake: Awake,
    /// Start, ns of the monotonic clock.
    pub started_ns: u64,
    /// Taken off every delay, ns.
    pub compensation_ns: u64,
    /// Set when the control peer asks to stop.
    pub stopping: bool,
    buffer: Vec<u8>,
}

/// A node's device.
pub struct Port {
    /// The device.
    pub tun: Tun,
    /// Its name in the node.
    pub device: String,
    /// False once a read has failed: the device no longer exists.
    pub alive: bool,
    /// The last time at which it had nothing to read, ns.
    pub empty_at: u64,
}

impl World {
    /// Opens every device.
    ///
    /// # Errors
    /// A node's device is refused.
    pub fn open(config: &Config, scheduling: Scheduling, awake: Awake) -> Result<Self, NodeError> {
        let mut ports = Vec::with_capacity(config.nodes.len());
        for node in &config.nodes {
            ports.push(Port {
                tun: Tun::open(&node.netns, &node.device, config.txqueuelen).map_err(|error| {
                    NodeError {
                        node: node.name.clone(),
                        error,
                    }
                })?,
                device: node.device.clone(),
                alive: true,
                empty_at: 0,
            });
        }
        Ok(Self {
            router: Router::new(config),
            ports,
            log: None,
            wakeups: Stalls::default(),
            lead: Lead::default(),
            first_arrival: None,
            iterations: Stalls::default(),
            scheduling,
            awake,
            started_ns: monotonic_ns(),
            compensation_ns: config.compensation_ns,
            stopping: false,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Reads up to `limit` packets of a node. False: the device no longer exists.
    ///
    /// The clock is read for each packet, not for each batch: a batch of 32 takes some 100 us to read, which would
    /// compress a paced sender's gaps; a clock reading takes some 30 ns.
    pub fn read_node(&mut self, node: usize, limit: usize) -> bool {
        for _ in 0..limit {
            let port = &mut self.ports[node];
            match port.tun.read(&mut self.buffer) {
                Ok(Some(length)) => {
                    let packet = &mut self.buffer[..length];
                    let arrived = self.first_arrival.take().unwrap_or_else(monotonic_ns);
                    let dropped = self.router.ingress(node, packet, arrived);
                    if let Some((record, log)) = dropped.zip(self.log.as_mut()) {
                        log.add(&record, &self.router.links, &self.router.nodes);
                    }
                }
                Ok(None) => {
                    port.empty_at = monotonic_ns();
                    break;
                }
                Err(_) => {
                    port.alive = false;
                    return false;
                }
            }
        }
        true
    }

    /// Writes up to `limit` packets that are due. Lateness is taken just before each write.
    pub fn deliver_due(&mut self, limit: usize) {
        for _ in 0..limit {
            let now = monotonic_ns();
            let Some(delivery) = self.router.pop_due(now) else {
                break;
            };
            let written = self.ports[delivery.to].tun.write(&delivery.packet.bytes);
            let record = self.router.finish(delivery, now, written);
            if let Some(log) = &mut self.log {
                log.add(&record, &self.router.links, &self.router.nodes);
            }
        }
    }
}
