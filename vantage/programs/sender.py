"""A web server whose sending is told by the request: HTTP/1.1 on the kernel's TCP, standard library only.

    sender.py --root DIR [--port 80] [--first PREFIX=BYTES ...]

The query of a URL says how the answer leaves:

    size=B       a body of B bytes, whatever the path; else the file below DIR
    answer=B     the whole answer has B bytes, its head too
    pace=on      the kernel paces at its own rate
    pace=S       what follows the first ten segments is spread over S round trips
    cc=NAME      congestion control
    first=B      B bytes, then nothing until all are acknowledged: a window in bytes, under a route with a larger
                 initcwnd; rfc3390 means the full segments of min(4 MSS, max(2 MSS, 4380)) (RFC 3390)
    think=MS     pause before the answer
    grow=HOW     the program keeps a window of its own, for flows without loss under a larger initcwnd: it begins with
                 `window` segments and grows with each ACK by 1 (acks) or by up to 2 (two)
    window=N     for `grow`
    info=1       TCP_INFO of this connection, and how long its thread waited for a processor, as JSON
    endless=1    bytes until the connection ends
    voice=PORT   50 UDP packets a second to that port of the client until the connection ends, each with its number and
                 its time
    location=P   a redirect to P, with a cookie
    fail=HOW     reset, silent, close, or drip (byte by byte)

`--first` is the same as `first` for clients in a prefix, where the query has none. A path that does not exist is
answered by a page that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import math
import socket
import struct
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from vantage.programs.dual_stack import DualStackServer
from vantage.programs.own_window import GrowingAnswers, OwnWindow, read_info, unacknowledged

SO_MAX_PACING_RATE = 47
"""asm-generic/socket.h"""
TCP_CLOSE = 7
"""include/net/tcp_states.h"""
NO_LIMIT = 4_000_000_000
"""A pacing rate above all need [byte/s]: any but ~0 makes the kernel pace (net/core/sock.c)."""
UNPACED_SEGMENTS = 10
"""The kernel sends these at once (net/ipv4/tcp_output.c, tcp_update_skb_after_send)."""
MOST_BYTES = 100_000_000
POLL_S = 0.002
IDLE_S = 90.0
"""Longer than a flow of a study may take: connections that ended early are asked for their TCP_INFO at its end."""
VOICE_BYTES, VOICE_S = 172, 0.02
"""G.711 with an RTP header (RFC 3550), a packet every 20 ms."""
VOICE = struct.Struct("=QQ")
"""Number and time of a packet (CLOCK_MONOTONIC) [ns]."""
_FIELDS = (
    *("size", "answer", "pace", "cc", "first", "think", "location", "fail"),
    *("grow", "window", "info", "endless", "voice"),
)


def first_bytes(text: str, mss: int) -> int:
    """The window that `first` means at this MSS [bytes]. Raises ValueError."""
    if text != "rfc3390":
        return int(text)
    return min(4 * mss, max(2 * mss, 4380)) // mss * mss


def pacing_rate(spread: float, *, window: int, mss: int, rtt_s: float) -> int | None:
    """The rate that spreads what follows the first ten segments of a window over so many round trips [byte/s].

    None: the window has no more than these.
    """
    rest = window - UNPACED_SEGMENTS * mss
    return max(math.ceil(rest / (spread * max(rtt_s, 1e-6))), 1) if rest > 0 else None


def run_delay_ns() -> int:
    """How long the calling thread was ready to run and waited for a processor [ns]; 0 if the kernel does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    return 0


