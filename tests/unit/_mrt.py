"""An encoder of MRT, written independently of our reader from RFC 6396, 4271, 6793 and 8050, and what to encode."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Route:
    """What goes in, and what has to come out."""

    prefix: str
    peer: int
    segments: tuple[tuple[int, tuple[int, ...]], ...]
    path_id: int | None = None


PEERS = (("192.0.2.1", 64500), ("2001:db8::1", 4_200_000_001), ("192.0.2.3", 3356))


def attributes(segments: tuple[tuple[int, tuple[int, ...]], ...], *, width: int = 4, long_form: bool = False) -> bytes:
    path = b"".join(
        bytes((kind, len(asns))) + b"".join(asn.to_bytes(width, "big") for asn in asns) for kind, asns in segments
    )
    origin = b"\x40\x01\x01\x00"
    next_hop = b"\x40\x03\x04" + bytes((192, 0, 2, 9))
    if long_form or len(path) > 255:
        return origin + b"\x50\x02" + len(path).to_bytes(2, "big") + path + next_hop
    return origin + b"\x40\x02" + bytes((len(path),)) + path + next_hop


def record(kind: int, subtype: int, body: bytes) -> bytes:
    return (
        b"".join(((1_700_000_000).to_bytes(4, "big"), kind.to_bytes(2, "big"), subtype.to_bytes(2, "big")))
        + len(body).to_bytes(4, "big")
        + body
    )


def peer_table() -> bytes:
    body = bytes(4) + (4).to_bytes(2, "big") + b"view" + len(PEERS).to_bytes(2, "big")
    for address, asn in PEERS:
        ip = ipaddress.ip_address(address)
        wide = asn > 65535
        body += bytes(((ip.version == 6) | wide << 1,)) + bytes(4) + ip.packed + asn.to_bytes(4 if wide else 2, "big")
    return record(13, 1, body)


def nlri(prefix: str) -> bytes:
    network = ipaddress.ip_network(prefix)
    return bytes((network.prefixlen,)) + network.network_address.packed[: -(-network.prefixlen // 8)]


def rib_v2(routes: list[Route]) -> bytes:
    """All routes are to the same prefix, and all or none have a path identifier."""
    first = routes[0]
    body = bytes(4) + nlri(first.prefix) + len(routes).to_bytes(2, "big")
    for route in routes:
        blob = attributes(route.segments)
        body += route.peer.to_bytes(2, "big") + bytes(4)
        if route.path_id is not None:
            body += route.path_id.to_bytes(4, "big")
        body += len(blob).to_bytes(2, "big") + blob
    six = ":" in first.prefix
    return record(
        13,
        {(False, False): 2, (True, False): 4, (False, True): 8, (True, True): 10}[six, first.path_id is not None],
        body,
    )


def rib_v1(prefix: str, peer: str, peer_asn: int, blob: bytes) -> bytes:
    network = ipaddress.ip_network(prefix)
    body = bytes(4) + network.network_address.packed + bytes((network.prefixlen, 1)) + bytes(4)
    body += ipaddress.ip_address(peer).packed + peer_asn.to_bytes(2, "big") + len(blob).to_bytes(2, "big") + blob
    return record(12, 1 if network.version == 4 else 2, body)


def expected(route: Route) -> tuple[object, ...]:
    marks = {1: ("{", ",", "}"), 2: ("", " ", ""), 3: ("(", " ", ")"), 4: ("[", ",", "]")}
    text = " ".join(marks[k][0] + marks[k][1].join(map(str, a)) + marks[k][2] for k, a in route.segments)
    inside = [s for s in route.segments if s[0] in (1, 2)]
    origin = inside[-1][1][-1] if inside and inside[-1][0] == 2 else None
    network, _, length = route.prefix.partition("/")
    if ":" in network:  # inet_ntop, as bgpdump does, writes ::3:ffe8 as ::0.3.255.232
        network = socket.inet_ntop(socket.AF_INET6, ipaddress.ip_address(network).packed)
    return (f"{network}/{length}", origin, text, PEERS[route.peer][1], PEERS[route.peer][0], route.path_id)


asns = st.integers(1, 2**32 - 2) | st.sampled_from((0, 23456, 64512, 15169))
segments_strategy = st.lists(
    st.tuples(st.sampled_from((1, 2, 2, 2, 3, 4)), st.lists(asns, min_size=1, max_size=5).map(tuple)), max_size=4
).map(tuple)
v4 = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
    lambda p: str(ipaddress.ip_network((p[0], p[1]), strict=False))
)
v6 = st.tuples(st.integers(0, 2**128 - 1), st.integers(0, 128)).map(
    lambda p: str(ipaddress.ip_network((p[0], p[1]), strict=False))
)


@st.composite
def records_of_routes(draw: st.DrawFn, *, with_id: st.SearchStrategy[bool] = st.booleans()) -> list[list[Route]]:  # noqa: B008 - a strategy is a constant
    found = []
    for _ in range(draw(st.integers(1, 5))):
        prefix = draw(st.one_of(v4, v6))
        numbered = draw(with_id)
        found.append(
            [
                Route(
                    prefix,
                    draw(st.integers(0, 2)),
                    draw(segments_strategy),
                    draw(st.integers(0, 9)) if numbered else None,
                )
                for _ in range(draw(st.integers(1, 4)))
            ]
        )
    return found


SOME = [
    Route("0.0.0.0/0", 0, ((2, (64500, 65023, 16637)),)),
    Route("10.0.0.0/8", 1, ((2, (4_200_000_001, 15169)), (1, (1, 2)))),
    Route("2001:db8::/32", 2, ()),
]

SAMPLES = (
    "bview.20020722.2337.gz",
    "bview.ipv4_unicast_add_path.gz",
    "bview.ipv6_unicast_add_path.gz",
    "mrtparse_bird-mrtdump_rib",
    "mrtparse_openbgpd_rib_table-v2",
    "mrtparse_quagga_rib",
    "rib.20140523.0600_firstMB.bz2",
)
"""In the folder `bgp` of the sample inputs."""


class Reports:
    """A progress display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int]] = []

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        self.said.append((done, total))
