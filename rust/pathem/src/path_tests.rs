use super::*;
use crate::flows::FlowTable;
use crate::loss::Count;
use crate::packet::parse;
use crate::testing::{checksum_is_right, udp_v4};
use Verdict::{Aqm, Delivered, Marked};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn params() -> Params {
    Params {
        delay_ns: 20 * MS,
        compensation_ns: 0,
        rate_bps: Some(20_000_000),
        queue_bytes: 50_000,
        loss: None,
        policer: None,
        ecn_threshold_bytes: None,
        rewrite: Vec::new(),
    }
}

fn offer(path: &mut Path, now: u64, length: usize, tos: u8, index: u64) -> Decision {
    let mut packet = udp_v4("198.18.1.1", "198.18.2.2", 4000, 443, tos, length);
    let header = parse(&packet).expect("a packet");
    let (flow, _) = FlowTable::default().arrive(&header, now);
    let arrival = Arrival {
        now,
        bytes: &mut packet,
        ecn: header.ecn,
        flow,
        key: header.flow,
        position: Position {
            index,
            payload: None,
        },
        is_admitted: true,
    };
    path.offer(arrival, true, Vec::new)
}

#[test]
fn delay_is_exact() {
    let mut path = Path::new(Params {
        rate_bps: None,
        ..params()
    });
    offer(&mut path, 5, 1500, 0, 0);
    assert!(path.pop_due(20 * MS + 4).is_none());
    assert_eq!(
        path.pop_due(20 * MS + 5).map(|packet| packet.due),
        Some(20 * MS + 5)
    );
}

#[test]
fn serialisation_comes_before_the_delay() {
    let mut path = Path::new(params());
    offer(&mut path, 0, 1500, 0, 0); // 1500 B at 20 Mbit/s: 600 us
    offer(&mut path, 0, 1500, 0, 1);
    assert_eq!(
        path.pop_due(u64::MAX).map(|packet| packet.due),
        Some(20_600_000)
    );
    assert_eq!(
        path.pop_due(u64::MAX).map(|packet| packet.due),
        Some(21_200_000)
    );
}

#[test]
fn compensation_is_taken_off_but_never_below_the_departure() {
    let due = |delay_ns, compensation_ns| {
        let mut path = Path::new(Params {
            delay_ns,
            compensation_ns,
            ..params()
        });
        offer(&mut path, 0, 1500, 0, 0);
        path.next_due()
    };
    assert_eq!(due(20 * MS, 30_000), Some(20_570_000));
    assert_eq!(due(10_000, 30_000), Some(600_000));
}

#[test]
fn rate_is_exact_when_offered_a_fifth_too_much() {
    for rate in [
        4_000_000,
        26_000_000,
        100_000_000,
        333_333_333,
        500_000_000,
        1_000_000_000u64,
    ] {
        let mut path = Path::new(Params {
            rate_bps: Some(rate),
            ..params()
        });
        let gap = 1500 * 8 * NS_PER_S * 10 / (rate * 12);
        let packets = 20_000;
        for number in 0..packets {
            offer(&mut path, number * gap, 1500, 0, number);
        }
        let mut departures = Vec::new();
        while let Some(packet) = path.pop_due(u64::MAX) {
            departures.push(packet.departure);
        }
        let (first, last) = (departures[0], departures[departures.len() - 1]);
        let measured = (departures.len() - 1) as f64 * 12_000.0 * 1e9 / (last - first) as f64;
        assert!(
            (measured / rate as f64 - 1.0).abs() < 0.001,
            "{rate}: {measured}"
        );
        assert_eq!(departures.len() as u64 + path.stats.counters.tail, packets);
        assert!(path.stats.counters.tail > packets / 10);
    }
}

#[test]
fn rounding_does_not_accumulate() {
    // 1500 B at 7 Mbit/s take 1714285.714... ns.
    let mut path = Path::new(Params {
        rate_bps: Some(7_000_000),
        queue_bytes: u64::MAX,
        ..params()
    });
    for number in 0..70_000 {
        offer(&mut path, 0, 1500, 0, number);
    }
    let last = path.in_flight.back().map(|packet| packet.departure);
    assert_eq!(last, Some(70_000 * 12_000 * NS_PER_S / 7_000_000));
}

#[test]
fn queue_drops_exactly_above_its_bytes() {
    let mut path = Path::new(Params {
        queue_bytes: 4500,
        ..params()
    });
    let verdicts: Vec<Verdict> = (0..4)
        .map(|index| offer(&mut path, 0, 1500, 0, index).verdict)
        .collect();
    assert_eq!(
        verdicts,
        [
            Verdict::Delivered,
            Verdict::Delivered,
            Verdict::Delivered,
            Verdict::Tail
        ]
    );
    assert_eq!(path.stats.queue_peak_bytes, 4500);
    let mut path = Path::new(Params {
        queue_bytes: 4499,
        ..params()
    });
    let verdicts: Vec<Verdict> = (0..3)
        .map(|index| offer(&mut path, 0, 1500, 0, index).verdict)
        .collect();
    assert_eq!(
        verdicts,
        [Verdict::Delivered, Verdict::Delivered, Verdict::Tail]
    );
    // A smaller packet still fits.
    assert_eq!(offer(&mut path, 0, 1499, 0, 3).verdict, Verdict::Delivered);
}

#[test]
fn occupancy_falls_when_a_packet_is_fully_serialised_and_not_before() {
    let mut path = Path::new(Params {
        queue_bytes: 3000,
        ..params()
    });
    offer(&mut path, 0, 1500, 0, 0);
    offer(&mut path, 0, 1500, 0, 1);
    assert_eq!(
        offer(&mut path, 599_999, 1500, 0, 2),
        Decision {
            verdict: Verdict::Tail,
            occupancy: 3000
        }
    );
    assert_eq!(
        offer(&mut path, 600_000, 1500, 0, 3),
        Decision {
            verdict: Verdict::Delivered,
            occupancy: 1500
        }
    );
}

