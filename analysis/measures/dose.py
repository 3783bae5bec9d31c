"""Doses: each row of Table 2 split into runs in which its options took effect, and runs in which they could not.

A speed-up of 1.0 over many runs may mean that an option has no effect, or that it could not take effect: ECN without a
queue, a large window where 65,535 bytes are enough. Each factor defines when it took effect (`Factor.dose`, a KPI and a
threshold), which is stored in `campaign.json`. See docs/design/analysis.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.measures import speedup, tables
from analysis.measures.dataset import Dataset, Record
from analysis.measures.pairs import Metric, Sample
from analysis.measures.rows import SpeedupRow
from analysis.measures.selection import DEFAULT, Selection
from upshift.domain import Comparison, Dose, Role


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
    samples = tables.samples(dataset.records, metric=metric, selection=selection)
    records = {(record.run, record.download.configuration): record for record in dataset.records}
    runs = {record.run for record in dataset.records}
    found = []
    for comparison in dataset.design.comparisons:
        doses = dataset.design.dose_of(comparison)
        if comparison.role is not Role.EFFECT or not doses:
            continue
        sides = (comparison.config, comparison.vs)
        states = {run: did_act(doses, [records.get((run, name)) for name in sides]) for run in runs}
        parts = [_part(samples, states, state, comparison) for state in (True, False, None)]
        words = " or ".join(dose.words for dose in doses)
        found.append(DoseRow(comparison=comparison, words=words, acted=parts[0], idle=parts[1], unknown=parts[2]))
    return found


def did_act(doses: Sequence[Dose], sides: Sequence[Record | None]) -> bool | None:
    """Whether one of the options took effect in a run; None if a KPI that could show it is missing.

    Args:
        sides: the compared downloads. Both are checked, as either may be the one with the option; if it is off, its
            KPI is at most the threshold.
    """
    values = [(None if side is None else side.number(dose.kpi), dose.above) for dose in doses for side in sides]
    if any(value is not None and value > above for value, above in values):
        return True
    return None if any(value is None for value, _ in values) else False


def _part(
    samples: Sequence[Sample],
    states: Mapping[Any, bool | None],
    state: bool | None,
    comparison: Comparison,
) -> SpeedupRow:
    return speedup.speedup_row([s for s in samples if states[s.run] is state], comparison)
