"""Doses: each row of Table 2 split into runs in which its options took effect, and runs in which they could not.

A speed-up of 1.0 over many runs may mean that an option has no effect, or that it could not take effect: ECN without a
queue, a large window where 65,535 bytes are enough. Each factor defines when it took effect (`Factor.dose`, a KPI and a
threshold), which is stored in `campaign.json`. See docs/design/analysis.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.measures import costs
from analysis.measures.arrays import Flags, Floats, Ints, Mask, on_all_cores
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Metric, Samples, pair
from analysis.measures.rows import SpeedupRow
from analysis.measures.selection import DEFAULT, Selection
from analysis.measures.speedup import row_of
from upshift.domain import Comparison, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class DoseRow:
    """One row of Table 2, split."""

    comparison: Comparison
    words: str
    """The sign that an option took effect, e.g. `CE seen or SACK blocks seen`."""
    acted: SpeedupRow
    """The runs in which one of the options that differ took effect, on either side."""
    idle: SpeedupRow
    """Runs in which none did."""
    unknown: SpeedupRow
    """Runs for which it is unknown, as a KPI is missing."""

    @property
    def parts(self) -> tuple[tuple[str, SpeedupRow], ...]:
        """(name, row) of each part."""
        return ("acted", self.acted), ("idle", self.idle), ("unknown", self.unknown)


def dose_rows(
    dataset: Dataset,
    *,
    metric: Metric = Metric.TIME,
    selection: Selection = DEFAULT,
) -> list[DoseRow]:
    """One row per comparison of an effect whose options define when they took effect; see `tables.table2`."""
    samples = costs.samples(dataset, metric=metric, selection=selection)
    kpis: dict[str, Floats] = {}
    found = []
    for comparison in dataset.design.comparisons:
        doses = dataset.design.dose_of(comparison)
        if comparison.role is not Role.EFFECT or not doses:
            continue
        for dose in doses:
            if dose.kpi not in kpis:
                kpis[dose.kpi] = dataset.kpi(dose.kpi)
        sides = [samples.rows_of(name) for name in (comparison.config, comparison.vs)]
        states = did_act([(_at(kpis[dose.kpi], rows), dose.above) for dose in doses for rows in sides])
        parts = [(samples, comparison, states == state) for state in (1, 0, -1)]
        acted, idle, unknown = on_all_cores(_part, parts)
        words = " or ".join(dose.words for dose in doses)
        found.append(DoseRow(comparison=comparison, words=words, acted=acted, idle=idle, unknown=unknown))
    return found


def _at(values: Floats, rows: Ints) -> Floats:
    """The value of each row; NaN for -1."""
    return np.where(rows < 0, math.nan, values[rows])


def did_act(values: Sequence[tuple[Floats, float]]) -> Flags:
    """Whether one of the options took effect in each run; -1 if a KPI that could show it is missing.

    Args:
        values: a KPI of one side of each run (NaN: missing), and the threshold above which the option took effect. Both
            sides are checked, as either may be the one with the option; if it is off, its KPI is at most the threshold.
    """
    acted = np.any([value > above for value, above in values], axis=0)
    unknown = np.any([np.isnan(value) for value, _ in values], axis=0)
    return np.where(acted, 1, np.where(unknown, -1, 0)).astype(np.int8)


def _part(asked: tuple[Samples, Comparison, Mask]) -> SpeedupRow:
    samples, comparison, runs = asked
    return row_of(*pair(samples, comparison.config, comparison.vs, runs=runs), comparison)
