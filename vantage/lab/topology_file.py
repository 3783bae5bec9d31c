"""Finds, reads and checks topology files.

A topology that cannot be built is refused with a sentence that names file and field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from core.errors import UsageError, use_one_of
from core.files.config import load_toml
from core.files.disk import parse_size
from core.files.study_terms import SEND_BOUNDS
from vantage.lab import sites
from vantage.lab.roles import check_quic_servers, check_web_servers
from vantage.lab.site_kinds import KINDS, SiteKind
from vantage.lab.topology import DNS_NODE, MTU, SITE_NUMBER, PathSpec, Sending, Server, SiteSpec, Topology
from vantage.linux.cpu import FIFO_PRIORITY

SHIPPED = Path(__file__).resolve().parent / "topologies"
"""Folder of the topologies that come with Upshift."""

MOST_SITES = 1000
MOST_INITCWND = 4000
MOST_HOSTS = 65_536
"""Most hosts of all populations together: 198.19.0.0/16."""
MOST_BLOCKS = 16
"""Most blocks of one population: the kernel searches the rules one by one."""
_SENDER_ONLY = ("needs a server of kind sender", 'add web_server = "sender", or remove this field')
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_FILE = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
_ANSWERED = re.compile(r"/|(/(?!\.{1,2}(/|\Z))[^/\x00]+)+/?")
"""Path of a site's answer: each part may be the name of a file, none leads out of the site's folder."""
_URL = re.compile(r"https://[a-z0-9.-]+/[A-Za-z0-9._/-]*")
_OWN_NAMES = ("ca", "holder", "pathem")
"""Names of a lab's own certificate and logs, where those of its nodes are, too."""

_Require = Callable[[bool, str, str, str], None]
_Number = Callable[[], float]


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
        f"unknown topology {text!r}",
        remedy=f"{use_one_of(text, shipped())}; or the path of a TOML file, such as ./{text}.toml",
    )


def load_topology(name: str | Path) -> Topology:
    """A topology by shipped name or path. Raises UsageError naming file and field."""
    path = find_topology(name)
    topology = load_toml(path, Topology)
    _check(topology, str(path))
    check_web_servers(topology, where=str(path))
    check_quic_servers(topology, where=str(path))
    return topology


def _check(topology: Topology, where: str) -> None:
    """Raises UsageError for what the types cannot express."""

    def require(good: bool, name: str, what: str, remedy: str) -> None:
        if not good:
            raise UsageError(f"field {name}: {what}", where=where, remedy=remedy)

    rules = "letters, digits and hyphens, at most 40"
    require(bool(_NAME.fullmatch(topology.name)), "name", f"{topology.name!r} is not a valid name", f"use {rules}")
    for kind in ("vantage", "organisation", "server"):
        require(bool(getattr(topology, kind)), kind, "missing", f"add a [[{kind}]] entry")
    names: set[str] = set()
    for name in topology.node_names():
        require(bool(_NAME.fullmatch(name)), "name", f"{name!r} is not a valid node name", f"use {rules}")
        require(name not in names, "name", f"two nodes are named {name!r}", f"rename one ({DNS_NODE} is reserved)")
        require(name not in _OWN_NAMES, "name", f"{name!r} is the name of a file of each lab", "rename the node")
        names.add(name)
    for server in topology.server:
        for program in (f"{server.name}-{role}" for role in ("cache", "quic")):
            what = f"{program!r} is the name of a program of {server.name}, too"
            require(program not in names, "name", what, "rename one of the two nodes")
    titles = [org.name for org in topology.organisation]
    require(len(set(titles)) == len(titles), "organisation.name", "duplicate name", "rename one")
    asns: set[int] = set()
    for org in topology.organisation:
        for asn in (org.asn, *org.siblings):
            at = f"organisation.{org.name}.asn"
            require(not _is_reserved(asn), at, f"{asn} is a reserved AS number (IANA)", "use 3000001 or higher")
            require(asn not in asns, at, f"{asn} appears twice in the file", "use another number")
            asns.add(asn)
    for number, vantage in enumerate(topology.vantage):
        _check_number(require, f"vantage.{number}.uplink_mbit", partial(float, vantage.uplink_mbit), 0.01, 100_000)
    if topology.fifo_priority is not None:
        _check_number(require, "fifo_priority", partial(float, topology.fifo_priority), 1, FIFO_PRIORITY - 1)
    domains: set[str] = set()
    for server in topology.server:
        _check_server(topology, server, domains, require)
    _check_sites(topology, domains, require)


