"""What is compared with what, and when an option took effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """A column of `kpis`."""
    above: float
    """Threshold, in the KPI's unit."""
    words: str
    """What it means, as text, e.g. `CE seen`."""
