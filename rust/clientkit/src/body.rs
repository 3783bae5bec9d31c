//! The hash of a body, computed without slowing the download: after it, or in a second thread.

use std::fmt::Write;
use std::mem;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use sha2::{Digest, Sha256};

/// What the second thread gets at a time, bytes.
const BLOCK: usize = 1 << 20;
/// A body up to this size is kept and hashed after the download; a longer one by a second thread meanwhile.
const KEPT: usize = 64 << 20;
/// Most blocks that wait for the second thread. With those that were kept, this bounds the memory.
const QUEUED_BLOCKS: usize = 16;

/// Takes a body in as it arrives; its SHA-256 afterwards. `downloader/programs/body.py` does the same.
#[derive(Default)]
pub(crate) struct Body {
    block: Vec<u8>,
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
    beside: Option<Beside>,
}

/// The second thread.
struct Beside {
    blocks: SyncSender<Vec<u8>>,
    hash: JoinHandle<Sha256>,
}

impl Body {
    /// Takes in bytes. Waits where the second thread is far behind.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        if self.block.len() < BLOCK {
            return;
        }
        let room = Vec::with_capacity(self.block.capacity());
        let block = mem::replace(&mut self.block, room);
        match &self.beside {
            // The receiver lives as long as the thread, which ends only with this sender.
            Some(beside) => drop(beside.blocks.send(block)),
            None => self.keep(block),
        }
    }

    /// The hash, in hexadecimal; to be asked for when nothing is timed any more.
    pub(crate) fn sha256(self) -> String {
        let mut hash = match self.beside {
            Some(Beside { blocks, hash }) => {
                drop(blocks); // the end of its work
                hash.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            None => of_blocks(self.kept),
        };
        hash.update(&self.block);
        hexadecimal(hash)
    }

    fn keep(&mut self, block: Vec<u8>) {
        self.kept_bytes += block.len();
        self.kept.push(block);
        if self.kept_bytes < KEPT {
            return;
        }
        let kept = mem::take(&mut self.kept);
        let (blocks, arriving) = sync_channel::<Vec<u8>>(QUEUED_BLOCKS);
        let hash = thread::spawn(move || {
            let mut hash = of_blocks(kept);
            for block in arriving {
                hash.update(&block);
            }
            hash
        });
        self.beside = Some(Beside { blocks, hash });
    }
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
            text
        })
}

fn of_blocks(blocks: Vec<Vec<u8>>) -> Sha256 {
    let mut hash = Sha256::new();
    for block in blocks {
        hash.update(&block);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_same_however_the_body_is_cut_and_whoever_hashes_it() {
        for (size, piece, is_beside) in [
            (0, 1, false),
            (3, 2, false),
            (BLOCK, 65_535, false),
            (KEPT - 1, 65_535, false),
            (KEPT + 2 * BLOCK, 65_535, true),
            (KEPT + 100 * BLOCK + 7, 65_535, true),
        ] {
            let bytes: Vec<u8> = (0..=250).cycle().take(size).collect();
            let mut body = Body::default();
            for part in bytes.chunks(piece) {
                body.add(part);
            }
            assert_eq!(body.beside.is_some(), is_beside, "{size} bytes");
            let mut expected = Sha256::new();
            expected.update(&bytes);
            assert_eq!(body.sha256(), hexadecimal(expected), "{size} bytes");
        }
    }

    #[test]
    fn a_body_that_nobody_asks_about_ends_its_thread() {
        let mut body = Body::default();
        for _ in 0..=KEPT / BLOCK {
            body.add(&vec![0; BLOCK]);
        }
        let Beside { blocks, hash } = body.beside.take().unwrap();
        drop(blocks);
        assert!(hash.join().is_ok());
    }
}
