//! Time since the first packet, and the processor time that it took.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};

/// Started right before the system call that sends the first packet; all times of a document count from here.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Unix time of the start, seconds.
    pub started_at: f64,
    start: Instant,
    cpu_at_start: Duration,
}

impl Clock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        let cpu_at_start = process_cpu();
        Self {
            started_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |time| time.as_secs_f64()),
            start: Instant::now(),
            cpu_at_start,
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// User and system time of this process since the start.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        process_cpu().saturating_sub(self.cpu_at_start)
    }
}

fn process_cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            Duration::from_secs(seconds)
                + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let clock = Clock::start();
        let mut sum = 0_u64;
        while clock.elapsed() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(clock.cpu() > Duration::ZERO && clock.started_at > 1.7e9);
    }
}
