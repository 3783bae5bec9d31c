"""Turns a topology into a plan: all files of a lab, and the list of what its holder builds.

Planning runs in the process of `upshift lab up`, before the holder starts: errors are found there, and the holder,
which is process 1 of the lab, stays small.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.errors import PlaceError
from core.files.disk import write_json
from core.system.process import require
from vantage.lab import dns, pathem, sites
from vantage.lab.addresses import IPV4, IPV6, Addresses, address_plan, populations, vantage_prefixes, window_addresses
from vantage.lab.plan import LabPlan, NodePlan, write_plan
from vantage.lab.roles import quic_congestion_control, quic_stream_buffer, roles
from vantage.lab.state import LabFolder
from vantage.lab.topology import DNS_NODE, Server, Topology
from vantage.linux.cpu import find_pathem
from vantage.server_kind import Pieces, ProgramPlan, ServerKind, ServerRole, ServerSetup

SERVER_WMEM = "4096 65536 67108864"
"""Send buffer: its maximum must exceed the window of the fastest path (the kernel's default of 4 MB does not)."""

SERVER_RMEM = "4096 131072 67108864"
CLIENT_WMEM, CLIENT_RMEM = "4096 16384 4194304", "4096 131072 33554432"
"""The kernel's defaults, since Linux 6.16 with a larger receive buffer: a new namespace has what its host has
(net/ipv4/tcp_ipv4.c, tcp_sk_init)."""

CLIENT_CONGESTION_CONTROL = "cubic"
CLIENT_INITCWND = 10


def make_plan(topology: Topology, topology_text: str, folder: LabFolder, *, let_cpus_sleep: bool = False) -> LabPlan:
    """Writes all files of the lab into its folder, the plan among them, and returns the plan.

    Args:
        let_cpus_sleep: the emulator does not keep the host's CPUs awake.

    Raises PlaceError if a server program is missing.
    """
    ipv6 = Path("/proc/net/if_inet6").exists()
    addresses = address_plan(topology)
    for path in (folder.logs, folder.root / "dns"):
        path.mkdir(parents=True, exist_ok=True)
    folder.topology.write_text(topology_text, encoding="utf-8")
    sites.write_content(topology, folder.content)
    sites.write_sites(sites.hosts(topology), folder.sites)
    sites.write_certificates(topology, folder.certificates)
    resolv = folder.root / "resolv.conf"
    resolv.write_text(dns.resolv_conf(addresses[DNS_NODE]), encoding="utf-8")
    emulator = folder.root / "pathem.json"
    write_json(emulator, pathem.configuration(topology, addresses, ipv6=ipv6))
    setups = [
        pair for server in topology.server for pair in server_setups(topology, server, addresses, folder, ipv6=ipv6)
    ]
    kinds = {kind.name: kind for kind, _ in setups}
    for kind in kinds.values():
        if missing := kind.missing():
            raise PlaceError(missing)
    programs = [_dns_program(topology, addresses, folder, ipv6=ipv6)]
    for kind, setup in setups:
        programs += kind.programs(setup)
    plan = LabPlan(
        name=topology.name,
        topology_sha256=hashlib.sha256(topology_text.encode()).hexdigest(),
        nodes=tuple(_nodes(topology, addresses, ipv6=ipv6)),
        emulator=(
            *(find_pathem(), "--config", str(emulator), "--control", str(folder.socket)),
            *((pathem.LET_CPUS_SLEEP,) if let_cpus_sleep else ()),
        ),
        programs=tuple(programs),
        versions={
            "pathem": (find_pathem(), "--version"),
            "knotd": ("knotd", "--version"),
            **{name: kind.version() for name, kind in kinds.items() if kind.version},
        },
        resolv_conf=resolv,
        addresses=addresses,
        ipv6=ipv6,
        fifo_priority=topology.fifo_priority,
    )
    write_plan(plan, folder.plan)
    return plan


def _nodes(topology: Topology, addresses: Mapping[str, Addresses], *, ipv6: bool) -> list[NodePlan]:
    client = NodeRouting(congestion_control=CLIENT_CONGESTION_CONTROL, initcwnd=CLIENT_INITCWND)
    shapes = dict.fromkeys((DNS_NODE, *(vantage.name for vantage in topology.vantage)), client)
    own_stack: set[str] = set()
    for server in topology.server:
        shapes[server.name] = _server_shape(topology, server)
        if server.edge:  # else the name may be another server's
            origin = NodeRouting(congestion_control=server.congestion_control, initcwnd=server.initcwnd)
            shapes[server.origin_name] = origin
        if roles(topology, server)[ServerRole.WEB].own_stack:
            own_stack.add(server.name)
    vantages = {vantage.name for vantage in topology.vantage}
    lacking = {server.name: {f"net.ipv4.tcp_{name}": "0" for name in server.without} for server in topology.server}
    return [
        NodePlan(
            name=name,
            sysctls=_sysctls(is_server=name not in vantages, ipv6=ipv6) | lacking.get(name, {}),
            ip_batch=() if name in own_stack else ip_batch(own, shapes[name], ipv6=ipv6),
            ip6_batch=ip6_batch(shapes[name]) if ipv6 else (),
        )
        for name, own in addresses.items()
    ]


def _server_shape(topology: Topology, server: Server) -> NodeRouting:
    towards = {
        prefix: own
        for vantage, prefixes in vantage_prefixes(topology).items()
        if (own := server.paths[vantage].initcwnd) is not None
        for prefix in prefixes
    }
    return NodeRouting(
        congestion_control=server.congestion_control,
        initcwnd=server.initcwnd,
        towards=towards,
        windows=window_addresses(topology)[server.name],
        populations={part.prefix: part.initcwnd for part in populations(topology) if part.server == server.name},
    )


def _sysctls(*, is_server: bool, ipv6: bool) -> dict[str, str]:
    """Every setting that a measurement could depend on, so that the host's defaults do not matter."""
    settings = {
        "net.ipv4.tcp_no_metrics_save": "1",
        "net.ipv4.tcp_sack": "1",
        "net.ipv4.tcp_window_scaling": "1",
        "net.ipv4.tcp_timestamps": "1",
        "net.ipv4.tcp_ecn": "2",  # when the peer asks
        "net.ipv4.tcp_fastopen": "0",
        "net.ipv4.ip_unprivileged_port_start": "0",
        # Echo requests without privilege. In a user namespace a group that it does not have is refused, as is a range.
        "net.ipv4.ping_group_range": f"{os.getegid()} {os.getegid()}",
        "net.ipv4.ip_forward": "0",  # what comes for the prober is not the kernel's, and must not be sent back
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
    }
    wmem, rmem = (SERVER_WMEM, SERVER_RMEM) if is_server else (CLIENT_WMEM, CLIENT_RMEM)
    settings |= {"net.ipv4.tcp_wmem": wmem, "net.ipv4.tcp_rmem": rmem}
    if ipv6:
        for scope in ("all", "default"):
            at = f"net.ipv6.conf.{scope}"
            settings |= {f"{at}.accept_ra": "0", f"{at}.autoconf": "0", f"{at}.router_solicitations": "0"}
            settings |= {f"{at}.addr_gen_mode": "1", f"{at}.accept_dad": "0", f"{at}.dad_transmits": "0"}
    return settings


def _dns_program(
    topology: Topology, addresses: Mapping[str, Addresses], folder: LabFolder, *, ipv6: bool
) -> ProgramPlan:
    root = folder.root / "dns"
    own = addresses[DNS_NODE]
    (root / "root.zone").write_text(dns.zone(topology, addresses), encoding="utf-8")
    configuration = root / "knot.conf"
    configuration.write_text(dns.knot_configuration(root, own, ipv6=ipv6), encoding="utf-8")
    knotd = require("knotd", package="knot")
    return ProgramPlan(
        name="dns", node=DNS_NODE, argv=(knotd, "-c", str(configuration)), tcp=((own.ipv4, 53),), udp=(53,)
    )


def server_setups(
    topology: Topology, server: Server, addresses: Mapping[str, Addresses], folder: LabFolder, *, ipv6: bool
) -> list[tuple[ServerKind, ServerSetup]]:
    """The kinds of a server, each with all the roles that it fills."""
    filled = roles(topology, server)
    own = addresses[server.name]
    first_bytes = {
        prefix: first
        for vantage, prefixes in vantage_prefixes(topology).items()
        if (first := server.paths[vantage].first) is not None
        for prefix in prefixes
    }
    whole = ServerSetup(
        name=server.name,
        roles=frozenset(filled),
        folder=folder.root / "servers",
        content=folder.content / server.name,
        certificates=folder.certificates,
        domains=server.domains,
        ipv4=own.ipv4,
        ipv6=own.ipv6 if ipv6 else None,
        device=pathem.DEVICE,
        cnames=server.cnames,
        window_names=list(server.window_names),
        plain_http=server.plain_http,
        advertises_quic=ServerRole.QUIC in filled or server.pretends_quic,
        congestion_control=quic_congestion_control(topology, server),
        stream_buffer_bytes=quic_stream_buffer(topology, server),
        origin=addresses[server.origin_name].ipv4 if server.edge else None,
        hosts=sites.hosts_of(topology, server),
        sites=folder.sites,
        access_log=folder.access_log(server.name),
        fault=server.fault,
        pieces=Pieces(chunk_bytes=body.chunk_bytes, every_s=body.every_s) if (body := server.body) else None,
        first_bytes=first_bytes,
    )
    kinds = {kind.name: kind for kind in filled.values()}
    return [
        (kind, replace(whole, roles=frozenset(role for role, filler in filled.items() if filler is kind)))
        for kind in kinds.values()
    ]


FIRST_TABLE = 10_000
"""The table of a window is this plus the window; the kernel's own tables are below 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRouting:
    """What the routes of a node are to have."""

    congestion_control: str
    initcwnd: int
    """[packets]"""
    towards: Mapping[str, int] = field(default_factory=dict)
    """Another window towards a prefix, of either family [packets]."""
    windows: Mapping[int, Addresses] = field(default_factory=dict)
    """More addresses, by the window that they have [packets]."""
    populations: Mapping[str, int] = field(default_factory=dict)
    """IPv4 prefixes that the node answers for -> their window [packets]."""


def ip_batch(own: Addresses, shape: NodeRouting, *, ipv6: bool) -> tuple[str, ...]:
    """Addresses and routes; without a default route, no address outside the lab is reachable."""

    def route(prefix: object, source: str, initcwnd: int) -> str:
        return f"route add {prefix} dev {pathem.DEVICE} src {source} {_attributes(shape, initcwnd)}"

    lines = [f"address add {own.ipv4}/32 dev {pathem.DEVICE}", route(IPV4, own.ipv4, shape.initcwnd)]
    if ipv6:
        lines += [f"address add {own.ipv6}/128 dev {pathem.DEVICE} nodad", route(IPV6, own.ipv6, shape.initcwnd)]
    for prefix, initcwnd in shape.towards.items():
        version = ipaddress.ip_network(prefix).version
        if version == 4 or ipv6:
            lines.append(route(prefix, own.ipv4 if version == 4 else own.ipv6, initcwnd))
    for other in shape.windows.values():
        lines.append(f"address add {other.ipv4}/32 dev {pathem.DEVICE}")
        lines += [f"address add {other.ipv6}/128 dev {pathem.DEVICE} nodad"] if ipv6 else []
    lines += [f"route add local {prefix} dev lo" for prefix in shape.populations]
    for initcwnd in sorted({*shape.windows, *shape.populations.values()}):
        for network in (IPV4, IPV6)[: 1 + ipv6]:
            table = FIRST_TABLE + initcwnd
            lines.append(f"route add {network} dev {pathem.DEVICE} table {table} {_attributes(shape, initcwnd)}")
    lines += [_rule(other.ipv4, window) for window, other in shape.windows.items()]
    lines += [_rule(prefix, window) for prefix, window in shape.populations.items()]
    return tuple(lines)


def ip6_batch(shape: NodeRouting) -> tuple[str, ...]:
    """Lines for `ip -6 -batch`: rules, whose family ip does not read off the address."""
    return tuple(_rule(other.ipv6, window) for window, other in shape.windows.items())


def _attributes(shape: NodeRouting, initcwnd: int) -> str:
    return f"congctl {shape.congestion_control} initcwnd {initcwnd}"


def _rule(source: str, window: int) -> str:
    return f"rule add from {source} lookup {FIRST_TABLE + window}"
