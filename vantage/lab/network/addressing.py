"""Addresses, routes and rules of a node, as lines for `ip -batch`.

Congestion control and initial window are attributes of routes: a host may not allow all algorithms for the sysctl, and
there is no sysctl for the window. A node with several windows has a table for each, chosen by source address
(ip-rule(8)).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from vantage.lab.addresses import IPV4, IPV6, Addresses
from vantage.lab.network.pathem import DEVICE

FIRST_TABLE = 10_000
"""The table of a window is this plus the window; the kernel's own tables are below 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
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


def ip_batch(own: Addresses, shape: Shape, *, ipv6: bool) -> tuple[str, ...]:
    """Addresses and routes; without a default route, no address outside the lab is reachable."""

    def route(prefix: object, source: str, initcwnd: int) -> str:
        return f"route add {prefix} dev {DEVICE} src {source} {_attributes(shape, initcwnd)}"

    lines = [f"address add {own.ipv4}/32 dev {DEVICE}", route(IPV4, own.ipv4, shape.initcwnd)]
    if ipv6:
        lines += [f"address add {own.ipv6}/128 dev {DEVICE} nodad", route(IPV6, own.ipv6, shape.initcwnd)]
    for prefix, initcwnd in shape.towards.items():
        version = ipaddress.ip_network(prefix).version
        if version == 4 or ipv6:
            lines.append(route(prefix, own.ipv4 if version == 4 else own.ipv6, initcwnd))
    for other in shape.windows.values():
        lines.append(f"address add {other.ipv4}/32 dev {DEVICE}")
        lines += [f"address add {other.ipv6}/128 dev {DEVICE} nodad"] if ipv6 else []
    lines += [f"route add local {prefix} dev lo" for prefix in shape.populations]
    for initcwnd in sorted({*shape.windows, *shape.populations.values()}):
        for network in (IPV4, IPV6)[: 1 + ipv6]:
            table = FIRST_TABLE + initcwnd
            lines.append(f"route add {network} dev {DEVICE} table {table} {_attributes(shape, initcwnd)}")
    lines += [_rule(other.ipv4, window) for window, other in shape.windows.items()]
    lines += [_rule(prefix, window) for prefix, window in shape.populations.items()]
    return tuple(lines)


def ip6_batch(shape: Shape) -> tuple[str, ...]:
    """Lines for `ip -6 -batch`: rules, whose family ip does not read off the address."""
    return tuple(_rule(other.ipv6, window) for window, other in shape.windows.items())


def _attributes(shape: Shape, initcwnd: int) -> str:
    return f"congctl {shape.congestion_control} initcwnd {initcwnd}"


def _rule(source: str, window: int) -> str:
    return f"rule add from {source} lookup {FIRST_TABLE + window}"
