//! How the server's answer went on over time: its packets by round trip, in bounded memory.
//!
//! What limited a download is read from these (docs/method/limits-of-a-download.md). A round begins a multiple of the initial round
//! trip after the answer's first packet. When more than [`MOST`] are there, they are merged in pairs and become twice
//! as long, so a connection takes the same memory however long it lasts.

use crate::rtt::Summary;

/// Most rounds that are kept.
pub const MOST: i64 = 64;
/// The shortest round, ns; also the round where the round-trip time is unknown.
const SHORTEST_NS: i64 = 1_000_000;
/// Packets of a train: their gaps tell the rate of the bottleneck (packet dispersion).
const TRAIN: usize = 4;
/// Only full packets make a train, B.
const FULL_BYTES: u32 = 1000;

/// What came within one round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// New payload, B.
    pub bytes: u64,
    /// Data packets.
    pub packets: u32,
    /// Data packets whose flight came within two full segments of the client's window; TCP with timestamps only.
    pub window_limited: u32,
    /// Retransmissions, and packets with Congestion Experienced.
    pub losses: u32,
    /// Round-trip times by timestamps.
    pub rtt_count: u32,
    /// Their sum, ns.
    pub rtt_sum_ns: u64,
    /// Time in which nothing came for more than one and a half round trips, ns; it ends in this round.
    pub silent_ns: u64,
}

impl Round {
    fn merge(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            packets: self.packets.saturating_add(other.packets),
            window_limited: self.window_limited.saturating_add(other.window_limited),
            losses: self.losses.saturating_add(other.losses),
            rtt_count: self.rtt_count.saturating_add(other.rtt_count),
            rtt_sum_ns: self.rtt_sum_ns.saturating_add(other.rtt_sum_ns),
            silent_ns: self.silent_ns.saturating_add(other.silent_ns),
        }
    }
}

/// The rounds of one answer.
#[derive(Debug)]
pub struct Rounds {
    /// When the answer began, ns.
    pub start_ns: i64,
    /// Length of a round, ns.
    pub round_ns: i64,
    /// A longer gap is silence, ns.
    silence_ns: i64,
    /// When the present round ends, ns.
    end_ns: i64,
    last_ns: i64,
    /// The rounds so far; the last one is the present one.
    pub list: Vec<Round>,
    /// Arrival times of the last full packets, ns, a ring.
    train_ns: [i64; TRAIN],
    train_bytes: [u32; TRAIN],
    /// Full packets in a row.
    in_train: usize,
    /// Time per byte of payload within trains, ps/B.
    pub dispersion: Summary,
}

impl Rounds {
    /// Begins at the first packet of an answer.
    #[must_use]
    pub fn new(start_ns: i64, rtt_ns: i64) -> Self {
        let round_ns = rtt_ns.max(SHORTEST_NS);
        Self {
            start_ns,
            round_ns,
            silence_ns: round_ns + round_ns / 2,
            end_ns: start_ns.saturating_add(round_ns),
            last_ns: start_ns,
            list: vec![Round::default()],
            train_ns: [0; TRAIN],
            train_bytes: [0; TRAIN],
            in_train: 0,
            dispersion: Summary::default(),
        }
    }

    /// A data packet of `len` bytes of which `new_bytes` were not seen before.
    #[inline]
    pub fn packet(&mut self, len: u32, new_bytes: u32, now_ns: i64) {
        if now_ns >= self.end_ns {
            self.advance(now_ns);
        }
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        let silence_ns = self.silence_ns;
        let round = self.present();
        round.bytes += u64::from(new_bytes);
        round.packets += 1;
        if gap_ns > silence_ns {
            round.silent_ns = round.silent_ns.saturating_add(gap_ns.unsigned_abs());
        }
        if len < FULL_BYTES {
            self.in_train = 0;
            return;
        }
        let at = self.in_train % TRAIN;
        self.train_bytes[at] = len;
        // The oldest of the ring is the packet that began the train.
        if self.in_train >= TRAIN {
            let first_ns = self.train_ns[at];
            let bytes: i64 = self.train_bytes.iter().copied().map(i64::from).sum();
            let took_ns = now_ns.saturating_sub(first_ns);
            self.dispersion.add(took_ns.saturating_mul(1000) / bytes);
        }
        self.train_ns[at] = now_ns;
        self.in_train += 1;
    }

