//! One directed path: loss, drop-tail bottleneck, AQM, delay, on a virtual clock.
//!
//! Nothing here reads a clock. Departures are computed when a packet arrives, so a late event loop
//! delays deliveries but never changes the modelled queue.

use crate::flows::FlowRef;
use crate::loss::{Loss, Position};
use crate::packet::{Ecn, FlowKey, mark_ce};
use crate::policer::Policer;
use crate::rewrite::{self, Rule};
use crate::stats::{Counters, Histogram, Verdict};
use std::collections::VecDeque;

const NS_PER_S: u64 = 1_000_000_000;

/// The programmed properties of a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// One-way propagation delay, ns.
    pub delay_ns: u64,
    /// Taken off the delay, ns: the constant cost of the emulator itself.
    pub compensation_ns: u64,
    /// Bottleneck rate in bits of IP packets per second; `None` is unlimited.
    pub rate_bps: Option<u64>,
    /// Queue limit in IP bytes, including the packet on the wire. Without meaning if the rate is unlimited.
    pub queue_bytes: u64,
    /// Loss law.
    pub loss: Option<Loss>,
    /// Limit on the packets of each connection.
    pub policer: Option<Policer>,
    /// Occupancy in IP bytes from which the AQM marks or drops.
    pub ecn_threshold_bytes: Option<u64>,
    /// What it does to headers, behind the bottleneck.
    pub rewrite: Vec<Rule>,
}

/// Cumulative statistics of a path.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct PathStats {
    /// Packet counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// Largest occupancy, IP bytes.
    pub queue_peak_bytes: u64,
    /// Actual minus due time of each delivery.
    pub lateness: Histogram,
}

/// An arriving packet with what the flow table knows about it.
pub struct Arrival<'a> {
    /// Arrival time, ns. Must not go back between calls.
    pub now: u64,
    /// The IP packet.
    pub bytes: &'a mut [u8],
    /// Its ECN bits.
    pub ecn: Ecn,
    /// Its flow.
    pub flow: FlowRef,
    /// Its 5-tuple.
    pub key: FlowKey,
    /// Its position in the connection.
    pub position: Position,
    /// Whether the policer lets it pass.
    pub is_admitted: bool,
}

/// A packet in the queue or on the wire.
#[derive(Debug, Clone)]
pub struct InFlight {
    /// Arrival, ns.
    pub arrived: u64,
    /// End of serialisation, ns.
    pub departure: u64,
    /// Programmed delivery time, ns.
    pub due: u64,
    /// Occupancy that it met, IP bytes without itself.
    pub occupancy: u64,
    /// Whether the AQM marked it.
    pub marked: bool,
    /// Its flow.
    pub flow: FlowRef,
    /// Its 5-tuple.
    pub key: FlowKey,
    /// Its index in the connection.
    pub index: u64,
    /// The IP packet as it is delivered: marked where the AQM said so, and rewritten.
    pub bytes: Vec<u8>,
}

/// The answer to an arriving packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// `Delivered` and `Marked` mean that the packet is in flight now.
    pub verdict: Verdict,
    /// Occupancy that it met, IP bytes without itself.
    pub occupancy: u64,
}

/// One directed path with the packets in flight on it.
pub struct Path {
    params: Params,
    in_flight: VecDeque<InFlight>,
    /// How many packets at the front of `in_flight` have been serialised.
    departed: usize,
    /// IP bytes of those that have not.
    occupancy: u64,
    last_departure: u64,
    /// Fraction of a nanosecond that `last_departure` lacks, in units of 1/rate.
    carry: u64,
    last_due: u64,
    /// Cumulative statistics.
    pub stats: PathStats,
}

