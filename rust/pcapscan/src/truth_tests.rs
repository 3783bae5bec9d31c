use super::*;
use crate::holes::MOST_HOLES;

fn data(seq: u32, len: u32, tsval: u32) -> Segment<'static> {
    let mut segment = Segment {
        seq,
        len,
        has_len: true,
        has_options: true,
        ..Segment::default()
    };
    segment.options.timestamps = Some((tsval, 0));
    segment
}

fn syn(seq: u32) -> Segment<'static> {
    Segment {
        flags: flag::SYN | flag::ACK,
        ..data(seq, 0, 1)
    }
}

fn feed(packets: &[(u32, Option<u16>, u32)]) -> Vec<TrueClass> {
    let mut truth = Truth::default();
    packets
        .iter()
        .zip(0i64..)
        .map(|(&(seq, id, ts), at)| {
            truth
                .segment(&data(seq, 10, ts), id, at.cast_unsigned(), at * 1000, 0)
                .class
        })
        .collect()
}

#[test]
fn ip_id_tells_reordering_from_resending() {
    use TrueClass::{New, Reordered, Retransmission};
    let start = u32::MAX - 35;
    let at = |n: u32| start.wrapping_add(n * 10);
    let packets = [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (5, 6),
        (4, 5),
        (7, 8),
        (8, 9),
        (6, 10),
        (6, 11),
    ];
    let packets: Vec<_> = packets
        .iter()
        .map(|&(n, id)| (at(n), Some(id), 7))
        .collect();
    let expected = [
        New,
        New,
        New,
        New,
        New,
        Reordered,
        New,
        New,
        Retransmission,
        Retransmission,
    ];
    assert_eq!(feed(&packets), expected);
}

#[test]
fn tsval_where_ids_are_zero_or_missing() {
    use TrueClass::{Duplicate, New, Reordered, Retransmission};
    for id in [None, Some(0)] {
        let packets = [
            (0, id, 1),
            (20, id, 2),
            (10, id, 1),
            (40, id, 3),
            (30, id, 9),
            (30, id, 9),
        ];
        assert_eq!(
            feed(&packets),
            [New, New, Reordered, New, Retransmission, Duplicate]
        );
    }
}

#[test]
fn what_is_captured_twice_without_ids_is_a_duplicate_within_a_round_trip() {
    let again = |later_ns: i64, ticks: u32, rtt_ns: i64| {
        let mut truth = Truth::default();
        for number in 0..3 {
            truth.segment(&data(number * 10, 10, 7), None, 1, 0, rtt_ns);
        }
        let copy = data(20, 10, 7 + ticks);
        truth.segment(&copy, Some(0), 1, later_ns, rtt_ns).class
    };
    let ms = 1_000_000;
    for (later_ns, rtt_ns) in [
        (1_000, 0),
        (2 * ms, 0),
        (1_000, 50 * ms),
        (44 * ms, 50 * ms),
    ] {
        assert_eq!(again(later_ns, 0, rtt_ns), TrueClass::Duplicate);
        assert_eq!(again(later_ns, 250, rtt_ns), TrueClass::Retransmission);
    }
    for (later_ns, rtt_ns) in [(3 * ms, 0), (45 * ms, 50 * ms), (-1, 0)] {
        assert_eq!(again(later_ns, 0, rtt_ns), TrueClass::Retransmission);
    }
}

#[test]
fn what_fills_a_gap_once_more_is_judged_by_the_packet_that_opened_it() {
    use TrueClass::{New, Reordered, Retransmission};
    // 2 and 3 are overtaken by 4. Later 2 is retransmitted for nothing, and overtaken by 6: it is older than the newest
    // packet, but not than the one that opened the gap.
    let order = [
        (0, 1, New),
        (1, 2, New),
        (4, 5, New),
        (2, 3, Reordered),
        (3, 4, Reordered),
        (5, 6, New),
        (6, 8, New),
        (2, 7, Retransmission),
        (3, 4, Reordered), // the first one again: the network doubled it
    ];
    for ids in [true, false] {
        let packets: Vec<_> = order
            .iter()
            .map(|&(n, at, _)| {
                (
                    n * 10,
                    ids.then_some(at),
                    if ids { 7 } else { u32::from(at) },
                )
            })
            .collect();
        assert_eq!(feed(&packets), order.map(|(_, _, class)| class));
    }
}

#[test]
fn bytes_sent_again_are_counted_once_each() {
    let mut truth = Truth::default();
    truth.segment(&data(0, 100, 1), None, 1, 0, 0);
    assert_eq!(
        truth.segment(&data(50, 100, 5), None, 1, 1, 0),
        Verdict {
            class: TrueClass::Retransmission,
            again: 50,
            was_missing: true
        }
    );
    let whole = truth.segment(&data(0, 150, 6), None, 1, 2, 0);
    assert_eq!((whole.again, whole.was_missing), (150, false));
    truth.segment(&data(250, 100, 7), None, 1, 3, 0);
    let filler = truth.segment(&data(150, 100, 8), None, 1, 4, 0);
    assert_eq!((filler.again, filler.was_missing), (100, true));
    assert_eq!(
        truth.segment(&data(349, 1, 8), None, 1, 5, 0).class,
        TrueClass::KeepAlive
    );
    assert_eq!(
        truth.segment(&data(0x7000_0000, 1, 6), None, 1, 2, 0).class,
        TrueClass::OutOfWindow
    );
}

#[test]
fn a_syn_and_data_before_an_ack_may_be_captured_twice() {
    let mut truth = Truth::default();
    let (first, data, ack) = (syn(0), data(1, 10, 2), data(11, 0, 2));
    let packets = [(&first, 7), (&first, 7), (&data, 8), (&ack, 9), (&data, 8)];
    let classes = packets.map(|(segment, id)| truth.segment(segment, Some(id), 1, 0, 0).class);
    assert_eq!(
        classes,
        [
            TrueClass::New,
            TrueClass::Duplicate,
            TrueClass::New,
            TrueClass::None,
            TrueClass::Duplicate
        ]
    );
}

