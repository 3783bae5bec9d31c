"""Hand-made captures for tests: segments between 198.18.0.1 and 198.18.0.2, on any link type."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass

ACK, PSH, RST, SYN, FIN, ECE, CWR = 0x10, 0x08, 0x04, 0x02, 0x01, 0x40, 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment; times are ns."""

    time_ns: int
    from_client: bool
    seq: int
    ack: int
    flags: int = ACK
    window: int = 500
    length: int = 0
    ip_id: int = 0
    options: bytes = b""
    client_port: int = 40000


def ipv4(segment: Segment) -> bytes:
    """The IP packet, payload as zeros."""
    header = 20 + len(segment.options)
    ports = (segment.client_port, 443) if segment.from_client else (443, segment.client_port)
    tcp = struct.pack(
        ">HHIIHHHH",
        *ports,
        segment.seq % 2**32,
        segment.ack % 2**32,
        header // 4 << 12 | segment.flags,
        segment.window,
        0,
        0,
    )
    ends = (b"\xc6\x12\x00\x01", b"\xc6\x12\x00\x02")
    source, destination = ends if segment.from_client else ends[::-1]
    total = 20 + header + segment.length
    ip = struct.pack(">BBHHHBBH", 0x45, 0, total, segment.ip_id, 0x4000, 64, 6, 0) + source + destination
    return ip + tcp + segment.options + bytes(segment.length)


def pcap(
    frames: Iterable[tuple[int, bytes]],
    *,
    link: int = 101,
    order: str = "<",
    nanoseconds: bool = True,
    snap: int = 65535,
) -> bytes:
    """A pcap file of (time in ns, frame), each frame cut after `snap` bytes."""
    magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snap, link)]
    for time_ns, frame in frames:
        seconds, rest = divmod(time_ns, 10**9)
        kept = frame[:snap]
        parts.append(struct.pack(f"{order}IIII", seconds, rest // unit, len(kept), len(frame)) + kept)
    return b"".join(parts)


def pcapng(frames: Iterable[tuple[int, int, bytes]], *, links: list[tuple[int, int]], order: str = "<") -> bytes:
    """A pcapng file of (interface, time in ns, frame); `links` are (link type, if_tsresol) of the interfaces."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = struct.pack(f"{order}I", len(body) + 12)
        return struct.pack(f"{order}I", kind) + length + body + length

    parts = [block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))]
    for link, resolution in links:
        option = struct.pack(f"{order}HHB3xHH", 9, 1, resolution, 0, 0)
        parts.append(block(1, struct.pack(f"{order}HHI", link, 0, 0) + option))
    for interface, time_ns, frame in frames:
        resolution = links[interface][1]
        per_second = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
        units = time_ns * per_second // 10**9
        head = struct.pack(f"{order}IIIII", interface, units >> 32, units % 2**32, len(frame), len(frame))
        parts.append(block(6, head + frame))
    return b"".join(parts)


def download(*, base: int = 1000, packets: int = 40, lose: frozenset[int] = frozenset()) -> list[Segment]:
    """A plain download: handshake, request, `packets` segments of 1000 bytes; those in `lose` come again at the end."""
    client, server, mss = base, base + 77_000, b"\x02\x04\x03\xe8"
    segments = [
        Segment(time_ns=0, from_client=True, seq=client, ack=0, flags=SYN, options=mss),
        Segment(time_ns=10_000_000, from_client=False, seq=server, ack=client + 1, flags=SYN | ACK, options=mss),
        Segment(time_ns=10_100_000, from_client=True, seq=client + 1, ack=server + 1),
        Segment(time_ns=10_200_000, from_client=True, seq=client + 1, ack=server + 1, length=100, flags=ACK | PSH),
    ]
    now, identification = 20_200_000, 1
    for number in [*range(packets), *sorted(lose)]:
        identification += 1
        again = identification > packets + 1
        if number in lose and not again:
            continue
        now += 20_000_000 if again else 100_000
        start = server + 1 + number * 1000
        segments.append(
            Segment(time_ns=now, from_client=False, seq=start, ack=client + 101, length=1000, ip_id=identification)
        )
        if number % 2 and not again:
            segments.append(Segment(time_ns=now + 1000, from_client=True, seq=client + 101, ack=start + 1000))
    return segments


def random_connections(*, seed: int, connections: int, packets: int, plain_share: float) -> bytes:
    """Connections of segments near each other in sequence space, in all states that a TCP can be confused into."""
    source = random.Random(seed)
    frames = []
    flags = (ACK, ACK, ACK, ACK | PSH, ACK | FIN, SYN, SYN | ACK, RST, RST | ACK, ACK | ECE)
    for number in range(connections):
        ahead = [source.choice((1000, 2**32 - 900, 1)), source.choice((9000, 2**32 - 300))]
        now = 10**9 * (1 + number)
        for position in range(packets):
            now += source.choice((10_000, 900_000, 5_000_000, 30_000_000, 0, -500_000))
            side = source.random() < 0.4
            plain = source.random() < plain_share
            flag = SYN if position == 0 and source.random() < 0.7 else ACK if plain else source.choice(flags)
            length = source.choice((0, 0, 1, 100, 500)) if not plain else source.choice((0, 500))
            behind = 0 if plain else source.choice((0, 0, 0, 1, 100, 500, -200))
            scale = b"\x03\x03\x02\x00" if flag & SYN and source.random() < 0.5 else b""
            sack = b"\x01\x01\x05\x0a" + struct.pack(
                ">II", ahead[not side] - 100 & 2**32 - 1, ahead[not side] & 2**32 - 1
            )
            frames.append(
                (
                    now,
                    ipv4(
                        Segment(
                            time_ns=now,
                            from_client=side,
                            seq=ahead[side] - behind,
                            ack=ahead[not side] - source.choice((0, 0, 0, 100, -100)),
                            flags=flag,
                            window=source.choice((0, 500, 500, 500, 501)),
                            length=length,
                            ip_id=position,
                            options=scale or (sack if not plain and source.random() < 0.2 else b""),
                            client_port=20000 + number,
                        )
                    ),
                )
            )
            ahead[side] = max(ahead[side], ahead[side] - behind + length + bool(flag & (SYN | FIN)))
    return pcap(frames)
