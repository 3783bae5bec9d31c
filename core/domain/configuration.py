"""How a file is downloaded: the client, the levels of the factors, and the kernel settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A named pair of a client and the levels of all factors."""

    name: str
    client: str
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor name -> level. Other factors have their default level."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Options of the client, e.g. `max_data`; others have the client's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctl:
    """A kernel setting of a network namespace, e.g. `net.ipv4.tcp_ecn` = `1`."""

    name: str
    value: str
    field: int | None = None
    """For a setting of several numbers (`tcp_rmem`): the index of the one to set, from 0; the others are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAttribute:
    """An attribute of the routes that downloads take (iproute2 `ip route`, e.g. `window`); None removes it."""

    name: str
    value: str | None


Setting = Sysctl | RouteAttribute