#[test]
fn a_copy_may_follow_other_packets() {
    for (id, tsval) in [(Some(9), None), (Some(0), Some(7)), (None, Some(7))] {
        let ids = |number: u16| id.map(|id| if id == 0 { 0 } else { id + number });
        let mut truth = Truth::default();
        truth.expect_copies();
        let packets = [0, 1, 2, 0, 1, 2].map(|number: u16| {
            let mut segment = data(u32::from(number) * 10, 10, 7);
            segment.options.timestamps = tsval.map(|tsval| (tsval, 0));
            (segment, ids(number))
        });
        let classes =
            packets.map(|(segment, id)| truth.segment(&segment, id, 1, 1000, 50_000_000).class);
        let (new, copy) = (TrueClass::New, TrueClass::Duplicate);
        assert_eq!(classes, [new, new, new, copy, copy, copy]);
    }
}

#[test]
fn copies_are_found_behind_two_gibibytes_of_a_connection() {
    let mut truth = Truth::default();
    let mut packet = 0;
    let mut take = |segment: &Segment<'_>, id: u16| {
        packet += 1;
        truth.segment(segment, Some(id), packet, 0, 0).class
    };
    take(&syn(0), 1);
    let mut seq = 1;
    for (id, len) in (2..).zip([1 << 29; 5].into_iter().chain([1448; 3])) {
        assert_eq!(take(&data(seq, len, 1), id), TrueClass::New);
        seq += len;
    }
    let copy = take(&data(seq - 3 * 1448, 1448, 1), 7);
    assert_eq!(copy, TrueClass::Duplicate);
}

#[test]
fn copies_are_found_where_none_follows_its_packet_at_once() {
    use TrueClass::{Duplicate, New, Reordered};
    let behind = |first: u32, order: &[(u32, u16)]| {
        let begin = (first..14).zip(2..);
        let packets = begin.chain(order.iter().copied());
        let packets: Vec<_> = packets.map(|(n, id)| (n * 10, Some(id), 7)).collect();
        feed(&packets).split_off(packets.len() - order.len())
    };
    assert_eq!(
        behind(10, &[(10, 2), (11, 3), (14, 6), (12, 4)]),
        [Duplicate, Duplicate, New, Duplicate]
    );
    // What the first packet of the capture overtook came once.
    assert_eq!(behind(10, &[(9, 1)]), [Reordered]);
    // Sent right before the newest one: not when its bytes were new, so this is no copy.
    assert_eq!(behind(10, &[(14, 7), (11, 6)]), [New, Reordered]);
}

#[test]
fn numbers_count_where_each_packet_is_captured_twice() {
    use TrueClass::{Duplicate, New, Retransmission};
    let order = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (4, 7)];
    let twice = order.iter().flat_map(|&one| [one, one]);
    let packets: Vec<_> = twice.map(|(n, id)| (n * 10, Some(id), 7)).collect();
    let (classes, mut expected) = (feed(&packets), [New, Duplicate].repeat(6));
    expected[10] = Retransmission;
    assert_eq!(classes, expected);
}

#[test]
fn a_counter_that_moves_by_more_than_one_wraps_sooner() {
    // Merged packets, a busy host, and a counter with its bytes swapped.
    for (step, late) in [(2, 18_000), (50, 700), (256, 130), (256, 200)] {
        let id = |n: u32| u16::try_from(n * step % 65_536).ok();
        let begin = (0..20).chain(21..20 + late);
        let mut packets: Vec<_> = begin.map(|n| (n * 10, id(n), 7)).collect();
        packets.push((200, id(20 + late), 7));
        let class = feed(&packets).pop();
        assert_eq!(class, Some(TrueClass::Retransmission), "{step} {late}");
    }
}

#[test]
fn of_two_syn_acks_the_one_holds_that_the_data_continues() {
    let first = 1000u32;
    for other in [
        first + 5_000_000,
        first.wrapping_sub(5_000_000),
        first.wrapping_add(1 << 31),
    ] {
        for held in [first, other] {
            let mut truth = Truth::default();
            let mut class = |segment| truth.segment(&segment, None, 1, 0, 0).class;
            let syns = [first, other, first, other].map(|isn| class(syn(isn)));
            assert_eq!(
                syns,
                [
                    TrueClass::New,
                    TrueClass::New,
                    TrueClass::Retransmission,
                    TrueClass::Retransmission
                ]
            );
            let at = |offset: u32| data(held.wrapping_add(1 + offset), 100, 2);
            let classes = [at(100), at(200), at(0), at(300)].map(&mut class);
            let expected = [
                TrueClass::New,
                TrueClass::New,
                TrueClass::Reordered,
                TrueClass::New,
            ];
            assert_eq!(classes, expected);
            for isn in [first, other] {
                class(syn(isn));
            }
            assert_eq!(truth.missing_bytes(), 0);
        }
    }
}

#[test]
fn holes_split_and_stay_bounded() {
    let mut truth = Truth::default();
    truth.segment(&data(0, 10, 1), None, 1, 0, 0);
    truth.segment(&data(100, 10, 1), None, 1, 0, 0);
    truth.segment(&data(40, 10, 1), None, 1, 0, 0);
    assert_eq!(truth.missing_bytes(), 80);
    for n in 0..2000 {
        truth.segment(&data(200 + n * 20, 10, 1), None, 1, 0, 0);
    }
    assert_eq!(truth.holes.len(), MOST_HOLES);
}
