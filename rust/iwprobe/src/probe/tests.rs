//! The state machine against a model of a server, whose flight the path reorders, duplicates and loses.

use proptest::prelude::*;

use super::*;
use crate::segment::{ACK, Outgoing, PSH};

const RTT: u64 = 20 * MS;
const TIMEOUT: u64 = 220 * MS;
const ISN: u32 = 0xffff_fff0;

/// What the probe sent: flags, sequence and acknowledgement number, window, payload; whether it is told of the last one.
#[derive(Default)]
struct Sent(Vec<(u8, u32, u32, u16, Vec<u8>)>, bool);

impl Sink for Sent {
    fn send(&mut self, segment: Outgoing<'_>) {
        let Outgoing {
            seq,
            ack,
            flags,
            window,
            payload,
            ..
        } = segment;
        self.0.push((flags, seq, ack, window, payload.to_vec()));
    }

    fn tell_when_left(&mut self) {
        self.1 = true;
    }
}

struct World {
    probe: Probe,
    sent: Sent,
    now: u64,
    server_isn: u32,
    mss: u32,
    /// How long what the probe is told of waits, and when it leaves.
    waits: u64,
    leaves: Option<u64>,
}

impl World {
    /// A probe whose request was just sent.
    fn with_request(server_isn: u32, mss: u16, scale: Option<u8>, mode: Mode) -> Self {
        let mut world = Self::begun(server_isn, mss, mode);
        world.now += RTT;
        let segment = Segment {
            seq: server_isn,
            ack: ISN.wrapping_add(1),
            flags: SYN | ACK,
            mss: Some(1460),
            scale,
            ..Segment::default()
        };
        world.segment(&segment);
        world
    }

    fn begun(server_isn: u32, mss: u16, mode: Mode) -> Self {
        let mut probe = Probe::default();
        probe.talk.reset(None);
        probe
            .talk
            .request
            .extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        let plan = Plan {
            mode,
            mss,
            limit: 15_000 * MS,
            ack_every: 2,
            idle: 500 * MS,
            most_bytes: 600_000,
            arrivals: 4_096,
            device_payload: 1_460,
            ..Plan::default()
        };
        let mut world = Self {
            probe,
            sent: Sent::default(),
            now: 1_000 * MS,
            server_isn,
            mss: u32::from(mss),
            waits: 0,
            leaves: None,
        };
        world.probe.begin(plan, ISN, world.now, &mut world.sent);
        world.leave();
        world
    }

    fn segment(&mut self, segment: &Segment) {
        self.probe
            .on_segment(segment, self.now, self.now, &mut self.sent);
        self.leave();
    }

    /// What was sent leaves, if it is time.
    fn leave(&mut self) {
        if std::mem::take(&mut self.sent.1) {
            self.leaves = Some(self.now + self.waits);
        }
        if let Some(at) = self.leaves.take_if(|at| *at <= self.now) {
            self.probe.on_left(at);
        }
    }

    /// Data of the server from an offset of its stream.
    fn data(&mut self, offset: u32, length: u32, flags: u8) {
        let payload = vec![b'x'; length as usize];
        let segment = Segment {
            seq: self.server_isn.wrapping_add(1).wrapping_add(offset),
            ack: self.probe.next(),
            flags: ACK | flags,
            length,
            payload: &payload,
            ..Segment::default()
        };
        self.segment(&segment);
    }

    /// Time passes, with its timers.
    fn wait(&mut self, time: u64) {
        let until = self.now + time;
        loop {
            let next = self.leaves.unwrap_or(u64::MAX).min(self.probe.wake());
            if self.probe.verdict().is_some() || next > until {
                break;
            }
            self.now = self.now.max(next);
            self.probe.on_timer(self.now, &mut self.sent);
            self.leave();
        }
        self.now = until;
    }

    fn count(&self, flags: u8) -> usize {
        self.sent.0.iter().filter(|sent| sent.0 == flags).count()
    }

    /// The whole flight, in some order, then retransmissions of the first segment until it is over. The server has more.
    fn flight(&mut self, order: &[u32], last: u32) -> Option<Verdict> {
        self.now += RTT;
        let began = self.now;
        for (at, index) in (0..).zip(order) {
            self.now = began + at * MS / 10;
            self.data(index * self.mss, self.mss.min(last - index * self.mss), 0);
        }
        for timeout in [TIMEOUT, 3 * TIMEOUT, 7 * TIMEOUT] {
            let acks = self.count(ACK);
            self.wait((began + timeout).saturating_sub(self.now));
            self.data(0, self.mss.min(last), 0);
            if self.count(ACK) > acks {
                let acked = self.sent.0.last().map_or(0, |sent| sent.2);
                let offset = acked.wrapping_sub(self.server_isn.wrapping_add(1));
                self.now += RTT;
                self.data(offset, self.mss, 0);
                break;
            }
        }
        self.probe.verdict()
    }
}

