"""What a program needed of the processor, and how long it waited for one."""

from __future__ import annotations

import os
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
    waited_s: float | None
    """Time that it was ready to run and waited for a processor; None if the kernel does not report it."""

    @classmethod
    def now(cls, schedstat: int | None = None) -> Usage:
        """The calling thread's. `schedstat`: its open file, for a process that may open none any more."""
        cpu_s = time.thread_time()
        return cls(cpu_s=cpu_s, waited_s=_waited_s(schedstat))

    def cpu_since(self, earlier: Usage) -> float:
        """Time on a processor between two moments [s]."""
        return round(self.cpu_s - earlier.cpu_s, 6)

    def waited_since(self, earlier: Usage) -> float | None:
        """Time on a run queue between two moments [s]."""
        if self.waited_s is None or earlier.waited_s is None:
            return None
        return round(self.waited_s - earlier.waited_s, 6)


def _waited_s(schedstat: int | None) -> float | None:
    try:
        text = _SCHEDSTAT.read_bytes() if schedstat is None else os.pread(schedstat, 100, 0)
        return parse_run_delay(text.decode("ascii"))
    except (OSError, UnicodeDecodeError):
        return None


def open_schedstat() -> int | None:
    """A descriptor for `Usage.now` of a process that may open no file later; None if the kernel does not report it."""
    try:
        return os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def parse_run_delay(schedstat: str) -> float | None:
    """The time on a run queue [s]; None for what is not such a line, and for zeros alone (no scheduler statistics)."""
    words = schedstat.split()
    if len(words) != 3 or not all(word.isdecimal() for word in words) or not any(map(int, words)):
        return None
    return int(words[1]) / 1e9
