"""The input files for a crawl and a mapping of the lab: top list, routing table, organisations of its AS numbers.

Writing them needs neither the lab nor root. The routing table is one as a route collector would have dumped it:
TABLE_DUMP_V2 (RFC 6396, section 4.3) with three peers. Each organisation announces its IPv4 and IPv6 prefix; paths lead
through invented transit networks, some with prepending. It also has what occurs in real tables: default routes, an
aggregate whose path ends in an AS_SET, a prefix with a different origin at one peer (MOAS, for organisations with two
AS numbers), a customer's private AS number that leaks at the end of a path.

The organisations are in the format of CAIDA's as-org2info
(https://publicdata.caida.org/datasets/as-organizations/README.txt).
"""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.domain import Provider
from core.errors import UsageError
from core.files import disk
from core.reach import IPNetwork
from vantage.lab.addresses import IPV4, IPV6, prefixes
from vantage.lab.topology import OrganisationSpec, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFiles:
    """Paths of the files that `write_files` wrote."""

    top_list: Path
    """Domains of the lab, in Tranco's format."""
    rib: Path
    """Routing table (MRT, gzip)."""
    as_organisations: Path
    """Holders of AS numbers, in the format of CAIDA's as-org2info."""


def top_list(topology: Topology) -> list[str]:
    """Domains in a seeded order, including those where a crawl finds nothing.

    The order is by a hash of each name, so a new domain does not change the order of the others. Servers with a fault
    are left out, as in `Lab.targets`: their sizes look right, so a crawl would find them.
    """
    names = [domain for server in topology.server if server.fault is None for domain in server.domains]
    names += [domain for site in topology.site for domain in site.domains]
    return sorted(names, key=lambda name: hashlib.sha256(f"{topology.seed}/{name}".encode()).digest())


def write_files(topology: Topology, folder: Path) -> LabFiles:
    """Writes `list.csv`, `rib.mrt.gz` and `as-org2info.txt`; the same bytes for the same topology.

    Raises UsageError if one of them is there with other content: somebody's own top list, for instance.
    """
    files = LabFiles(
        top_list=folder / "list.csv", rib=folder / "rib.mrt.gz", as_organisations=folder / "as-org2info.txt"
    )
    rows = "".join(f"{rank},{name}\r\n" for rank, name in enumerate(top_list(topology), 1))
    contents = {  # the demo takes the last one for all of them
        files.rib: rib(topology),
        files.as_organisations: as_organisations(topology).encode(),
        files.top_list: rows.encode(),
    }
    for path, data in contents.items():
        if path.exists() and path.read_bytes() != data:
            raise UsageError("this is already there, with other content", where=str(path), remedy="use another --out")
    with disk.whole_files(*contents) as parts:
        for part, data in zip(parts, contents.values(), strict=True):
            part.write_bytes(data)
    return files


TIMESTAMP = 1_767_225_600
"""2026-01-01 00:00 UTC: fixed, so that the table does not depend on when it is written."""

TABLE_DUMP_V2, PEER_INDEX_TABLE, RIB_IPV4_UNICAST, RIB_IPV6_UNICAST = 13, 1, 2, 4
AS_SET, AS_SEQUENCE = 1, 2
PRIVATE_ASN = 64512
"""RFC 6996; ignored when origins are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPeer:
    """A network that gives the collector its table."""

    asn: int
    address: str


PEERS = (
    CollectorPeer(asn=3_001_001, address="198.18.0.101"),
    CollectorPeer(asn=3_001_002, address="198.18.0.102"),
    CollectorPeer(asn=3_001_003, address="fd00:198:18::103"),
)
TRANSITS = tuple(range(3_001_101, 3_001_107))
"""Invented, as the peers are: no registry has assigned numbers in this range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRoute:
    """One peer's route to a prefix."""

    prefix: IPNetwork
    peer: int
    path: tuple[int, ...]
    """Nearest AS first."""
    origins: tuple[int, ...] = ()
    """An AS_SET at the end of the path."""


def routes(topology: Topology) -> Iterator[CollectorRoute]:
    """All routes, in the order of a dump: IPv4 before IPv6, then by prefix."""
    announced = prefixes(topology)
    all_origins = tuple(sorted(organisation.asn for organisation in topology.organisation))
    table: list[CollectorRoute] = []
    for whole in (IPV4, IPV6):
        default = ipaddress.ip_network((0, 0)) if whole.version == 4 else ipaddress.IPv6Network((0, 0))
        table.append(CollectorRoute(prefix=default, peer=0, path=(PEERS[0].asn,)))
        table += [
            CollectorRoute(prefix=whole, peer=number, path=(peer.asn, TRANSITS[number]), origins=all_origins)
            for number, peer in enumerate(PEERS)
        ]
    for organisation in topology.organisation:
        for prefix in announced[organisation.name]:
            table += [
                CollectorRoute(prefix=prefix, peer=number, path=_path(topology, organisation, number))
                for number in range(len(PEERS))
            ]
    key = [(r.prefix.version, int(r.prefix.network_address), r.prefix.prefixlen, r.peer) for r in table]
    yield from (table[number] for number in sorted(range(len(table)), key=key.__getitem__))


