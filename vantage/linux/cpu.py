"""The host's CPUs as a clock: how late they wake, how they are kept awake, and priority over other programs.

On some virtual machines an idle CPU wakes 0.1 to 0.5 ms after the timer or packet that it should serve. Sources: the
kernel's PM QoS (Documentation/power/pm_qos_interface.rst), sched(7), proc(5). The lab's own CPUs are kept awake by the
path emulator (docs/design/pathem.md); this module does the same for a campaign on a host.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from core.errors import LabError, PlaceError
from core.system import process

LATENCY_DEVICE = Path("/dev/cpu_dma_latency")
IDLE_DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
"""The driver's name; `none`, or no such file, where the kernel has none: then the device has no effect, and an idle CPU
halts whatever it holds (kernel/sched/idle.c, cpuidle_idle_call)."""

MISC_MAJOR = 10
"""Major number of the kernel's misc devices, of which the latency device is one."""

SLEEPS_S = (0.001, 0.003, 0.009)
"""Lengths of sleeps, in turn [s]: how deep a CPU sleeps depends on how long."""

FIFO_PRIORITY = 10
"""What the path emulator asks for."""


class Method(StrEnum):
    """How CPUs are kept awake. The words are pathem's, too."""

    CPU_DMA_LATENCY = "cpu_dma_latency"
    """`/dev/cpu_dma_latency` held open at 0 us."""
    SPINNERS = "spinners"
    """A thread of class SCHED_IDLE on each CPU, which yields to any other thread."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusAwake:
    """What keeps the CPUs awake."""

    method: Method
    reason: str | None = None
    """Why no better method is used; None for the device."""

    def sentence(self) -> str:
        """The value as part of a sentence."""
        how = {
            Method.CPU_DMA_LATENCY: "CPUs are kept awake by /dev/cpu_dma_latency",
            Method.SPINNERS: "CPUs are kept awake by idle-priority processes",
            Method.NONE: "CPUs are not kept awake",
        }[self.method]
        return how if self.reason is None else f"{how} ({self.reason})"


def parse_cpus_awake(record: Mapping[str, str | None]) -> CpusAwake:
    """The value in the path emulator's answer or a stored record."""
    return CpusAwake(method=Method(record["method"] or Method.NONE), reason=record["reason"])


AS_ASKED = CpusAwake(method=Method.NONE, reason="as requested")


def find_pathem() -> str:
    """Path of the path emulator, which also spins: `$UPSHIFT_PATHEM`, next to our interpreter (where its wheel installs
    it), or on PATH.

    Raises LabError if it is not found, or is a debug build.
    """
    return process.require_ours("pathem", "the path emulator pathem", LabError)


@contextmanager
def keep_cpus_awake() -> Iterator[CpusAwake]:
    """Keeps all CPUs awake for the duration of a block, as well as this host allows.

    The kernel ends it with this process: it is an open file, or a program that ends when our pipe closes.
    """
    try:
        require_idle_driver(IDLE_DRIVER)
        device = open_latency_device(LATENCY_DEVICE)
    except OSError as error:
        refused = f"{LATENCY_DEVICE} cannot be used: {error.strerror}"
    else:
        try:
            yield CpusAwake(method=Method.CPU_DMA_LATENCY)
        finally:
            os.close(device)
        return
    try:
        child = _start_spinners(find_pathem())
    except PlaceError as error:
        yield CpusAwake(method=Method.NONE, reason=f"{refused}; {error.what}")
        return
    with child:
        try:
            yield CpusAwake(method=Method.SPINNERS, reason=refused)
        finally:
            # It ends what spins, which takes long on a busy host if it is killed.
            if child.stdin is not None:
                child.stdin.close()
            with suppress(PlaceError):
                child.wait(process.STOP_GRACE_S)


def require_idle_driver(path: Path) -> None:
    """Raises OSError where the kernel has no cpuidle driver, so that the latency device has no effect."""
    try:
        name = path.read_text(encoding="ascii").strip()
    except OSError:
        name = "none"
    if name == "none":
        raise OSError(0, "the kernel has no cpuidle driver, without which it has no effect")


def open_latency_device(path: Path) -> int:
    """Opens the device and requests 0 us. Raises OSError; writes to nothing but the kernel's device."""
    status = path.stat()
    if not stat.S_ISCHR(status.st_mode) or os.major(status.st_rdev) != MISC_MAJOR:
        raise OSError(0, "it is not the kernel's device")
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(handle, bytes(4))
        if os.read(handle, 4) != bytes(4):
            raise OSError(0, "it is not the kernel's device")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _start_spinners(program: str) -> process.Child:
    child = process.start([program, "--spin"], stdin=True, stdout=True, stderr=True)
    if child.stdout is not None and child.stdout.readline() == "spinning\n":
        return child
    message = child.stderr.read().strip() if child.stderr else ""
    child.stop()
    raise PlaceError(message.removeprefix("pathem: ") or f"{program} --spin ended without an error message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakeups:
    """How much later than asked a sleep ended [us]."""

    count: int
    p50_us: float
    p99_us: float

    def sentence(self) -> str:
        """The value as part of a sentence."""
        return f"{self.p50_us:.0f} us (99th percentile {self.p99_us:.0f} us)"


def summarise(late_us: Sequence[float]) -> Wakeups:
    """Percentiles by nearest rank. There must be at least one value."""
    ordered = sorted(late_us)

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Wakeups(count=len(ordered), p50_us=rank(0.5), p99_us=rank(0.99))


def measure_wakeups(seconds: float = 1.0) -> Wakeups:
    """Sleeps for 1 to 9 ms, repeatedly, and measures how late the sleeps ended.

    Uses real-time priority where allowed and no timer slack (prctl(2)), as the path emulator does: what is left is the
    host's own latency. Runs in a separate thread, so that the priority ends with it.
    """
    late_us: list[float] = []

    def sleep() -> None:
        with suppress(OSError):
            parameter = os.sched_param(FIFO_PRIORITY)
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, parameter)
        with suppress(OSError):
            Path(f"/proc/{threading.get_native_id()}/timerslack_ns").write_text("1", encoding="ascii")
        end = time.monotonic() + seconds
        for length_s in itertools.cycle(SLEEPS_S):
            started = time.monotonic_ns()
            time.sleep(length_s)
            late_us.append((time.monotonic_ns() - started) / 1e3 - length_s * 1e6)
            if time.monotonic() >= end:
                return

    thread = threading.Thread(target=sleep, name="wakeups")
    thread.start()
    thread.join()
    return summarise(late_us)


def raise_priority(nice: int) -> int:
    """Lowers the nice value of this process and its children where allowed; returns the value in effect.

    Where the kernel shares CPU time between sessions (sched(7), autogroup), that of our session too: call
    it in a separate session.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
    return os.getpriority(os.PRIO_PROCESS, 0)


def make_fifo(pid: int, priority: int) -> int:
    """Gives a process real-time priority (SCHED_FIFO), which its threads inherit; returns what it has, 0 for none.

    The kernel keeps it when the process executes another program (sched(7)).
    """
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
        return priority
    return 0
