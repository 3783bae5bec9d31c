//! The hash of a body, computed without slowing the download: after it, or in a second thread.

use std::fmt::Write;
use std::hint::black_box;
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use sha2::{Digest, Sha256};

/// What is hashed at a time, bytes.
const BLOCK: usize = 1 << 20;
/// A body of fewer bytes (64 MiB) is kept and hashed after the download; a longer one by a second thread meanwhile.
const KEPT_BLOCKS: usize = 64;
/// Blocks that are free when the second thread starts. With the kept ones, this bounds the memory.
const QUEUED_BLOCKS: usize = 16;
const MOST_BLOCKS: usize = KEPT_BLOCKS + QUEUED_BLOCKS;

/// Takes a body in as it arrives; its SHA-256 afterwards. `downloader/programs/body.py` does the same.
pub(crate) struct Body {
    block: Vec<u8>,
    free: Receiver<Vec<u8>>,
    full: Sender<Vec<u8>>,
    filled: usize,
    /// Blocks that may still be made.
    spare: usize,
    work: Work,
}

/// Who hashes the full blocks.
enum Work {
    Later(Hasher),
    Beside(JoinHandle<Sha256>),
}

struct Hasher {
    full: Receiver<Vec<u8>>,
    free: Sender<Vec<u8>>,
}

impl Body {
    /// Nothing yet; `most` bytes at most, and `expected` ones if that is known. So much memory is written once, so that
    /// the kernel provides it now: before the clock starts. A page fault for every 4 KiB of the body costs as much as
    /// hashing it. A longer body takes more as it arrives.
    pub(crate) fn new(most: Option<u64>, expected: Option<u64>) -> Self {
        let known = [most, expected].into_iter().flatten();
        let blocks = known
            .filter_map(|size| usize::try_from(size).ok())
            .map(|size| size / BLOCK + 1)
            .fold(MOST_BLOCKS, usize::min);
        let (give_back, free) = channel();
        for _ in 0..blocks {
            let mut block = black_box(vec![1; BLOCK]);
            block.clear();
            let _ = give_back.send(block); // the receiver is here
        }
        let (full, arriving) = channel();
        let work = Work::Later(Hasher {
            full: arriving,
            free: give_back,
        });
        Self {
            block: next(&free),
            free,
            full,
            filled: 0,
            spare: MOST_BLOCKS - blocks,
            work,
        }
    }

    /// Takes in bytes. Waits where the second thread is far behind.
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while self.block.len() + bytes.len() > BLOCK {
            let (fitting, rest) = bytes.split_at(BLOCK - self.block.len());
            self.block.extend_from_slice(fitting);
            bytes = rest;
            self.next_block();
        }
        self.block.extend_from_slice(bytes);
    }

    /// The hash, in hexadecimal; call it after all measuring.
    pub(crate) fn sha256(self) -> String {
        drop(self.full); // the end of the work
        let mut hash = match self.work {
            Work::Later(hasher) => hasher.run(),
            Work::Beside(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        };
        hash.update(&self.block);
        hexadecimal(hash)
    }

    fn next_block(&mut self) {
        self.filled += 1;
        if self.filled == KEPT_BLOCKS {
            self.begin_beside();
        }
        // Who hashes lives as long as this sender.
        let _ = self.full.send(mem::take(&mut self.block));
        self.block = match self.free.try_recv() {
            Err(_) if self.spare > 0 => {
                self.spare -= 1;
                Vec::with_capacity(BLOCK)
            }
            free => free.unwrap_or_else(|_| next(&self.free)),
        };
    }

    fn begin_beside(&mut self) {
        let (_, nothing) = channel();
        let (nowhere, _) = channel();
        let idle = Work::Later(Hasher {
            full: nothing,
            free: nowhere,
        });
        self.work = match mem::replace(&mut self.work, idle) {
            Work::Later(hasher) => Work::Beside(thread::spawn(|| hasher.run())),
            beside @ Work::Beside(_) => beside,
        };
    }
}

impl Hasher {
    /// Hashes block after block until no more can come.
    fn run(self) -> Sha256 {
        let mut hash = Sha256::new();
        for mut block in self.full {
            hash.update(&block);
            block.clear();
            let _ = self.free.send(block); // nobody needs it any more when the body is complete
        }
        hash
    }
}

/// A free block; waits for one. New memory should the thread that hashes have ended, which `Body::sha256` tells.
fn next(free: &Receiver<Vec<u8>>) -> Vec<u8> {
    free.recv().unwrap_or_default()
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_same_however_the_body_is_cut_and_whoever_hashes_it() {
        const KEPT: usize = KEPT_BLOCKS * BLOCK;
        for (size, piece, is_beside) in [
            (0, 1, false),
            (3, 2, false),
            (BLOCK, 65_535, false),
            (3 * BLOCK + 5, 2 * BLOCK, false),
            (KEPT, 65_535, false),
            (KEPT + 1, 65_535, true),
            (KEPT + 100 * BLOCK + 7, 65_535, true),
        ] {
            let bytes: Vec<u8> = (0..=250).cycle().take(size).collect();
            for (most, expected) in [
                (None, None),
                (Some(size as u64), None),
                (None, Some(0)),
                (None, Some(3)),
            ] {
                let mut body = Body::new(most, expected);
                for part in bytes.chunks(piece) {
                    body.add(part);
                }
                assert_eq!(
                    matches!(body.work, Work::Beside(_)),
                    is_beside,
                    "{size} bytes"
                );
                let mut expected = Sha256::new();
                expected.update(&bytes);
                assert_eq!(body.sha256(), hexadecimal(expected), "{size} bytes");
            }
        }
    }

    #[test]
    fn a_body_that_nobody_asks_about_ends_its_thread() {
        let mut body = Body::new(None, None);
        body.add(&vec![0; (KEPT_BLOCKS + 1) * BLOCK]);
        let Work::Beside(thread) = body.work else {
            panic!("no second thread")
        };
        drop(body.full);
        assert!(thread.join().is_ok());
    }
}