    /// The packet that was added last was a retransmission, or was marked.
    pub fn lost(&mut self) {
        self.present().losses += 1;
    }

    /// The packet that was added last bounds the flight.
    #[inline]
    pub fn flight(&mut self, is_window_limited: bool) {
        self.present().window_limited += u32::from(is_window_limited);
    }

    /// The packet that was added last ends a round-trip time.
    pub fn rtt(&mut self, rtt_ns: i64) {
        let round = self.present();
        round.rtt_count += 1;
        round.rtt_sum_ns = round.rtt_sum_ns.saturating_add(rtt_ns.unsigned_abs());
    }

    /// The rounds up to the one that has this time.
    #[must_use]
    pub fn until(&self, last_ns: i64) -> &[Round] {
        let whole = last_ns.saturating_sub(self.start_ns) / self.round_ns;
        let count = usize::try_from(whole).unwrap_or(0).saturating_add(1);
        &self.list[..count.min(self.list.len())]
    }

    #[inline]
    fn present(&mut self) -> &mut Round {
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    #[cold]
    fn advance(&mut self, now_ns: i64) {
        let since_ns = now_ns.saturating_sub(self.start_ns);
        while since_ns / self.round_ns >= MOST {
            let merged = self.list.chunks(2).map(|pair| match *pair {
                [one, two] => one.merge(two),
                [one] => one,
                _ => Round::default(),
            });
            self.list = merged.collect();
            self.round_ns = self.round_ns.saturating_mul(2);
        }
        let count = since_ns / self.round_ns + 1;
        let length = usize::try_from(count).unwrap_or(0);
        self.list.resize(length, Round::default());
        let end_ns = count.saturating_mul(self.round_ns);
        self.end_ns = self.start_ns.saturating_add(end_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn packets_fall_into_their_round() {
        let mut rounds = Rounds::new(0, 10 * MS);
        for (at, bytes) in [(0, 100), (9, 10), (10, 20), (35, 40)] {
            rounds.packet(bytes, bytes, at * MS);
        }
        let bytes: Vec<_> = rounds.list.iter().map(|round| round.bytes).collect();
        assert_eq!(bytes, [110, 20, 0, 40]);
        let silent: Vec<_> = rounds.list.iter().map(|round| round.silent_ns).collect();
        assert_eq!(silent, [0, 0, 0, 25 * MS.unsigned_abs()]);
        assert_eq!(
            [10, 9, -1, 99].map(|ms| rounds.until(ms * MS).len()),
            [2, 1, 1, 4]
        );
    }

    #[test]
    fn lengths_and_times_may_be_as_large_as_a_file_can_say() {
        for len in [1 << 30, u32::MAX] {
            let mut rounds = Rounds::new(i64::MIN, MS);
            for at in 0..9 {
                let now_ns = if at % 2 == 0 { i64::MIN } else { i64::MAX };
                rounds.packet(len, len, now_ns);
            }
            assert_eq!(
                rounds.list.iter().map(|round| round.packets).sum::<u32>(),
                9
            );
        }
    }

    #[test]
    fn long_answers_take_no_more_memory() {
        let mut rounds = Rounds::new(0, MS);
        for at in 0..1_000_000 {
            rounds.packet(1, 1, at * MS);
        }
        assert!((33..=64).contains(&rounds.list.len()));
        let total: u64 = rounds.list.iter().map(|round| round.bytes).sum();
        assert_eq!((total, rounds.round_ns), (1_000_000, 16_384 * MS));
    }

    #[test]
    fn a_clock_that_jumps_far_is_no_loop_without_end() {
        let mut rounds = Rounds::new(0, 0);
        rounds.packet(1, 1, i64::MAX);
        rounds.packet(1, 1, 0);
        assert!(rounds.list.len() <= 64);
    }

    #[test]
    fn trains_tell_the_rate_of_the_bottleneck() {
        let mut rounds = Rounds::new(0, 100 * MS);
        // Bursts of ten packets of 1,250 B at 10 Mbit/s, one per round trip.
        for burst in 0..5 {
            for packet in 0..10 {
                rounds.packet(1250, 1250, burst * 100 * MS + packet * MS);
            }
        }
        let ps_per_byte = rounds.dispersion.quantile_ns(0.25).unwrap();
        assert!(
            (ps_per_byte / 800_000.0 - 1.0).abs() < 0.01,
            "{ps_per_byte}"
        );
    }
}
