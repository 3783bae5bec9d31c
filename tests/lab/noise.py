"""How busy the host is, and measuring on one that may be: the one place where tests wait and try again.

A busy host is no reason to believe a wrong figure, none to fail at random, and none to pass without having measured. So
a measurement that is wrong on a quiet host fails at once; on a busy one the test waits and tries again, and is skipped
with the reason *host too noisy* where that goes on for too long. A run ends with the number of such tests
(tests/conftest.py). Beside other measurements it fails after a second attempt: scripts/test measures it again alone.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from vantage.linux import cpu

Found = TypeVar("Found")

TOO_NOISY = "host too noisy"
"""How the reason of a test begins that could not be judged here."""

BESIDE_OTHERS = "UPSHIFT_TESTS_BESIDE_OTHERS"
"""Set in the environment where what fails is measured again alone."""

PATIENCE_S = 60.0
"""An attempt that fails later than this after the first failure is the last."""

PAUSE_S = 20.0
"""Longest wait for a quiet host between two attempts."""

WINDOW_S = 2.0

MAX_ATTEMPTS = 8
"""At a run of a test's campaign: a moment in which the host was busy costs that run, and not the campaign around it."""

OF_A_BUSY_HOST = frozenset({"emulator late", "emulator lost", "host dropped"})
"""Void reasons that need no defect of ours, as a command prints them (`core.domain.VoidReason`)."""

QUIET_PRESSURE = 0.10
"""Share of the time that some task may wait for a processor on a host that counts as quiet; the lab itself makes a
few per cent."""
QUIET_STEAL = 0.02
QUIET_IDLE = 0.5
"""Where the kernel does not tell of those that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How busy the host was, as shares of the time."""

    pressure: float | None
    """Some task waited for a processor (`/proc/pressure/cpu`); None where the kernel does not tell."""
    steal: float
    """Processor time that the hypervisor gave to others."""
    idle: float
    """Processor time that nobody wanted."""

    @property
    def quiet(self) -> bool:
        at_ease = self.idle >= QUIET_IDLE if self.pressure is None else self.pressure <= QUIET_PRESSURE
        return self.steal <= QUIET_STEAL and at_ease

    @property
    def excuse(self) -> str | None:
        """What to say of a busy host, None of a quiet one."""
        return None if self.quiet else str(self)

    def __str__(self) -> str:
        waited = "unknown" if self.pressure is None else f"{self.pressure:.0%}"
        return f"{'a quiet' if self.quiet else 'a busy'} host (pressure {waited}, steal {self.steal:.0%})"


def measured(
    measure: Callable[[], Found],
    check: Callable[[Found], list[str]],
    *,
    excuse: Callable[[Found], str | None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[], None] | None = None,
) -> Found:
    """What `measure` gives, once `check` has nothing against it. Otherwise the test fails, on a busy host is skipped.

    Args:
        check: what is wrong with it.
        excuse: why the host was too busy to measure this; None where it was not, and what is wrong is wrong.
        clock, pause: for tests of this function.
    """
    beside = BESIDE_OTHERS in os.environ
    deadline: float | None = None
    while True:
        found = measure()
        wrong = "; ".join(check(found))
        if not wrong:
            return found
        noise = excuse(found)
        if noise is None:
            pytest.fail(wrong)
        if deadline is None:
            deadline = clock() + (0.0 if beside else PATIENCE_S)
        elif clock() >= deadline:
            (pytest.fail if beside else pytest.skip)(f"{TOO_NOISY}: {wrong}; {noise}")
        print(f"again: {wrong}; {noise}")
        (pause or wait_for_quiet)()


def too_many_void(code: int, complaint: str) -> bool:
    """Whether a command ended with this code as a busy host disturbed too many measurement runs."""
    reasons = re.search(r"measurement runs are not usable: ([^;\n]*)", complaint)
    return code == 1 and reasons is not None and set(reasons[1].split(", ")) <= OF_A_BUSY_HOST


def skip_if_void(code: int, complaint: str) -> None:
    """Skips the test if a command ended with this code as a busy host disturbed too many measurement runs."""
    if too_many_void(code, complaint):
        pytest.skip(f"{TOO_NOISY}: {complaint.splitlines()[-1]}")


def skip_if_cut(code: int | None, noise: Noise) -> None:
    """Skips the test if a busy host did not clean up within the time that a campaign gives itself; the guardian does it
    then."""
    if code == -signal.SIGALRM and not noise.quiet:
        pytest.skip(f"{TOO_NOISY}: the campaign did not end in the time that it gives itself (CLEAN_UP_S); {noise}")


def wait_for_quiet() -> None:
    """Returns when the host is quiet, or after a while."""
    end = time.monotonic() + PAUSE_S
    while time.monotonic() < end:
        with host_noise() as noise:
            time.sleep(WINDOW_S)
        if noise[0].quiet:
            return


@contextmanager
def host_noise() -> Iterator[list[Noise]]:
    """A list that has how busy the host was as its one entry when the block has ended."""
    found: list[Noise] = []
    clock, before = time.monotonic(), _host_times()
    yield found
    after = _host_times()
    waited = None if before[0] is None or after[0] is None else after[0] - before[0]
    pressure = None if waited is None else waited / max(time.monotonic() - clock, 1e-9)
    ticks = max(after[1] - before[1], 1)
    found.append(Noise(pressure=pressure, steal=(after[2] - before[2]) / ticks, idle=(after[3] - before[3]) / ticks))


def _host_times() -> tuple[float | None, int, int, int]:
    """Seconds of waiting for a processor (None: the kernel does not tell), ticks of all processors, stolen and idle."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    try:
        found = re.search(r"^some .*total=(\d+)", Path("/proc/pressure/cpu").read_text(encoding="ascii"), re.M)
    except OSError:
        found = None
    return int(found[1]) / 1e6 if found else None, sum(ticks), ticks[7], ticks[3] + ticks[4]


def has_device() -> bool:
    """Whether this user can keep the CPUs awake by `/dev/cpu_dma_latency`."""
    try:
        cpu.require_idle_driver(cpu.IDLE_DRIVER)
        os.close(cpu.open_latency_device(cpu.LATENCY_DEVICE))
    except OSError:
        return False
    return True
