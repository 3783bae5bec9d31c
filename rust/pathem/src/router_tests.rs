use super::*;
use crate::testing::{tcp_syn, tcp_v4, two_nodes, udp_v4, udp_v6};
use proptest::prelude::*;

const A: usize = 0;
const B: usize = 1;

fn lossy() -> Router {
    Router::new(&two_nodes(
        r#"{"from":"a","to":"b","delay_us":1000,"rate_bps":10000000,"queue_bytes":1000000,
            "loss":{"probability":0.1,"seed":7}},
           {"from":"b","to":"a","delay_us":2000,"loss":{"pattern":[1]}}"#,
    ))
}

/// Which of `count` packets of a new connection from this port are lost.
fn losses(router: &mut Router, port: u16, isn: u32, count: usize) -> Vec<usize> {
    let mut lost = Vec::new();
    for number in 0..count {
        let flags = if number == 0 { 0x02 } else { 0x10 };
        let mut packet = tcp_v4("198.18.1.1", "198.18.2.2", port, 443, flags, isn, 0);
        if router
            .ingress(A, &mut packet, 0)
            .is_some_and(|record| record.verdict == Verdict::Loss)
        {
            lost.push(number);
        }
    }
    lost
}

#[test]
fn losses_repeat_per_connection_whatever_the_port_is() {
    let mut router = lossy();
    let expected: Vec<usize> = crate::loss::lost_indices(7, 0.1, 500)
        .into_iter()
        .map(|index| usize::try_from(index).expect("small"))
        .collect();
    assert_ne!(expected, [] as [usize; 0]);
    assert_eq!(losses(&mut router, 4000, 1, 500), expected);
    assert_eq!(losses(&mut router, 4001, 1, 500), expected); // another port
    assert_eq!(losses(&mut router, 4000, 2, 500), expected); // the same port again, a new initial sequence number
}

#[test]
fn retransmitted_syn_does_not_restart() {
    let mut router = Router::new(&two_nodes(
        r#"{"from":"a","to":"b","delay_us":0,"loss":{"pattern":[0,1]}}"#,
    ));
    let mut send = || {
        let mut syn = tcp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0x02, 77, 0);
        router.ingress(A, &mut syn, 0).is_none()
    };
    assert_eq!([send(), send(), send()], [false, false, true]);
}

#[test]
fn reverse_direction_restarts_at_a_new_syn_ack() {
    let mut router = lossy();
    let mut answer = |flags, isn| {
        let mut packet = tcp_v4("198.18.2.2", "198.18.1.1", 443, 4000, flags, isn, 0);
        router.ingress(B, &mut packet, 0).is_none()
    };
    assert_eq!(
        [answer(0x12, 5), answer(0x10, 6), answer(0x10, 7)],
        [true, false, true]
    );
    assert_eq!([answer(0x12, 9), answer(0x10, 10)], [true, false]);
}

#[test]
fn wrong_packets_are_counted_and_go_nowhere() {
    let mut router = lossy();
    let mut send = |mut packet: Vec<u8>| assert!(router.ingress(A, &mut packet, 0).is_none());
    send(udp_v4("198.18.2.2", "198.18.1.1", 1, 2, 0, 40)); // not a's source address
    send(udp_v4("8.8.8.8", "198.18.2.2", 1, 2, 0, 40));
    send(udp_v4("198.18.1.1", "8.8.8.8", 1, 2, 0, 40)); // no node has it
    send(udp_v4("198.18.1.1", "198.18.1.1", 1, 2, 0, 40)); // no pair leads to itself
    send(udp_v4("198.18.1.1", "224.0.0.251", 1, 2, 0, 40));
    send(udp_v4("0.0.0.0", "198.18.2.2", 1, 2, 0, 40));
    send(vec![0x45, 0, 0]);
    let expected = Discards {
        spoofed: 2,
        no_route: 2,
        ignored: 2,
        malformed: 1,
    };
    assert_eq!(router.nodes[A].discards, expected);
    assert_eq!((router.in_flight(), router.next_due()), ((0, 0), None));
}

