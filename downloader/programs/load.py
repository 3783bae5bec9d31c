"""The client of sender studies: resident, a JSON line in, a JSON line out, one thread.

Requests:

    {"op": "load", "address": A, "html": OBJECT, "objects": [OBJECT, ...], "connections": N, "pipelined": false,
     "fixed_window": false, "rival": A or null, "rival_first": false, "limit_s": S, "gap_ms": MS, "span_ms": MS}
        OBJECT is [PATH, BYTES of the answer with its head]. The HTML first (null: none), then the objects over so many
        connections, each taking the next one when it has the last, or all asked for at once. A rival loads the same
        objects from another address at the same moment. A fixed receive window stays as it was when the first data was
        read, and the kernel acknowledges every second segment after about 16. Then each sender tells its TCP_INFO on
        the same connection. What an elephant got is over the span from the start of the load, or over the load where
        that takes longer.
    {"op": "elephant", "address": A}    a connection that takes all that the sender has; answers with its port
    {"op": "voice", "address": A}       voice from that sender
    {"op": "beside"}                    the voice while the last load lasted
    {"op": "alone"}                     ends them

Times are CLOCK_MONOTONIC [ns]; that of a load runs from before the first connect(2) to its last byte. `flights` is one
more than the gaps above `gap_ms` between arrivals. `waited_s` is how long this thread waited for a processor where
that makes a load longer: before it connects, before a request, at the last byte.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from downloader.programs.kernel import Usage, tcp_info_field
from downloader.programs.neighbours import Elephant, FailedError, Sockets, Voice, request

INFO_S = 5.0
"""Time for the senders' TCP_INFO, and for voice that is under way."""

RECEIVE_WINDOW = 64
"""Place of tcpi_rcv_ssthresh in struct tcp_info (include/uapi/linux/tcp.h) [bytes]."""

Object = Sequence[Any]
"""Path, and bytes of the answer."""


class LoadConnection:
    """One connection of a load.

    Args:
        load: hears of what arrives.
        waiting: objects that it asks for together, for as many times as there are any; others may take from them, too.
    """

    def __init__(self, load: Load, waiting: deque[Sequence[Object]]) -> None:
        self._load, self._waiting, self._sockets = load, waiting, load.sockets
        self._left, self._head = 0, b""
        self._window_to_fix = load.fixed_window
        self.is_connected = False
        self._sender_info: bytearray | None = None
        self.info: dict[str, Any] | None = None
        self.sock = load.sockets.connect(load.address, self._connected)

    def _connected(self) -> None:
        self.is_connected = True
        self._sockets.watch(self.sock, selectors.EVENT_READ, self._read)
        self.ask()

    def ask(self) -> None:
        """Asks for what is next, if there is anything."""
        self._load.acted = True
        if self._waiting:
            objects = self._waiting.popleft()
            self._left, self._head = sum(size for _, size in objects), b""
            self.sock.send(b"".join(request(path) for path, _ in objects))

    def ask_info(self) -> None:
        """Asks for the sender's TCP_INFO; once `info` has it, the connection is closed."""
        self._sender_info = bytearray()
        self.sock.send(request("/?info=1"))

    def _read(self) -> None:
        try:
            data = self.sock.recv(1 << 18)
        except OSError as error:
            raise FailedError(f"the connection ended ({error.strerror})") from None
        if not data:
            raise FailedError("the sender closed the connection")
        if self._window_to_fix:  # not before: the first full segment sets it (tcp_input.c, tcp_measure_rcv_mss)
            window = tcp_info_field(self.sock, "I", RECEIVE_WINDOW)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
            self._window_to_fix = False
        if self._sender_info is not None:
            self._sender_info += data
            _, _, body = bytes(self._sender_info).partition(b"\r\n\r\n")
            if body.endswith(b"}"):
                self.info = json.loads(body)
                self._sockets.close(self.sock)  # a sender is not patient enough for the longest span
            return
        if len(self._head) < 12:
            self._head += data[:12]
            if not b"HTTP/1.1 200".startswith(self._head[:12]):
                raise FailedError(f"the sender answered {self._head[9:12].decode('latin-1')}")
        self._left -= len(data)
        if self._left < 0:
            raise FailedError("the answer is longer than asked for")
        self._load.arrived(len(data))
        if not self._left:
            self._load.ended(self)


class Load:
    """The HTML, then the objects."""

    def __init__(self, sockets: Sockets, wanted: dict[str, Any], address: str) -> None:
        self.sockets, self.address, self._gap_ns = sockets, address, wanted["gap_ms"] * 1e6
        self._html: list[Object] = [wanted["html"]] if wanted["html"] else []
        self._objects: list[Object] = wanted["objects"]
        self._count = min(wanted["connections"], len(self._objects))
        self._pipelined = wanted["pipelined"]
        self.fixed_window: bool = wanted["fixed_window"]
        self.left = self.size = sum(int(size) for _, size in [*self._html, *self._objects])
        self.connections: list[LoadConnection] = []
        self.flights = 0
        self.ended_ns = 0
        self.acted = False
        """Whether a request was sent, or an answer ended, since this was set to False."""

    def start(self) -> None:
        """Begins to connect."""
        if self._html:
            self.connections.append(LoadConnection(self, deque([self._html])))
        else:
            self._open_all()

    def _open_all(self) -> None:
        """Each connection has its share, or all take from the same objects, one at a time."""
        self._html = []
        together = deque[Sequence[Object]]([one] for one in self._objects)
        for number in range(self._count):
            own = deque[Sequence[Object]]([self._objects[number :: self._count]])
            self.connections.append(LoadConnection(self, own if self._pipelined else together))

    def arrived(self, size: int) -> None:
        """So many bytes have arrived."""
        now = time.monotonic_ns()
        self.left -= size
        self.flights += now - self.ended_ns > self._gap_ns
        self.ended_ns = now

    def ended(self, connection: LoadConnection) -> None:
        """A connection has all that it asked for."""
        self.acted = True
        if self._html:
            self._open_all()
        else:
            connection.ask()