fn in_order(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn ack_and_request_are_segments_of_their_own_and_no_ack_moves() {
    let mut world = World::with_request(7, 64, Some(7), Mode::Window);
    let first: Vec<_> = world
        .sent
        .0
        .iter()
        .map(|sent| (sent.0, sent.1, sent.2))
        .collect();
    let ours = ISN.wrapping_add(1);
    assert_eq!(first, [(SYN, ISN, 0), (ACK, ours, 8), (ACK | PSH, ours, 8)]);
    assert_eq!(world.flight(&in_order(10), 640), Some(Verdict::Limited));
    let acks: Vec<_> = world.sent.0[3..]
        .iter()
        .map(|sent| (sent.0, sent.2, sent.3))
        .collect();
    assert_eq!(
        acks,
        [(ACK, 648, 16), (RST, 0, 0)],
        "one ACK, with a window of two segments; one RST"
    );
    let numbers = &world.probe.numbers;
    assert_eq!(
        (numbers.rtt, numbers.retransmission),
        (Some(RTT), Some(TIMEOUT))
    );
    assert_eq!(
        (world.probe.flight.segments(), world.probe.flight.extent()),
        (10, 640)
    );
}

#[test]
fn windows_up_to_4096_segments_and_numbers_that_wrap() {
    for count in [1, 2, 3, 10, 100, 1_000, 4_096] {
        for server_isn in [0, u32::MAX - 100, u32::MAX / 2 - 5] {
            let mut world = World::with_request(server_isn, 64, Some(0), Mode::Window);
            assert_eq!(
                world.flight(&in_order(count), count * 64),
                Some(Verdict::Limited)
            );
            assert_eq!(world.probe.flight.segments(), count);
        }
    }
}

#[test]
fn a_silence_is_needed_for_a_hole_and_none_for_a_segment_that_was_seen() {
    // The first segment is lost: one timeout is enough.
    let mut world = World::with_request(9, 536, Some(7), Mode::Window);
    assert_eq!(world.flight(&[1, 2, 3, 4], 5 * 536), Some(Verdict::Limited));
    assert_eq!(
        (world.probe.flight.segments(), world.probe.flight.holes()),
        (5, 1)
    );
    // It was overtaken by others: not the end.
    let mut world = World::with_request(9, 536, Some(7), Mode::Window);
    world.now += RTT;
    world.data(536, 536, 0);
    world.now += 100 * MS;
    world.data(0, 536, 0);
    assert!(world.probe.flight.segments() == 2 && world.count(ACK) == 1);
    // A slow bottleneck: the retransmission follows the last segment at once.
    let mut world = World::with_request(9, 1200, Some(7), Mode::Window);
    for index in 0..100 {
        world.now += 24 * MS / 10;
        world.data(index * 1200, 1200, 0);
    }
    world.now += MS;
    world.data(0, 1200, 0);
    assert!(world.count(ACK) == 2 && world.probe.flight.segments() == 100);
}

#[test]
fn too_little_data() {
    let ends = |finish: &dyn Fn(&mut World)| {
        let mut world = World::with_request(1, 64, Some(7), Mode::Window);
        world.now += RTT;
        finish(&mut world);
        world.wait(16_000 * MS);
        (world.probe.verdict(), world.probe.flight.extent())
    };
    let nothing_new = |world: &mut World| {
        world.data(0, 64, 0);
        world.now += TIMEOUT;
        world.data(0, 64, 0);
    };
    assert_eq!(ends(&nothing_new), (Some(Verdict::LowerBound), 64));
    assert_eq!(
        ends(&|world| world.data(0, 50, FIN)),
        (Some(Verdict::LowerBound), 50)
    );
    assert_eq!(
        ends(&|world| world.data(0, 0, FIN)),
        (Some(Verdict::NoData), 0)
    );
    assert_eq!(
        ends(&|world| world.data(0, 0, RST)),
        (Some(Verdict::Reset), 0)
    );
    assert_eq!(ends(&|_| ()), (Some(Verdict::NoData), 0));
    let byte_by_byte = |world: &mut World| {
        for index in 0..5 {
            world.data(index, 1, 0);
            world.now += 50 * MS;
        }
        world.data(0, 5, 0);
        world.data(5, 1, 0);
    };
    assert_eq!(ends(&byte_by_byte).0, Some(Verdict::LowerBound));
    let outside = |world: &mut World| world.data(600_000, 64, 0);
    assert_eq!(ends(&outside), (Some(Verdict::NoData), 0));
}

#[test]
fn more_than_the_most_bytes_ends_it_wherever_they_lie() {
    // Beyond our window; before the flight; the same ones again.
    for start in [600_000, 0_u32.wrapping_sub(100_000), 64] {
        let mut world = World::with_request(1, 64, Some(7), Mode::Window);
        world.now += RTT;
        world.data(0, 64, 0);
        for _ in 0..600_000 / 1_000 - 1 {
            world.data(start, 1_000, 0);
            assert_eq!(world.probe.verdict(), None, "{start}");
        }
        world.data(start, 1_000, 0);
        assert_eq!(world.probe.verdict(), Some(Verdict::LowerBound), "{start}");
        assert_eq!(world.count(RST), 1);
    }
}

#[test]
fn a_server_without_window_scaling_is_limited_by_our_window() {
    let mut world = World::with_request(1, 1200, None, Mode::Window);
    assert_eq!(
        world.flight(&in_order(54), 54 * 1200),
        Some(Verdict::WindowBound)
    );
    let mut world = World::with_request(1, 1200, Some(0), Mode::Window);
    assert_eq!(
        world.flight(&in_order(54), 54 * 1200),
        Some(Verdict::Limited)
    );
}

#[test]
fn what_is_lost_is_sent_again_the_syn_after_3_s_and_a_half_the_request_after_1_s() {
    let mut world = World::begun(1, 64, Mode::Window);
    world.wait(3_499 * MS);
    assert_eq!(world.count(SYN), 1);
    world.wait(2 * MS);
    assert_eq!(world.count(SYN), 2);
    world.wait(12_000 * MS);
    assert_eq!(
        (world.probe.verdict(), world.count(RST)),
        (Some(Verdict::ConnectTimeout), 0)
    );

    let mut world = World::with_request(1, 64, Some(7), Mode::Window);
    world.wait(15_000 * MS);
    assert_eq!(world.count(ACK | PSH), 3, "the request, and twice again");
    assert_eq!(
        (world.probe.verdict(), world.count(RST)),
        (Some(Verdict::NoData), 2)
    );
    assert!(world.probe.numbers.notes & note::HELD_UP != 0);
}

#[test]
fn an_ack_that_was_lost_is_sent_again() {
    let mut world = World::with_request(1, 64, Some(7), Mode::Window);
    world.now += RTT;
    world.data(0, 64, 0);
    for timeout in [TIMEOUT, 2 * TIMEOUT] {
        world.now += timeout;
        world.data(0, 64, 0);
    }
    assert_eq!(world.count(ACK), 3);
    world.data(64, 64, 0);
    assert_eq!(world.probe.verdict(), Some(Verdict::Limited));
}

#[test]
fn data_that_was_written_after_our_ack_is_no_limit_of_the_window() {
    for (ack_delay, waits, after, verdict) in [
        (0, 0, RTT, Verdict::Limited),
        (0, 0, 2 * RTT + 100 * MS, Verdict::Limited),
        (0, 0, 2 * RTT + 101 * MS, Verdict::LowerBound),
        (0, 0, 280 * MS, Verdict::LowerBound),
        (100, 0, 280 * MS, Verdict::Limited),
        // A rate made our ACK wait.
        (0, 200 * MS, 280 * MS, Verdict::Limited),
        (0, 200 * MS, 190 * MS, Verdict::LowerBound),
    ] {
        let mut world = World::with_request(1, 64, Some(7), Mode::Window);
        world.probe.plan.ack_delay = ack_delay * MS;
        world.waits = waits;
        world.now += RTT;
        // A head of HTTP in five segments; its body comes after the timeout.
        (0..5).for_each(|index| world.data(64 * index, if index < 4 { 64 } else { 44 }, 0));
        world.now += TIMEOUT;
        world.data(0, 64, 0);
        world.wait(after);
        world.data(300, 64, 0);
        assert_eq!(
            world.probe.verdict(),
            Some(verdict),
            "{ack_delay} {waits} {after}"
        );
    }
}

#[test]
fn what_nagles_algorithm_held_back_is_no_limit_of_the_window() {
    // Linux 6.18: a head of 200 bytes, its body by another write; the flight's segments, and what came after our ACK.
    for (mss, flight, then, verdict) in [
        (1_200, &[200][..], 600, Verdict::LowerBound),
        (1_200, &[200, 1_200, 1_200], 600, Verdict::LowerBound),
        (536, &[200, 536, 536], 320, Verdict::LowerBound),
        (536, &[200, 536, 536], 536, Verdict::Limited),
        (536, &[536, 536, 536], 1, Verdict::Limited), // by one write: it is not held back
        (1_200, &[536], 536, Verdict::Limited),       // a server's own MSS, and a window of 1
    ] {
        let mut world = World::with_request(1, mss, Some(7), Mode::Window);
        world.now += RTT;
        let mut end = 0;
        for length in flight {
            world.data(end, *length, 0);
            end += length;
        }
        world.now += TIMEOUT;
        world.data(0, flight[0], 0);
        world.now += RTT;
        world.data(end, then, 0);
        assert_eq!(world.probe.verdict(), Some(verdict), "{flight:?} {then}");
    }
}

#[test]
fn after_a_pause_an_ack_with_a_larger_window_brings_what_was_deferred() {
    for (pause, reminders) in [(0, 0), (9, 0), (11, 1), (60, 1)] {
        let mut world = World::with_request(1, 64, Some(7), Mode::Window);
        world.now += RTT;
        (0..5).for_each(|index| world.data(64 * index, 64, 0));
        world.wait(pause * MS);
        (5..9).for_each(|index| world.data(64 * index, 64, 0));
        world.wait(11 * MS);
        assert_eq!(world.count(ACK), 1 + reminders, "{pause}");
        // The last one of the window, and again a silence.
        world.wait(RTT);
        world.data(576, 64, 0);
        world.wait(20 * MS);
        let acks: Vec<_> = world.sent.0.iter().filter(|sent| sent.0 == ACK).collect();
        assert!(acks.iter().all(|ack| ack.2 == 2), "nothing is acknowledged");
        assert!(
            acks.is_sorted_by(|one, next| one.3 < next.3),
            "no duplicates"
        );
        world.now += TIMEOUT;
        world.data(0, 64, 0);
        world.now += RTT;
        world.data(640, 64, 0);
        assert_eq!(
            (world.probe.verdict(), world.probe.flight.segments()),
            (Some(Verdict::Limited), 10)
        );
    }
}

#[test]
fn data_that_arrived_before_our_ack_left_is_no_limit_of_the_window() {
    for (early, verdict) in [(0, Verdict::Limited), (MS, Verdict::LowerBound)] {
        let mut world = World::with_request(1, 64, Some(7), Mode::Window);
        world.now += RTT;
        (0..5).for_each(|index| world.data(64 * index, 64, 0));
        world.now += TIMEOUT;
        world.data(0, 64, 0);
        // It was read only then.
        world.probe.on_left(world.now + early);
        world.data(320, 64, 0);
        assert_eq!(world.probe.verdict(), Some(verdict), "{early}");
    }
}

fn syn_ack() -> Segment<'static> {
    Segment {
        seq: 1,
        ack: ISN.wrapping_add(1),
        flags: SYN | ACK,
        ..Segment::default()
    }
}

