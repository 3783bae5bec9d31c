//! The table of directed flows: counters, and the packet's position that the loss law uses.

use crate::loss::Position;
use crate::packet::{FlowKey, Header};
use crate::policer::{Arrived, Policer};
use crate::stats::{Counters, Verdict};
use crate::syn::Syn;
use std::collections::HashMap;
use std::net::IpAddr;

/// Most flows kept. At about 300 bytes each the table stays below 20 MB.
pub const MAX_FLOWS: usize = 65_536;

const NONE: u32 = u32::MAX;

/// A reference to a flow that notices when the flow was evicted meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRef {
    slot: u32,
    generation: u32,
}

/// One directed flow.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The 5-tuple.
    pub key: FlowKey,
    /// Connections seen with this 5-tuple: 1, plus one for each SYN or SYN-ACK with a new initial sequence number.
    pub connections: u64,
    /// The index of the next packet in the present connection.
    pub next_index: u64,
    /// The same among its TCP segments with payload.
    pub next_payload: u64,
    /// Packet counters over all connections with this 5-tuple.
    pub counters: Counters,
    /// Arrival of the first packet, ns of the monotonic clock.
    pub first_seen_ns: u64,
    /// Arrival of the last packet, ns of the monotonic clock.
    pub last_seen_ns: u64,
    /// Largest lateness of a delivery, ns.
    pub lateness_max_ns: u64,
    /// Packets that arrived with ECT or CE, over all connections with this 5-tuple.
    pub ecn_sent: u64,
    /// The first SYN (or SYN-ACK) of the present connection as it arrived.
    pub syn_sent: Option<Syn>,
    /// The first one that was not lost, as it left.
    pub syn_delivered: Option<Syn>,
    isn: Option<u32>,
    arrived: Arrived,
}

struct Slot {
    flow: Option<Flow>,
    generation: u32,
    newer: u32,
    older: u32,
}

/// A bounded table; the least recently used flow is evicted.
pub struct FlowTable {
    by_key: HashMap<FlowKey, u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
    evicted: u64,
}

impl Default for FlowTable {
    fn default() -> Self {
        Self::new(MAX_FLOWS)
    }
}

impl FlowTable {
    /// An empty table for at most `capacity` flows (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MAX_FLOWS);
        // Reserved now: growing while packets pass would stall them for milliseconds.
        Self {
            by_key: HashMap::with_capacity(capacity),
            slots: Vec::with_capacity(capacity),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
            evicted: 0,
        }
    }

    /// Flows in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Flows that were evicted.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The flow of an arriving packet and the packet's position in its connection.
    ///
    /// Index 0 is the first packet of a new 5-tuple, or a SYN (SYN-ACK in the other direction) whose initial sequence
    /// number is new for it. A retransmitted SYN has the same one, and goes on counting.
    pub fn arrive(&mut self, header: &Header, now: u64) -> (FlowRef, Position) {
        let slot = match self.by_key.get(&header.flow) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => self.insert(header.flow, now),
        };
        self.link_newest(slot);
        let entry = &mut self.slots[slot as usize];
        let reference = FlowRef {
            slot,
            generation: entry.generation,
        };
        let Some(flow) = entry.flow.as_mut() else {
            let first = Position {
                index: 0,
                payload: header.has_payload.then_some(0),
            };
            return (reference, first);
        };
        if header.syn_isn.is_some() && header.syn_isn != flow.isn {
            if flow.next_index > 0 {
                flow.connections += 1;
            }
            flow.isn = header.syn_isn;
            (flow.syn_sent, flow.syn_delivered) = (None, None);
            (flow.next_index, flow.next_payload) = (0, 0);
        }
        let position = Position {
            index: flow.next_index,
            payload: header.has_payload.then_some(flow.next_payload),
        };
        flow.next_index += 1;
        flow.next_payload += u64::from(header.has_payload);
        flow.ecn_sent += u64::from(header.ecn.is_capable());
        flow.last_seen_ns = now;
        (reference, position)
    }

    /// Whether a policer lets a packet of the flow pass.
    pub fn admit(&mut self, reference: FlowRef, policer: Policer, now: u64) -> bool {
        self.get_mut(reference)
            .is_none_or(|flow| flow.arrived.admit(policer, now))
    }

    /// Counts the verdict on an arrived packet.
    pub fn count_arrival(&mut self, reference: FlowRef, length: u64, verdict: Verdict) {
        if let Some(flow) = self.get_mut(reference) {
            flow.counters.arrived(length, verdict);
        }
    }

    /// Remembers a SYN or SYN-ACK as it arrived, and as it left if it was not lost.
    pub fn remember_syn(&mut self, reference: FlowRef, sent: Syn, delivered: Option<Syn>) {
        if let Some(flow) = self.get_mut(reference) {
            flow.syn_sent = flow.syn_sent.or(Some(sent));
            flow.syn_delivered = flow.syn_delivered.or(delivered);
        }
    }

    /// Counts the end of a packet that was in flight.
    pub fn count_end(&mut self, reference: FlowRef, length: u64, written: bool, lateness_ns: u64) {
        if let Some(flow) = self.get_mut(reference) {
            flow.counters.finished(length, written);
            flow.lateness_max_ns = flow.lateness_max_ns.max(lateness_ns);
        }
    }

    /// Number of slots, for a scan in steps by [`FlowTable::at`].
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The flow in a slot, if it runs between these two addresses in either direction.
    #[must_use]
    pub fn at(&self, slot: usize, a: IpAddr, b: IpAddr) -> Option<&Flow> {
        let flow = self.slots.get(slot)?.flow.as_ref()?;
        let ends = (flow.key.src, flow.key.dst);
        (ends == (a, b) || ends == (b, a)).then_some(flow)
    }

    /// Removes the flow in a slot. Its next packet starts a new connection with index 0.
    pub fn remove(&mut self, slot: usize) {
        let Some(flow) = self.slots.get_mut(slot).and_then(|entry| entry.flow.take()) else {
            return;
        };
        self.by_key.remove(&flow.key);
        let number = u32::try_from(slot).unwrap_or(NONE);
        self.unlink(number);
        self.slots[slot].generation = self.slots[slot].generation.wrapping_add(1);
        self.free.push(number);
    }

    fn get_mut(&mut self, reference: FlowRef) -> Option<&mut Flow> {
        let entry = self.slots.get_mut(reference.slot as usize)?;
        if entry.generation == reference.generation {
            entry.flow.as_mut()
        } else {
            None
        }
    }

    fn insert(&mut self, key: FlowKey, now: u64) -> u32 {
        if self.by_key.len() >= self.capacity {
            self.remove(self.oldest as usize);
            self.evicted += 1;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                flow: None,
                generation: 0,
                newer: NONE,
                older: NONE,
            });
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        });
        self.slots[slot as usize].flow = Some(Flow {
            key,
            connections: 1,
            next_index: 0,
            next_payload: 0,
            counters: Counters::default(),
            first_seen_ns: now,
            last_seen_ns: now,
            lateness_max_ns: 0,
            ecn_sent: 0,
            syn_sent: None,
            syn_delivered: None,
            isn: None,
            arrived: Arrived::default(),
        });
        self.by_key.insert(key, slot);
        slot
    }

    fn unlink(&mut self, slot: u32) {
        let (newer, older) = {
            let entry = &self.slots[slot as usize];
            (entry.newer, entry.older)
        };
        match self.slots.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let older = self.newest;
        let entry = &mut self.slots[slot as usize];
        (entry.newer, entry.older) = (NONE, older);
        match self.slots.get_mut(older as usize) {
            Some(entry) => entry.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;
