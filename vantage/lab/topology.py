"""Topologies: which vantage points, servers, paths and sites a lab has.

The dataclasses mirror the TOML file field by field (docs/design/lab.md explains each); `topology_file` reads and checks
one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from core.domain import Provider
from core.files.config import Strict
from core.files.disk import parse_size
from vantage.lab.site_kinds import KINDS, SiteKind
from vantage.server_kind import ORIGIN_SUFFIX

MTU = 1500
DNS_NODE = "dns"

MINIMUM_QUEUE_BYTES = 256_000
"""Default queues hold four bandwidth-delay products, and at least this: HyStart leaves slow start before it is full."""

Fault = Literal[
    "status_404",
    "reset",
    "stall",
    "truncate",
    "challenge",
    "block",
    "html_page",
    "always_miss",
    "other_age",
    "other_edge",
    "other_etag",
    "resized",
    "swapped",
]
TcpOption = Literal["ecn", "sack", "window_scaling", "timestamps"]

Rewrite = Literal[
    "bleach",
    "clear_ce",
    "clear_ce_and_ect",
    "drop_ecn_syn",
    "strip_ecn",
    "strip_sack",
    "strip_window_scale",
    "strip_timestamps",
    "rewrite_ecn",
    "rewrite_sack",
    "rewrite_window_scale",
]
"""What a path may do to headers (docs/design/lab.md)."""

_BDP = re.compile(r"bdp x ([0-9]{1,18}(?:\.[0-9]+)?)")
SITE_NUMBER = "{n}"
"""Placeholder in the domain of several sites: the number of each, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VantageSpec(Strict):
    """A vantage point."""

    name: str
    uplink_mbit: float = 100.0
    """Rate of each path from here to a server [Mbit/s]."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganisationSpec(Strict):
    """Who announces a prefix; each has one IPv4 and one IPv6 prefix of the lab."""

    name: str
    title: str
    asn: int
    """Origin of its prefixes. An invented organisation uses an unallocated one, from 3000001: readers of routing
    tables ignore numbers reserved for documentation or private use, so the organisation would announce nothing."""
    provider: Provider = Provider.OTHER
    siblings: list[int] = field(default_factory=list)
    """Its other AS numbers. One peer of the routing table sees the first of them as the origin, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(Strict):
    """How a server of kind `sender` sends an answer: what the query of the URL says (`vantage/programs/sender.py`)."""

    pace: Literal["on"] | float | None = None
    """`on`: the kernel paces at its own rate. A number: what follows the first ten segments is spread over so many
    round trips. None: not paced."""
    cc: str | None = None
    """Congestion control; None: the route's."""
    first: Literal["rfc3390"] | int | None = None
    """Initial window [bytes], for which the route needs a larger `initcwnd`; `rfc3390`: the full segments of
    min(4 MSS, max(2 MSS, 4380))."""
    think: int | None = None
    """Pause before the answer [ms]."""

    @property
    def query(self) -> str:
        return "&".join(f"{name}={value}" for name in self.__slots__ if (value := getattr(self, name)) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile(Strict):
    """A file that a server has."""

    path: str
    size: int | str
    """Bytes, or a text such as `2 MB` (10^6 bytes) or `1 MiB`."""
    send: Sending = field(default_factory=Sending)
    """How a server of kind `sender` sends it; other kinds need the default."""

    @property
    def size_bytes(self) -> int:
        return parse_size(self.size)

    @property
    def target(self) -> str:
        """Path and query of its URL."""
        return self.path + (f"?{self.send.query}" if self.send.query else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpec(Strict):
    """The path between a vantage point and a server. Rate, queue, loss and AQM act towards the vantage point."""

    rtt_ms: float
    rate_mbit: float
    """Rate of IP packets [10^6 bit/s]."""
    queue: int | str | None = None
    """Bytes, a size, or `bdp x N`; None: four bandwidth-delay products, at least `MINIMUM_QUEUE_BYTES`."""
    loss_percent: float = 0.0
    ecn_threshold_bytes: int | None = None
    """Queue occupancy above which ECN-capable packets are marked and others dropped."""
    rewrites: list[Rewrite] = field(default_factory=list)
    """What it does to headers, in both directions."""
    drop: list[int] = field(default_factory=list)
    """Payload segments towards the vantage point that are lost in each connection; 0 is the first."""
    packets_per_rtt: int | None = None
    """Most packets of a connection towards the vantage point in any round trip; the others are dropped."""
    initcwnd: int | None = None
    """Initial congestion window towards this vantage point [packets]; None: the server's."""
    first: int | None = None
    """Initial window of a server of kind `sender` towards this vantage point [bytes], unless the file has one."""

    @property
    def bdp_bytes(self) -> int:
        """Bandwidth-delay product."""
        return round(self.rate_mbit * 1e6 / 8 * self.rtt_ms / 1000)

    @property
    def queue_bytes(self) -> int:
        if self.queue is None:
            return max(4 * self.bdp_bytes, MINIMUM_QUEUE_BYTES)
        if isinstance(self.queue, str) and (products := _BDP.fullmatch(self.queue)):
            return round(float(products[1]) * self.bdp_bytes)
        return parse_size(self.queue)

    @property
    def queue_ms(self) -> float:
        """How long the longest queue takes that neither overflows nor has a packet marked or dropped [ms]."""
        return min(self.queue_bytes, self.ecn_threshold_bytes or self.queue_bytes) * 8 / (1000 * self.rate_mbit)

    @property
    def clean(self) -> bool:
        """No loss, no AQM, and a queue of at least one bandwidth-delay product: the download time can be predicted."""
        lossless = not self.loss_percent and not self.drop and self.packets_per_rtt is None
        return lossless and self.ecn_threshold_bytes is None and self.queue_bytes >= self.bdp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Strict):
    """Makes a server a CDN edge: a cache in front of a far origin, which is a separate node."""

    rtt_ms: float
    rate_mbit: float
    queue: int | str | None = None

    @property
    def path(self) -> PathSpec:
        """The path between edge and origin."""
        return PathSpec(rtt_ms=self.rtt_ms, rate_mbit=self.rate_mbit, queue=self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBody(Strict):
    """A server application that is slower than the path: a piece, then a pause, so that the rate is right."""

    rate_mbit: float
    chunk: int | str
    """Bytes, or a text such as `16 kB`: small pieces make a paced sender, large ones an idle one."""

    @property
    def chunk_bytes(self) -> int:
        return parse_size(self.chunk)

    @property
    def every_s(self) -> float:
        """Time between two pieces."""
        return self.chunk_bytes * 8 / (self.rate_mbit * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressBlock(Strict):
    """A part of a server's population: so many addresses, one after another, that have one initial window."""

    hosts: int
    """A power of two, as the addresses are one prefix."""
    initcwnd: int
    """[packets]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Strict):
    """A web server."""

    name: str
    organisation: str
    paths: Mapping[str, PathSpec]
    """Vantage point -> path."""
    domains: list[str] = field(default_factory=list)
    """Names that are measured; none if the server has sites only."""
    files: list[ServedFile] = field(default_factory=list)
    cnames: list[str] = field(default_factory=list)
    """Each domain is an alias of the first name, that of the second, and so on; the last has the addresses."""
    web_server: str | None = None
    """Server kind for TCP (`vantage.servers`); None: Caddy. One without TLS has no QUIC either."""
    plain_http: bool = False
    """Port 80 serves the files too, instead of leading to HTTPS."""
    quic: bool = True
    quic_server: str | None = None
    """Server kind that provides QUIC (`vantage.servers`); None: that of the topology."""
    quic_congestion_control: str | None = None
    """One that the QUIC server supports; None: that of the topology, or the QUIC server's default."""
    quic_stream_buffer: int | str | None = None
    """The most that the QUIC server sends of an answer per round trip [bytes or a size]; None: the kind's default."""
    pretends_quic: bool = False
    """It advertises HTTP/3 by Alt-Svc and HTTPS record, but has none."""
    without: list[TcpOption] = field(default_factory=list)
    """TCP options that it does not support."""
    ipv6: bool = True
    congestion_control: str = "cubic"
    initcwnd: int = 10
    """Initial congestion window [packets]."""
    windows: list[int] = field(default_factory=list)
    """More initial windows [packets]: each has an address of its own, and the name `iw-N.DOMAIN`."""
    population: list[AddressBlock] = field(default_factory=list)
    """IPv4 addresses that the server answers for as if each were a host."""
    edge: Edge | None = None
    fault: Fault | None = None
    """How each download fails (for tests)."""
    body: SlowBody | None = None
    """Its application hands out bodies slowly, over TCP and QUIC; None: as fast as the transport takes them."""
    note: str = ""

    @property
    def origin_name(self) -> str:
        return self.name + ORIGIN_SUFFIX

    @property
    def window_names(self) -> Mapping[str, int]:
        """Name of each address of `windows` -> its initial window [packets]."""
        return {f"iw-{window}.{self.domains[0]}": window for window in self.windows}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec(Strict):
    """One `[[site]]` of a topology, or `count` of the same kind."""

    kind: str
    """One of `vantage.lab.site_kinds.KINDS` or of the topology's own `site_kind`."""
    domain: str
    """The name; the placeholder `{n}` stands for the number of each, from 1, if there are several."""
    server: str | None = None
    """Server of the site; None if the kind has no server."""
    count: int | None = None
    other_server: str | None = None
    """Server of `files.DOMAIN` (kinds `leaves_address`, `other_address`)."""
    leads_to: str | None = None
    """URL of a file on another domain (kinds `leaves_domain`, `other_domain`)."""

    @property
    def domains(self) -> list[str]:
        return [self.domain.replace(SITE_NUMBER, str(number)) for number in range(1, (self.count or 1) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology(Strict):
    """A whole emulated Internet."""

    schema: Literal[1]
    name: str
    vantage: list[VantageSpec]
    organisation: list[OrganisationSpec]
    server: list[Server]
    site: list[SiteSpec] = field(default_factory=list)
    site_kind: Mapping[str, SiteKind] = field(default_factory=dict)
    """Kinds of sites that only this topology has, by name."""
    description: str = ""
    quic_server: str | None = None
    """The kind of servers that name none; None: the lab's default."""
    quic_congestion_control: str | None = None
    """The algorithm of servers with neither a QUIC server nor an algorithm."""
    fifo_priority: int | None = None
    """Real-time priority (SCHED_FIFO) of its servers where the host permits, below the emulator's; None: none."""
    seed: int = 1
    """Seeds contents and losses: the same topology gives the same bytes and the same loss patterns."""

    def organisation_of(self, server: Server) -> OrganisationSpec:
        return next(org for org in self.organisation if org.name == server.organisation)

    @property
    def site_kinds(self) -> Mapping[str, SiteKind]:
        """Name -> kind: those that are shipped, and its own."""
        return {**KINDS, **self.site_kind}

    def kind_of(self, site: SiteSpec) -> SiteKind:
        return self.site_kinds[site.kind]

    def seed_of(self, *parts: str) -> int:
        """A separate seed for each name, the same in every run and on every machine."""
        return zlib.crc32("/".join([str(self.seed), *parts]).encode())

    def node_names(self) -> Iterator[str]:
        """Every node of the lab: DNS, vantage points, servers, origins."""
        yield DNS_NODE
        yield from (vantage.name for vantage in self.vantage)
        for server in self.server:
            yield server.name
            if server.edge:
                yield server.origin_name