#[test]
fn the_round_trip_begins_when_the_syn_leaves() {
    let mut world = World::begun(1, 1_200, Mode::Window);
    world.probe.on_left(world.now + 70 * MS);
    world.now += 70 * MS + RTT;
    world.segment(&syn_ack());
    assert_eq!(world.probe.numbers.rtt, Some(RTT));
}

#[test]
fn a_download_has_an_ack_every_k_segments_and_the_second_answer_none() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 460\r\n\r\n"; // 40 bytes
    let answer = [&head[..], &[b'x'; 460]].concat();
    let mut world = World::with_request(1, 50, Some(7), Mode::Again);
    for (index, part) in (0_u32..).zip(answer.chunks(50)) {
        let segment = Segment {
            seq: 2 + 50 * index,
            ack: world.probe.next(),
            flags: ACK,
            length: 50,
            payload: part,
            ..Segment::default()
        };
        world.segment(&segment);
    }
    let acks: Vec<_> = world.sent.0[3..]
        .iter()
        .map(|sent| (sent.0, sent.2))
        .collect();
    assert_eq!(
        acks,
        [
            (ACK, 102),
            (ACK, 202),
            (ACK, 302),
            (ACK, 402),
            (ACK, 502),
            (ACK, 502)
        ]
    );
    world.wait(500 * MS);
    assert_eq!(world.count(ACK | PSH), 2, "asked again");
    world.server_isn += 500;
    assert_eq!(world.flight(&in_order(7), 7 * 50), Some(Verdict::Limited));
    assert_eq!(world.probe.flight.segments(), 7);
}

