"""Servers that break TCP's rules, each at an address that the namespace's kernel does not have.

    python _iw_rogues.py DEVICE PROBER-MAC PROBER-ADDRESS

Its own TCP on a packet socket, as no kernel sends such segments. Prints a line when ready.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MSS = 536
WINDOW = 10
TIMEOUT_S = 0.22
ETH_P_IP = 0x0800
NEVER_S = 1e6
CHECKSUM_ERROR = 0x5A5A
BEYOND = 600_000
"""An offset beyond the prober's window of 524,216 bytes."""


@dataclass(slots=True)
class Connection:
    """One connection of a prober, after its SYN."""

    port: int
    isn: int
    next: int
    """The prober's next sequence number."""


Packet = tuple[float, bytes]
"""When to send it [s after the request], and what."""


class Rogue:
    """What builds its packets."""

    def __init__(self, address: str, prober: str) -> None:
        self.address, self.prober = address, prober

    def packet(self, to: Connection, offset: int, length: int = 0, *, flags: int = ACK, broken: int = 0) -> bytes:
        """A segment at an offset from our first byte.

        Args:
            to: its connection.
            offset: may be negative.
            length: of the payload.
            flags: those of TCP.
            broken: is added to the checksum.
        """
        seq = (to.isn + 1 + offset) & 0xFFFFFFFF
        options = b"\x02\x04\x05\xb4\x01\x03\x03\x07" if flags & SYN else b""
        head = struct.pack("!HHIIBBHHH", 80, to.port, seq, to.next, (20 + len(options)) << 2, flags, 65_535, 0, 0)
        segment = head + options + b"x" * length
        ends = socket.inet_aton(self.address) + socket.inet_aton(self.prober)
        checksum = internet_checksum(ends + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment)
        segment = segment[:16] + struct.pack("!H", (checksum + broken) & 0xFFFF) + segment[18:]
        return ip_header(ends, len(segment)) + segment

    def noise(self, to: Connection, data: bytes) -> bytes:
        """A packet of the connection whose TCP header is anything."""
        ends = socket.inet_aton(self.address) + socket.inet_aton(self.prober)
        return ip_header(ends, 4 + len(data)) + struct.pack("!HH", 80, to.port) + data

    def flight(self, to: Connection, *, after_s: float = 0.0) -> Iterator[Packet]:
        """A whole window."""
        for index in range(WINDOW):
            yield after_s, self.packet(to, index * MSS, MSS)


Manner = Callable[[Rogue, Connection], Iterator[Packet]]


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip_header(ends: bytes, length: int) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, socket.IPPROTO_TCP, 0) + ends
    return head[:10] + struct.pack("!H", internet_checksum(head)) + head[12:]


def garbage_after_the_flight(rogue: Rogue, to: Connection, *, steps: int = 200) -> Iterator[Packet]:
    """A window, then noise: broken checksums, wrong ports, bytes beyond the window, bytes from before; no more data."""
    yield from rogue.flight(to)
    yield TIMEOUT_S, rogue.packet(to, 0, MSS)
    noise = random.Random(7)
    for step in range(steps):
        at = TIMEOUT_S + 0.02 + step / 1000
        end = WINDOW * MSS
        yield at, rogue.packet(to, end, MSS, broken=CHECKSUM_ERROR)
        yield at, rogue.packet(to, end + BEYOND, MSS)
        yield at, rogue.packet(to, -5_000, MSS)
        yield at, rogue.packet(to, noise.randrange(end), 0, flags=noise.choice((0, PSH | ACK, SYN | ACK, SYN)))
        yield at, rogue.packet(Connection(port=to.port ^ 1, isn=to.isn, next=to.next), end, MSS)
        yield at, rogue.packet(to, end + BEYOND, 0, flags=RST | ACK)
        yield at, rogue.noise(to, noise.randbytes(36))
        yield at, rogue.packet(to, end, MSS)[: noise.randrange(20, 40)]


