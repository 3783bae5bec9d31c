//! Only the records: 64 KiB reads, the sum of all IP lengths. A lower bound for any engine.

use std::env;
use std::fs::File;
use std::io::Read;

const CHUNK: usize = 64 * 1024;

fn main() -> std::io::Result<()> {
    let path = env::args().nth(1).unwrap_or_default();
    let mut file = File::open(path)?;
    let mut buffer = vec![0u8; CHUNK];
    let (mut from, mut end, mut packets, mut bytes) = (24usize, 0usize, 0u64, 0u64);
    loop {
        let got = file.read(&mut buffer[end..])?;
        if got == 0 {
            break;
        }
        end += got;
        while from + 16 <= end {
            let at = from + 8;
            let length =
                u32::from_le_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]])
                    as usize;
            if from + 16 + length > end {
                break;
            }
            if length >= 18 {
                bytes += u64::from(u16::from_be_bytes([buffer[from + 32], buffer[from + 33]]));
            }
            packets += 1;
            from += 16 + length;
        }
        buffer.copy_within(from..end, 0);
        end -= from;
        from = 0;
    }
    println!("{packets} packets, {bytes} IP bytes");
    Ok(())
}