class SenderHandler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True
    server: Sender

    def setup(self) -> None:
        super().setup()
        self._marked_ns = 0
        self._waited_ns = self.server.waited_ns.pop(self.client_address[:2], 0)
        self._own: OwnWindow | None = None

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path, _, text = self.path.partition("?")
        query = {name: values[-1] for name, values in urllib.parse.parse_qs(text).items() if name in _FIELDS}
        try:
            answer = self._whole(urllib.parse.unquote(path), query, with_body=with_body)
            first = self._shape(query)
        except (ValueError, OSError) as error:
            answer, first = _page("400 Bad Request", f"{error}\n".encode()), None
        time.sleep(min(float(query.get("think", 0)), 60_000) / 1000)
        if how := query.get("fail"):
            self._fail(how, answer)
            return
        if "voice" in query:
            self._talk(int(query["voice"]))
        elif "endless" in query:
            self._pour()
        elif "grow" in query:
            self._send_growing(answer, how=query["grow"], window=int(query.get("window", UNPACED_SEGMENTS)))
        else:
            self._send(answer, first)

    def _whole(self, path: str, query: Mapping[str, str], *, with_body: bool) -> bytes:
        """Head and body."""
        if location := query.get("location"):
            return _page("302 Found", b"", f"Location: {location}", "Set-Cookie: upshift=lab; Path=/")
        if "info" in query:
            document = {**read_info(self.connection), "waited_ns": self._waited_ns}
            if self._own:
                self._own.room()  # the last ACKs count
                document |= {"window": self._own.segments, "stretched": self._own.stretched}
            return _page("200 OK", json.dumps(document).encode())
        if total := query.get("answer"):
            return _exact(int(total))
        if size := query.get("size"):
            body = _filling(int(size))
        else:
            content = self.server.read(path)
            if content is None:
                return _page("404 Not Found", f"There is no page {path}\n".encode())
            body = content
        kind = "text/html" if path.endswith((".html", "/")) else "application/octet-stream"
        return _page("200 OK", body, f"Content-Type: {kind}", with_body=with_body)

    def _shape(self, query: Mapping[str, str]) -> int | None:
        """Sets congestion control and pacing; the bytes of `first`, None for all."""
        if algorithm := query.get("cc"):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        info = read_info(self.connection)
        mss = info["mss"]
        text = query.get("first") or self.server.first_for(self.client_address[0])
        first = first_bytes(text, mss) if text else None
        if pace := query.get("pace"):
            rate: int | None = NO_LIMIT
            if pace != "on":
                window = first or info["window"] * mss
                rate = pacing_rate(float(pace), window=window, mss=mss, rtt_s=info["rtt_us"] / 1e6)
            if rate is not None:
                self.connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", rate))
        return first

    def _send(self, answer: bytes, first: int | None) -> None:
        self._waited_ns += run_delay_ns() - self._marked_ns
        if first is not None and first < len(answer):
            self.connection.sendall(answer[:first])
            if not self._acknowledged():
                return
            answer = answer[first:]
        self.connection.sendall(answer)
        self._marked_ns = run_delay_ns()

    def _send_growing(self, answer: bytes, *, how: str, window: int) -> None:
        """Sends under a window of our own, which lasts as long as the connection."""
        self._waited_ns += run_delay_ns() - self._marked_ns
        own = self._own = self._own or OwnWindow(self.connection, how=how, segments=window)
        self.server.growing.send(own, answer, limit_s=IDLE_S)
        self._marked_ns = run_delay_ns()

    def _pour(self) -> None:
        self.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        piece = _filling(1 << 18)
        while True:  # until the client ends the connection
            self.connection.sendall(piece)

    def _talk(self, port: int) -> None:
        """Sends voice from the connection's address until the client closes it."""
        with socket.socket(self.server.address_family, socket.SOCK_DGRAM) as voice:
            voice.bind((self.connection.getsockname()[0], 0))
            voice.connect((self.client_address[0], port))
            self.connection.setblocking(False)
            began = time.monotonic()
            for number in range(1 << 32):
                time.sleep(max(began + number * VOICE_S - time.monotonic(), 0))
                with contextlib.suppress(BlockingIOError):
                    self.connection.recv(1)
                    break
                with contextlib.suppress(OSError):  # refused: the client ends
                    voice.send(VOICE.pack(number, time.monotonic_ns()).ljust(VOICE_BYTES, b"\0"))
        self.close_connection = True

    def _acknowledged(self) -> bool:
        """Waits until the peer has acknowledged all; False if the connection ends before."""
        until = time.monotonic() + IDLE_S
        while time.monotonic() < until and read_info(self.connection)["state"] != TCP_CLOSE:
            if not unacknowledged(self.connection):
                return True
            time.sleep(POLL_S)
        self.close_connection = True
        return False

    def _fail(self, how: str, answer: bytes) -> None:
        if how == "silent":
            time.sleep(IDLE_S)
        elif how == "reset":
            # SO_LINGER of 0 s: close sends RST (socket(7)).
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif how == "drip":
            for number in range(len(answer)):
                self.connection.sendall(answer[number : number + 1])
                time.sleep(POLL_S)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def _page(status: str, body: bytes, *fields: str, with_body: bool = True) -> bytes:
    head = "\r\n".join(
        [f"HTTP/1.1 {status}", "Server: upshift-sender", *fields, f"Content-Length: {len(body)}", "", ""]
    )
    return head.encode() + (body if with_body else b"")


def _exact(total: int) -> bytes:
    """An answer of exactly so many bytes. Raises ValueError if its head alone is longer."""
    head = "HTTP/1.1 200 OK\r\nContent-Length: {:09}\r\n\r\n"
    size = total - len(head.format(0))
    if size < 0:
        raise ValueError(f"an answer has at least {total - size} bytes")
    return head.format(size).encode() + _filling(size)


def _filling(size: int) -> bytes:
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"size has to be 0 to {MOST_BYTES}")
    return b"x" * size


class Sender(DualStackServer):
    """Serves the files of a folder."""

    request_queue_size = 1024

    def __init__(self, root: Path, port: int, *, first: Sequence[str] = ()) -> None:
        self.root = root.resolve()
        pairs = (text.partition("=") for text in first)
        self._first = [(ipaddress.ip_network(prefix), size) for prefix, _, size in pairs]
        self.waited_ns: dict[tuple[str, int], int] = {}
        """Client -> how long this thread waited for a processor before it accepted the connection [ns]."""
        self._marked_ns = 0
        self.growing = GrowingAnswers()
        super().__init__(port, SenderHandler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        self.waited_ns[client[:2]] = run_delay_ns() - self._marked_ns
        return connection, client

    def service_actions(self) -> None:
        self._marked_ns = run_delay_ns()

    def first_for(self, client: str) -> str | None:
        """`--first` of a client."""
        address = ipaddress.ip_address(client.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return next((size for prefix, size in self._first if address in prefix), None)

    def read(self, path: str) -> bytes | None:
        """The file of that path; None if there is none, or its name is too long for one."""
        with contextlib.suppress(OSError):
            file = (self.root / (path.lstrip("/") or "index.html")).resolve()
            if file.is_relative_to(self.root) and file.is_file():
                return file.read_bytes()
        return None


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=80)
    parser.add_argument("--first", action="append", default=[], metavar="PREFIX=BYTES")
    options = parser.parse_args()
    with Sender(options.root, options.port, first=options.first) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