#[test]
fn aqm_marks_capable_packets_and_drops_others_from_the_threshold_on() {
    let mut path = Path::new(Params {
        ecn_threshold_bytes: Some(3000),
        ..params()
    });
    let mut verdicts = Vec::new();
    for (index, tos) in [0, 2, 0, 1, 2, 3].into_iter().enumerate() {
        verdicts.push(offer(&mut path, 0, 1500, tos, index as u64).verdict);
    }
    assert_eq!(
        verdicts,
        [Delivered, Delivered, Aqm, Marked, Marked, Marked]
    );
    let bits: Vec<u8> = std::iter::from_fn(|| path.pop_due(u64::MAX))
        .map(|packet| {
            assert!(checksum_is_right(&packet.bytes));
            packet.bytes[1] & 3
        })
        .collect();
    assert_eq!(bits, [0, 2, 3, 3, 3]);
}

#[test]
fn loss_comes_first_and_takes_no_queue() {
    let loss = Some(Loss::Pattern {
        indices: vec![0, 2],
        count: Count::Packets,
    });
    let mut path = Path::new(Params {
        queue_bytes: 1500,
        loss,
        ..params()
    });
    let verdicts: Vec<Verdict> = (0..4)
        .map(|index| offer(&mut path, 0, 1500, 0, index).verdict)
        .collect();
    assert_eq!(
        verdicts,
        [
            Verdict::Loss,
            Verdict::Delivered,
            Verdict::Loss,
            Verdict::Tail
        ]
    );
}

#[test]
fn no_room_drops_what_would_have_been_carried() {
    let mut path = Path::new(params());
    let mut packet = udp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0, 100);
    let header = parse(&packet).expect("a packet");
    let (flow, _) = FlowTable::default().arrive(&header, 0);
    let arrival = Arrival {
        now: 0,
        bytes: &mut packet,
        ecn: header.ecn,
        flow,
        key: header.flow,
        position: Position {
            index: 0,
            payload: None,
        },
        is_admitted: true,
    };
    assert_eq!(
        path.offer(arrival, false, Vec::new).verdict,
        Verdict::Overflow
    );
    assert_eq!(path.in_flight(), 0);
}

#[test]
fn new_parameters_never_reorder() {
    let mut path = Path::new(params());
    offer(&mut path, 0, 1500, 0, 0);
    path.set_params(Params {
        delay_ns: MS,
        rate_bps: None,
        ..params()
    });
    offer(&mut path, 1, 1500, 0, 1);
    let first = path.pop_due(u64::MAX).expect("a packet");
    let second = path.pop_due(u64::MAX).expect("a packet");
    assert_eq!((first.index, second.index), (0, 1));
    assert!(first.due <= second.due);
    offer(&mut path, 100 * MS, 1500, 0, 2);
    assert_eq!(path.next_due(), Some(101 * MS));
}

fn any_params() -> impl Strategy<Value = Params> {
    let rate = proptest::option::of(1_000u64..2_000_000_000);
    let loss = proptest::option::of((0.0f64..1.0, any::<u64>()));
    let threshold = proptest::option::of(0u64..100_000);
    (
        0u64..100 * MS,
        0u64..MS,
        rate,
        1500u64..200_000,
        loss,
        threshold,
    )
        .prop_map(
            |(delay_ns, compensation_ns, rate_bps, queue_bytes, loss, ecn_threshold_bytes)| {
                Params {
                    delay_ns,
                    compensation_ns,
                    rate_bps,
                    queue_bytes,
                    loss: loss.map(|(probability, seed)| Loss::Random { probability, seed }),
                    policer: None,
                    ecn_threshold_bytes,
                    rewrite: Vec::new(),
                }
            },
        )
}

proptest! {
    #[test]
    fn packets_are_conserved_in_order_and_the_queue_is_bounded(
        params in any_params(),
        later in any_params(),
        steps in proptest::collection::vec((0u64..2 * MS, 28usize..=1500, 0u8..4, any::<bool>()), 1..300),
    ) {
        let limit = params.queue_bytes.max(later.queue_bytes);
        let (half, mut now, mut last_due) = (steps.len() / 2, 0, 0);
        let mut path = Path::new(params);
        for (number, (gap, length, tos, drain)) in steps.into_iter().enumerate() {
            if number == half {
                path.set_params(later.clone());
            }
            now += gap;
            offer(&mut path, now, length, tos, number as u64);
            // Without a rate there is no queue: what comes then waits behind what the rate before left.
            prop_assert!(path.params.rate_bps.is_none() || path.occupancy <= limit.max(1500));
            while let Some(packet) = path.next_due().filter(|_| drain).and_then(|_| path.pop_due(now)) {
                prop_assert!(packet.arrived <= packet.departure && packet.departure <= packet.due);
                prop_assert!(packet.due >= last_due && packet.due <= now);
                last_due = packet.due;
                path.finish(&packet, now, number % 7 > 0);
            }
            let counters = path.stats.counters;
            prop_assert_eq!(counters.in_packets, counters.ended() + path.in_flight() as u64);
        }
        while let Some(packet) = path.pop_due(u64::MAX) {
            path.finish(&packet, packet.due, true);
        }
        prop_assert_eq!(path.stats.counters.in_packets, path.stats.counters.ended());
        prop_assert_eq!(path.occupancy, 0);
    }
}
