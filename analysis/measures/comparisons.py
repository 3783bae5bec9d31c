"""The comparisons of all folders that are read together, from their `campaign.json` files.

A folder without `campaign.json`, made by an older version, has the comparisons of the ANRW'23 paper of which it has
both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from core import paper
from core.domain import Comparison, Dose, Download, Transport
from core.errors import UsageError
from core.files import description
from core.files.description import DescribedConfiguration, Description


class Appearance(NamedTuple):
    """The first download of a configuration in a folder."""

    campaign: str
    configuration: str
    client: str
    transport: str
    levels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Configurations and comparisons of all folders."""

    configurations: tuple[DescribedConfiguration, ...]
    """In the order in which tables and figures show them, the warm-up first."""
    comparisons: tuple[Comparison, ...]
    """In the order of the rows of Table 2."""
    doses: Mapping[str, Dose] = field(default_factory=dict)
    """Factor -> when it took effect."""
    notes: tuple[str, ...] = ()
    """Sentences about what is not compared, to be printed."""

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


def read_design(folders: Sequence[tuple[Path, Sequence[Appearance]]]) -> Design:
    """The design of folders with their configurations, in order of appearance.

    Raises:
        UsageError: a `campaign.json` is damaged, or two folders use one name for different things.
    """
    configurations: dict[str, tuple[Path, DescribedConfiguration]] = {}
    comparisons: dict[str, tuple[Path, Comparison]] = {}
    doses: dict[str, tuple[Path, Dose]] = {}
    notes: list[str] = []
    for path, downloads in folders:
        told = description.read(path)
        if told is None:
            told = of_downloads(downloads)
            notes += _not_compared(path, told)
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
        notes=tuple(notes),
    )


def of_downloads(downloads: Iterable[Appearance | Download]) -> Description:
    """The description of an older folder: its configurations, and the paper's comparisons of those."""
    first: dict[str, Appearance | Download] = {}
    for download in downloads:
        first.setdefault(download.configuration, download)
    order = [configuration.name for configuration in (paper.WARMUP, *paper.CONFIGURATIONS)]
    names = sorted(first, key=lambda name: (order.index(name) if name in order else len(order), name))
    return Description(
        campaign=next((download.campaign for download in first.values()), ""),
        configurations=tuple(_described(first[name]) for name in names),
        comparisons=tuple(c for c in paper.COMPARISONS if c.config in first and c.vs in first),
    )


def _described(download: Appearance | Download) -> DescribedConfiguration:
    try:
        levels = json.loads(download.levels)
    except (ValueError, RecursionError):
        levels = None
    return DescribedConfiguration(
        name=download.configuration,
        client=download.client,
        transport=Transport(download.transport) if download.transport in tuple(Transport) else Transport.TCP,
        levels={str(k): str(v) for k, v in levels.items()} if isinstance(levels, dict) else {},
        options={},
    )


def _not_compared(path: Path, told: Description) -> list[str]:
    sides = {name for comparison in told.comparisons for name in (comparison.config, comparison.vs)}
    others = [one.name for one in told.configurations if one.name not in sides]
    if not others:
        return []
    return [
        f"{path} has no {description.FILE_NAME} (an older Upshift made it), so it has the comparisons of the paper, "
        f"and none of {', '.join(others)}; to write the file, run the same `upshift run` again."
    ]


def _contradiction(kind: str, name: str, folders: tuple[Path, Path], what: str) -> UsageError:
    first, second = folders
    said = f"they differ in {what}" if kind == "configuration" else f"it is {what}"
    return UsageError(
        f"the {kind} {name!r} is not the one of {first}: {said}",
        where=str(second),
        remedy="read the folders separately",
    )