def _path(topology: Topology, organisation: OrganisationSpec, number: int) -> tuple[int, ...]:
    """The path from a peer through one to three transits to the origin, which in part prepends itself."""
    rng = random.Random(topology.seed_of("path", organisation.name, str(number)))
    transits = rng.sample(TRANSITS, rng.randint(1, 3))
    origin = organisation.asn
    if number == 2 and organisation.siblings:
        origin = organisation.siblings[0]  # one peer of three: a minority
    tail = (origin,) * rng.choice((1, 1, 2, 3))
    if number == 1 and organisation.provider is Provider.OTHER:
        tail = (*tail, PRIVATE_ASN)
    return (PEERS[number].asn, *transits, *tail)


def rib(topology: Topology) -> bytes:
    """The table as a gzip-compressed MRT file: the same bytes for the same topology."""
    by_prefix: dict[IPNetwork, list[CollectorRoute]] = {}
    for route in routes(topology):
        by_prefix.setdefault(route.prefix, []).append(route)
    records = [_record(PEER_INDEX_TABLE, _peer_index())]
    for sequence, (prefix, entries) in enumerate(by_prefix.items()):
        subtype = RIB_IPV4_UNICAST if prefix.version == 4 else RIB_IPV6_UNICAST
        octets = prefix.network_address.packed[: (prefix.prefixlen + 7) // 8]
        head = struct.pack(">IB", sequence, prefix.prefixlen) + octets + struct.pack(">H", len(entries))
        records.append(_record(subtype, head + b"".join(map(_entry, entries))))
    return gzip.compress(b"".join(records), mtime=0)


def _record(subtype: int, body: bytes) -> bytes:
    """MRT header (RFC 6396, section 2)."""
    return struct.pack(">IHHI", TIMESTAMP, TABLE_DUMP_V2, subtype, len(body)) + body


def _peer_index() -> bytes:
    """RFC 6396, section 4.3.1; bit 0 of a peer's type: an IPv6 address, bit 1: an AS number of 4 bytes."""
    view = b"lab"
    collector = ipaddress.ip_address("198.18.0.100").packed
    parts = [collector, struct.pack(">H", len(view)), view, struct.pack(">H", len(PEERS))]
    for peer in PEERS:
        address = ipaddress.ip_address(peer.address)
        identifier = struct.pack(">I", peer.asn)
        parts += [bytes([2 | (address.version == 6)]), identifier, address.packed, struct.pack(">I", peer.asn)]
    return b"".join(parts)


def _entry(route: CollectorRoute) -> bytes:
    """RFC 6396, section 4.3.4: AS numbers have 4 bytes, and MP_REACH_NLRI holds only the next hop."""
    segments = _segment(AS_SEQUENCE, route.path) + (_segment(AS_SET, route.origins) if route.origins else b"")
    attributes = _attribute(0x40, 1, b"\x00") + _attribute(0x40, 2, segments)  # ORIGIN IGP, AS_PATH
    host = 101 + route.peer
    if route.prefix.version == 4:
        attributes += _attribute(0x40, 3, IPV4[host].packed)
    else:
        attributes += _attribute(0x80, 14, bytes([16]) + IPV6[0x100 + host].packed)
    communities = struct.pack(">HH", 3001, 100 + route.peer)
    attributes += _attribute(0xC0, 8, communities)
    return struct.pack(">HIH", route.peer, TIMESTAMP, len(attributes)) + attributes


def _segment(kind: int, asns: Sequence[int]) -> bytes:
    return struct.pack(f">BB{len(asns)}I", kind, len(asns), *asns)


def _attribute(flags: int, kind: int, value: bytes) -> bytes:
    """RFC 4271, section 4.3; flag 0x10: the length has two bytes."""
    if len(value) > 255:
        return struct.pack(">BBH", flags | 0x10, kind, len(value)) + value
    return struct.pack(">BBB", flags, kind, len(value)) + value


def as_organisations(topology: Topology) -> str:
    """The holders of the table's AS numbers, in the format of as-org2info."""
    holders: list[tuple[str, str, tuple[int, ...]]] = [
        (f"{organisation.name}-LAB", organisation.title, (organisation.asn, *organisation.siblings))
        for organisation in topology.organisation
    ]
    networks = [peer.asn for peer in PEERS] + list(TRANSITS)
    holders += [(f"transit-{asn}-LAB", f"Example Transit {asn}", (asn,)) for asn in networks]
    lines = [
        f"# AS numbers and organisations of the lab {topology.name}",
        "# format:org_id|changed|org_name|country|source",
    ]
    lines += [f"{identifier}|20260101|{title}|ZZ|LAB" for identifier, title, _ in holders]
    lines.append("# format:aut|changed|aut_name|org_id|opaque_id|source")
    held = sorted((asn, identifier) for identifier, _, asns in holders for asn in asns)
    lines += [f"{asn}|20260101|LAB-{asn}|{identifier}||LAB" for asn, identifier in held]
    return "\n".join([*lines, ""])