#[test]
fn a_download_is_whole_however_much_came_before_what_was_lost() {
    let body = vec![b'x'; 100_000];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = [head.as_bytes(), &body].concat();
    for mode in [Mode::Fetch, Mode::Again] {
        let mut world = World::with_request(1, 1_200, Some(7), mode);
        let mut parts: Vec<_> = (0_u32..).zip(answer.chunks(1_200)).collect();
        let lost = parts.remove(1);
        parts.push(lost);
        for (index, payload) in parts {
            let segment = Segment {
                seq: 2 + 1_200 * index,
                ack: world.probe.next(),
                flags: ACK,
                length: u32::try_from(payload.len()).unwrap(),
                payload,
                ..Segment::default()
            };
            world.segment(&segment);
        }
        assert!(world.probe.talk.answer.is_complete());
        let complete = world.probe.verdict() == Some(Verdict::Complete);
        assert_eq!(complete, mode == Mode::Fetch);
    }
}

#[test]
fn a_delayed_ack() {
    let mut world = World::begun(1, 1200, Mode::Window);
    world.probe.plan.ack_delay = 100 * MS;
    world.segment(&syn_ack());
    world.wait(99 * MS);
    assert_eq!(world.sent.0.len(), 1);
    world.wait(MS);
    assert_eq!((world.count(ACK), world.count(ACK | PSH)), (1, 1));
}

