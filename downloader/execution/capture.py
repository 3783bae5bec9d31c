"""One capture per measurement run: headers of all packets, and the QUIC packets of handshakes whole.

A datagram of a QUIC handshake may hold several packets (RFC 9000, section 12.2): where the client's first 1-RTT packet
is behind a cut, the handshake seems a round trip longer. tcpdump has one snap length for all packets, so a second
tcpdump writes the datagrams that begin with a long header; both files become one, in order of time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import select
import signal
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from core.errors import PlaceError
from core.system.confine import with_net_raw_only
from core.system.place import Place
from core.system.process import Child
from core.untrusted import last_line

BUFFER_KIB = 16_384
"""Kernel buffer: a second of small packets at 1 Gbit/s, in case tcpdump has to wait for a processor."""

READY_S = 15.0
DRAIN_S = 3.0
CUT_S = 2.0
QUIET_S = 0.2
STOP_S = 5.0

_COUNTERS = rb"(\d+) packets? captured.*?(\d+) packets? received by filter.*?(\d+) packets? dropped by kernel"


class Captured(NamedTuple):
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
        # Not promiscuous: that would change the interface, and only packets of this host are wanted.
        command = [*start_of_tcpdump(place), "-p", "-i", place.interface, "-s", str(snap_bytes)]
        # Without it packets wait up to a second in the kernel's ring (libpcap: packet buffer timeout), and so would
        # every measurement run at its end. The file is open already: tcpdump needs no right to it.
        command += ["-B", str(BUFFER_KIB), "-n", "-U", "--immediate-mode", "-w", "-", "--", only]
        return cls(place.start(command, stdout=path, stderr=True, binary=True), path, place.name)

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

        The kernel takes some 20 ms more to close its socket; `close` waits for that.

        Raises:
            PlaceError: tcpdump ended before.
        """
        answers = 1 if self._drain() else 2
        if (code := self._child.returncode) is not None:
            # After a signal, its last line is from its start.
            ending = signal.Signals(-code).name if code < 0 else last_line(self._output.decode("utf-8", "replace"))
            raise PlaceError(
                f"tcpdump ended in the middle of a measurement run ({ending or 'without a message'})",
                where=self._where,
                remedy="run the same command again" if code < 0 else "fix that, then run the same command again",
            )
        counters = self._ask(signal.SIGINT, STOP_S, answers)
        if counters is None:
            raise PlaceError("tcpdump did not say how many packets it captured", remedy="run upshift doctor")
        return counters

    def _drain(self) -> bool:
        """Waits, for a bounded time, until tcpdump has read all packets that passed its filter; False if it has not
        answered by then, but will.

        That never happens on loopback: the kernel counts each packet twice, and libpcap returns one of them
        (pcap-linux.c, linux_check_direction). So it also ends when the counters do not change any more.
        """
        began = moved = time.monotonic()
        before: Captured | None = None
        while (now := time.monotonic()) < began + DRAIN_S:
            counters = self._ask(signal.SIGUSR1, 1.0)
            if counters is None:
                return False
            if counters.packets + counters.dropped >= counters.received:
                return True
            if counters != before:
                before, moved = counters, now
            elif now > moved + QUIET_S:
                return True
            select.select([self._stderr], [], [], 0.005)
        return True

    def close(self) -> None:
        """Waits for its end. May be called again."""
        self._child.stop(signal.SIGINT, grace_s=STOP_S)

    def abandon(self) -> None:
        """Ends tcpdump; its file stays."""
        self._child.stop(signal.SIGKILL)

    def _ask(self, number: signal.Signals, timeout_s: float, answers: int = 1) -> Captured | None:
        """The counters, which tcpdump prints on SIGUSR1 and at its end (tcpdump(1)); None if it does not in time.

        Args:
            answers: how many are due; those before the last one are to earlier signals.
        """
        self._output = b""
        self._child.send(number)
        wanted = re.compile(b".*?".join([_COUNTERS] * answers), re.S)
        self._read_until(wanted, timeout_s)
        if (match := wanted.search(self._output)) is None:
            return None
        return Captured(*map(int, match.groups()[-3:]))

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


