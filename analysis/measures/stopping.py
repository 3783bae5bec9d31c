"""The intervals of campaigns that could stop early: they hold at every look (`core.sequential`). Pure.

Computed again from the downloads that analysis accepts: the campaign could not know yet whose treatment is proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures.columns import Codes, Floats, Mask
from analysis.measures.costs import times
from analysis.measures.dataset import Dataset
from core.domain import Comparison, Outcome, Role
from core.sequential import Interval, Quantity, Rule, SpeedUps


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRow:
    """One comparison at one vantage point."""

    comparison: str
    domains: int
    """Domains with a pair: the steps."""
    median: Interval
    share: Interval
    """The share of domains with a speed-up above 1."""
    meets: bool
    """Whether the rule is met by the downloads that analysis accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingOutcome:
    """What became of the rule at one vantage point."""

    vantage: str
    rule: Rule
    reached: bool
    """The campaign stopped because its rule was met, or its plan ended at the same moment."""
    recorded_runs: int
    planned_runs: int
    rows: tuple[StoppingRow, ...]

    @property
    def early(self) -> bool:
        """Whether measurement runs of the plan were left out."""
        return self.reached and self.recorded_runs < self.planned_runs


def stoppings(dataset: Dataset, *, unproven: bool) -> list[StoppingOutcome]:
    """One per vantage point of each folder whose campaign had a rule; damaged entries are skipped."""
    entries = [
        (index, vantage, entry)
        for index, folder in enumerate(dataset.folders)
        for vantage, entry in _entries(folder.environment)
    ]
    if not entries:
        return []
    effects = [comparison for comparison in dataset.design.comparisons if comparison.role is Role.EFFECT]
    downloads = _Downloads.of(dataset, unproven=unproven)
    rows = []
    for index, vantage, entry in entries:
        rule = {Quantity(name): float(width) for name, width in entry["rule"].items()}
        runs = dataset.downloads.runs
        chosen = (runs.folder == index) & runs.vantage.are(vantage)
        # Other folders may have other comparisons.
        ruled = {one["name"] for one in entry.get("comparisons", ())} or {comparison.name for comparison in effects}
        rows.append(
            StoppingOutcome(
                vantage=vantage,
                rule=rule,
                reached=entry["reached"] is True,
                recorded_runs=int(entry["recorded_runs"]),
                planned_runs=int(entry["planned_runs"]),
                rows=tuple(
                    _row(comparison, downloads.speed_ups(comparison, chosen), rule)
                    for comparison in effects
                    if comparison.name in ruled
                ),
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Downloads:
    """The downloads with the times that analysis accepts."""

    dataset: Dataset
    is_used: Mask
    low: Floats
    high: Floats
    """Bounds of the download times [s]."""
    started_at: Floats

    @classmethod
    def of(cls, dataset: Dataset, *, unproven: bool) -> _Downloads:
        d = dataset.downloads
        low, high = times(d)
        is_used = d.usable(unproven=unproven) & ~d.outcome.are(Outcome.FAILED) & ~np.isnan(low)
        return cls(dataset=dataset, is_used=is_used, low=low, high=high, started_at=dataset.started_at())

    def speed_ups(self, comparison: Comparison, runs: Mask) -> SpeedUps:
        """The first measurement run of each domain that has both sides."""
        config, vs = (self._rows(name) for name in (comparison.config, comparison.vs))
        pairs = np.flatnonzero(runs & (config >= 0) & (vs >= 0))
        pairs = pairs[np.lexsort((config[pairs], self.started_at[config[pairs]]))]
        domain = self.dataset.downloads.runs.domain
        codes, first = np.unique(domain.codes[pairs], return_index=True)
        config, vs = config[pairs[first]], vs[pairs[first]]
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = self.low[vs] / self.high[config], self.high[vs] / self.low[config]
        bounds = zip(low.tolist(), high.tolist(), strict=True)
        return SpeedUps.of(dict(zip((domain.names[code] for code in codes.tolist()), bounds, strict=True)))

    def _rows(self, configuration: str) -> Codes:
        """Per run, the index of its download of this configuration, -1 without one."""
        d = self.dataset.downloads
        rows = np.flatnonzero(self.is_used & d.configuration.are(configuration))
        of_run = np.full(len(d.runs), -1, dtype=np.int32)
        of_run[d.run[rows]] = rows
        return of_run


def _entries(environment: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = (environment or {}).get("stopping")
    for vantage, entry in entries.items() if isinstance(entries, Mapping) else ():
        try:
            {Quantity(name): float(width) for name, width in entry["rule"].items()}
            int(entry["recorded_runs"]), int(entry["planned_runs"]), entry["reached"]
            {one["name"] for one in entry.get("comparisons", ())}
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        yield str(vantage), entry


def _row(comparison: Comparison, speed_ups: SpeedUps, rule: Rule) -> StoppingRow:
    return StoppingRow(
        comparison=comparison.name,
        domains=len(speed_ups.domains),
        median=speed_ups.interval(Quantity.MEDIAN),
        share=speed_ups.interval(Quantity.SHARE),
        meets=speed_ups.meets(rule),
    )