def _is_reserved(asn: int) -> bool:
    """Whether it cannot be assigned (as for `upshift map`, `cdn_mapping.as_path.is_reserved`), or has over 32 bits."""
    return not 0 < asn < 4_200_000_000 or asn == 23456 or 64496 <= asn <= 131071


def _check_server(topology: Topology, server: Server, domains: set[str], require: _Require) -> None:
    at = f"server.{server.name}"
    known = [org.name for org in topology.organisation]
    require(
        server.organisation in known,
        f"{at}.organisation",
        f"unknown organisation {server.organisation!r}",
        use_one_of(server.organisation, known),
    )
    windows = server.window_names if server.domains else ()
    for kind, names in (("domains", server.domains), ("cnames", server.cnames), ("windows", windows)):
        for name in names:
            require(
                bool(_DOMAIN.fullmatch(name)), f"{at}.{kind}", f"{name!r} is not a valid domain", "use www.name.example"
            )
            require(name not in domains, f"{at}.{kind}", f"{name} appears twice in the file", "use another name")
            domains.add(name)
    sites_only = any(server.name in (site.server, site.other_server) for site in topology.site) and not server.files
    named = bool(server.domains) or sites_only
    require(named, f"{at}.domains", "missing", "add one, such as www.name.example, or add a [[site]]")
    served = bool(server.files) or not server.domains
    require(served, f"{at}.files", "missing", 'add one, such as { path = "/a.bin", size = "2 MB" }')
    fair = not (server.pretends_quic and server.quic)
    require(fair, f"{at}.pretends_quic", "the server has QUIC", "add quic = false, or remove this field")
    _check_files(server, f"{at}.files", require)
    if (held := server.quic_stream_buffer) is not None:
        _check_number(require, f"{at}.quic_stream_buffer", partial(parse_size, held), 4096, 1_000_000_000)
    _check_window(require, f"{at}.initcwnd", server.initcwnd)
    _check_windows(topology, server, at, require)
    _check_algorithm(require, f"{at}.congestion_control", server.congestion_control)
    vantages = [vantage.name for vantage in topology.vantage]
    for name in server.paths:
        require(name in vantages, f"{at}.paths.{name}", "unknown vantage point", f"use {', '.join(vantages)}")
    for name in vantages:
        require(name in server.paths, f"{at}.paths.{name}", "missing", "give rtt_ms and rate_mbit of this path")
        _check_path(require, f"{at}.paths.{name}", server.paths[name])
        tailored = server.paths[name].first is not None
        require(not tailored or server.web_server == "sender", f"{at}.paths.{name}.first", *_SENDER_ONLY)
        packets = server.paths[name].initcwnd or server.initcwnd
        for first in (server.paths[name].first, *(file.send.first for file in server.files)):
            fits = not isinstance(first, int) or first <= packets * (MTU - 40)
            what = f"{packets} packets are less than the {first} bytes of first"
            require(fits, f"{at}.initcwnd", what, "use initcwnd = 2000")
    if (body := server.body) is not None:
        plain = (
            server.edge is None
            and server.fault is None
            and (server.quic_server or topology.quic_server) in (None, "quiche")
        )
        require(plain, f"{at}.body", "needs an ordinary server with quiche", "remove edge, fault or quic_server")
        _check_number(require, f"{at}.body.rate_mbit", lambda: body.rate_mbit, 0.01, 100_000)
        _check_number(require, f"{at}.body.chunk", lambda: body.chunk_bytes, 1, 1_000_000_000)
    if server.edge:
        require(server.fault is None, f"{at}.fault", "an edge cannot have a fault", "remove edge or fault")
        _check_path(require, f"{at}.edge", server.edge.path)


def _check_files(server: Server, at: str, require: _Require) -> None:
    sizes: dict[str, int | str] = {}
    for file in server.files:
        require(bool(_FILE.fullmatch(file.path)), at, f"{file.path!r} is not a valid path", "use /folder/name.bin")
        require(file.path != "/index.html", at, "/index.html is the server's start page", "use another path")
        same = sizes.setdefault(file.path, file.size) == file.size
        require(same, at, f"{file.path} appears twice, with two sizes", "use another path")
        folder = any(path.startswith(f"{file.path}/") or file.path.startswith(f"{path}/") for path in sizes)
        require(not folder, at, f"{file.path} is a folder, too, or in a file", "use another path")
        _check_number(require, f"{at}.size", partial(parse_size, file.size), 1, 1_000_000_000)
        sends = file.send != Sending()
        require(not sends or server.web_server == "sender", f"{at}.send", *_SENDER_ONLY)
        _check_sending(require, f"{at}.send", file.send)


