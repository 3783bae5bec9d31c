"""One tcpdump per measurement run: ready before the first packet, ended after the last one is in the file."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from upshift.errors import PlaceError
from upshift.scrub import last_line
from upshift.system.place import Place
from upshift.system.process import Child

SNAP_BYTES = 160
"""Bytes kept of each packet: a Linux cooked header (20), IPv6 (40) and TCP with all its options (60) are 120; UDP and
a QUIC long header up to the end of both connection IDs (RFC 9000, section 17.2) are 115. The rest is room for VLAN tags
and extension headers. Bodies are not kept, and are encrypted."""

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


class Capture:
    """A running capture. It is written under a temporary name and renamed when it is complete."""

    def __init__(self, child: Child, path: Path, temporary: Path) -> None:
        self._child = child
        self._path = path
        self._temporary = temporary
        assert child.stderr is not None  # noqa: S101 - started with a pipe
        self._stderr = child.stderr.fileno()
        self._said = b""

    @classmethod
    def start(cls, place: Place, path: Path, *, address: str | None, port: int) -> Capture:
        """Starts tcpdump in the place, and returns when it is capturing.

        Args:
            address: the server; None for all servers (published order, in which each download may use another one).

        Raises:
            PlaceError: tcpdump is missing, may not capture, or does not start.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file extension is that of captures, as Ubuntu's AppArmor profile allows tcpdump only these.
        temporary = path.with_name(f".{path.stem}.part.pcap").resolve()
        temporary.unlink(missing_ok=True)
        command = ["tcpdump", "-i", place.interface, "-s", str(SNAP_BYTES), "-B", str(BUFFER_KIB), "-n", "-U"]
        # Without it packets wait up to a second in the kernel's ring (libpcap: packet buffer timeout), and so would
        # every measurement run at its end.
        command += ["--immediate-mode", "-w", str(temporary)]
        if os.geteuid() == 0:
            command += ["-Z", "root"]  # as root it would switch to the user tcpdump, which may not write here
        command += ["--", f"port {port}" if address is None else f"host {address} and port {port}"]
        child = place.start(command, stderr=True, binary=True)
        capture = cls(child, path, temporary)
        try:
            if not capture._read_until(re.compile(rb"listening on "), READY_S):
                said = last_line(capture._said.decode("utf-8", "replace")) or "no error message"
                raise PlaceError(
                    f"tcpdump does not capture: {said}",
                    where=place.name,
                    remedy="run upshift doctor; capturing needs root, a user namespace, or cap_net_raw on tcpdump",
                )
        except BaseException:
            capture.abandon()
            raise
        return capture

    def finish(self) -> Captured:
        """Waits until tcpdump has read what the kernel holds, stops it, and names the file.

        Call it when no packet is in flight any more (`Watch.settle`).

        Raises:
            PlaceError: tcpdump ended before.
        """
        self._drain()
        code = self._child.returncode
        if code is not None:
            # After a signal, its last line is from its start.
            said = signal.Signals(-code).name if code < 0 else last_line(self._said.decode("utf-8", "replace"))
            self.abandon()
            raise PlaceError(
                f"tcpdump ended in the middle of a measurement run ({said or 'without a message'})",
                where=self._path.name,
                remedy="run the same command again" if code < 0 else "fix that, then run the same command again",
            )
        self._said = b""
        self._child.send(signal.SIGINT)
        self._read_until(_COUNTERS, STOP_S)
        match = _COUNTERS.search(self._said)
        self._child.stop(signal.SIGINT, grace_s=STOP_S)
        if match is None:
            self._temporary.unlink(missing_ok=True)
            raise PlaceError("tcpdump did not say how many packets it captured", remedy="run upshift doctor")
        with self._temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        self._temporary.replace(self._path)
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
        """Ends tcpdump and discards the capture."""
        self._child.stop(signal.SIGKILL)
        self._temporary.unlink(missing_ok=True)

    def _ask(self) -> Captured | None:
        """The current counters: tcpdump prints them on SIGUSR1 (tcpdump(1))."""
        self._said = b""
        self._child.send(signal.SIGUSR1)
        self._read_until(_COUNTERS, 1.0)
        match = _COUNTERS.search(self._said)
        return None if match is None else _captured(match)

    def _read_until(self, wanted: re.Pattern[bytes], timeout_s: float) -> bool:
        """Reads standard error until the pattern appears; False if it ended, or at the time-out."""
        deadline = time.monotonic() + timeout_s
        while not wanted.search(self._said):
            with contextlib.suppress(InterruptedError):
                if not select.select([self._stderr], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    return False
                data = os.read(self._stderr, 4096)
                if not data:
                    return False
                self._said += data
        return True


def _captured(match: re.Match[bytes]) -> Captured:
    packets, received, dropped = (int(group) for group in match.groups())
    return Captured(packets=packets, received=received, dropped=dropped)
