"""What a command takes: wall clock, CPU and peak memory; for the benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path


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


def used_alone(*command: str) -> Used:
    """The same, started by a small Python: the caller's own memory is no floor."""
    starter = [sys.executable, "-S", str(Path(__file__).resolve()), *command]
    done = subprocess.run(starter, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return Used(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(used(*sys.argv[1:]))))
