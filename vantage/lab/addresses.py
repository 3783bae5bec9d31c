"""Addresses of the lab: all inside 198.18.0.0/15 and fd00:198:18::/48, one prefix per organisation.

    198.18.0.53    fd00:198:18::53           DNS
    198.18.V.2     fd00:198:18:V::2          vantage point number V, from 1
    198.18.V.3     fd00:198:18:V::3          its prober, which no kernel has
    198.19.P.0/24  fd00:198:18:(256+P)::/64  organisation number P, from 0; its servers and origins from .16 on

The numbers follow the order in the file, so appending to a topology changes no address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from upshift.errors import UsageError
from upshift.reach import IPNetwork
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


def _addresses(block: int, number: int, host: int) -> Addresses:
    """`block` 0: infrastructure and vantage points, 1: organisations."""
    ipv4 = IPV4[block * 65536 + number * 256 + host]
    ipv6 = IPV6[((block * 256 + number) << 64) + int(str(host), 16)]
    return Addresses(str(ipv4), str(ipv6))


def address_plan(topology: Topology) -> Mapping[str, Addresses]:
    """Node name -> addresses. Raises UsageError if there are too many nodes."""
    if len(topology.vantage) > MOST or len(topology.organisation) > MOST:
        raise UsageError(
            f"a lab has at most {MOST} vantage points and organisations", where=topology.name, remedy="use fewer"
        )
    plan = {DNS_NODE: _addresses(0, 0, 53)}
    for number, vantage in enumerate(topology.vantage, 1):
        plan[vantage.name] = _addresses(0, number, 2)
    for number, organisation in enumerate(topology.organisation):
        names: list[str] = []
        for server in topology.server:
            if server.organisation == organisation.name:
                names += [server.name, server.origin_name] if server.edge else [server.name]
        if len(names) > MOST:
            raise UsageError(
                f"organisation {organisation.name} has {len(names)} nodes; the limit is {MOST}",
                where=topology.name,
                remedy="use several organisations",
            )
        for host, name in enumerate(names, FIRST_SERVER):
            plan[name] = _addresses(1, number, host)
    return plan


def prober_addresses(topology: Topology) -> Mapping[str, Addresses]:
    """Vantage point -> addresses that are routed to it, but that its kernel does not have, for raw-socket probers."""
    return {vantage.name: _addresses(0, number, 3) for number, vantage in enumerate(topology.vantage, 1)}


def prefixes(topology: Topology) -> Mapping[str, tuple[IPNetwork, IPNetwork]]:
    """Organisation -> the IPv4 and IPv6 prefix that it announces in the lab's routing table."""
    return {
        organisation.name: (
            ipaddress.IPv4Network((int(IPV4[65536 + number * 256]), 24)),
            ipaddress.IPv6Network((int(IPV6[(256 + number) << 64]), 64)),
        )
        for number, organisation in enumerate(topology.organisation)
    }
