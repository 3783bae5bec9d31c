"""Doses: each row of Table 2 split into runs in which its options took effect, and runs in which they could not.

A speed-up of 1.0 over many runs may mean that an option has no effect, or that it could not take effect: ECN without a
queue, a large window where 65,535 bytes are enough. Each factor defines when it took effect (`Factor.dose`, a KPI and a
threshold), which is stored in `campaign.json`. What tells the parts apart happened after the option was set: they are
described and not tested. See docs/method/comparisons.md.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from analysis.measures import costs
from analysis.measures.columns import Codes, Flags, Mask, on_all_cores
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Metric, Samples, pair
from analysis.measures.rows import SpeedupSummary
from analysis.measures.selection import DEFAULT, Selection
from analysis.measures.speedup import summary_of
from core.domain import Comparison, Dose, Role


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
    effects = [c for c in dataset.design.comparisons if c.role is Role.EFFECT and dataset.design.dose_of(c)]
    of_download = _acted(dataset, {dose for c in effects for dose in dataset.design.dose_of(c)})
    acted = {dose: flags[samples.download] for dose, flags in of_download.items()}
    parts = []
    for comparison in effects:
        sides = [samples.rows_of(name) for name in (comparison.config, comparison.vs)]
        states = did_act([_at(acted[dose], rows) for dose in dataset.design.dose_of(comparison) for rows in sides])
        parts += [(samples, comparison, states == state) for state in (1, 0, -1)]
    rows = iter(on_all_cores(_part, parts))
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


def _acted(dataset: Dataset, doses: Set[Dose]) -> dict[Dose, Flags]:
    """Whether each option took effect, per download; -1 where its KPI is missing."""
    acted = {dose: np.full(len(dataset.downloads), -1, dtype=np.int8) for dose in doses}
    names = sorted({dose.kpi for dose in doses})
    for rows, columns in dataset.kpi_numbers(*names) if names else ():
        values = dict(zip(names, columns, strict=True))
        for dose, flags in acted.items():
            flags[rows] = np.where(np.isnan(values[dose.kpi]), -1, values[dose.kpi] > dose.above)
    return acted


def _at(flags: Flags, rows: Codes) -> Flags:
    """The flag of each row; unknown for -1."""
    return np.where(rows < 0, -1, flags[rows]).astype(np.int8)


def did_act(flags: Sequence[Flags]) -> Flags:
    """Whether one of the options took effect in each run; -1 if that is unknown for one of them.

    Args:
        flags: whether one option took effect on one side of each run. Both sides are checked, as either may be the one
            with the option; if it is off, its KPI is at most the threshold.
    """
    most, least = np.max(flags, axis=0), np.min(flags, axis=0)
    return np.where(most == 1, 1, least).astype(np.int8)


def _part(job: tuple[Samples, Comparison, Mask]) -> SpeedupSummary:
    samples, comparison, runs = job
    return summary_of(pair(samples, comparison.config, comparison.vs, runs=runs), comparison)
