"""Doses: each row of Table 2 split into runs in which its options took effect, and runs in which they could not.

A speed-up of 1.0 over many runs may mean that an option has no effect, or that it could not take effect: ECN without a
queue, a large window where 65,535 bytes are enough. Each factor defines when it took effect (`Factor.dose`, a KPI and a
threshold), which is stored in `campaign.json`. What tells the parts apart happened after the option was set: they are
described and not tested. See docs/method/comparisons.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.measures import costs
from analysis.measures.columns import Mask, on_all_cores
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Samples, pair
from analysis.measures.rows import Metric, SpeedupSummary
from analysis.measures.selection import DEFAULT, Selection
from analysis.measures.speedup import summary_of
from core.domain import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class DoseRow:
    """One row of Table 2, split."""

    comparison: Comparison
    words: str
    """The sign that an option took effect, e.g. `CE seen or SACK blocks seen`."""
    acted: SpeedupSummary
    """The runs in which one of the options that differ took effect, on either side."""
    idle: SpeedupSummary
    """Runs in which none did."""
    unknown: SpeedupSummary
    """Runs for which it is unknown, as a KPI is missing."""

    @property
    def parts(self) -> tuple[tuple[str, SpeedupSummary], ...]:
        """(name, row) of each part."""
        return ("acted", self.acted), ("idle", self.idle), ("unknown", self.unknown)


def dose_rows(
    dataset: Dataset,
    *,
    metric: Metric = Metric.TIME,
    selection: Selection = DEFAULT,
    samples: Samples | None = None,
) -> list[DoseRow]:
    """One row per comparison of an effect whose options define when they took effect; see `tables.table2`."""
    if samples is None:
        samples = costs.samples(dataset, metric=metric, selection=selection)
    effects = [c for c in dataset.design.comparisons if (c.config, c.vs) in samples.acted]
    states = {c: samples.acted[c.config, c.vs].codes for c in effects}
    rows = iter(on_all_cores(_part, [(samples, c, states[c] == state) for c in effects for state in (1, 0, -1)]))
    return [
        DoseRow(
            comparison=comparison,
            words=" or ".join(dose.words for dose in dataset.design.dose_of(comparison)),
            acted=next(rows),
            idle=next(rows),
            unknown=next(rows),
        )
        for comparison in effects
    ]


def _part(job: tuple[Samples, Comparison, Mask]) -> SpeedupSummary:
    samples, comparison, runs = job
    return summary_of(pair(samples, comparison.config, comparison.vs, runs=runs), comparison)