@lru_cache(maxsize=16)
def start_of_tcpdump(place: Place) -> tuple[str, ...]:
    """How tcpdump is started in a place: with CAP_NET_RAW alone, and not as root where that can be helped; there it
    must not try to become the user tcpdump (`-Z`).
    """
    files = ("/proc/self/status", "/proc/self/uid_map")
    rights = (place.run(("cat", file)).check(doing="reading a place's rights").stdout for file in files)
    return (*with_net_raw_only(*rights), "tcpdump", "-Z", "root")


_FILE_HEADER = struct.Struct("=IHHiIII")
_RECORD_HEADER = struct.Struct("=IIII")
_MAGIC = 0xA1B2C3D4
"""Microseconds, in this host's byte order, as tcpdump writes them (pcap-savefile(5))."""

_LINK_HEADER_BYTES = {0: 4, 1: 14, 12: 0, 101: 0, 113: 16, 228: 0, 229: 0, 276: 20}
"""Link type (tcpdump.org/linktypes.html) -> bytes before the IP header."""


def ip_bytes(path: Path) -> int:
    """IP bytes of all whole packets in a capture of ours; 0 for a file without any.

    IPv4 total length, IPv6 payload length + 40. A packet with a length of 0 there (larger than 64 KiB before the
    network card splits it) and one of another protocol count with their length on the link.
    """
    with path.open("rb") as handle:
        try:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return 0
        with data:
            return _sum(data)


def _sum(data: mmap.mmap) -> int:
    if len(data) < _FILE_HEADER.size or (header := _FILE_HEADER.unpack_from(data))[0] != _MAGIC:
        return 0
    skip = _LINK_HEADER_BYTES.get(header[6] & 0xFFFF, 0)
    length = struct.Struct(">H")
    total = 0
    for _, at, kept, whole in _records(data):
        start, carried = at + skip, 0
        if kept >= skip + 6:
            version = data[start] >> 4
            if version == 4:
                (carried,) = length.unpack_from(data, start + 2)
            elif version == 6:
                (payload,) = length.unpack_from(data, start + 4)
                carried = payload and payload + 40
        total += carried or whole - skip
    return total


def _records(data: bytes | mmap.mmap) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """Of each whole packet of a capture its time [s, us], where it begins, how much of it was kept, and its length."""
    at, end = _FILE_HEADER.size, len(data)
    while at + _RECORD_HEADER.size <= end:
        seconds, microseconds, kept, length = _RECORD_HEADER.unpack_from(data, at)
        at += _RECORD_HEADER.size
        if at + kept > end:
            return
        yield (seconds, microseconds), at, kept, length
        at += kept


SNAP_BYTES = 160
"""Bytes kept of each packet: a Linux cooked header (20), IPv6 (40) and TCP with all its options (60) are 120; the rest
is room for VLAN tags and extension headers. Bodies are not kept, and are encrypted."""

WHOLE_BYTES = 65_535
"""Bytes kept of each datagram with a QUIC long header."""

LONG_HEADER = "(udp[8] & 0x80 != 0 or (ip6[6] = 17 and ip6[48] & 0x80 != 0))"
"""Datagrams that begin with a QUIC long header (RFC 9000, section 17.2); in a filter `udp[8]` is of IPv4 only."""