impl Path {
    /// An empty path.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            params,
            in_flight: VecDeque::new(),
            departed: 0,
            occupancy: 0,
            last_departure: 0,
            carry: 0,
            last_due: 0,
            stats: PathStats::default(),
        }
    }

    /// Replaces the parameters for packets that arrive from now on. Packets in flight keep their times,
    /// and no packet overtakes another.
    pub fn set_params(&mut self, params: Params) {
        self.params = params;
        self.carry = 0;
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Packets in the queue or on the wire.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When the next packet is due, ns.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.in_flight.front().map(|packet| packet.due)
    }

    /// Offers a packet, which is changed in place if it is accepted. `has_room` says whether the emulator's memory has room; `buffer` gets the bytes if accepted.
    pub fn offer(
        &mut self,
        mut arrival: Arrival<'_>,
        has_room: bool,
        buffer: impl FnOnce() -> Vec<u8>,
    ) -> Decision {
        let length = arrival.bytes.len() as u64;
        self.serialise_until(arrival.now);
        let occupancy = self.occupancy;
        let mut verdict = self.judge(&arrival);
        if matches!(verdict, Verdict::Delivered | Verdict::Marked) && !has_room {
            verdict = Verdict::Overflow;
        }
        self.stats.counters.arrived(length, verdict);
        if matches!(verdict, Verdict::Delivered | Verdict::Marked) {
            self.enqueue(&mut arrival, verdict == Verdict::Marked, buffer());
        }
        Decision { verdict, occupancy }
    }

    /// Takes the next packet if it is due.
    pub fn pop_due(&mut self, now: u64) -> Option<InFlight> {
        if self.next_due()? > now {
            return None;
        }
        self.serialise_until(now);
        self.departed -= 1; // a due packet has departed, as due >= departure
        self.in_flight.pop_front()
    }

    /// Counts the end of a packet that [`Path::pop_due`] gave; returns its lateness, ns.
    pub fn finish(&mut self, packet: &InFlight, now: u64, written: bool) -> u64 {
        self.stats
            .counters
            .finished(packet.bytes.len() as u64, written);
        let lateness = now.saturating_sub(packet.due);
        if written {
            self.stats.lateness.add(lateness);
        }
        lateness
    }

    /// The laws in their order: loss, drop-tail, AQM.
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict {
        let length = arrival.bytes.len() as u64;
        let loss = self.params.loss.as_ref();
        if !arrival.is_admitted
            || loss.is_some_and(|loss| loss.is_lost(arrival.position))
            || rewrite::is_lost(&self.params.rewrite, arrival.bytes)
        {
            return Verdict::Loss;
        }
        if self.params.rate_bps.is_some() && self.occupancy + length > self.params.queue_bytes {
            return Verdict::Tail;
        }
        match self.params.ecn_threshold_bytes {
            Some(threshold) if self.occupancy >= threshold => {
                if arrival.ecn.is_capable() {
                    Verdict::Marked
                } else {
                    Verdict::Aqm
                }
            }
            _ => Verdict::Delivered,
        }
    }

    fn enqueue(&mut self, arrival: &mut Arrival<'_>, marked: bool, mut bytes: Vec<u8>) {
        if marked {
            mark_ce(arrival.bytes);
        }
        rewrite::apply(&self.params.rewrite, arrival.bytes);
        let length = arrival.bytes.len() as u64;
        let departure = self.depart(arrival.now, length);
        let delay = self
            .params
            .delay_ns
            .saturating_sub(self.params.compensation_ns);
        // Only set_params can make the second term the larger one.
        let due = (departure + delay).max(self.last_due);
        self.last_due = due;
        bytes.clear();
        bytes.extend_from_slice(arrival.bytes);
        self.in_flight.push_back(InFlight {
            arrived: arrival.now,
            departure,
            due,
            occupancy: self.occupancy,
            marked,
            flow: arrival.flow,
            key: arrival.key,
            index: arrival.position.index,
            bytes,
        });
        self.occupancy += length;
        self.stats.queue_peak_bytes = self.stats.queue_peak_bytes.max(self.occupancy);
        self.serialise_until(arrival.now);
    }

    /// departure = max(now, last departure) + length * 8 / rate, with the remainder carried over within a busy period.
    fn depart(&mut self, now: u64, length: u64) -> u64 {
        if now > self.last_departure {
            self.last_departure = now;
            self.carry = 0;
        }
        if let Some(rate) = self.params.rate_bps {
            let scaled = length * 8 * NS_PER_S + self.carry; // below 2^63: length <= 65,575, carry < rate <= 10^12
            self.last_departure += scaled / rate;
            self.carry = scaled % rate;
        }
        self.last_departure
    }

    fn serialise_until(&mut self, now: u64) {
        while let Some(packet) = self.in_flight.get(self.departed) {
            if packet.departure > now {
                break;
            }
            self.occupancy -= packet.bytes.len() as u64;
            self.departed += 1;
        }
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