def garbage_before_the_next_segment(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """The same noise, then the next two segments, as soon as if the window was the limit."""
    yield from garbage_after_the_flight(rogue, to, steps=20)
    yield TIMEOUT_S + 0.05, rogue.packet(to, WINDOW * MSS, MSS)
    yield TIMEOUT_S + 0.05, rogue.packet(to, (WINDOW + 1) * MSS, MSS)


def never_stops(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """Sends its first segment again and again, whatever is acknowledged."""
    yield from rogue.flight(to)
    for step in itertools.count():
        yield TIMEOUT_S + step * 0.05, rogue.packet(to, 0, MSS)


def never_answers_but_acknowledges(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """Empty segments without end: it is alive, and sends nothing."""
    for step in itertools.count():
        yield step * 0.05, rogue.packet(to, 0)


def outside_the_window(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """All of its answer lies beyond the prober's window."""
    for index in range(WINDOW):
        yield 0.0, rogue.packet(to, BEYOND + index * MSS, MSS)


def partly_outside_the_window(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """A flight whose last segments lie beyond the prober's window: they are not of the flight."""
    yield from rogue.flight(to)
    yield from outside_the_window(rogue, to)
    yield TIMEOUT_S, rogue.packet(to, 0, MSS)
    yield TIMEOUT_S + 0.1, rogue.packet(to, WINDOW * MSS, MSS)


def no_window(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """Has no congestion control: new data without end, and nothing is ever sent again."""
    for index in itertools.count():
        yield index * 0.001, rogue.packet(to, index * MSS, MSS)


def resets_elsewhere(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """RSTs outside the window, as an attacker guesses them (RFC 5961), within a flight that goes on."""
    for offset in (-70_000, BEYOND, 0x7FFF_0000):
        yield 0.0, rogue.packet(to, offset, flags=RST)
    yield from rogue.flight(to, after_s=0.01)
    yield TIMEOUT_S, rogue.packet(to, 0, MSS)
    yield TIMEOUT_S + 0.1, rogue.packet(to, WINDOW * MSS, MSS)


def deaf(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """The request is lost each time."""
    yield NEVER_S, rogue.packet(to, 0)


def ignores_the_mss(rogue: Rogue, to: Connection) -> Iterator[Packet]:
    """Segments of 1000 bytes, whatever was announced."""
    for again_s in (0.0, TIMEOUT_S):
        for index in range(WINDOW if not again_s else 1):
            yield again_s, rogue.packet(to, index * 1000, 1000)
    yield TIMEOUT_S + 0.1, rogue.packet(to, WINDOW * 1000, 1000)


MANNERS: tuple[Manner, ...] = (
    garbage_after_the_flight,
    garbage_before_the_next_segment,
    never_stops,
    never_answers_but_acknowledges,
    outside_the_window,
    partly_outside_the_window,
    no_window,
    resets_elsewhere,
    deaf,
    ignores_the_mss,
)


def address_of(manner: Manner) -> str:
    """Where it listens."""
    return str(ipaddress.IPv4Address("198.18.77.3") + MANNERS.index(manner))


class Server:
    """All of them on one device."""

    def __init__(self, device: str, mac: str, prober: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self.socket.bind((device, ETH_P_IP))
        self.ends = (device, ETH_P_IP, 0, 0, bytes.fromhex(mac.replace(":", "")))
        self.rogues = {address_of(manner): (Rogue(address_of(manner), prober), manner) for manner in MANNERS}
        self.open: dict[tuple[str, int], Connection] = {}
        self.sending: dict[tuple[str, int], tuple[float, Packet, Iterator[Packet]]] = {}

    def serve(self) -> None:
        """Runs until standard input ends."""
        while True:
            due = min((begun + packet[0] for begun, packet, _ in self.sending.values()), default=None)
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            readable, _, _ = select.select([self.socket, sys.stdin], [], [], wait_s)
            if sys.stdin in readable:
                return
            if self.socket in readable:
                self.receive(self.socket.recv(65_536))
            self.send_due()

    def receive(self, packet: bytes) -> None:
        address = socket.inet_ntoa(packet[16:20])
        if packet[9] != socket.IPPROTO_TCP or address not in self.rogues:
            return
        rogue, manner = self.rogues[address]
        segment = packet[20 : int.from_bytes(packet[2:4], "big")]
        port, _, seq, _, offset, flags = struct.unpack_from("!HHIIBB", segment)
        key, length = (address, port), len(segment) - (offset >> 4) * 4
        if flags & RST:
            self.open.pop(key, None)
            self.sending.pop(key, None)
        elif flags & SYN:
            made = Connection(port=port, isn=random.getrandbits(32), next=(seq + 1) & 0xFFFFFFFF)
            self.open[key] = made
            self.socket.sendto(rogue.packet(made, -1, flags=SYN | ACK), self.ends)
        elif length and key in self.open and key not in self.sending:
            self.open[key].next = (seq + length) & 0xFFFFFFFF
            packets = manner(rogue, self.open[key])
            self.sending[key] = (time.monotonic(), next(packets), packets)

    def send_due(self) -> None:
        now = time.monotonic()
        for key, (begun, packet, packets) in list(self.sending.items()):
            following: Packet | None = packet
            while following is not None and begun + following[0] <= now:
                self.socket.sendto(following[1], self.ends)
                following = next(packets, None)
            # One that has said all stays, so that a request that comes again is not answered again.
            self.sending[key] = (begun, following or (NEVER_S, b""), packets)


def main() -> None:
    server = Server(*sys.argv[1:4])
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
