//! Copies of QUIC datagrams: made by the network, or by a capture that sees each packet at two interfaces.

use crate::truth::MOST_BEHIND;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// The last datagrams of one direction.
#[derive(Debug, Default)]
pub struct Recent {
    fingerprints: Vec<u64>,
    /// Index of the oldest, once there are [`MOST_BEHIND`].
    oldest: usize,
}

impl Recent {
    /// Takes what tells a datagram of `len` bytes from others: whether one of the last [`MOST_BEHIND`] was the same.
    pub fn has(&mut self, telling: &[u8], len: u32) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(telling);
        hasher.write_u32(len);
        let fingerprint = hasher.finish();
        if self.fingerprints.contains(&fingerprint) {
            return true;
        }
        if self.fingerprints.len() < MOST_BEHIND {
            self.fingerprints.push(fingerprint);
        } else {
            self.fingerprints[self.oldest] = fingerprint;
            self.oldest = (self.oldest + 1) % MOST_BEHIND;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_may_come_behind_a_batch() {
        let mut recent = Recent::default();
        for batch in 0..5u32 {
            for is_copy in [false, true] {
                for number in batch * 64..(batch + 1) * 64 {
                    assert_eq!(recent.has(&number.to_be_bytes(), 1200), is_copy, "{number}");
                }
            }
        }
        assert!(!recent.has(&0_u32.to_be_bytes(), 1200), "long ago");
        assert!(!recent.has(&319_u32.to_be_bytes(), 1201), "another length");
    }
}
