//! Asking the host for timeliness: scheduling, timer slack, locked memory. Refusals are reported, not fatal.

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::set_timerslack;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

const FIFO_PRIORITY: i32 = 10;
const NICE: i32 = -10;

/// What the host granted.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Scheduling {
    /// Real-time priority under `SCHED_FIFO`; null if refused or not asked for.
    pub fifo_priority: Option<i32>,
    /// Nice value, if it could be lowered instead.
    pub nice: Option<i32>,
    /// Whether the timer slack is 1 ns instead of 50 us.
    pub timer_slack_1ns: bool,
    /// Whether the present memory is locked.
    pub memory_locked: bool,
}

/// Asks for all of it; `realtime` false leaves the scheduling class and the nice value alone.
#[must_use]
pub fn ask(realtime: bool) -> Scheduling {
    let fifo = realtime && set_fifo();
    let nice = realtime && !fifo && set_nice();
    Scheduling {
        fifo_priority: fifo.then_some(FIFO_PRIORITY),
        nice: nice.then_some(NICE),
        timer_slack_1ns: set_timerslack(1).is_ok(),
        // Not MCL_FUTURE: under a memory-lock limit, later allocations would fail.
        memory_locked: mlockall(MlockAllFlags::MCL_CURRENT).is_ok(),
    }
}

fn set_fifo() -> bool {
    let parameter = libc::sched_param {
        sched_priority: FIFO_PRIORITY,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: pid 0 is the caller, and the parameter outlives the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
}

fn set_nice() -> bool {
    // SAFETY: setpriority takes integers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) == 0 }
}

/// The monotonic clock, ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// The realtime clock, ns since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    clock_ns(ClockId::CLOCK_REALTIME)
}

/// CPU time that this process has used, user and kernel, ns.
#[must_use]
pub fn cpu_ns() -> u64 {
    clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock_ns(clock: ClockId) -> u64 {
    // These clocks always exist and are never negative on a running host.
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}
