"""How a file is downloaded (client, levels, kernel settings), and which configurations are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


class Role(StrEnum):
    """The purpose of a comparison, which decides how analysis treats its row. The vocabulary is closed."""

    EFFECT = "effect"
    """The effect of a configuration: a row of Table 2 and a finding of the report, with a verdict."""
    NOISE_FLOOR = "noise_floor"
    """Two identical configurations (A/A): a row of Table 2 without a verdict, which effects have to exceed."""
    CACHE = "cache"
    """The warm-up against the same configuration later in the run: the effect of caches, without a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of Table 2: the speed-up of `config` over `vs`, pair by pair within each measurement run."""

    name: str
    """The row's name in tables and report."""
    config: str
    """Name of a configuration, or of the warm-up."""
    vs: str
    """The reference: the name of another configuration."""
    role: Role = Role.EFFECT
    """One of `Role`."""

    @classmethod
    def of(cls, config: str, vs: str, role: Role = Role.EFFECT) -> Comparison:
        """A comparison with the default name, e.g. `WS vs BL`."""
        return cls(name=f"{config} vs {vs}", config=config, vs=vs, role=role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """When an option took effect in a download: if this KPI is above this number."""

    kpi: str
    """A KPI: a column of `downloads`."""
    above: float
    """Threshold, in the KPI's unit."""
    words: str
    """What it means, as text, e.g. `CE seen`."""
