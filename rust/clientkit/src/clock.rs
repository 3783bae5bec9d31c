//! Time since the first packet, and what the downloading thread got of the processors in it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// Linux's Documentation/scheduler/sched-stats.rst: time on the processor in ns, time on a run queue in ns, timeslices.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

thread_local! {
    /// Open from the first use on: a confined process cannot open it any more.
    static OPEN_SCHEDSTAT: Option<File> = File::open(SCHEDSTAT).ok();
}

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

/// Up to one moment, of the calling thread. Other threads of the process, such as one that hashes, do not count.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// User and system time.
    pub cpu: Option<Duration>,
    /// Time that it was ready to run and waited for a processor; `None` if the kernel does not report it.
    pub run_delay: Option<Duration>,
}

impl Usage {
    /// The calling thread's.
    #[must_use]
    pub fn now() -> Self {
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        Self {
            cpu: cpu.ok().map(Duration::from),
            run_delay: OPEN_SCHEDSTAT.with(|file| run_delay(&read(file.as_ref()?)?)),
        }
    }

    /// What came since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let between = |now: Option<Duration>, then: Option<Duration>| now?.checked_sub(then?);
        Self {
            cpu: between(self.cpu, earlier.cpu),
            run_delay: between(self.run_delay, earlier.run_delay),
        }
    }
}

fn read(file: &File) -> Option<String> {
    let mut line = [0; 100];
    let size = file.read_at(&mut line, 0).ok()?;
    Some(String::from_utf8_lossy(&line[..size]).into_owned())
}

/// The time on a run queue; `None` for what is not such a line, and for zeros alone (no scheduler statistics).
fn run_delay(schedstat: &str) -> Option<Duration> {
    let numbers: Vec<u64> = schedstat
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    match numbers[..] {
        [0, 0, 0] => None,
        [_, waited, _] => Some(Duration::from_nanos(waited)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn work(time: Duration) {
        let start = Instant::now();
        let mut sum = 0_u64;
        while start.elapsed() < time {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn processor_time_grows_with_the_work_of_this_thread_alone() {
        let before = Usage::now();
        thread::spawn(|| work(Duration::from_millis(100)))
            .join()
            .unwrap();
        let idle = Usage::now().since(&before).cpu.unwrap();
        assert!(idle < Duration::from_millis(20), "{idle:?}");
        work(Duration::from_millis(50));
        assert!(Usage::now().since(&before).cpu.unwrap() > idle);
    }

    #[test]
    fn a_line_of_schedstat() {
        assert_eq!(
            run_delay("95125 1059698 5\n"),
            Some(Duration::from_nanos(1_059_698))
        );
        assert_eq!(run_delay("0 0 1\n"), Some(Duration::ZERO));
        for none in ["0 0 0\n", "", "1 2\n", "1 2 3 4\n", "a b c\n", "1 -2 3\n"] {
            assert_eq!(run_delay(none), None, "{none:?}");
        }
    }
}