#[test]
fn ipv6_is_carried() {
    let mut router = lossy();
    let packet = udp_v6(5000, 443, 2, 500);
    assert!(router.ingress(A, &mut packet.clone(), 0).is_none());
    let delivery = router.pop_due(u64::MAX).expect("a packet");
    assert_eq!((delivery.to, &delivery.packet.bytes), (B, &packet));
}

#[test]
fn packets_of_several_links_come_out_in_time_order() {
    let mut router = lossy();
    router.ingress(A, &mut udp_v4("198.18.1.1", "198.18.2.2", 1, 2, 0, 1500), 0); // due 2.2 ms
    router.ingress(B, &mut udp_v4("198.18.2.2", "198.18.1.1", 2, 1, 0, 1500), 0); // due 2.0 ms
    assert_eq!(router.next_due(), Some(2_000_000));
    assert_eq!(router.pop_due(1_999_999).map(|delivery| delivery.to), None);
    assert_eq!(
        router.pop_due(3_000_000).map(|delivery| delivery.to),
        Some(A)
    );
    assert_eq!(
        router.pop_due(3_000_000).map(|delivery| delivery.to),
        Some(B)
    );
    assert_eq!(router.in_flight(), (0, 0));
}

#[test]
fn memory_limit_is_kept() {
    let mut config = two_nodes(r#"{"from":"a","to":"b","delay_us":1000}"#);
    config.memory_limit_bytes = 10 * (1500 + 256);
    let mut router = Router::new(&config);
    for _ in 0..15 {
        router.ingress(A, &mut udp_v4("198.18.1.1", "198.18.2.2", 1, 2, 0, 1500), 0);
    }
    assert_eq!(router.in_flight(), (10, 15_000));
    assert_eq!(router.links[0].path.stats.counters.overflow, 5);
}

proptest! {
    #[test]
    fn packets_are_conserved(
        steps in proptest::collection::vec((0u64..3_000_000, 0usize..2, 28usize..=1500, 1u16..5, any::<bool>()), 1..300),
    ) {
        let mut router = lossy();
        let mut now = 0;
        for (gap, node, length, port, written) in steps {
            now += gap;
            let (src, dst) = if node == A { ("198.18.1.1", "198.18.2.2") } else { ("198.18.2.2", "198.18.1.1") };
            router.ingress(node, &mut udp_v4(src, dst, port, 443, 0, length), now);
            while let Some(delivery) = router.pop_due(now) {
                router.finish(delivery, now, written);
            }
        }
        let (packets, bytes) = router.in_flight();
        let paths = || router.links.iter().map(|link| &link.path);
        let ended: u64 = paths().map(|path| path.stats.counters.ended()).sum();
        let entered: u64 = paths().map(|path| path.stats.counters.in_packets).sum();
        prop_assert_eq!(entered, ended + packets);
        prop_assert_eq!(paths().map(|path| path.in_flight() as u64).sum::<u64>(), packets);
        let (a, b) = ("198.18.1.1".parse().expect("address"), "198.18.2.2".parse().expect("address"));
        let flows = || (0..router.flows.slots()).filter_map(|slot| router.flows.at(slot, a, b));
        prop_assert_eq!(flows().map(|flow| flow.counters.in_packets).sum::<u64>(), entered);
        prop_assert_eq!(flows().map(|flow| flow.counters.ended()).sum::<u64>(), ended);
        prop_assert!(bytes <= packets * 1500);
    }

    #[test]
    fn garbage_never_panics(mut packet in proptest::collection::vec(any::<u8>(), 0..100), now in any::<u64>()) {
        let mut router = lossy();
        router.ingress(A, &mut packet, now / 2);
        prop_assert_eq!(router.in_flight(), (0, 0));
    }
}

#[test]
fn a_flow_remembers_its_syn_at_both_ends() {
    let config =
        two_nodes(r#"{"from":"a","to":"b","delay_us":0,"rewrite":["drop_ecn_syn","strip_sack"]}"#);
    let mut router = Router::new(&config);
    let options = [2, 4, 5, 180, 4, 2, 1, 1];
    let mut offer = |flags, ecn| {
        router.ingress(0, &mut tcp_syn(flags, ecn, &options), 0);
        let (a, b) = (
            "198.18.1.1".parse().expect("a"),
            "198.18.2.2".parse().expect("b"),
        );
        router.flows.at(0, a, b).expect("the flow").clone()
    };
    let flow = offer(0xc2, 0); // an ECN-setup SYN, which is lost
    assert_eq!(
        flow.syn_sent.map(|syn| (syn.ecn, syn.sack)),
        Some((true, true))
    );
    assert_eq!((flow.syn_delivered, flow.counters.loss), (None, 1));
    let flow = offer(0x02, 0); // retransmitted without ECN
    assert_eq!(flow.syn_sent.map(|syn| syn.ecn), Some(true));
    assert_eq!(
        flow.syn_delivered.map(|syn| (syn.ecn, syn.sack, syn.mss)),
        Some((false, false, Some(1460)))
    );
    assert_eq!(offer(0x10, 2).ecn_sent, 1);
}

#[test]
fn a_prefix_is_reached_and_may_send() {
    let mut config =
        two_nodes(r#"{"from":"a","to":"b","delay_us":0},{"from":"b","to":"a","delay_us":0}"#);
    config.nodes[B].prefixes = vec!["198.19.0.0/16".parse().expect("a prefix")];
    let mut router = Router::new(&config);
    let mut send = |node, src, dst| {
        let mut packet = udp_v4(src, dst, 1, 2, 0, 40);
        assert!(router.ingress(node, &mut packet, 0).is_none());
        router.pop_due(0).map(|delivery| delivery.to)
    };
    assert_eq!(send(A, "198.18.1.1", "198.19.255.255"), Some(B));
    assert_eq!(send(B, "198.19.0.0", "198.18.1.1"), Some(A));
    assert_eq!(send(A, "198.19.0.0", "198.18.2.2"), None);
    assert_eq!(send(A, "198.18.1.1", "198.18.3.3"), None);
    assert_eq!(router.nodes[A].discards.spoofed, 1);
    assert_eq!(router.nodes[A].discards.no_route, 1);
}

#[test]
fn a_pattern_of_payload_spares_handshake_and_acknowledgements() {
    let mut router = Router::new(&two_nodes(
        r#"{"from":"a","to":"b","delay_us":0,"loss":{"pattern":[0,2],"count":"payload"}}"#,
    ));
    let mut send = |flags, sequence, payload: usize| {
        let mut packet = tcp_v4("198.18.1.1", "198.18.2.2", 4000, 443, flags, sequence, 0);
        packet.resize(40 + payload, 0);
        let length = u16::try_from(packet.len()).expect("short").to_be_bytes();
        packet[2..4].copy_from_slice(&length);
        packet[32] = 5 << 4;
        router.ingress(A, &mut packet, 0).is_none()
    };
    let passed = [
        send(0x02, 1, 0),
        send(0x10, 2, 0),
        send(0x18, 2, 64),
        send(0x10, 66, 0),
        send(0x18, 66, 64),
        send(0x18, 130, 64),
    ];
    assert_eq!(passed, [true, true, false, true, true, false]);
}

#[test]
fn a_policer_counts_each_connection_by_itself() {
    let mut router = Router::new(&two_nodes(
        r#"{"from":"a","to":"b","delay_us":0,"policer":{"packets":2,"every_us":1000}}"#,
    ));
    let mut passes = |port, now| {
        let mut packet = udp_v4("198.18.1.1", "198.18.2.2", port, 443, 0, 40);
        router.ingress(A, &mut packet, now).is_none()
    };
    let first = [0, 1, 2, 999_999, 1_000_000, 1_999_999].map(|now| passes(1, now));
    assert_eq!(first, [true, true, false, false, false, true]);
    assert_eq!(
        [1_000_000, 1_000_001, 1_000_002].map(|now| passes(2, now)),
        [true, true, false]
    );
}