def _check_path(require: _Require, at: str, path: PathSpec) -> None:
    _check_number(require, f"{at}.rtt_ms", lambda: path.rtt_ms, 0, 10_000)
    _check_number(require, f"{at}.rate_mbit", lambda: path.rate_mbit, 0.01, 100_000)
    _check_number(require, f"{at}.queue", lambda: path.queue_bytes, MTU, 10**10)
    _check_number(require, f"{at}.loss_percent", lambda: path.loss_percent, 0, 100)
    if (threshold := path.ecn_threshold_bytes) is not None:  # with 0 each SYN-ACK is dropped
        _check_number(require, f"{at}.ecn_threshold_bytes", partial(float, threshold), 1, 10**10)
    for index in path.drop:
        _check_number(require, f"{at}.drop", partial(float, index), 0, 10**9)
    both = bool(path.drop) and bool(path.loss_percent)
    require(not both, f"{at}.drop", "the path has loss_percent as well", "remove one of them")
    if path.packets_per_rtt is not None:
        _check_number(require, f"{at}.packets_per_rtt", partial(float, path.packets_per_rtt), 1, 16)
        require(path.rtt_ms > 0, f"{at}.packets_per_rtt", "the round trip takes no time", "give rtt_ms")
    if path.initcwnd is not None:
        _check_window(require, f"{at}.initcwnd", path.initcwnd)
    if path.first is not None:
        _check_number(require, f"{at}.first", partial(float, path.first), *SEND_BOUNDS["first"])


def _check_window(require: _Require, at: str, packets: int) -> None:
    require(1 <= packets <= MOST_INITCWND, at, f"{packets} is out of range", f"use 1 to {MOST_INITCWND}")


def _check_algorithm(require: _Require, at: str, name: str) -> None:
    good = bool(re.fullmatch(r"[a-z0-9_]{1,15}", name))
    require(good, at, f"{name!r} is not a valid algorithm", "use cubic, reno or bbr")


def _check_sending(require: _Require, at: str, sending: Sending) -> None:
    if sending.cc is not None:
        _check_algorithm(require, f"{at}.cc", sending.cc)
    for name, (least, most) in SEND_BOUNDS.items():
        if isinstance(value := getattr(sending, name), int | float):
            _check_number(require, f"{at}.{name}", partial(float, value), least, most)


def _check_windows(topology: Topology, server: Server, at: str, require: _Require) -> None:
    """Checks the addresses with windows of their own, and the population."""
    for window in server.windows:
        _check_window(require, f"{at}.windows", window)
    repeated = len(set(server.windows)) < len(server.windows)
    require(not repeated, f"{at}.windows", "a window appears twice", "remove one")
    require(not server.windows or bool(server.domains), f"{at}.windows", "the server has no domain", "add domains")
    good = len(server.population) <= MOST_BLOCKS
    require(good, f"{at}.population", f"{len(server.population)} blocks", f"use at most {MOST_BLOCKS}")
    for block in server.population:
        good = block.hosts in (1 << bits for bits in range(17))
        what = f"{block.hosts} is not a power of two up to {MOST_HOSTS}"
        require(good, f"{at}.population.hosts", what, "use several blocks, such as 4096 and 1024")
        _check_window(require, f"{at}.population.initcwnd", block.initcwnd)
    total = sum(block.hosts for each in topology.server for block in each.population)
    what = f"the populations of this file have {total} hosts together"
    require(total <= MOST_HOSTS, f"{at}.population", what, f"use at most {MOST_HOSTS}")


def _check_number(require: _Require, at: str, number: _Number, low: float, high: float) -> None:
    """Refuses a number outside [low, high], and a size that is not valid."""
    try:
        value = number()
    except ValueError as error:
        require(False, at, str(error), 'use bytes, "64 kB", "2 MB", "1 MiB", or for a queue "bdp x 2"')
        return
    require(low <= value <= high, at, f"{value:g} is out of range", f"use {low:g} to {high:g}")


