"""One tcpdump: ready before the first packet, ended after the last one is in its file."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from core.errors import PlaceError
from core.scrub import last_line
from core.system.place import Place
from core.system.process import Child

BUFFER_KIB = 16_384
"""Kernel buffer: a second of small packets at 1 Gbit/s, in case tcpdump has to wait for a processor."""

READY_S = 15.0
DRAIN_S = 3.0
QUIET_S = 0.2
STOP_S = 5.0

_COUNTERS = re.compile(
    rb"(\d+) packets? captured.*?(\d+) packets? received by filter.*?(\d+) packets? dropped by kernel", re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """tcpdump's counters at its end."""

    packets: int
    received: int
    dropped: int
    """Dropped by the kernel before tcpdump read them."""


class Tcpdump:
    """A running tcpdump that writes to a file."""

    def __init__(self, child: Child, path: Path, where: str) -> None:
        self._child = child
        self.path = path
        self._where = where
        assert child.stderr is not None  # noqa: S101 - started with a pipe
        self._stderr = child.stderr.fileno()
        self._output = b""

    @classmethod
    def start(cls, place: Place, path: Path, *, only: str, snap_bytes: int) -> Tcpdump:
        """Starts tcpdump in the place; `wait_until_ready` has to follow.

        Args:
            only: the filter (pcap-filter(7)).
            snap_bytes: bytes kept of each packet.

        Raises:
            PlaceError: tcpdump is missing.
        """
        command = ["tcpdump", "-i", place.interface, "-s", str(snap_bytes), "-B", str(BUFFER_KIB), "-n", "-U"]
        # Without it packets wait up to a second in the kernel's ring (libpcap: packet buffer timeout), and so would
        # every measurement run at its end.
        command += ["--immediate-mode", "-w", str(path)]
        if os.geteuid() == 0:
            command += ["-Z", "root"]  # as root it would switch to the user tcpdump, which may not write here
        return cls(place.start([*command, "--", only], stderr=True, binary=True), path, place.name)

    def wait_until_ready(self) -> None:
        """Returns when it is capturing. Raises PlaceError if it may not capture, or does not start."""
        if not self._read_until(re.compile(rb"listening on "), READY_S):
            message = last_line(self._output.decode("utf-8", "replace")) or "no error message"
            raise PlaceError(
                f"tcpdump does not capture: {message}",
                where=self._where,
                remedy="run upshift doctor; capturing needs root, a user namespace, or cap_net_raw on tcpdump",
            )

    def finish(self) -> Captured:
        """Waits until tcpdump has read what the kernel holds, and stops it; its file is complete then.

        Call it when no packet is in flight any more (`Watch.settle`).

        Raises:
            PlaceError: tcpdump ended before.
        """
        self._drain()
        code = self._child.returncode
        if code is not None:
            # After a signal, its last line is from its start.
            ending = signal.Signals(-code).name if code < 0 else last_line(self._output.decode("utf-8", "replace"))
            raise PlaceError(
                f"tcpdump ended in the middle of a measurement run ({ending or 'without a message'})",
                where=self._where,
                remedy="run the same command again" if code < 0 else "fix that, then run the same command again",
            )
        self._output = b""
        self._child.send(signal.SIGINT)
        self._read_until(_COUNTERS, STOP_S)
        match = _COUNTERS.search(self._output)
        self._child.stop(signal.SIGINT, grace_s=STOP_S)
        if match is None:
            raise PlaceError("tcpdump did not say how many packets it captured", remedy="run upshift doctor")
        return _captured(match)

    def _drain(self) -> None:
        """Waits, for a bounded time, until tcpdump has read all packets that passed its filter.

        That never happens on loopback: the kernel counts each packet twice, and libpcap returns one of them
        (pcap-linux.c, linux_check_direction). So it also ends when the counters do not change any more.
        """
        began = moved = time.monotonic()
        before: Captured | None = None
        while (now := time.monotonic()) < began + DRAIN_S:
            counters = self._ask()
            if counters is None or counters.packets + counters.dropped >= counters.received:
                return
            if counters != before:
                before, moved = counters, now
            elif now > moved + QUIET_S:
                return
            select.select([self._stderr], [], [], 0.005)

    def abandon(self) -> None:
        """Ends tcpdump; its file stays."""
        self._child.stop(signal.SIGKILL)

    def _ask(self) -> Captured | None:
        """The current counters: tcpdump prints them on SIGUSR1 (tcpdump(1))."""
        self._output = b""
        self._child.send(signal.SIGUSR1)
        self._read_until(_COUNTERS, 1.0)
        match = _COUNTERS.search(self._output)
        return None if match is None else _captured(match)

    def _read_until(self, wanted: re.Pattern[bytes], timeout_s: float) -> bool:
        """Reads standard error until the pattern appears; False if it ended, or at the time-out."""
        deadline = time.monotonic() + timeout_s
        while not wanted.search(self._output):
            with contextlib.suppress(InterruptedError):
                if not select.select([self._stderr], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    return False
                data = os.read(self._stderr, 4096)
                if not data:
                    return False
                self._output += data
        return True


def _captured(match: re.Match[bytes]) -> Captured:
    packets, received, dropped = (int(group) for group in match.groups())
    return Captured(packets=packets, received=received, dropped=dropped)
