"""Topologies: TOML files that say which vantage points, servers and paths a lab has.

The dataclasses mirror the file field by field (docs/design/lab.md explains each). `load_topology` reads a shipped name
or a path, refuses what cannot be built with a sentence that names file and field, and gives a `Topology` whose sizes
and queues are numbers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from upshift.config import STRICT, load_toml
from upshift.domain import Provider
from upshift.errors import UsageError
from vantage.lab.sites import Site, check_sites

SHIPPED = Path(__file__).resolve().parent / "topologies"
"""Folder of the topologies that come with Upshift."""

MTU = 1500
DNS_NODE = "dns"
ORIGIN_SUFFIX = "-origin"

MINIMUM_QUEUE_BYTES = 256_000
"""Default queues hold four bandwidth-delay products, and at least this: HyStart leaves slow start before it is full."""

Fault = Literal["status_404", "reset", "stall", "truncate"]
TcpOption = Literal["ecn", "sack", "window_scaling", "timestamps"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_FILE = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|MB|KiB|MiB)")
_BDP = re.compile(r"bdp x ([0-9]+(?:\.[0-9]+)?)")
_Require = Callable[[bool, str, str, str], None]
_Number = Callable[[], float]
_UNITS = {"B": 1, "kB": 1000, "MB": 1_000_000, "KiB": 1024, "MiB": 1024 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vantage:
    """A vantage point."""

    __pydantic_config__ = STRICT

    name: str
    uplink_mbit: float = 100.0
    """Rate of each path from here to a server [Mbit/s]."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Organisation:
    """Who announces a prefix; each has one IPv4 and one IPv6 prefix of the lab."""

    __pydantic_config__ = STRICT

    name: str
    title: str
    asn: int
    """Origin of its prefixes. An invented organisation has an unallocated one, from 3000001: a routing table's reader
    passes over what is reserved for documentation or private use, and the organisation would announce nothing."""
    provider: Provider = Provider.OTHER
    siblings: list[int] = field(default_factory=list)
    """Its other AS numbers. One peer of the routing table sees the first of them as the origin, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file that a server has."""

    __pydantic_config__ = STRICT

    path: str
    size: int | str
    """Bytes, or a text such as `2 MB` (10^6 bytes) or `1 MiB`."""

    @property
    def size_bytes(self) -> int:
        return parse_size(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpec:
    """The path between a vantage point and a server. Rate, queue, loss and AQM act towards the vantage point."""

    __pydantic_config__ = STRICT

    rtt_ms: float
    rate_mbit: float
    """Of IP packets [10^6 bit/s]."""
    queue: int | str | None = None
    """Bytes, a size, or `bdp x N`; None: four bandwidth-delay products, at least `MINIMUM_QUEUE_BYTES`."""
    loss_percent: float = 0.0
    ecn_threshold_bytes: int | None = None
    """Queue occupancy above which ECN-capable packets are marked and others dropped."""

    @property
    def bdp_bytes(self) -> int:
        """Bandwidth-delay product."""
        return round(self.rate_mbit * 1e6 / 8 * self.rtt_ms / 1000)

    @property
    def queue_bytes(self) -> int:
        if self.queue is None:
            return max(4 * self.bdp_bytes, MINIMUM_QUEUE_BYTES)
        if isinstance(self.queue, str) and (found := _BDP.fullmatch(self.queue)):
            return round(float(found[1]) * self.bdp_bytes)
        return parse_size(self.queue)

    @property
    def clean(self) -> bool:
        """No loss, no AQM, and a queue of at least one bandwidth-delay product: the download time can be predicted."""
        return not self.loss_percent and self.ecn_threshold_bytes is None and self.queue_bytes >= self.bdp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Makes a server a CDN edge: a cache in front of a far origin, which is a node of its own."""

    __pydantic_config__ = STRICT

    rtt_ms: float
    rate_mbit: float
    queue: int | str | None = None

    @property
    def path(self) -> PathSpec:
        """The path between edge and origin."""
        return PathSpec(rtt_ms=self.rtt_ms, rate_mbit=self.rate_mbit, queue=self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A web server."""

    __pydantic_config__ = STRICT

    name: str
    organisation: str
    paths: Mapping[str, PathSpec]
    """Vantage point -> path."""
    domains: list[str] = field(default_factory=list)
    """Names that are measured; none where the server has sites only."""
    files: list[ServedFile] = field(default_factory=list)
    cnames: list[str] = field(default_factory=list)
    """Each domain is an alias of the first of these names, that of the second, and so on; the last has the address."""
    quic: bool = True
    pretends_quic: bool = False
    """It says by Alt-Svc and HTTPS record that it had HTTP/3, and has none."""
    without: list[TcpOption] = field(default_factory=list)
    """TCP options that it does not know."""
    ipv6: bool = True
    congestion_control: str = "cubic"
    initcwnd: int = 10
    """Initial congestion window [packets]."""
    edge: Edge | None = None
    fault: Fault | None = None
    """What goes wrong with each download (for tests)."""
    note: str = ""

    @property
    def origin_name(self) -> str:
        return self.name + ORIGIN_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole emulated Internet."""

    __pydantic_config__ = STRICT

    schema: Literal[1]
    name: str
    vantage: list[Vantage]
    organisation: list[Organisation]
    server: list[Server]
    site: list[Site] = field(default_factory=list)
    description: str = ""
    seed: int = 1
    """Seeds contents and losses: the same topology gives the same bytes and the same loss patterns."""

    def organisation_of(self, server: Server) -> Organisation:
        return next(org for org in self.organisation if org.name == server.organisation)

    def seed_of(self, *parts: str) -> int:
        """A seed of its own for the thing named, the same in every run and on every machine."""
        return zlib.crc32("/".join([str(self.seed), *parts]).encode())

    def node_names(self) -> Iterator[str]:
        """Every node of the lab: DNS, vantage points, servers, origins."""
        yield DNS_NODE
        yield from (vantage.name for vantage in self.vantage)
        for server in self.server:
            yield server.name
            if server.edge:
                yield server.origin_name


def shipped() -> list[str]:
    """Names of the topologies that come with Upshift."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find_topology(name: str | Path) -> Path:
    """The file of a shipped topology's name or of a path. Raises UsageError that lists the shipped ones."""
    text = str(name)
    if text in shipped():
        return SHIPPED / f"{text}.toml"
    if isinstance(name, Path) or "/" in text or text.endswith(".toml"):
        return Path(name).absolute()
    raise UsageError(
        f"there is no topology {text!r}",
        remedy=f"known are: {', '.join(shipped())}; or give the path of a TOML file, such as ./{text}.toml",
    )


def load_topology(name: str | Path) -> Topology:
    """A topology by shipped name or path. Raises UsageError naming file and field."""
    path = find_topology(name)
    topology = load_toml(path, Topology)
    _check(topology, str(path))
    return topology


def parse_size(value: int | str) -> int:
    """Bytes from a number or a text such as `2 MB`. Raises ValueError."""
    if isinstance(value, int):
        return value
    found = _SIZE.fullmatch(value)
    if not found:
        raise ValueError(f"{value!r} is no size")
    return round(float(found[1]) * _UNITS[found[2]])


def _check(topology: Topology, where: str) -> None:
    """Raises UsageError for what the types cannot express."""

    def require(good: bool, name: str, what: str, remedy: str) -> None:
        if not good:
            raise UsageError(f"field {name}: {what}", where=where, remedy=remedy)

    rules = "letters, digits and hyphens, at most 40"
    require(bool(_NAME.fullmatch(topology.name)), "name", f"{topology.name!r} is no name", f"use {rules}")
    for kind in ("vantage", "organisation", "server"):
        require(bool(getattr(topology, kind)), kind, "there is none", f"add a [[{kind}]] entry")
    seen: set[str] = set()
    for name in topology.node_names():
        require(bool(_NAME.fullmatch(name)), "name", f"{name!r} is no name of a node", f"use {rules}")
        require(name not in seen, "name", f"two nodes are named {name!r}", f"rename one ({DNS_NODE} is taken)")
        seen.add(name)
    titles = [org.name for org in topology.organisation]
    require(len(set(titles)) == len(titles), "organisation.name", "two have the same name", "rename one")
    asns: set[int] = set()
    for org in topology.organisation:
        for asn in (org.asn, *org.siblings):
            at = f"organisation.{org.name}.asn"
            require(not _is_reserved(asn), at, f"{asn} is no AS number of an organisation (IANA)", "use 3000001 and on")
            require(asn not in asns, at, f"{asn} stands twice in the file", "use another number")
            asns.add(asn)
    for number, vantage in enumerate(topology.vantage):
        good = 0 < vantage.uplink_mbit <= 100_000
        require(good, f"vantage.{number}.uplink_mbit", f"{vantage.uplink_mbit:g} is out of range", "use 1 to 100000")
    domains: set[str] = set()
    for server in topology.server:
        _check_server(topology, server, domains, require)
    check_sites(topology, domains, lambda name: bool(_DOMAIN.fullmatch(name)), require)


def _is_reserved(asn: int) -> bool:
    """Whether nobody can hold it (RFC 7607: 0, 6793: 23456, 5398, 6996, 7300), or it has more than 32 bits."""
    return not 0 < asn < 4_200_000_000 or asn == 23456 or 64496 <= asn <= 65551


def _check_server(topology: Topology, server: Server, domains: set[str], require: _Require) -> None:
    at = f"server.{server.name}"
    known = [org.name for org in topology.organisation]
    require(
        server.organisation in known,
        f"{at}.organisation",
        f"there is no organisation {server.organisation!r}",
        f"known are: {', '.join(known)}",
    )
    for kind, names in (("domains", server.domains), ("cnames", server.cnames)):
        for name in names:
            require(bool(_DOMAIN.fullmatch(name)), f"{at}.{kind}", f"{name!r} is no domain", "use www.name.example")
            require(name not in domains, f"{at}.{kind}", f"{name} stands twice in the file", "use another name")
            domains.add(name)
    sites_only = any(server.name in (site.server, site.other_server) for site in topology.site) and not server.files
    named = bool(server.domains) or sites_only
    require(named, f"{at}.domains", "there is none", "name one, such as www.name.example, or add a [[site]]")
    served = bool(server.files) or not server.domains
    require(served, f"{at}.files", "there is none", 'add one, such as { path = "/a.bin", size = "2 MB" }')
    fair = not (server.pretends_quic and server.quic)
    require(fair, f"{at}.pretends_quic", "the server has QUIC", "add quic = false, or leave it out")
    for file in server.files:
        require(bool(_FILE.fullmatch(file.path)), f"{at}.files", f"{file.path!r} is no path", "use /folder/name.bin")
        _check_number(require, f"{at}.files.size", partial(parse_size, file.size), 1, 1_000_000_000)
    require(1 <= server.initcwnd <= 1000, f"{at}.initcwnd", f"{server.initcwnd} is out of range", "use 1 to 1000")
    require(
        bool(re.fullmatch(r"[a-z0-9_]{1,15}", server.congestion_control)),
        f"{at}.congestion_control",
        f"{server.congestion_control!r} is no algorithm",
        "use cubic, reno or bbr",
    )
    vantages = [vantage.name for vantage in topology.vantage]
    for name in server.paths:
        require(name in vantages, f"{at}.paths.{name}", "there is no such vantage point", f"use {', '.join(vantages)}")
    for name in vantages:
        require(name in server.paths, f"{at}.paths.{name}", "it is missing", "say rtt_ms and rate_mbit of this path")
        _check_path(require, f"{at}.paths.{name}", server.paths[name])
    if server.edge:
        require(server.fault is None, f"{at}.fault", "an edge cannot have a fault", "leave out edge or fault")
        _check_path(require, f"{at}.edge", server.edge.path)


def _check_path(require: _Require, at: str, path: PathSpec) -> None:
    _check_number(require, f"{at}.rtt_ms", lambda: path.rtt_ms, 0, 10_000)
    _check_number(require, f"{at}.rate_mbit", lambda: path.rate_mbit, 0.01, 100_000)
    _check_number(require, f"{at}.queue", lambda: path.queue_bytes, MTU, 10**10)
    _check_number(require, f"{at}.loss_percent", lambda: path.loss_percent, 0, 100)
    _check_number(require, f"{at}.ecn_threshold_bytes", lambda: path.ecn_threshold_bytes or 0, 0, 10**10)


def _check_number(require: _Require, at: str, number: _Number, low: float, high: float) -> None:
    """Refuses a number outside [low, high], and a size that is not written as one."""
    try:
        value = number()
    except ValueError as error:
        require(False, at, str(error), 'use bytes, "64 kB", "2 MB", "1 MiB", or for a queue "bdp x 2"')
        return
    require(low <= value <= high, at, f"{value:g} is out of range", f"use {low:g} to {high:g}")
