"""What a command takes: wall clock, CPU and peak memory; for the benchmarks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Used:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    """Largest resident set [MB = 10^6 bytes]; that of the Python that started it is the floor."""

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s, {self.cpu_s:.1f} s of CPU, peak {self.peak_mb / 1e3:.2f} GB"


def used(*command: str) -> Used:
    """Runs a command to its end, its output aside."""
    began = time.monotonic()
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0)])
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return Used(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)
