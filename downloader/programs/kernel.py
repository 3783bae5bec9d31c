"""What the kernel says of a client: its socket (TCP_INFO, when a packet was sent), what it needed of
the processor, and how long it waited for one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECEIVE_BUFFER_BYTES = 1 << 24
"""Requested receive buffer [bytes] of a UDP socket of QUIC clients; the kernel grants at most net.core.rmem_max."""

DRAIN_S = 2.0
"""Time to wait, after the last byte, for the server's FIN, so that it is in the capture. Not included in any time."""

_TCP_INFO = struct.Struct("=8B24L4Q6L")
"""The first 160 bytes of struct tcp_info (include/uapi/linux/tcp.h), which have been the same since Linux 4.6."""

_OPTION_BITS = ((1, "timestamps"), (2, "sack"), (4, "window_scaling"), (8, "ecn"), (16, "ecn_seen"))
"""TCPI_OPT_*: the negotiated options, by the kernel."""

_SO_TIMESTAMPING = 37
_TX_SCHED, _REPORTED, _ALONE = 1 << 8, 1 << 4, 1 << 11
"""include/uapi/linux/net_tstamp.h: when the kernel got a packet, told on the socket's error queue without it."""

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux's Documentation/scheduler/sched-stats.rst: time on the processor [ns], time on a run queue [ns], timeslices."""


def tcp_info(sock: socket.socket) -> dict[str, Any]:
    """The kernel's current data of the connection, from the client's side. Raises OSError."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    facts = _TCP_INFO.unpack(raw.ljust(_TCP_INFO.size, b"\0"))
    options, scales, numbers, later = facts[5], facts[6], facts[8:32], facts[36:]
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return {
        "congestion_control": name.split(b"\0", 1)[0].decode("ascii", "replace"),
        "options": [word for bit, word in _OPTION_BITS if options & bit],
        "snd_wscale": scales & 15,  # a bit field: the peer's count in the low bits, as both byte orders have it here
        "rcv_wscale": scales >> 4,
        "snd_mss": numbers[2],
        "rcv_mss": numbers[3],
        "rtt_us": numbers[15],
        "min_rtt_us": later[3],
        "rttvar_us": numbers[16],
        "advmss": numbers[19],
        "pmtu": numbers[13],
        "rcv_rtt_us": numbers[21],
        "rcv_space": numbers[22],
        "total_retrans": numbers[23],
        "data_segs_in": later[4],
    }


def tcp_info_field(sock: socket.socket, kind: str, place: int) -> int:
    """One field of struct tcp_info, by its type (a letter of `struct`) and its place [bytes]. Raises OSError."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, place + struct.calcsize(kind))
    return int(struct.unpack_from(f"={kind}", raw, place)[0])


def note_first_packet(sock: socket.socket) -> None:
    """Makes the kernel note when it gets the socket's packets to send; without support for it, nothing happens."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _TX_SCHED | _REPORTED | _ALONE)


def first_packet_at(sock: socket.socket) -> float | None:
    """Unix time at which the kernel got the first packet, which ends the noting; None if it has got none yet."""
    try:
        _, control, _, _ = sock.recvmsg(0, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return None
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, 0)
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPING):
            seconds, nanoseconds = struct.unpack_from("=qq", data)
            return float(seconds + nanoseconds / 1e9)
    return None


def drain(sock: socket.socket) -> None:
    """Sends a FIN, and waits up to `DRAIN_S` for the peer's. Raises OSError."""
    sock.shutdown(socket.SHUT_WR)
    until = time.monotonic() + DRAIN_S
    while (left := until - time.monotonic()) > 0:
        sock.settimeout(left)
        if not sock.recv(1 << 18):
            break


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
