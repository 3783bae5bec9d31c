"""Addresses of the lab: all inside 198.18.0.0/15 and fd00:198:18::/48, one prefix per organisation.

    198.18.0.53    fd00:198:18::53           DNS
    198.18.V.2     fd00:198:18:V::2          vantage point number V, from 1
    198.18.V.3     fd00:198:18:V::3          its prober, which no kernel has
    198.19.P.0/24  fd00:198:18:(256+P)::/64  organisation number P, from 0; its servers and origins from .16 on, each
                                             server's addresses for other windows behind its own

The numbers follow the order in the file, so appending to a topology changes no address, unless it appends windows or
populations. Where servers have populations, 198.19.0.0/16 is theirs, and organisation P has 198.18.(255-P).0/24.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import UsageError
from core.reach import IPNetwork
from vantage.lab.topology import DNS_NODE, Topology

IPV4 = ipaddress.IPv4Network("198.18.0.0/15")
IPV6 = ipaddress.IPv6Network("fd00:198:18::/48")
FIRST_SERVER = 16
MOST = 239
"""Vantage points, organisations, and nodes per organisation, at most."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The two addresses of a node."""

    ipv4: str
    ipv6: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """A prefix whose every address answers as a host with this initial window."""

    server: str
    prefix: str
    hosts: int
    initcwnd: int


def _addresses(ipv4: int, ipv6: int, host: int) -> Addresses:
    """A host in the /24 and the /64 of these numbers."""
    return Addresses(str(IPV4[ipv4 * 256 + host]), str(IPV6[(ipv6 << 64) + int(str(host), 16)]))


def _organisation_block(topology: Topology, number: int) -> int:
    """The number of an organisation's /24 in the lab's /15."""
    return 255 - number if any(server.population for server in topology.server) else 256 + number


def address_plan(topology: Topology) -> Mapping[str, Addresses]:
    """Node name -> addresses. Raises UsageError if there are too many nodes."""
    _check_space(topology)
    plan = {DNS_NODE: _addresses(0, 0, 53)}
    for number, vantage in enumerate(topology.vantage, 1):
        plan[vantage.name] = _addresses(number, number, 2)
    return plan | {name: own for (name, window), own in _hosts(topology).items() if window is None}


def window_addresses(topology: Topology) -> Mapping[str, Mapping[int, Addresses]]:
    """Server -> initial window -> the address that has it, for each of its `windows`."""
    windows: dict[str, dict[int, Addresses]] = {server.name: {} for server in topology.server}
    for (name, window), own in _hosts(topology).items():
        if window is not None:
            windows[name][window] = own
    return windows


def populations(topology: Topology) -> list[Population]:
    """The blocks of all populations, the largest first, so that each is a prefix."""
    blocks = [(block, server.name) for server in topology.server for block in server.population]
    placed, next_free = [], 65536
    for block, server in sorted(blocks, key=lambda pair: -pair[0].hosts):
        prefix = ipaddress.ip_network((int(IPV4[next_free]), 33 - block.hosts.bit_length()))
        placed.append(Population(server=server, prefix=str(prefix), hosts=block.hosts, initcwnd=block.initcwnd))
        next_free += block.hosts
    return placed


def _check_space(topology: Topology) -> None:
    vantages, organisations = len(topology.vantage), len(topology.organisation)
    if vantages > MOST or organisations > MOST:
        raise UsageError(
            f"a lab has at most {MOST} vantage points and organisations", where=topology.name, remedy="use fewer"
        )
    if any(server.population for server in topology.server) and vantages + organisations > MOST:
        raise UsageError(
            f"a lab with a population has at most {MOST} vantage points and organisations together",
            where=topology.name,
            remedy="use fewer",
        )


def _hosts(topology: Topology) -> Mapping[tuple[str, int | None], Addresses]:
    """(node, None), or (server, window) for each of its other windows, -> addresses."""
    plan: dict[tuple[str, int | None], Addresses] = {}
    for number, organisation in enumerate(topology.organisation):
        names: list[tuple[str, int | None]] = []
        for server in topology.server:
            if server.organisation == organisation.name:
                names.append((server.name, None))
                names += [(server.origin_name, None)] if server.edge else []
                names += [(server.name, window) for window in server.windows]
        if len(names) > MOST:
            raise UsageError(
                f"organisation {organisation.name} has {len(names)} addresses; the limit is {MOST}",
                where=topology.name,
                remedy="use several organisations",
            )
        block = _organisation_block(topology, number)
        for host, name in enumerate(names, FIRST_SERVER):
            plan[name] = _addresses(block, 256 + number, host)
    return plan


def prober_addresses(topology: Topology) -> Mapping[str, Addresses]:
    """Vantage point -> addresses that are routed to it, but that its kernel does not have, for raw-socket probers."""
    return {vantage.name: _addresses(number, number, 3) for number, vantage in enumerate(topology.vantage, 1)}


def vantage_prefixes(topology: Topology) -> Mapping[str, tuple[str, str]]:
    """Vantage point -> the IPv4 and IPv6 prefix that has all its addresses, its prober's too."""
    return {
        vantage.name: (f"{IPV4[number * 256]}/24", f"{IPV6[number << 64]}/64")
        for number, vantage in enumerate(topology.vantage, 1)
    }


def prefixes(topology: Topology) -> Mapping[str, tuple[IPNetwork, IPNetwork]]:
    """Organisation -> the IPv4 and IPv6 prefix that it announces in the lab's routing table."""
    return {
        organisation.name: (
            ipaddress.IPv4Network((int(IPV4[_organisation_block(topology, number) * 256]), 24)),
            ipaddress.IPv6Network((int(IPV6[(256 + number) << 64]), 64)),
        )
        for number, organisation in enumerate(topology.organisation)
    }
