//! Whole files: every reader, every header, all state, both rule sets; and both ways through the engine agree.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pcapscan::{Capture, CsvWriter, Engine, Record, Rules, Settings};
use std::io::{Cursor, Read};

fn scan(data: &[u8], settings: Settings) -> Option<(Vec<u8>, Vec<Record>)> {
    // A compressed file may be a bomb; the engine streams it, the fuzzer has to end.
    let source = Cursor::new(data.to_vec()).take(1 << 20);
    let mut capture = Capture::from_reader(Box::new(source)).ok()?;
    let mut engine = Engine::new(settings);
    let mut rows = Vec::new();
    let mut writer = CsvWriter::new(&mut rows);
    engine.run(&mut capture, &mut writer, 20_000);
    writer.finish().ok()?;
    let is_cut = engine.cut.is_some();
    let records = engine.connections().map(|connection| Record::new(connection, is_cut));
    Some((rows, records.collect()))
}

fuzz_target!(|data: &[u8]| {
    let short = scan(data, Settings::default());
    let full = scan(data, Settings { without_prediction: true, ..Settings::default() });
    assert!(short == full);
    scan(data, Settings { rules: Rules::V4_4, series: true, ..Settings::default() });
    scan(data, Settings { most_connections: 2, ..Settings::default() });
});
