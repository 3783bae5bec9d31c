//! Clocks and random numbers.

use std::io;

/// The two clocks at one moment [ns].
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// `CLOCK_REALTIME`: the kernel's time stamps of packets.
    real: u64,
}

impl Clocks {
    /// Reads them.
    #[must_use]
    pub fn now() -> Self {
        Self {
            monotonic: read(libc::CLOCK_MONOTONIC),
            real: read(libc::CLOCK_REALTIME),
        }
    }

    /// A time of `CLOCK_REALTIME`, which is not before `since`, by the monotonic clock. Where that clock was set forward
    /// in between, the time is lost: then it is now.
    #[must_use]
    pub fn monotonic_of(&self, real: u64, since: u64) -> u64 {
        let time = (self.monotonic + real).saturating_sub(self.real);
        if time < since { self.monotonic } else { time }
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Numbers that nobody can guess who does not see them: initial sequence numbers and ports (xorshift64*, seeded by the
/// kernel).
pub struct Random(u64);

impl Random {
    /// Seeds it.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new() -> io::Result<Self> {
        let mut seed = [0_u8; 8];
        // SAFETY: writes at most 8 bytes.
        let count = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
        if count == 8 {
            Ok(Self(u64::from_ne_bytes(seed) | 1))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The next one.
    pub fn draw(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        u32::try_from(mixed >> 32).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_forward_makes_nothing_earlier() {
        let clocks = Clocks {
            monotonic: 5_000,
            real: 90_000,
        };
        assert_eq!(clocks.monotonic_of(89_700, 4_500), 4_700);
        assert_eq!(clocks.monotonic_of(89_500, 4_500), 4_500);
        assert_eq!(clocks.monotonic_of(90_100, 4_500), 5_100);
        for stepped in [89_499, 70_000] {
            assert_eq!(clocks.monotonic_of(stepped, 4_500), 5_000);
        }
    }
}