class LoadClient:
    """Does what requests say, one at a time."""

    def __init__(self) -> None:
        self.sockets = Sockets()
        self._elephant: Elephant | None = None
        self._voice: Voice | None = None
        self._began_ns = self._ended_ns = 0

    def load(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """A load, see the module."""
        mine = Load(self.sockets, wanted, wanted["address"])
        rival = Load(self.sockets, wanted, wanted["rival"]) if wanted["rival"] else None
        both = [load for load in (mine, rival) if load is not None]
        had = self._elephant.received if self._elephant else 0
        if self._voice:
            self._voice.packets.clear()
        before = Usage.now()
        self._began_ns = time.monotonic_ns()
        until = time.monotonic() + wanted["limit_s"]
        try:
            for load in both[:: -1 if wanted["rival_first"] else 1]:
                load.start()
            waited = Usage.now().waited_since(before) or 0.0
            while mine.left and time.monotonic() < until:
                mine.acted, before = False, Usage.now()
                self.sockets.turn(until)
                if mine.acted:
                    waited += Usage.now().waited_since(before) or 0.0
            self._ended_ns = mine.ended_ns
            answer: dict[str, Any] = {
                "outcome": "censored" if mine.left else "ok",
                "ns": mine.ended_ns - self._began_ns,
            }
            if rival is not None:  # one that has all needs no rate any more
                until_ns = time.monotonic_ns() if rival.left else rival.ended_ns
                answer["neighbour_mbit"] = (rival.size - rival.left) * 8e3 / (until_ns - self._began_ns)
            answer["ports"] = [connection.sock.getsockname()[1] for connection in mine.connections]
            # A queue may have dropped a handshake, and the other connections have fetched all without it.
            senders = [one for one in mine.connections if one.is_connected and not mine.left]
            for connection in senders:
                connection.ask_info()
            end = self._began_ns / 1e9 + wanted["span_ms"] / 1e3
            while senders and time.monotonic() < end:  # no longer: the answers come behind the elephant's queue
                self.sockets.turn(end)
            if self._elephant:
                spent_ns = time.monotonic_ns() - self._began_ns
                answer["neighbour_mbit"] = (self._elephant.received - had) * 8e3 / spent_ns
            connections = self._sender_info(senders)
            return {**answer, "flights": mine.flights, "waited_s": waited, "connections": connections}
        finally:
            for connection in (connection for load in both for connection in load.connections):
                if connection.info is None:
                    self.sockets.close(connection.sock)

    def _sender_info(self, connections: Sequence[LoadConnection]) -> list[dict[str, Any]]:
        """The TCP_INFO that their senders were asked for."""
        until = time.monotonic() + INFO_S
        while any(c.info is None for c in connections):
            if time.monotonic() > until:
                raise FailedError("the sender does not tell its TCP_INFO")
            self.sockets.turn(until)
        return [connection.info for connection in connections if connection.info]

    def beside(self) -> dict[str, Any]:
        """What the voice got."""
        if self._voice is None:
            return {}
        until = time.monotonic() + INFO_S
        while not any(sent > self._ended_ns for _, sent, _ in self._voice.packets) and time.monotonic() < until:
            self.sockets.turn(until)
        return self._voice.summary(self._began_ns, self._ended_ns)

    def alone(self) -> None:
        """Ends elephant and voice."""
        if self._elephant is not None:
            self.sockets.close(self._elephant.sock)
        if self._voice is not None:
            self.sockets.close(self._voice.sock)
            self.sockets.close(self._voice.udp)
        self._elephant = self._voice = None

    def answer(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        match wanted["op"]:
            case "load":
                return self.load(wanted)
            case "beside":
                return self.beside()
            case "elephant":
                self._elephant = Elephant(self.sockets, wanted["address"])
                return {"port": self._elephant.sock.getsockname()[1]}
            case "voice":
                self._voice = Voice(self.sockets, wanted["address"])
            case "alone":
                self.alone()
        return {}

    def serve(self) -> None:
        """Answers requests, each of which waits for the answer to the one before, until standard input ends."""
        fault, ended = "", False

        def read() -> None:
            nonlocal fault, ended
            line = sys.stdin.readline()
            ended = not line
            if ended:
                return
            try:
                if fault:
                    raise FailedError(fault)
                answer = self.answer(json.loads(line))
            except FailedError as error:
                answer, fault = {"outcome": "failed", "reason": str(error)}, ""
                self.alone()
            print(json.dumps(answer), flush=True)  # noqa: T201 - the protocol

        self.sockets.watch(sys.stdin, selectors.EVENT_READ, read)
        while not ended:
            try:
                self.sockets.turn(time.monotonic() + 1.0)
            except FailedError as error:  # of an elephant or voice, between two loads
                fault = str(error)
                self.alone()


if __name__ == "__main__":
    LoadClient().serve()
