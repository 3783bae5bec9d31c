//! A server that may send anything: packets as they are, and segments near each other in sequence space. Every probe ends.
#![no_main]

use iwprobe::packet::{Checksum, parse};
use iwprobe::probe::{Mode, Plan, Probe};
use iwprobe::segment::{Outgoing, Segment, Sink};
use iwprobe::wire::{Request, reply_bytes, write_reply};
use libfuzzer_sys::fuzz_target;

const MS: u64 = 1_000_000;

struct Count(u32);

impl Sink for Count {
    fn send(&mut self, _: Outgoing<'_>) {
        self.0 += 1;
    }

    fn tell_when_left(&mut self) {}
}

fuzz_target!(|data: &[u8]| {
    let _ = parse(data, "198.18.0.1".parse().unwrap(), Checksum::Trust);
    let _ = parse(data, "fd00:198:18::1".parse().unwrap(), Checksum::Verify);
    let _ = Request::read(data);
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let mode = [Mode::Window, Mode::Fetch, Mode::Again][usize::from(first % 3)];
    let plan = Plan {
        mode,
        mss: 64,
        limit: 15_000 * MS,
        ack_every: 2,
        idle: 500 * MS,
        most_bytes: 600_000,
        arrivals: 8,
        device_payload: 1_460,
        ..Plan::default()
    };
    let (mut probe, mut sent, mut now) = (Probe::default(), Count(0), MS);
    probe.talk.reset(None);
    probe
        .talk
        .request
        .extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    probe.begin(plan, 7, now, &mut sent);
    let syn_ack = Segment {
        seq: 0xffff_fff0,
        ack: 8,
        flags: 0x12,
        scale: Some(7),
        ..Segment::default()
    };
    probe.on_segment(&syn_ack, now, now, &mut sent);
    for piece in rest.chunks_exact(6).take(2_000) {
        now += u64::from(piece[0]) * 4 * MS;
        while probe.verdict().is_none() && probe.wake() <= now {
            probe.on_timer(now, &mut sent);
        }
        let payload = &rest[..usize::from(piece[4]).min(rest.len())];
        let segment = Segment {
            seq: 0xffff_fff1_u32
                .wrapping_add(u32::from(piece[1]) * 16 + u32::from(piece[2]) * 4_096),
            ack: 8 + u32::from(piece[3]),
            flags: piece[5] & 0x15,
            length: payload.len() as u32,
            payload,
            ..Segment::default()
        };
        probe.on_segment(&segment, now, now, &mut sent);
    }
    for _ in 0..100 {
        now += 1_000 * MS;
        probe.on_timer(now, &mut sent);
    }
    let verdict = probe.verdict().expect("it ends");
    assert!(probe.flight.segments() <= probe.flight.extent());
    let mut reply = Vec::new();
    write_reply(1, verdict, &probe, 8, &mut reply);
    assert_eq!(reply.len(), reply_bytes(8));
});
