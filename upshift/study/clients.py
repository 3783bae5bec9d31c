"""The programs that load from senders: the kernel's TCP (`downloader/programs/load.py`) and iwprobe.

Both stay for many requests, and are started with the first one. A program dies with the thread that started it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import downloader.programs
from core.system.process import Child
from survey.iw.probers import Attachment, prober
from survey.iw.wire import ProbeReply, ProbeRequest, decode, encode, reply_bytes
from vantage.lab.place import LabPlace
from vantage.linux import cpu

MOST_ARRIVALS = 4096
PORTS = 2048
"""Source ports of each iwprobe, from 32,768 on."""


class EndedError(Exception):
    """A client ended, or what it loads from did."""


class KernelClient:
    """The client that uses the kernel's TCP.

    Args:
        fifo: real-time priority, 0 for none.
    """

    def __init__(self, place: LabPlace, fifo: int) -> None:
        self._place, self._fifo = place, fifo
        self._child: Child | None = None
        self.fifo_priority = 0
        """What it was granted."""

    @property
    def running(self) -> bool:
        return self._child is not None

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises EndedError."""
        answer = self._answer(self._started(), json.dumps(request) + "\n")
        if answer.get("outcome") == "failed":
            raise EndedError(answer["reason"])
        return answer

    def _started(self) -> Child:
        if self._child is None:
            script = Path(downloader.programs.__file__ or "").with_name("load.py")
            argv = [sys.executable, "-I", str(script), "--fifo", str(self._fifo)]
            self._child = self._place.start(argv, stdin=True, stdout=True)
            self.fifo_priority = int(self._answer(self._child, "")["fifo_priority"])
        return self._child

    def _answer(self, child: Child, message: str) -> dict[str, Any]:
        line = _exchange(child, message, lambda output: output.readline())
        if not line:
            self._child = None
            raise EndedError(f"the client ended with code {child.stop()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the program."""
        if self._child is not None:
            self._child.stop()


class LaneProber:
    """iwprobe, from the vantage point's prober address.

    Args:
        number: of the lane, from 1: each has its own ports.
        fifo: real-time priority, 0 for none.
    """

    def __init__(self, place: LabPlace, number: int, fifo: int) -> None:
        self._place, self._fifo = place, fifo
        first = 32_768 + PORTS * number
        own = place.prober()
        self.address = str(own.ipv4)
        attachment = Attachment(device=own.device, addresses=(self.address,), ports=(first, first + PORTS - 1))
        self._program = prober(attachment, arrivals=MOST_ARRIVALS)
        self._child: Child | None = None
        self._count = 0
        self.fifo_priority = 0
        """What it was granted."""

    def ask(self, request: ProbeRequest) -> tuple[ProbeReply, float]:
        """The reply, and how long iwprobe waited for a processor meanwhile [ms]. Raises EndedError."""
        child = self._started()
        before, size = _run_delay_ms(child.pid), reply_bytes(MOST_ARRIVALS)
        self._count += 1
        data = _exchange(child, encode(self._count, request), lambda output: output.read(size))
        if len(data) < size:
            self._child = None
            raise EndedError(f"iwprobe ended with code {child.stop()}")
        ((_, reply),) = decode(data, MOST_ARRIVALS)
        return reply, _run_delay_ms(child.pid) - before

    def _started(self) -> Child:
        if self._child is None:
            self._child = self._place.start(self._program.argv, stdin=True, stdout=True, binary=True)
            self._program.greeted(_exchange(self._child, b"", lambda output: output.readline()))
            self.fifo_priority = cpu.make_fifo(self._child.pid, self._fifo)
        return self._child

    def close(self) -> None:
        """Ends the program."""
        if self._child is not None:
            self._child.stop()


def _exchange(child: Child, message: Any, read: Callable[[IO[Any]], Any]) -> Any:
    """A program's answer to a message; empty if it has ended."""
    if child.stdin is None or child.stdout is None:
        raise ValueError("the program has no pipes")
    try:
        child.stdin.write(message)
        child.stdin.flush()
        return read(child.stdout)
    except OSError:
        return ""


def _run_delay_ms(pid: int) -> float:
    """How long the main thread of a process has waited for a processor (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e6
    except (OSError, IndexError):
        return 0.0
