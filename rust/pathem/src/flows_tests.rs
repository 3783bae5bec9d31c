use super::*;
use crate::packet::parse;
use crate::testing::{tcp_v4, udp_v4};

fn syn(isn: u32) -> Header {
    parse(&tcp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0x02, isn, 0)).expect("a packet")
}

fn udp(port: u16) -> Header {
    parse(&udp_v4("198.18.1.1", "198.18.2.2", port, 443, 0, 100)).expect("a packet")
}

fn between(table: &FlowTable) -> Vec<Flow> {
    let (a, b) = (
        "198.18.2.2".parse().expect("address"),
        "198.18.1.1".parse().expect("address"),
    );
    (0..table.slots())
        .filter_map(|slot| table.at(slot, a, b).cloned())
        .collect()
}

#[test]
fn index_counts_packets_of_a_flow() {
    let mut table = FlowTable::default();
    let indices: Vec<u64> = (0..5)
        .map(|now| table.arrive(&udp(1), now).1.index)
        .collect();
    assert_eq!(indices, [0, 1, 2, 3, 4]);
    assert_eq!(table.arrive(&udp(2), 9).1.index, 0);
}

#[test]
fn retransmitted_syn_goes_on_and_a_new_isn_restarts() {
    let mut table = FlowTable::default();
    let indices: Vec<u64> = [7, 7, 7, 8, 8]
        .iter()
        .map(|&isn| table.arrive(&syn(isn), 0).1.index)
        .collect();
    assert_eq!(indices, [0, 1, 2, 0, 1]);
    assert_eq!(between(&table)[0].connections, 2);
}

#[test]
fn payload_index_skips_what_has_none_and_restarts_with_the_connection() {
    let mut table = FlowTable::default();
    let segment = |flags, sequence, payload: usize| {
        let mut packet = tcp_v4("198.18.1.1", "198.18.2.2", 4000, 443, flags, sequence, 0);
        packet.resize(40 + payload, 7);
        let length = u16::try_from(packet.len()).expect("short").to_be_bytes();
        packet[2..4].copy_from_slice(&length);
        packet[32] = 5 << 4;
        parse(&packet).expect("a packet")
    };
    let connection = |isn| {
        [
            segment(0x02, isn, 0),
            segment(0x10, 1, 0),
            segment(0x18, 1, 64),
            segment(0x10, 65, 0),
            segment(0x18, 65, 1),
        ]
    };
    for isn in [7, 8] {
        let positions = connection(isn).map(|header| table.arrive(&header, 0).1);
        assert_eq!(
            positions.map(|position| position.payload),
            [None, None, Some(0), None, Some(1)]
        );
        assert_eq!(positions.map(|position| position.index), [0, 1, 2, 3, 4]);
    }
    assert_eq!(table.arrive(&udp(1), 0).1.payload, None);
}

#[test]
fn least_recently_used_flow_is_evicted_and_its_packets_in_flight_are_not_miscounted() {
    let mut table = FlowTable::new(2);
    let (first, _) = table.arrive(&udp(1), 0);
    table.arrive(&udp(2), 1);
    table.arrive(&udp(1), 2);
    table.arrive(&udp(3), 3); // evicts 2
    let mut ports: Vec<u16> = between(&table).iter().map(|flow| flow.key.sport).collect();
    ports.sort_unstable();
    assert_eq!((ports, table.evicted(), table.len()), (vec![1, 3], 1, 2));
    table.arrive(&udp(4), 4); // evicts 1 and takes its slot
    table.count_end(first, 100, true, 5);
    assert!(
        between(&table)
            .iter()
            .all(|flow| flow.counters.delivered_packets == 0)
    );
}

#[test]
fn removed_flow_starts_anew() {
    let mut table = FlowTable::default();
    for port in 0..10 {
        table.arrive(&udp(port), 0);
        table.arrive(&udp(port), 1);
    }
    for slot in 0..table.slots() {
        table.remove(slot);
    }
    assert!(table.is_empty());
    assert_eq!(table.arrive(&udp(3), 2).1.index, 0);
    assert_eq!(table.slots(), 10);
}

#[test]
fn many_flows_stay_within_the_bound() {
    let mut table = FlowTable::new(100);
    for round in 0..3u64 {
        for port in 0..1000 {
            table.arrive(&udp(port), round);
        }
    }
    assert_eq!(
        (table.len(), table.slots(), table.evicted()),
        (100, 100, 2900)
    );
}
