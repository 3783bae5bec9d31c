"""Turns a topology into a plan: all files of a lab, and the list of what its holder builds.

Planning runs in the process of `upshift lab up`, before the holder starts: errors are found there, and the holder,
which is process 1 of the lab, stays small.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from core.errors import PlaceError
from core.files.atomic import write_json
from core.system.process import require
from vantage.lab import content, dns
from vantage.lab.addresses import Addresses, address_plan, populations, vantage_prefixes, window_addresses
from vantage.lab.network import pathem
from vantage.lab.network.addressing import Shape, ip6_batch, ip_batch
from vantage.lab.plan import LabPlan, NodePlan, ProgramPlan, write_plan
from vantage.lab.roles import quic_congestion_control, roles
from vantage.lab.server_kind import Role, ServerKind, ServerSetup
from vantage.lab.sites import sites
from vantage.lab.state import LabFolder
from vantage.lab.topology import DNS_NODE, Server, Topology

SERVER_WMEM = "4096 65536 67108864"
"""Send buffer: its maximum must exceed the window of the fastest path (the kernel's default of 4 MB does not)."""

SERVER_RMEM = "4096 131072 67108864"
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
    hashes = content.write_content(topology, folder.content)
    content.write_sites(sites.hosts(topology), folder.sites)
    content.write_certificates(topology, folder.certificates)
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
            *(pathem.find_pathem(), "--config", str(emulator), "--control", str(folder.socket)),
            *((pathem.LET_CPUS_SLEEP,) if let_cpus_sleep else ()),
        ),
        programs=tuple(programs),
        versions={
            "pathem": (pathem.find_pathem(), "--version"),
            "knotd": ("knotd", "--version"),
            **{name: kind.version() for name, kind in kinds.items() if kind.version},
        },
        resolv_conf=resolv,
        addresses=addresses,
        ipv6=ipv6,
        sha256=hashes,
    )
    write_plan(plan, folder.plan)
    return plan


def _nodes(topology: Topology, addresses: Mapping[str, Addresses], *, ipv6: bool) -> list[NodePlan]:
    client = Shape(congestion_control=CLIENT_CONGESTION_CONTROL, initcwnd=CLIENT_INITCWND)
    shapes = dict.fromkeys((DNS_NODE, *(vantage.name for vantage in topology.vantage)), client)
    own_stack: set[str] = set()
    for server in topology.server:
        origin = Shape(congestion_control=server.congestion_control, initcwnd=server.initcwnd)
        shapes |= {server.name: _server_shape(topology, server), server.origin_name: origin}
        if roles(topology, server)[Role.WEB].own_stack:
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


def _server_shape(topology: Topology, server: Server) -> Shape:
    towards = {
        prefix: own
        for vantage, prefixes in vantage_prefixes(topology).items()
        if (own := server.paths[vantage].initcwnd) is not None
        for prefix in prefixes
    }
    return Shape(
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
        "net.ipv4.ping_group_range": _ping_groups(),
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
    }
    if is_server:
        settings |= {"net.ipv4.tcp_wmem": SERVER_WMEM, "net.ipv4.tcp_rmem": SERVER_RMEM}
    if ipv6:
        for scope in ("all", "default"):
            at = f"net.ipv6.conf.{scope}"
            settings |= {f"{at}.accept_ra": "0", f"{at}.autoconf": "0", f"{at}.router_solicitations": "0"}
            settings |= {f"{at}.addr_gen_mode": "1", f"{at}.accept_dad": "0", f"{at}.dad_transmits": "0"}
    return settings


def _ping_groups() -> str:
    """Groups that may send echo requests without privilege: all, or the one that is mapped in our user namespace."""
    return "0 2147483647" if os.geteuid() == 0 else f"{os.getegid()} {os.getegid()}"


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
    found = []
    for kind in {kind.name: kind for kind in filled.values()}.values():
        setup = ServerSetup(
            topology=topology,
            server=server,
            roles=frozenset(role for role, filler in filled.items() if filler.name == kind.name),
            advertises_quic=Role.QUIC in filled or server.pretends_quic,
            congestion_control=quic_congestion_control(topology, server),
            addresses=addresses[server.name],
            origin=addresses[server.origin_name] if server.edge else None,
            hosts=sites.hosts_of(topology, server),
            folder=folder,
            ipv6=ipv6,
        )
        found.append((kind, setup))
    return found
