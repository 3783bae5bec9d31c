"""The intervals of campaigns that could stop early: they are valid at every look (`core.sequential`). Pure.

Computed again from the runs that counted for the campaign, with the downloads that analysis accepts: the campaign could
not know yet whose treatment is proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures import costs
from analysis.measures.columns import Downloads, Mask
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Samples, pair
from analysis.measures.rows import Metric
from analysis.measures.selection import Selection
from core.domain import Comparison, Role
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
    counted_runs: int | None
    """How many runs of the plan, from its first, count; None: an older Upshift counted all, in the order of time."""
    rows: tuple[StoppingRow, ...]

    @property
    def early(self) -> bool:
        """Whether measurement runs of the plan were left out."""
        return self.reached and self.recorded_runs < self.planned_runs


def stoppings(dataset: Dataset, *, unproven: bool) -> list[StoppingOutcome]:
    """One per vantage point of each folder whose campaign had a rule; damaged entries are skipped."""
    entries = [
        (index, *entry) for index, folder in enumerate(dataset.folders) for entry in _entries(folder.environment)
    ]
    if not entries:
        return []
    d = dataset.downloads
    samples = costs.samples(dataset, metric=Metric.TIME, selection=Selection(unproven=unproven))
    effects = [comparison for comparison in dataset.design.comparisons if comparison.role is Role.EFFECT]
    rows = []
    for index, vantage, rule, entry in entries:
        chosen = (d.runs.folder == index) & d.runs.vantage.are(vantage)
        counted = int(entry["counted_runs"]) if "counted_runs" in entry else None
        # They are in the order of the plan.
        chosen &= np.cumsum(chosen) <= (len(chosen) if counted is None else counted)
        # Other folders may have other comparisons.
        ruled = {one["name"] for one in entry.get("comparisons", ())} or {comparison.name for comparison in effects}
        rows.append(
            StoppingOutcome(
                vantage=vantage,
                rule=rule,
                reached=entry["reached"] is True,
                recorded_runs=int(entry["recorded_runs"]),
                planned_runs=int(entry["planned_runs"]),
                counted_runs=counted,
                rows=tuple(
                    _row(comparison, _speed_ups(samples, d, comparison, chosen), rule)
                    for comparison in effects
                    if comparison.name in ruled
                ),
            )
        )
    return rows


def _speed_ups(samples: Samples, d: Downloads, comparison: Comparison, runs: Mask) -> SpeedUps:
    """The first of these measurement runs of each domain that has both sides; the bounds are those of Table 2."""
    pairs = pair(samples, comparison.config, comparison.vs)
    rows = samples.download[pairs.config]
    at = np.flatnonzero(runs[d.run[rows]])
    at = at[np.argsort(d.run[rows[at]], kind="stable")]
    domain = d.runs.domain[d.run[rows[at]]]
    codes, first = np.unique(domain.codes, return_index=True)
    bounds = zip(pairs.low[at[first]].tolist(), pairs.high[at[first]].tolist(), strict=True)
    return SpeedUps.of(dict(zip((domain.names[code] for code in codes.tolist()), bounds, strict=True)))


def _entries(environment: Mapping[str, Any] | None) -> Iterator[tuple[str, Rule, Mapping[str, Any]]]:
    """Vantage point, its rule, and what the campaign recorded of it; without damaged ones."""
    entries = (environment or {}).get("stopping")
    for vantage, entry in entries.items() if isinstance(entries, Mapping) else ():
        try:
            rule = {Quantity(name): float(width) for name, width in entry["rule"].items()}
            int(entry["recorded_runs"]), int(entry["planned_runs"]), int(entry.get("counted_runs", 0)), entry["reached"]
            {one["name"] for one in entry.get("comparisons", ())}
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        yield str(vantage), rule, entry


def _row(comparison: Comparison, speed_ups: SpeedUps, rule: Rule) -> StoppingRow:
    return StoppingRow(
        comparison=comparison.name,
        domains=len(speed_ups.domains),
        median=speed_ups.interval(Quantity.MEDIAN),
        share=speed_ups.interval(Quantity.SHARE),
        meets=speed_ups.meets(rule),
    )
