"""A thread's use of the processors: the time that it ran, and the time that it waited to run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux's Documentation/scheduler/sched-stats.rst: time on the processor [ns], time on a run queue [ns], timeslices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Up to one moment, of the calling thread. Other threads, such as one that hashes, do not count."""

    cpu_s: float
    """User and system time (CLOCK_THREAD_CPUTIME_ID)."""
    run_delay_s: float | None
    """Time that it was ready to run and waited for a processor; None if the kernel does not report it."""

    @classmethod
    def now(cls) -> Usage:
        """The calling thread's."""
        cpu_s = time.thread_time()
        return cls(cpu_s=cpu_s, run_delay_s=_run_delay_s())

    def cpu_since(self, earlier: Usage) -> float:
        """Time on a processor between two moments [s]."""
        return round(self.cpu_s - earlier.cpu_s, 6)

    def run_delay_since(self, earlier: Usage) -> float | None:
        """Time on a run queue between two moments [s]."""
        if self.run_delay_s is None or earlier.run_delay_s is None:
            return None
        return round(self.run_delay_s - earlier.run_delay_s, 6)


def _run_delay_s() -> float | None:
    try:
        return parse_run_delay(_SCHEDSTAT.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return None


def parse_run_delay(schedstat: str) -> float | None:
    """The time on a run queue [s]; None for what is not such a line, and for zeros alone (no scheduler statistics)."""
    words = schedstat.split()
    if len(words) != 3 or not all(word.isdecimal() for word in words) or not any(map(int, words)):
        return None
    return int(words[1]) / 1e9
