"""One probe of a server's first flight by raw packets: what the lab's tests hold its servers against.

A program, to be run in a place: reads JSON objects (`Asked`) on standard input and prints as many (`Flight`). The
addresses are those of `Place.prober`, so no kernel answers for them. No ACK is sent for the flight until its first
segment comes again; then one for the highest byte, with a window of two segments.
"""

from __future__ import annotations

import ipaddress
import json
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
WINDOW, SHIFT = 65535, 3
ISN = 0xFFFF_FF00  # wraps during the request


@dataclass(kw_only=True)
class Asked:
    """What to probe; MAC addresses as text, times in seconds."""

    source: str
    target: str
    device: str
    neighbour: str | None
    request: str
    mss: int = 1200
    port: int = 80
    sport: int = 40000
    scale: bool = True
    ack_delay_s: float = 0.0
    """How long the handshake's last ACK waits, so that the server believes in a longer round trip."""
    end_s: float = 4.0
    """How long to wait for the flight's end."""


@dataclass(kw_only=True)
class Flight:
    """What came back."""

    syn_ack: bool = False
    segments: list[tuple[int, int, float]] = field(default_factory=list)
    """Offset, payload [B] and time since the first one [s] of each payload segment, those sent again left out."""
    ended_s: float | None = None
    """When the first segment came again, since it came first."""
    fin: bool = False
    """In the flight."""
    reset: bool = False
    more: bool = False
    """New data after the final ACK."""

    @property
    def size(self) -> int:
        return max((offset + length for offset, length, _ in self.segments), default=0)

    @property
    def largest(self) -> int:
        return max((length for _, length, _ in self.segments), default=0)

    @property
    def span_s(self) -> float:
        return self.segments[-1][2] if self.segments else 0.0


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Connection:
    """A TCP connection without a kernel."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.source, self.target = ipaddress.ip_address(asked.source), ipaddress.ip_address(asked.target)
        self.protocol = 0x0800 if self.source.version == 4 else 0x86DD
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(self.protocol))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self.socket.bind((asked.device, self.protocol))
        self.neighbour = bytes.fromhex((asked.neighbour or "").replace(":", ""))

    def send(
        self, flags: int, sequence: int, acknowledged: int, *, window: int, data: bytes = b"", options: bytes = b""
    ) -> None:
        words = (20 + len(options)) // 4
        ports = (self.asked.sport, self.asked.port)
        header = struct.pack(">HHIIBBHHH", *ports, sequence, acknowledged, words << 4, flags, window, 0, 0) + options
        segment = header + data
        pseudo = self.source.packed + self.target.packed + struct.pack(">IHBB", len(segment), 0, 0, 6)
        segment = segment[:16] + struct.pack(">H", _sum(pseudo + segment)) + segment[18:]
        if self.source.version == 4:
            head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, 6, 0)
            ends = self.source.packed + self.target.packed
            packet = head[:10] + struct.pack(">H", _sum(head + ends)) + ends + segment
        else:
            packet = (
                struct.pack(">IHBB", 6 << 28, len(segment), 6, 64) + self.source.packed + self.target.packed + segment
            )
        self.socket.sendto(packet, (self.asked.device, self.protocol, 0, 0, self.neighbour))

    def receive(self, until: float) -> tuple[int, int, bytes, float] | None:
        """Flags, sequence number, payload and time of the next segment for us; None after `until`."""
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left)[0]:
                break
            packet, address = self.socket.recvfrom(65536)
            now = time.monotonic()
            if address[2] == socket.PACKET_OUTGOING:
                continue
            start = (packet[0] & 15) * 4 if self.source.version == 4 else 40
            ends = packet[12:20] if self.source.version == 4 else packet[8:40]
            length = (
                int.from_bytes(packet[2:4], "big")
                if self.source.version == 4
                else 40 + int.from_bytes(packet[4:6], "big")
            )
            segment = packet[start:length]
            if ends != self.target.packed + self.source.packed or len(segment) < 20:
                continue
            sport, dport, sequence = struct.unpack(">HHI", segment[:8])
            if (sport, dport) == (self.asked.port, self.asked.sport):
                return segment[13], sequence, segment[(segment[12] >> 4) * 4 :], now
        return None


def probe(asked: Asked) -> Flight:
    """The whole probe."""
    flight, here = Flight(), Connection(asked)
    options = struct.pack(">BBH", 2, 4, asked.mss) + (struct.pack(">BBBB", 1, 3, 3, SHIFT) if asked.scale else b"")
    here.send(SYN, ISN, 0, window=WINDOW, options=options)
    answer = here.receive(time.monotonic() + 3.0)
    if answer is None or answer[0] & (SYN | ACK) != SYN | ACK:
        flight.reset = answer is not None and bool(answer[0] & RST)
        return flight
    flight.syn_ack = True
    start = (answer[1] + 1) & 0xFFFF_FFFF
    sequence = (ISN + 1) & 0xFFFF_FFFF
    time.sleep(asked.ack_delay_s)
    here.send(ACK, sequence, start, window=WINDOW)
    request = asked.request.encode()
    here.send(PSH | ACK, sequence, start, window=WINDOW, data=request)
    sequence = (sequence + len(request)) & 0xFFFF_FFFF
    begun, until = None, time.monotonic() + asked.end_s
    while (got := here.receive(until)) is not None:
        flags, number, data, now = got
        offset = (number - start) & 0xFFFF_FFFF
        flight.reset |= bool(flags & RST)
        flight.fin |= bool(flags & FIN)
        if not data or offset > 1 << 31:
            continue
        begun = now if begun is None else begun
        if offset == 0 and flight.segments and any(segment[0] == 0 for segment in flight.segments):
            flight.ended_s = now - begun
            break
        flight.segments.append((offset, len(data), now - begun))
    highest = (start + flight.size) & 0xFFFF_FFFF
    shift = SHIFT if asked.scale else 0
    here.send(ACK, sequence, highest, window=max(2 * asked.mss >> shift, 1))
    until = time.monotonic() + 1.0
    while flight.ended_s is not None and not flight.more and (got := here.receive(until)) is not None:
        flight.more = bool(got[2]) and (got[1] - highest) & 0xFFFF_FFFF < 1 << 31
    here.send(RST, sequence, 0, window=0)
    return flight


def read(found: dict[str, Any]) -> Flight:
    """A flight from this program's JSON."""
    found["segments"] = [tuple(segment) for segment in found["segments"]]
    return Flight(**found)


if __name__ == "__main__":
    print(json.dumps([asdict(probe(Asked(**asked))) for asked in json.load(sys.stdin)]))
