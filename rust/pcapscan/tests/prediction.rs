//! The fast path through the engine (`src/plain.rs`) and the full one leave the same records and rows behind.

use pcapscan::{Capture, CsvWriter, Engine, Record, Rules, Settings};
use std::path::{Path, PathBuf};

fn scan(path: &Path, rules: Rules, without_prediction: bool) -> (Vec<Record>, Vec<u8>) {
    let settings = Settings {
        rules,
        without_prediction,
        ..Settings::default()
    };
    let mut capture = Capture::open(path).unwrap();
    let mut engine = Engine::new(settings);
    let mut rows = Vec::new();
    let mut writer = CsvWriter::new(&mut rows);
    engine.run(&mut capture, &mut writer, u64::MAX);
    writer.finish().unwrap();
    let records = engine
        .connections()
        .map(|connection| Record::new(connection, false));
    (records.collect(), rows)
}

#[test]
fn both_ways_agree_on_every_sample_capture() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: no sample captures in {}", folder.display());
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        for rules in [Rules::V4_0, Rules::V4_4] {
            let (short, short_rows) = scan(&path, rules, false);
            let (full, full_rows) = scan(&path, rules, true);
            for (one, other) in short.iter().zip(&full) {
                assert_eq!(one, other, "{}", path.display());
            }
            assert!(short_rows == full_rows, "{}", path.display());
        }
    }
}
