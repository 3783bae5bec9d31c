//! Loss laws: a pure function of the packet's index in its connection.
//!
//! The index starts at 0 with each connection and nothing else enters (no address, no port, no time),
//! so the same configuration meets the same losses in every download.

use serde::Deserialize;

/// Where a packet stands in its direction of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Among all packets, from 0.
    pub index: u64,
    /// Among the TCP segments with payload, from 0; none: it has no payload, or is not TCP.
    pub payload: Option<u64>,
}

/// Which packets a pattern counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// All of the direction.
    #[default]
    Packets,
    /// Its TCP segments with payload, those sent again too; no other packet is lost.
    Payload,
}

/// Which packets of a connection are lost.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Each packet independently with this probability, decided by a hash of seed and index.
    Random {
        /// Probability, 0 to 1.
        probability: f64,
        /// Seed of the hash.
        seed: u64,
    },
    /// Exactly the packets with these indices (0 is the first one of a connection).
    Pattern {
        /// The indices, sorted.
        indices: Vec<u64>,
        /// What they count.
        count: Count,
    },
}

impl Loss {
    /// Whether the packet at this position is lost.
    #[must_use]
    pub fn is_lost(&self, position: Position) -> bool {
        match self {
            Self::Random { probability, seed } => is_hit(*seed, *probability, position.index),
            Self::Pattern { indices, count } => match count {
                Count::Packets => Some(position.index),
                Count::Payload => position.payload,
            }
            .is_some_and(|index| indices.binary_search(&index).is_ok()),
        }
    }
}

fn is_hit(seed: u64, probability: f64, index: u64) -> bool {
    unit(seed, index) < probability
}

/// A number in [0, 1) from seed and index: the top 53 bits of `mix(mix(seed) + index)`, times 2^-53.
fn unit(seed: u64, index: u64) -> f64 {
    let hash = mix(mix(seed).wrapping_add(index));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// One step of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The indices below `count` that [`Loss::Random`] loses.
#[must_use]
pub fn lost_indices(seed: u64, probability: f64, count: u64) -> Vec<u64> {
    (0..count)
        .filter(|&index| is_hit(seed, probability, index))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        // First output of the published generator for state 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn certain_and_impossible() {
        assert_eq!(lost_indices(7, 0.0, 1000), Vec::<u64>::new());
        assert_eq!(lost_indices(7, 1.0, 1000).len(), 1000);
    }

    #[test]
    fn share_is_near_the_probability_for_many_seeds() {
        for seed in 0..20 {
            let lost = lost_indices(seed, 0.01, 100_000).len();
            assert!(
                (880..=1120).contains(&lost),
                "seed {seed}: {lost} of 100000"
            );
        }
    }

    #[test]
    fn seeds_differ_and_repeat() {
        assert_eq!(lost_indices(7, 0.01, 5000), lost_indices(7, 0.01, 5000));
        assert_ne!(lost_indices(7, 0.01, 5000), lost_indices(8, 0.01, 5000));
    }

    #[test]
    fn pattern_is_membership() {
        let law = |count| Loss::Pattern {
            indices: vec![3, 17, 40],
            count,
        };
        let lost = |count, payload: fn(u64) -> Option<u64>| -> Vec<u64> {
            let at = |index| Position {
                index,
                payload: payload(index),
            };
            let law = law(count);
            (0..100).filter(|&index| law.is_lost(at(index))).collect()
        };
        assert_eq!(lost(Count::Packets, |_| None), [3, 17, 40]);
        assert_eq!(lost(Count::Payload, |_| None), [] as [u64; 0]);
        assert_eq!(
            lost(Count::Payload, |index| index.checked_sub(2)),
            [5, 19, 42]
        );
    }
}