class Capture:
    """A running capture. It is written under temporary names and gets its own when it is complete."""

    def __init__(self, path: Path, headers: Tcpdump, long_headers: Tcpdump) -> None:
        self._path = path
        self._parts = (headers, long_headers)
        self._abandoned_bytes: int | None = None

    @classmethod
    def start(cls, place: Place, path: Path, *, address: str | None, port: int) -> Capture:
        """Starts capturing in the place, and returns when it does.

        Args:
            address: the server; None for all servers (published order, in which each download may use another one).

        Raises:
            PlaceError: tcpdump is missing, may not capture, or does not start.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        names = part_names(path)
        for name in names:
            name.unlink(missing_ok=True)
        packets = f"port {port}" if address is None else f"host {address} and port {port}"
        kinds = (
            (f"{packets} and not {LONG_HEADER}", SNAP_BYTES),
            (f"{packets} and udp and {LONG_HEADER}", WHOLE_BYTES),
        )
        parts: list[Tcpdump] = []
        try:
            for name, (only, snap_bytes) in zip(names, kinds, strict=True):
                parts.append(Tcpdump.start(place, name, only=only, snap_bytes=snap_bytes))
            for part in parts:
                part.wait_until_ready()
        except BaseException:
            for part in parts:
                part.abandon()
            for name in names:
                name.unlink(missing_ok=True)
            raise
        return cls(path, *parts)

    def settle(self, round_trip_s: float | None) -> None:
        """Returns when nothing has come for a round trip, after `CUT_S` at the latest: what a server sends until it
        hears that its download was cut would stand before the next handshake in the path's queue."""
        known, since = -1, time.monotonic()
        until = since + CUT_S
        while (now := time.monotonic()) < until and now <= since + max(round_trip_s or 0.0, QUIET_S):
            if (size := sum(part.path.stat().st_size for part in self._parts)) != known:
                known, since = size, now
            time.sleep(0.005)

    def finish(self) -> int:
        """Waits until all packets that the kernel holds are in the file, and names it; how many the kernel dropped.

        Call it when no packet is in flight any more (`Watch.settle`), and `close` some time later.

        Raises:
            PlaceError: tcpdump ended before.
        """
        try:
            counters = [part.finish() for part in self._parts]
            headers, long_headers = (part.path for part in self._parts)
            if counters[1].packets:
                insert(headers, long_headers)
            long_headers.unlink()
            with headers.open("rb") as handle:
                os.fsync(handle.fileno())
            headers.replace(self._path)
        except BaseException:
            self.abandon()
            raise
        return sum(each.dropped for each in counters)

    def close(self) -> None:
        """Waits for the end of tcpdump. May be called again."""
        for part in self._parts:
            part.close()

    def abandon(self) -> int:
        """Ends tcpdump and discards the capture; returns the IP bytes in it. May be called again."""
        for part in self._parts:
            part.abandon()
        if self._abandoned_bytes is None:
            self._abandoned_bytes = sum(ip_bytes(part.path) for part in self._parts if part.path.exists())
        for part in self._parts:
            part.path.unlink(missing_ok=True)
        return self._abandoned_bytes


def part_names(path: Path) -> list[Path]:
    """Under which names a capture is written: of headers, and of datagrams with a QUIC long header."""
    # The file extension is that of captures, as Ubuntu's AppArmor profile allows tcpdump only these.
    return [path.with_name(f".{path.stem}{end}.part.pcap").resolve() for end in ("", ".long")]


def insert(into: Path, few: Path) -> None:
    """Inserts the packets of the capture `few` into the capture `into`, by time; of equal times those of `few` first.

    Both are files of tcpdump in order of time, from one interface; the packets of `few` fit into memory.

    Raises:
        PlaceError: they are not.
    """
    merged = into.with_name(f"{into.name.removesuffix('.part.pcap')}.merged.part.pcap")
    try:
        _merge(into, few.read_bytes(), merged)
        merged.replace(into)
    finally:
        merged.unlink(missing_ok=True)  # where the disk became full


def _merge(many: Path, content: bytes, merged: Path) -> None:
    with many.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _same_kind(data[: _FILE_HEADER.size], content[: _FILE_HEADER.size])
        with merged.open("wb") as out:
            out.write(content[: _FILE_HEADER.size])
            at = copied = _FILE_HEADER.size
            for moment, begin, kept, _ in _records(content):
                while at + _RECORD_HEADER.size <= len(data):
                    seconds, microseconds, size, _ = _RECORD_HEADER.unpack_from(data, at)
                    if (seconds, microseconds) >= moment:
                        break
                    at += _RECORD_HEADER.size + size
                out.write(data[copied:at])
                out.write(content[begin - _RECORD_HEADER.size : begin + kept])
                copied = at
            out.write(data[copied:])


def _same_kind(first: bytes, second: bytes) -> None:
    """Checks byte order, resolution and link type; the snap lengths differ."""
    kinds = [(header[0], header[6]) for header in (_FILE_HEADER.unpack(first), _FILE_HEADER.unpack(second))]
    if kinds[0] != kinds[1] or kinds[0][0] != _MAGIC:
        raise PlaceError("two tcpdumps on one interface wrote captures of different kinds", remedy="run upshift doctor")
