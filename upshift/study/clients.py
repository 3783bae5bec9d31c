"""The programs that load from senders: the kernel's TCP (`downloader/programs/load.py`) and iwprobe.

Both stay for many requests, and are started with the first one. A program dies with the thread that started it.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import downloader.programs
from core.system.process import Child
from downloader.programs.kernel import parse_run_delay
from survey.iw.probers import Attachment, prober
from survey.iw.wire import ProbeReply, ProbeRequest, decode, encode, reply_bytes
from vantage.lab.place import LabPlace
from vantage.linux import cpu

MOST_ARRIVALS = 4096
PORTS = 2048
"""Source ports of each iwprobe, from 32,768 on."""


class EndedError(Exception):
    """A client ended, or what it loads from did."""


class _Resident(ABC):
    """A program that is started with the first request, and with the first one after it has ended.

    Args:
        name: of the program, in sentences.
        fifo: real-time priority, 0 for none.
    """

    def __init__(self, name: str, argv: Sequence[str], place: LabPlace, fifo: int, *, binary: bool) -> None:
        self._name, self._argv, self._place, self._fifo, self._binary = name, argv, place, fifo, binary
        self._child: Child | None = None
        self.fifo_priority = 0
        """What it was granted."""

    @abstractmethod
    def _greet(self) -> None:
        """Waits until the program, which was just started, is ready."""

    def _started(self) -> Child:
        if self._child is None:
            self._child = self._place.start(self._argv, stdin=True, stdout=True, binary=self._binary)
            self._greet()
            self.fifo_priority = cpu.make_fifo(self._child.pid, self._fifo)
        return self._child

    def _exchange(self, message: Any, read: Callable[[IO[Any]], Any], *, least: int = 1) -> Any:
        """The answer to a message. Raises EndedError if that is shorter than `least`, as the program has ended."""
        child = self._started()
        if child.stdin is None or child.stdout is None:
            raise ValueError("the program has no pipes")
        try:
            child.stdin.write(message)
            child.stdin.flush()
            answer = read(child.stdout)
        except OSError:
            answer = message[:0]
        if len(answer) < least:
            self._child = None
            raise EndedError(f"{self._name} ended with code {child.stop()}")
        return answer

    def close(self) -> None:
        """Ends the program."""
        if self._child is not None:
            self._child.stop()


class KernelClient(_Resident):
    """The client that uses the kernel's TCP."""

    def __init__(self, place: LabPlace, fifo: int) -> None:
        script = Path(downloader.programs.__file__ or "").with_name("load.py")
        super().__init__("the client", [sys.executable, "-I", str(script)], place, fifo, binary=False)

    def _greet(self) -> None:
        self.ask(op="alone")

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises EndedError."""
        line = self._exchange(json.dumps(request) + "\n", lambda output: output.readline())
        answer: dict[str, Any] = json.loads(line)
        if answer.get("outcome") == "failed":
            raise EndedError(answer["reason"])
        return answer


class LaneProber(_Resident):
    """iwprobe, from the vantage point's prober address.

    Args:
        number: of the lane, from 1: each has its own ports.
    """

    def __init__(self, place: LabPlace, number: int, fifo: int) -> None:
        first = 32_768 + PORTS * number
        own = place.prober()
        self.address = str(own.ipv4)
        attachment = Attachment(device=own.device, addresses=(self.address,), ports=(first, first + PORTS - 1))
        self._program = prober(attachment, arrivals=MOST_ARRIVALS)
        self._count = 0
        super().__init__("iwprobe", self._program.argv, place, fifo, binary=True)

    def _greet(self) -> None:
        self._program.greeted(self._exchange(b"", lambda output: output.readline(), least=0))

    def ask(self, request: ProbeRequest) -> tuple[ProbeReply, float]:
        """The reply, and how long iwprobe waited for a processor meanwhile [ms]. Raises EndedError."""
        pid, size = self._started().pid, reply_bytes(MOST_ARRIVALS)
        before = _run_delay_ms(pid)
        self._count += 1
        data = self._exchange(encode(self._count, request), lambda output: output.read(size), least=size)
        ((_, reply),) = decode(data, MOST_ARRIVALS)
        return reply, _run_delay_ms(pid) - before


def _run_delay_ms(pid: int) -> float:
    """How long the main thread of a process has waited for a processor."""
    try:
        return 1000 * (parse_run_delay(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")) or 0.0)
    except OSError:
        return 0.0
