"""The comparisons of all folders that are read together, from their `campaign.json` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.domain import Comparison, Dose, Transport
from core.errors import UsageError
from core.files import description
from core.files.description import DescribedConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Configurations and comparisons of all folders."""

    configurations: tuple[DescribedConfiguration, ...]
    """In the order in which tables and figures show them, the warm-up first."""
    comparisons: tuple[Comparison, ...]
    """In the order of the rows of Table 2."""
    doses: Mapping[str, Dose] = field(default_factory=dict)
    """Factor -> when it took effect."""

    def rank(self, configuration: str) -> tuple[int, str]:
        """Sort key: the campaigns' order, then others by name."""
        names = [known.name for known in self.configurations]
        return (names.index(configuration) if configuration in names else len(names), configuration)

    def dose_of(self, comparison: Comparison) -> tuple[Dose, ...]:
        """When the options in which the two sides differ took effect; empty if unknown (different clients)."""
        named = {one.name: one for one in self.configurations}
        config, vs = named.get(comparison.config), named.get(comparison.vs)
        if config is None or vs is None or {config.transport, vs.transport} != {Transport.TCP}:
            return ()
        differences = config.differences(vs)
        if any(name not in self.doses for name in differences):
            return ()
        return tuple(self.doses[name] for name in differences)

    def cells(self) -> list[list[str]]:
        """Heading and rows: each configuration by the levels and options in which configurations differ."""
        tcp = [one.levels for one in self.configurations if one.transport is Transport.TCP]
        levels = sorted({name for one in tcp for name in one if len({other.get(name) for other in tcp}) > 1})
        cells = [["configuration", "client", "transport", *levels, "options"]]
        for one in self.configurations:
            shown = [one.levels.get(name, "–") if one.transport is Transport.TCP else "–" for name in levels]
            options = ", ".join(f"{name} {value}" for name, value in one.options.items())
            cells.append([one.name, one.client, one.transport.upper(), *shown, options])
        return cells


def read_design(folders: Sequence[Path]) -> Design:
    """The design of folders.

    Raises:
        UsageError: a `campaign.json` is missing or damaged, or two folders use one name for different things.
    """
    configurations: dict[str, tuple[Path, DescribedConfiguration]] = {}
    comparisons: dict[str, tuple[Path, Comparison]] = {}
    doses: dict[str, tuple[Path, Dose]] = {}
    for path in folders:
        told = description.read(path)
        for configuration in told.configurations:
            first, known = configurations.setdefault(configuration.name, (path, configuration))
            if differences := known.differences(configuration):
                raise _contradiction("configuration", configuration.name, (first, path), ", ".join(differences))
        for comparison in told.comparisons:
            first, known_comparison = comparisons.setdefault(comparison.name, (path, comparison))
            if known_comparison != comparison:
                what = " and ".join(f"{c.config} vs {c.vs} ({c.role})" for c in (known_comparison, comparison))
                raise _contradiction("comparison", comparison.name, (first, path), what)
        for factor, dose in told.doses.items():
            first, known_dose = doses.setdefault(factor, (path, dose))
            if known_dose != dose:
                what = " and ".join(f"{d.kpi} above {d.above:g}" for d in (known_dose, dose))
                raise _contradiction("dose of", factor, (first, path), what)
    return Design(
        doses={factor: dose for factor, (_, dose) in doses.items()},
        configurations=tuple(configuration for _, configuration in configurations.values()),
        comparisons=tuple(comparison for _, comparison in comparisons.values()),
    )


def _contradiction(kind: str, name: str, folders: tuple[Path, Path], what: str) -> UsageError:
    first, second = folders
    said = f"they differ in {what}" if kind == "configuration" else f"it is {what}"
    return UsageError(
        f"the {kind} {name!r} is not the one of {first}: {said}",
        where=str(second),
        remedy="read the folders separately",
    )
