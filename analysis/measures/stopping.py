"""The intervals of campaigns that could stop early: they hold at every look (`upshift.sequential`). Pure.

Computed again from the downloads that analysis accepts: the campaign could not know yet whose treatment is proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.measures.dataset import Dataset, Record
from upshift.domain import Comparison, Role
from upshift.sequential import Interval, Quantity, Rule, SpeedUps


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRow:
    """One comparison at one vantage point."""

    comparison: str
    domains: int
    """Domains with a pair: the steps."""
    median: Interval
    share: Interval
    """Of domains with a speed-up above 1."""
    meets: bool
    """Whether the rule is met by the downloads that analysis accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
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


def stoppings(dataset: Dataset, *, unproven: bool) -> list[Stopping]:
    """One per vantage point of each folder whose campaign had a rule; damaged entries are skipped."""
    effects = [comparison for comparison in dataset.design.comparisons if comparison.role is Role.EFFECT]
    found = []
    for index, folder in enumerate(dataset.folders):
        for vantage, told in _entries(folder.environment):
            records = [r for r in dataset.records if r.folder == index and r.download.vantage == vantage]
            rule = {Quantity(name): float(width) for name, width in told["rule"].items()}
            found.append(
                Stopping(
                    vantage=vantage,
                    rule=rule,
                    reached=told["reached"] is True,
                    recorded_runs=int(told["recorded_runs"]),
                    planned_runs=int(told["planned_runs"]),
                    rows=tuple(_row(records, comparison, rule, unproven=unproven) for comparison in effects),
                )
            )
    return found


def _entries(environment: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = (environment or {}).get("stopping")
    for vantage, told in entries.items() if isinstance(entries, Mapping) else ():
        try:
            {Quantity(name): float(width) for name, width in told["rule"].items()}
            int(told["recorded_runs"]), int(told["planned_runs"]), told["reached"]
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        yield str(vantage), told


def _row(records: list[Record], comparison: Comparison, rule: Rule, *, unproven: bool) -> StoppingRow:
    sides: dict[object, dict[str, Record]] = {}
    for record in records:
        if record.accepted(unproven=unproven) and record.download.time_bounds_s is not None:
            sides.setdefault(record.run, {})[record.download.configuration] = record
    speed_ups = SpeedUps()
    pairs = [run for run in sides.values() if comparison.config in run and comparison.vs in run]
    for run in sorted(pairs, key=lambda run: run[comparison.config].download.started_at):
        config, vs = run[comparison.config].download, run[comparison.vs].download
        if config.time_bounds_s is not None and vs.time_bounds_s is not None:
            speed_ups.add(config.domain, config.time_bounds_s, vs.time_bounds_s)
    return StoppingRow(
        comparison=comparison.name,
        domains=len(speed_ups.domains),
        median=speed_ups.interval(Quantity.MEDIAN),
        share=speed_ups.interval(Quantity.SHARE),
        meets=speed_ups.meets(rule),
    )
