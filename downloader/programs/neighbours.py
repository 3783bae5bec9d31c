"""What is beside a load of a sender study, an elephant or voice, and the sockets that both wait for (`load.py`)."""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Callable
from typing import Any

from core.reach import ANYWHERE, check_address
from downloader.programs.kernel import tcp_info_field

PORT = 80
ELEPHANT_BYTES = 1 << 16
"""An elephant is read in pieces of this size, so that it costs few wake-ups."""
VOICE = struct.Struct("=QQ")
"""Number and time of a voice packet (vantage/programs/sender.py)."""
RECEIVE_MSS, DATA_SEGMENTS = 20, 152
"""Places of tcpi_rcv_mss and tcpi_data_segs_in in struct tcp_info (include/uapi/linux/tcp.h)."""


class FailedError(Exception):
    """A connection ended before its data was there."""


class Sockets:
    """The sockets that this thread waits for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, file: Any, events: int, ready: Callable[[], None]) -> None:
        """Calls `ready` when the file can be read or written; instead of an earlier call."""
        try:
            self._selector.modify(file, events, ready)
        except KeyError:
            self._selector.register(file, events, ready)

    def connect(self, address: str, ready: Callable[[], None]) -> socket.socket:
        """A connection that is being made; `ready` is called once it is there, and has to watch for what comes next."""
        check_address(address, ANYWHERE)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Closing sends a RST: nothing of this connection is on the path beside the next one (socket(7)).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.connect_ex((address, PORT))

        def connected() -> None:
            if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise FailedError(f"no connection ({os.strerror(error)})")
            ready()

        self.watch(sock, selectors.EVENT_WRITE, connected)
        return sock

    def close(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()

    def turn(self, until: float) -> None:
        """Waits for one of them, at most until that time (time.monotonic)."""
        for key, _ in self._selector.select(max(until - time.monotonic(), 0)):
            key.data()


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: sender.example\r\n\r\n".encode()


class Elephant:
    """A connection that takes all that comes."""

    def __init__(self, sockets: Sockets, address: str) -> None:
        self._sockets = sockets
        self._buffer = bytearray(1 << 20)
        self.sock = sockets.connect(address, self._connected)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ELEPHANT_BYTES)

    def _connected(self) -> None:
        self.sock.send(request("/?endless=1"))
        self._sockets.watch(self.sock, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        try:
            read = self.sock.recv_into(self._buffer, 0, socket.MSG_TRUNC)  # discarded in the kernel (tcp(7))
        except OSError as error:
            raise FailedError(f"the elephant ended ({error.strerror})") from None
        if not read:
            raise FailedError("the elephant ended")

    @property
    def received(self) -> int:
        """Bytes that have arrived so far, in any order, where segments are full: once its own window is not the limit.

        tcpi_bytes_received, of those in order, stands still while a segment is missing, and then jumps by a queue.
        """
        return tcp_info_field(self.sock, "I", DATA_SEGMENTS) * tcp_info_field(self.sock, "I", RECEIVE_MSS)


class Voice:
    """Packets of voice as they arrive."""

    def __init__(self, sockets: Sockets, address: str) -> None:
        self._sockets = sockets
        self.sock = sockets.connect(address, self._connected)
        self.packets: list[tuple[int, int, int]] = []
        """Number, when it was sent, when it arrived [ns]."""
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.udp.bind(("", 0))
        sockets.watch(self.udp, selectors.EVENT_READ, self._heard)

    def _connected(self) -> None:
        self.sock.send(request(f"/?voice={self.udp.getsockname()[1]}"))
        self._sockets.watch(self.sock, selectors.EVENT_READ, self._ended)

    def _ended(self) -> None:
        raise FailedError("the voice ended")

    def _heard(self) -> None:
        number, sent_ns = VOICE.unpack_from(self.udp.recv(2048))
        self.packets.append((number, sent_ns, time.monotonic_ns()))

    def summary(self, since_ns: int, until_ns: int) -> dict[str, Any]:
        """Delays and losses of the packets that were sent in a span, if a later one has arrived."""
        among = [(number, late - sent) for number, sent, late in self.packets if since_ns <= sent <= until_ns]
        after = [number for number, sent, _ in self.packets if sent > until_ns]
        if not after or len(among) < 2:
            return {"voice_p50_ms": None, "voice_p99_ms": None, "voice_lost": None}
        delays = [delay / 1e6 for _, delay in among]
        return {
            "voice_p50_ms": statistics.median(delays),
            "voice_p99_ms": statistics.quantiles(delays, n=100, method="inclusive")[98],
            "voice_lost": after[0] - among[0][0] - len(among),
        }
