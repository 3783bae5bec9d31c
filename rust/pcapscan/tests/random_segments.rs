//! Random segments near each other in sequence space: the fast path and the full one agree there too, nothing panics,
//! and shifting all sequence numbers across the wrap changes nothing.

use pcapscan::testing::{Packet, Writer};
use pcapscan::{Capture, CsvWriter, Engine, Record, Rules, Settings};
use std::io::Cursor;

/// `SplitMix64`: the tests need no more, and stay the same for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).unwrap()
    }
}

const FLAGS: [u16; 10] = [0x10, 0x10, 0x10, 0x10, 0x18, 0x11, 0x02, 0x12, 0x04, 0x50];

fn packets(seed: u64, shift: u32) -> Vec<Packet> {
    let mut random = Random(seed);
    let (mut next, mut time_ns) = ([1000u32, 5000u32], 1_000_000_000u64);
    let mut packets = Vec::new();
    let plain_share = random.below(100);
    for number in 0..300u16 {
        let from_client = random.below(3) == 0;
        let side = usize::from(from_client);
        let is_plain = random.below(100) < plain_share;
        let flags = if is_plain {
            0x10
        } else {
            FLAGS[random.below(10) as usize]
        };
        let len = if is_plain && from_client {
            0
        } else {
            [0, 0, 1, 100, 500][random.below(5) as usize]
        };
        let offset = if is_plain {
            0
        } else {
            [0, 0, 0, 1, 100, 500][random.below(6) as usize]
        };
        let behind = [0, 0, 1][random.below(3) as usize] * offset;
        let seq = next[side].wrapping_sub(behind);
        let ack_behind = if is_plain {
            0
        } else {
            [0, 0, 0, 100][random.below(4) as usize]
        };
        time_ns += u64::from(random.below(8_000_000));
        let stamp = u32::try_from(time_ns / 1_000_000).unwrap();
        packets.push(Packet {
            time_ns,
            from_client,
            seq: seq.wrapping_add(shift),
            ack: next[side ^ 1].wrapping_sub(ack_behind).wrapping_add(shift),
            flags,
            window: if is_plain {
                500
            } else {
                [0, 500, 500, 501][random.below(4) as usize]
            },
            len,
            id: number,
            timestamps: (random.below(50) > 0).then_some((stamp, stamp.wrapping_sub(5))),
        });
        let end = seq
            .wrapping_add(u32::from(len))
            .wrapping_add(u32::from(flags & 3 != 0));
        if end.wrapping_sub(next[side]) < 0x8000_0000 {
            next[side] = end;
        }
    }
    packets
}

fn scan(packets: &[Packet], rules: Rules, without_prediction: bool) -> (Vec<Record>, String) {
    let mut writer = Writer::default();
    for packet in packets {
        writer.packet(packet);
    }
    let mut capture = Capture::from_reader(Box::new(Cursor::new(writer.bytes().to_vec()))).unwrap();
    let mut engine = Engine::new(Settings {
        rules,
        without_prediction,
        ..Settings::default()
    });
    let mut rows = Vec::new();
    let mut csv = CsvWriter::new(&mut rows);
    engine.run(&mut capture, &mut csv, u64::MAX);
    csv.finish().unwrap();
    let records = engine
        .connections()
        .map(|connection| Record::new(connection, false));
    (records.collect(), String::from_utf8(rows).unwrap())
}

#[test]
fn short_and_full_way_agree() {
    for seed in 0..3000 {
        let packets = packets(seed, 0);
        for rules in [Rules::V4_0, Rules::V4_4] {
            assert_eq!(
                scan(&packets, rules, false),
                scan(&packets, rules, true),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn the_wrap_changes_nothing() {
    for seed in 0..1000 {
        let here = scan(&packets(seed, 1_000_000), Rules::V4_0, false);
        for k in [1u32, 2000, 6000, 9999] {
            // The sum must not hit 0, which Wireshark takes for "unset"; that case differs there too.
            let there = scan(
                &packets(seed, 0u32.wrapping_sub(k.wrapping_mul(7) | 1)),
                Rules::V4_0,
                false,
            );
            if !has_zero(&packets(seed, 0u32.wrapping_sub(k.wrapping_mul(7) | 1))) {
                assert_eq!(here, there, "seed {seed}, k {k}");
            }
        }
    }
}

/// Whether a number that Wireshark would take for "unset" occurs.
fn has_zero(packets: &[Packet]) -> bool {
    packets.iter().any(|packet| {
        let end = packet.seq.wrapping_add(u32::from(packet.len));
        [packet.seq, packet.ack, end, end.wrapping_add(1)].contains(&0)
    })
}