def _check_sites(topology: Topology, domains: set[str], require: _Require) -> None:
    """Refuses sites that are not valid. `domains` are the names in use; the sites' are added."""
    for name, kind in topology.site_kind.items():
        _check_site_kind(name, kind, require)
    for number, site in enumerate(topology.site):
        at = f"site.{number}"
        known = site.kind in topology.site_kinds
        remedy = use_one_of(site.kind, topology.site_kinds)
        require(known, f"{at}.kind", f"unknown kind {site.kind!r}", f"{remedy}; or add [site_kind.{site.kind}]")
        _check_site_fields(topology, site, at, require)
        for name in site.domains:
            require(
                bool(_DOMAIN.fullmatch(name)), f"{at}.domain", f"{name!r} is not a valid domain", "use www.name.example"
            )
        # A name that does not resolve has no host, but is in use all the same.
        hosts = [host.name for domain in site.domains for host in sites.hosts_of_site(topology, site, domain)]
        for name in dict.fromkeys([*site.domains, *hosts]):
            require(name not in domains, f"{at}.domain", f"{name} appears twice in the file", "use another name")
            domains.add(name)
    for server in topology.server:
        good = not sites.need_site_server(topology, server) or (not server.domains and server.edge is None)
        what = "it has sites that need Upshift's own server program (docs/design/lab.md), so it cannot be measured"
        require(good, f"server.{server.name}.domains", what, "put these sites on a separate server")


def _check_site_kind(name: str, kind: SiteKind, require: _Require) -> None:
    """Checks a topology's own kind of site."""
    at = f"site_kind.{name}"
    require(name not in KINDS, at, "a shipped kind has this name", "use another name")
    for table in (kind.pages, kind.www, kind.files):
        files = [path.rstrip("/") for path, answer in table.items() if answer.is_file and path != "/"]
        for path, answer in table.items():
            require(bool(_ANSWERED.fullmatch(path)), at, f"{path!r} is not a valid path", "use /folder/name.bin")
            within = answer.is_file and any(path.rstrip("/").startswith(f"{file}/") for file in files)
            require(not within, at, f"{path} is in a file", "use another path")
            _check_number(require, f"{at}.{path}.status", partial(float, answer.status), 200, 599)
            _check_number(require, f"{at}.{path}.size", partial(float, answer.size or 0), 0, 1_000_000_000)
            _check_number(require, f"{at}.{path}.delay_s", partial(float, answer.delay_s), 0, 3600)
    if kind.finds is not None:
        host, _, path = kind.finds.removeprefix("https://").partition("/")
        tables = {"{domain}": kind.pages, "www.{domain}": kind.www, "files.{domain}": kind.files}
        good = f"/{path}" in tables.get(host, ())
        require(good, f"{at}.finds", f"no answer for {kind.finds}", "use https://{domain}/PATH with a path of the kind")


def _check_site_fields(topology: Topology, site: SiteSpec, at: str, require: _Require) -> None:
    """Checks that a site has exactly the fields that its kind needs, with valid values."""
    servers = {server.name: server for server in topology.server}
    kind = topology.kind_of(site)
    what = f"{site.domain!r} does not match count"
    several = site.count is not None
    require(
        (SITE_NUMBER in site.domain) == several,
        f"{at}.domain",
        what,
        "several sites need both {n} in the domain and a count",
    )
    good = site.count is None or 1 <= site.count <= MOST_SITES
    require(good, f"{at}.count", f"{site.count} is out of range", f"use 1 to {MOST_SITES}")
    for field, value, needed in (
        ("server", site.server, bool(kind.pages)),
        ("other_server", site.other_server, bool(kind.files)),
        ("leads_to", site.leads_to, kind.leads_away),
    ):
        what = f"a site of the kind {site.kind} {'needs one' if needed else 'has none'}"
        require((value is not None) == needed, f"{at}.{field}", what, "add it" if needed else "remove it")
    for field, name in (("server", site.server), ("other_server", site.other_server)):
        if name is not None:
            require(name in servers, f"{at}.{field}", f"unknown server {name!r}", use_one_of(name, servers))
            good = servers[name].fault is None
            require(good, f"{at}.{field}", f"{name} has a fault", "use a server without a fault")
    good = site.other_server is None or site.other_server != site.server
    require(good, f"{at}.other_server", "same as the site's server", "use another server")
    good = site.leads_to is None or bool(_URL.fullmatch(site.leads_to))
    require(good, f"{at}.leads_to", f"{site.leads_to!r} is not a valid URL", "use https://www.name.example/file.bin")