proptest! {
    #[test]
    fn no_order_duplication_or_loss_gives_more_and_only_a_lost_end_less(
        count in 1_u32..120,
        cut in 0_u32..64,
        server_isn: u32,
        shuffle in prop::collection::vec((any::<u16>(), any::<bool>(), 0_u8..10), 120),
        losses in prop::bool::ANY,
    ) {
        let truth = count * 64 - if count > 1 { cut } else { 0 };
        let mut arrivals: Vec<(u16, u32)> = Vec::new();
        let mut keeps_last = false;
        for (index, (place, doubled, luck)) in (0..count).zip(&shuffle) {
            if losses && *luck < 3 {
                continue;
            }
            keeps_last |= index == count - 1;
            arrivals.push((*place, index));
            if *doubled {
                arrivals.push((place.rotate_left(5), index));
            }
        }
        arrivals.sort_unstable();
        let order: Vec<u32> = arrivals.iter().map(|arrival| arrival.1).collect();
        let mut world = World::with_request(server_isn, 64, Some(7), Mode::Window);
        let verdict = world.flight(&order, truth);
        let (extent, segments) = (world.probe.flight.extent(), world.probe.flight.segments());
        prop_assert!(extent <= truth && segments <= count);
        if keeps_last {
            prop_assert_eq!(verdict, Some(Verdict::Limited));
            prop_assert_eq!((extent, segments), (truth, count));
        }
    }

    #[test]
    fn whatever_arrives_it_ends_in_time(
        events in prop::collection::vec((any::<u32>(), 0_u8..64, 0_u32..3_000, 0_u64..800), 0..60),
        mode in prop::sample::select(vec![Mode::Window, Mode::Fetch, Mode::Again]),
    ) {
        let mut world = World::with_request(1, 64, Some(7), mode);
        for (seq, flags, length, after) in events {
            world.wait(after * MS);
            let payload = vec![0; length as usize];
            let segment = Segment {
                seq: if seq % 3 == 0 { seq } else { 2 + seq % 5_000 },
                ack: world.probe.next(),
                flags,
                length,
                payload: &payload,
                ..Segment::default()
            };
            world.segment(&segment);
        }
        world.wait(16_000 * MS);
        prop_assert!(world.probe.verdict().is_some());
        prop_assert!(world.probe.numbers.total <= 15_000 * MS);
        prop_assert!(world.probe.flight.segments() <= world.probe.flight.extent());
    }
}
