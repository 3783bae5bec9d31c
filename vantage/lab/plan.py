"""From a topology to a plan: all files of a lab, and the list of what its holder has to do.

The planning is done before the holder starts, by whoever runs `upshift lab up`: what can be wrong is found there, and
the holder, which is process 1 of the lab, stays small.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from upshift.process import require
from upshift.store import write_json
from vantage.lab import content, dns, pathem, sites, web
from vantage.lab.addresses import IPV4, IPV6, Addresses, address_plan
from vantage.lab.state import LabFolder
from vantage.lab.topology import DNS_NODE, Server, Topology

SERVER_WMEM = "4096 65536 67108864"
"""Send buffer: its maximum must exceed the window of the fastest path (the kernel's default of 4 MB does not)."""

SERVER_RMEM = "4096 131072 67108864"
CLIENT_CONGESTION_CONTROL = "cubic"
CLIENT_INITCWND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A network namespace."""

    name: str
    sysctls: Mapping[str, str]
    """Set before the device appears."""
    ip_batch: tuple[str, ...]
    """Lines for `ip -batch`, once the device is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """A server program."""

    name: str
    node: str
    argv: tuple[str, ...]
    tcp: tuple[tuple[str, int], ...] = ()
    """Addresses and ports that answer once it is ready."""
    udp: tuple[int, ...] = ()
    """Ports that are bound once it is ready."""
    env: Mapping[str, str] = field(default_factory=dict)


def make_plan(topology: Topology, topology_text: str, folder: LabFolder) -> dict[str, Any]:
    """Writes all files of the lab into its folder, the plan among them, and returns the plan.

    Raises PlaceError where a server program is missing.
    """
    ipv6 = Path("/proc/net/if_inet6").exists()
    addresses = dict(address_plan(topology))
    for name in ("log", "dns", "caddy", "nginx", "sites"):
        (folder.root / name).mkdir(parents=True, exist_ok=True)
    folder.topology.write_text(topology_text, encoding="utf-8")
    hashes = content.write_content(topology, folder.root / "content")
    content.write_certificates(topology, folder.root / "certificates")
    resolv = folder.root / "resolv.conf"
    resolv.write_text(dns.resolv_conf(addresses[DNS_NODE]), encoding="utf-8")
    emulator = folder.root / "pathem.json"
    write_json(emulator, pathem.configuration(topology, addresses, ipv6=ipv6))
    programs = [_dns_program(topology, addresses, folder, ipv6=ipv6), *_web_programs(topology, addresses, folder)]
    plan: dict[str, Any] = {
        "schema": 1,
        "name": topology.name,
        "topology_sha256": hashlib.sha256(topology_text.encode()).hexdigest(),
        "nodes": [asdict(node) for node in _nodes(topology, addresses, ipv6=ipv6)],
        "emulator": [pathem.find_pathem(), "--config", str(emulator), "--control", str(folder.socket)],
        "programs": [asdict(program) for program in programs],
        "resolv_conf": str(resolv),
        "addresses": {name: asdict(own) for name, own in addresses.items()},
        "ipv6": ipv6,
        "sha256": dict(hashes),
    }
    write_json(folder.plan, plan)
    return plan


def _nodes(topology: Topology, addresses: Mapping[str, Addresses], *, ipv6: bool) -> list[NodePlan]:
    shape = {DNS_NODE: (CLIENT_CONGESTION_CONTROL, CLIENT_INITCWND)}
    shape |= {vantage.name: (CLIENT_CONGESTION_CONTROL, CLIENT_INITCWND) for vantage in topology.vantage}
    for server in topology.server:
        shape |= dict.fromkeys((server.name, server.origin_name), (server.congestion_control, server.initcwnd))
    vantages = {vantage.name for vantage in topology.vantage}
    lacking = {server.name: {f"net.ipv4.tcp_{name}": "0" for name in server.without} for server in topology.server}
    return [
        NodePlan(
            name=name,
            sysctls=_sysctls(is_server=name not in vantages, ipv6=ipv6) | lacking.get(name, {}),
            ip_batch=_ip_batch(own, *shape[name], ipv6=ipv6),
        )
        for name, own in addresses.items()
    ]


def _sysctls(*, is_server: bool, ipv6: bool) -> dict[str, str]:
    """Every setting that a measurement could depend on, so that the host's own defaults play no part."""
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
    """Groups that may send echo requests without privilege: all, or the one that our user namespace knows."""
    return "0 2147483647" if os.geteuid() == 0 else f"{os.getegid()} {os.getegid()}"


def _ip_batch(own: Addresses, congestion_control: str, initcwnd: int, *, ipv6: bool) -> tuple[str, ...]:
    """Addresses and the two lab routes; there is no default route, so nothing else can be sent anywhere.

    The congestion control is a route attribute because a host may not let the sysctl be set to what it restricts.
    """
    attributes = f"congctl {congestion_control} initcwnd {initcwnd}"
    lines = [
        f"address add {own.ipv4}/32 dev {pathem.DEVICE}",
        f"route add {IPV4} dev {pathem.DEVICE} src {own.ipv4} {attributes}",
    ]
    if ipv6:
        lines += [
            f"address add {own.ipv6}/128 dev {pathem.DEVICE} nodad",
            f"route add {IPV6} dev {pathem.DEVICE} src {own.ipv6} {attributes}",
        ]
    return tuple(lines)


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


def _web_programs(topology: Topology, addresses: Mapping[str, Addresses], folder: LabFolder) -> list[ProgramPlan]:
    programs: list[ProgramPlan] = []
    for server in topology.server:
        own = addresses[server.name].ipv4
        if server.fault:
            programs.append(_fault_program(server, own, folder))
        elif sites.is_rough(topology, server):
            programs.append(_site_program(topology, server, own, folder))
        else:
            if server.edge:
                programs += _origin_and_cache(server, addresses[server.origin_name].ipv4, folder)
            programs.append(_front(topology, server, own, folder))
    return programs


def _fault_program(server: Server, address: str, folder: LabFolder) -> ProgramPlan:
    script = str(Path(__file__).with_name("fault_server.py"))
    pem = folder.root / "certificates" / server.name
    argv = [sys.executable, "-I", script, str(server.fault), "--root", str(folder.root / "content" / server.name)]
    argv += ["--certificate", f"{pem}.pem", "--key", f"{pem}.key"]
    return ProgramPlan(name=server.name, node=server.name, argv=tuple(argv), tcp=((address, 443),))


def _site_program(topology: Topology, server: Server, address: str, folder: LabFolder) -> ProgramPlan:
    """Our own program for sites that Caddy cannot serve."""
    table = folder.root / "sites" / f"{server.name}.json"
    hosts = sites.hosts_of(topology, server)
    write_json(table, {host.name: {path: asdict(answer) for path, answer in host.answers.items()} for host in hosts})
    argv = [sys.executable, "-I", str(Path(__file__).with_name("site_server.py")), str(table)]
    argv += ["--certificates", str(folder.root / "certificates"), "--log", str(folder.access_log(server.name))]
    return ProgramPlan(name=server.name, node=server.name, argv=tuple(argv), tcp=((address, 443),))


def _origin_and_cache(server: Server, origin: str, folder: LabFolder) -> list[ProgramPlan]:
    """What is behind an edge: Caddy far away, and nginx beside the edge's own Caddy."""
    data = folder.root / "caddy" / server.origin_name
    configuration = web.origin_configuration(server, content=folder.root / "content", data=data)
    first = _caddy(server.origin_name, origin, data, configuration, [web.ORIGIN_PORT], [])
    cache = folder.root / "nginx" / server.name
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "nginx.conf"
    path.write_text(web.cache_configuration(origin, cache), encoding="utf-8")
    argv = (require("nginx", package="nginx-light"), "-p", str(cache), "-c", str(path), "-e", "stderr")
    ports = (("127.0.0.1", web.CACHE_PORT),)
    return [first, ProgramPlan(name=f"{server.name}-cache", node=server.name, argv=argv, tcp=ports)]


def _front(topology: Topology, server: Server, address: str, folder: LabFolder) -> ProgramPlan:
    """The server's own Caddy: measured files, sites, or (for an edge) what comes out of its cache."""
    hosts = sites.hosts_of(topology, server)
    served = None
    if hosts:
        content.write_sites(hosts, folder.root / "sites")
        served = web.Sites(hosts=hosts, content=folder.root / "sites", log=folder.access_log(server.name))
    data = folder.root / "caddy" / server.name
    configuration = web.server_configuration(
        server, content=folder.root / "content", certificates=folder.root / "certificates", data=data, sites=served
    )
    return _caddy(server.name, address, data, configuration, [443, 80], [443] if server.quic else [])


def _caddy(
    name: str, address: str, data: Path, configuration: dict[str, Any], tcp: list[int], udp: list[int]
) -> ProgramPlan:
    """Caddy in the node `name`."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / "caddy.json"
    write_json(path, configuration)
    home = {"HOME": str(data), "XDG_DATA_HOME": str(data), "XDG_CONFIG_HOME": str(data)}
    argv = (require("caddy", package="caddy"), "run", "--config", str(path))
    ports = tuple((address, port) for port in tcp)
    return ProgramPlan(name=name, node=name, argv=argv, tcp=ports, udp=tuple(udp), env=home)


def read_plan(folder: LabFolder) -> dict[str, Any]:
    """The plan of a lab that is up."""
    found: dict[str, Any] = json.loads(folder.plan.read_text(encoding="utf-8"))
    return found
