"""A congestion window that a program keeps for a connection, so that it may grow as the kernel's does not (`grow`)."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Mapping
from typing import Any

POLL_S = 0.0002
MOST_GROWN = 500
"""Largest window [segments]."""
_INFO = {
    "state": ("B", 0),
    "mss": ("I", 16),
    "unacked": ("I", 24),
    "rtt_us": ("I", 68),
    "window": ("I", 80),
    "retransmissions": ("I", 100),
    "segments_in": ("I", 140),
    "unsent": ("I", 144),
    "data_segments_in": ("I", 152),
    "data_segments_out": ("I", 156),
    "timeouts": ("H", 240),
}
"""Name -> type and place in struct tcp_info (include/uapi/linux/tcp.h); the last is there from Linux 6.7 on."""


def read_info(connection: socket.socket) -> dict[str, Any]:
    """The fields of `_INFO`; None for one that this kernel does not have."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return {
        name: struct.unpack_from(f"={kind}", raw, at)[0] if len(raw) >= at + struct.calcsize(kind) else None
        for name, (kind, at) in _INFO.items()
    }


def unacknowledged(connection: socket.socket) -> int:
    """Bytes that the peer has not acknowledged."""
    # SIOCOUTQ of linux/sockios.h is TIOCOUTQ.
    return int(struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])


class OwnWindow:
    """A congestion window that a program keeps, in slow start and without loss, under a larger one of the kernel.

    It grows when Linux's does: where it was the limit, or is below twice the most that was in flight
    (net/ipv4/tcp_output.c, tcp_cwnd_validate; include/net/tcp.h, tcp_is_cwnd_limited).

    Args:
        how: it grows by 1 segment per ACK (`acks`), or by what an ACK acknowledges, up to 2 (`two`: RFC 3465, L = 2).
        segments: its initial size.
    """

    def __init__(self, connection: socket.socket, *, how: str, segments: int) -> None:
        self.connection, self._per_ack, self.segments = connection, 2 if how == "two" else 1, segments
        self._last = self._now = read_info(connection)
        self.mss = self._last["mss"] or 1
        self.stretched = 0  # segments beyond two of an ACK, which a busy receiver leaves out
        # Whether the window was the limit, else the most in flight; until which segment this counts.
        self._limited, self._most, self._seen_until = False, 0, 0

    def room(self) -> int:
        """Segments that may be sent now, after the growth by the ACKs that have arrived."""
        last, now = self._last, read_info(self.connection)
        if (segments := _acked(now) - _acked(last)) > 0:
            requests = now["data_segments_in"] - last["data_segments_in"]
            acks = now["segments_in"] - last["segments_in"] - requests
            # A request acknowledges, too, where the ACKs cannot have: they have at most two segments each (RFC 5681).
            acks = max(acks + (requests if segments > 2 * acks else 0), 1)
            self.stretched += max(segments - 2 * acks, 0)
            self._grow(acks, segments)
            self._last = now
        self._now, self._flight = now, int(now["unacked"] - (-now["unsent"] // self.mss))
        return self.segments - self._flight

    def sent(self, size: int) -> None:
        """Counts what was sent since `room` [bytes]."""
        flight = self._flight - (-size // self.mss)
        limited = flight >= self.segments
        if _acked(self._now) >= self._seen_until or limited or (not self._limited and flight > self._most):
            self._limited, self._most, self._seen_until = limited, flight, _acked(self._now) + flight

    def _grow(self, acks: int, segments: int) -> None:
        left, step = min(self._per_ack * acks, segments), min(self._per_ack, -(-segments // acks))
        while left > 0 and (self._limited or self.segments < 2 * self._most):
            self.segments = min(self.segments + min(step, left), MOST_GROWN)
            left -= step


def _acked(info: Mapping[str, Any]) -> int:
    """Segments that the peer has acknowledged, as none is lost."""
    return int(info["data_segments_out"] - info["unacked"])


class _GrowingAnswer:
    """One that is being sent."""

    def __init__(self, own: OwnWindow, answer: bytes, limit_s: float) -> None:
        self._own, self._answer, self._until = own, memoryview(answer), time.monotonic() + limit_s
        self._seen = -1
        self.sent_s = time.monotonic()
        """When the last of it was sent, at first of now."""
        self.ended = threading.Event()
        self.error: OSError | None = None

    def turn(self) -> None:
        """Sends what the window has room for."""
        own = self._own
        try:
            # TCP_INFO costs four times as much as the question whether there is news.
            if (seen := unacknowledged(own.connection)) == self._seen and time.monotonic() < self._until:
                return
            self._seen = seen
            if (size := min(own.room() * own.mss, len(self._answer))) > 0:
                # A segment that leaves alone has PSH at the answer's end only, as if all had been written at once; a
                # receiver may acknowledge it at once. Several have it always (__tcp_transmit_skb).
                more = socket.MSG_MORE if size < len(self._answer) else 0
                own.connection.sendall(self._answer[:size], more)
                own.sent(size)
                self._answer, self._seen, self.sent_s = self._answer[size:], -1, time.monotonic()
        except OSError as error:
            self.error = error
        if not self._answer or self.error or time.monotonic() > self._until:
            self.ended.set()


class GrowingAnswers:
    """Sends such answers of all connections from one thread: many would wait for the interpreter in turn."""

    def __init__(self) -> None:
        self._answers = list[_GrowingAnswer]()
        self._lock = threading.Lock()

    def send(self, own: OwnWindow, answer: bytes, *, limit_s: float) -> None:
        """Sends an answer, for so long at most. Raises OSError."""
        one = _GrowingAnswer(own, answer, limit_s)
        one.turn()  # at once, as the kernel would
        if not one.ended.is_set():
            with self._lock:
                self._answers.append(one)
                if len(self._answers) == 1:  # it has the real-time priority of the thread that starts it
                    threading.Thread(target=self._run, daemon=True).start()
            one.ended.wait()
        if one.error:
            raise one.error

    def _run(self) -> None:
        while True:
            # What was sent first is acknowledged first: where several ACKs have come, the kernel would go by them.
            for one in sorted(self._answers, key=lambda one: one.sent_s):
                one.turn()
            with self._lock:
                self._answers = [one for one in self._answers if not one.ended.is_set()]
                if not self._answers:
                    return
            time.sleep(POLL_S)
