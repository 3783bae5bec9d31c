//! TCP state: the input is read as a list of segments of one connection, near each other in sequence space.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pcapscan::testing::{Packet, Writer};
use pcapscan::{Capture, CsvWriter, Engine, Record, Rules, Settings};
use std::io::Cursor;

fn scan(bytes: &[u8], settings: Settings) -> (Vec<u8>, Vec<Record>) {
    let mut capture = Capture::from_reader(Box::new(Cursor::new(bytes.to_vec()))).unwrap();
    let mut engine = Engine::new(settings);
    let mut rows = Vec::new();
    let mut writer = CsvWriter::new(&mut rows);
    engine.run(&mut capture, &mut writer, u64::MAX);
    writer.finish().unwrap();
    let records = engine.connections().map(|connection| Record::new(connection, false));
    (rows, records.collect())
}

fuzz_target!(|data: &[u8]| {
    let mut writer = Writer::default();
    let mut time_ns = 1_000_000_000u64;
    for (number, piece) in data.chunks_exact(8).take(512).enumerate() {
        time_ns += u64::from(piece[0]) * 100_000;
        writer.packet(&Packet {
            time_ns,
            from_client: piece[1] & 1 != 0,
            seq: (u32::from(piece[2]) * 50).wrapping_add(u32::from(piece[1] >> 1 & 3) * 0x5555_5555),
            ack: u32::from(piece[3]) * 50,
            flags: u16::from(piece[4]) | u16::from(piece[1] >> 7) << 8,
            window: u16::from(piece[5] & 3) * 100,
            len: u16::from(piece[6] & 7) * 50 / 2,
            id: number as u16,
            timestamps: (piece[6] & 0x80 != 0).then_some((u32::from(piece[7] >> 4), u32::from(piece[7] & 15))),
        });
    }
    let short = scan(writer.bytes(), Settings::default());
    let full = scan(writer.bytes(), Settings { without_prediction: true, ..Settings::default() });
    assert!(short == full);
    scan(writer.bytes(), Settings { rules: Rules::V4_4, ..Settings::default() });
});
