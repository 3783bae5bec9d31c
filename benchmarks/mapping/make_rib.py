"""Writes a RIB the size of today's table: real prefixes and origins, invented peers and paths.

    python benchmarks/mapping/make_rib.py PREFIXES.zip OUT.mrt --peers 4

PREFIXES.zip is the prefix list of ../shared/data/bgp/asn_prefix_mapping_20220825.zip (lines `ASN | prefix prefix ...`).
Each peer sees each prefix through one of its own upstreams, with communities as real tables have them, so that the
readers' caches are neither useless nor all there is.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
import struct
import zipfile
from pathlib import Path

TIMESTAMP = 1_661_385_600


def read_prefixes(path: Path) -> dict[tuple[int, int], int]:
    """(network, length) -> an origin; the first one where the list has several."""
    found: dict[tuple[int, int], int] = {}
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as handle:
        for line in handle:
            left, _, right = line.decode().partition("|")
            if not left.strip().isdigit():
                continue
            for prefix in right.split():
                network, _, length = prefix.partition("/")
                found.setdefault((int(ipaddress.IPv4Address(network)), int(length)), int(left))
    return found


def record(subtype: int, body: bytes) -> bytes:
    return struct.pack(">IHHI", TIMESTAMP, 13, subtype, len(body)) + body


def write_rib(prefixes: dict[tuple[int, int], int], out: Path, *, peers: int, seed: int = 1) -> int:
    """Number of routes written."""
    generator = random.Random(seed)
    table = b"".join(struct.pack(">B4s4sI", 2, bytes(4), bytes((192, 0, 2, i)), 3000 + i) for i in range(peers))
    upstreams = [[generator.randrange(1, 64000) for _ in range(6)] for _ in range(peers)]
    with out.open("wb") as handle:
        handle.write(record(1, bytes(4) + struct.pack(">HH", 0, peers) + table))
        for sequence, ((network, length), origin) in enumerate(sorted(prefixes.items())):
            octets = network.to_bytes(4, "big")[: (length + 7) // 8]
            parts = [struct.pack(">IB", sequence, length), octets, struct.pack(">H", peers)]
            for peer in range(peers):
                upstream = upstreams[peer][origin % 6]
                path = (3000 + peer, upstream, *((upstream % 97 + 100,) if origin & 1 else ()), origin)
                communities = struct.pack(">HHHH", 3000 + peer, 100 + origin % 7, upstream, 20 + origin % 50)
                attributes = (
                    b"\x40\x01\x01\x00"
                    + struct.pack(f">BBBBB{len(path)}I", 0x40, 2, 2 + 4 * len(path), 2, len(path), *path)
                    + struct.pack(">BBB4B", 0x40, 3, 4, 192, 0, 2, peer)
                    + struct.pack(">BBB", 0xC0, 8, len(communities))
                    + communities
                )
                parts.append(struct.pack(">HIH", peer, TIMESTAMP, len(attributes)) + attributes)
            handle.write(record(2, b"".join(parts)))
    return len(prefixes) * peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", type=int, default=4, help="number of peers (routes per prefix)")
    arguments = parser.parse_args()
    prefixes = read_prefixes(arguments.prefixes)
    routes = write_rib(prefixes, arguments.out, peers=arguments.peers)
    print(f"{len(prefixes)} prefixes, {routes} routes, {arguments.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
