//! Time since the first packet.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::processor::Usage;

/// Started right before the system call that sends the first packet; all times of a document count from here.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Unix time of the start, seconds.
    pub started_at: f64,
    start: Instant,
    usage: Usage,
}

impl Clock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        let usage = Usage::now();
        // First the clock that measures: an interruption between the two makes the client look late, which is noticed.
        let start = Instant::now();
        Self {
            started_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |time| time.as_secs_f64()),
            start,
            usage,
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// What this thread, which started the clock, got of the processors since the start.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::now().since(&self.usage)
    }
}
