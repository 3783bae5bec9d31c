//! Scans a capture and prints what a benchmark wants to know; `--csv` writes one row per packet instead.

use pcapscan::{Capture, CsvWriter, Engine, Settings};
use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let as_csv = arguments.iter().any(|argument| argument == "--csv");
    for path in arguments
        .iter()
        .filter(|argument| !argument.starts_with("--"))
    {
        let mut capture = Capture::open(&PathBuf::from(path))?;
        let mut engine = Engine::new(Settings::default());
        if as_csv {
            let mut writer = CsvWriter::new(std::io::stdout().lock());
            engine.run(&mut capture, &mut writer, u64::MAX);
            writer.finish()?;
            continue;
        }
        engine.run(&mut capture, &mut (), u64::MAX);
        let bytes: u64 = engine
            .connections()
            .flat_map(|connection| &connection.sides)
            .map(|side| side.ip_bytes)
            .sum();
        println!(
            "{} packets, {} connections, {bytes} IP bytes",
            engine.frames,
            engine.connections().len()
        );
    }
    Ok(())
}
