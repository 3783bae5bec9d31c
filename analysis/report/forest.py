"""The forest plot: each comparison's median speed-up with its interval, beside the margin that noise sets. Pure.

Positions are per cent of the plot's width, on a log scale, so the page draws them at any width without a script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.measures.rows import SpeedupRow
from analysis.report import render
from analysis.report.findings import ReportFinding
from core.domain import Role

_TICKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_LEAST_SPAN = math.log(1.12)
"""The axis shows at least a speed-up of 1.12 and its inverse."""
_MOST_SPAN = math.log(16.0)
_TICK_DISTANCE = 9.0
"""Least distance of two labels [% of the width]."""
_MARGIN = 1.06


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """One comparison."""

    index: int
    """Index of the row in Table 2."""
    name: str
    role: Role
    verdict: str
    sentence: str
    n: int
    domains: int
    median: str
    interval: str
    """Both as text; the interval is empty if there is none."""
    q: str
    """The q-value as text; empty for other roles than effects."""
    band: tuple[float, float] | None
    """Positions [%] of the margin that the interval has to leave: 2 %, or the noise floor's if that is larger."""
    at: float | None
    """Position of the median [%]; None if only bounds are known."""
    low: float | None
    high: float | None
    """Positions of the interval's ends [%], within the plot."""
    cut_low: bool
    cut_high: bool
    """Whether an end is outside the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The plot."""

    rows: tuple[ForestRow, ...]
    ticks: tuple[tuple[float, str], ...]
    """Position [%] and label."""
    one: float
    """Position of a speed-up of 1 [%]."""
    ends: tuple[float, float]
    """Natural logarithms of the speed-ups at both ends of the plot."""


def forest(rows: Sequence[SpeedupRow], found: Sequence[ReportFinding]) -> Forest:
    """The plot of these rows of Table 2, in their order; rows without pairs are left out.

    Args:
        found: the findings of the same rows (`findings.findings`).
    """
    shown = [(index, row) for index, row in enumerate(rows) if row.n]
    medians = [row.median for _, row in shown]
    axis = _Axis.of([value for median in medians for value in (median.value, median.low, median.high)])
    told = {finding.name: finding for finding in found}
    return Forest(
        rows=tuple(_row(index, row, axis, told.get(row.comparison.name)) for index, row in shown),
        ticks=axis.ticks(),
        one=axis.place(1.0),
        ends=(axis.low, axis.high),
    )


def _row(index: int, row: SpeedupRow, axis: _Axis, finding: ReportFinding | None) -> ForestRow:
    median = row.median
    interval = ""
    if median.low is not None and median.high is not None:
        interval = render.median_interval(median).partition(" ")[2]
    return ForestRow(
        index=index,
        name=row.comparison.name,
        role=row.comparison.role,
        verdict=finding.verdict if finding else "",
        sentence=finding.sentence if finding else "",
        n=row.n,
        domains=row.domains,
        median=render.median_text(median),
        interval=interval,
        q=render.chance_text(row.q_bh) if row.q_bh is not None else "",
        band=(axis.place(1 / row.margin), axis.place(row.margin)) if row.margin else None,
        at=None if median.value is None else axis.place(median.value),
        low=None if median.low is None else axis.place(median.low),
        high=None if median.high is None else axis.place(median.high),
        cut_low=median.low is not None and axis.is_outside(median.low),
        cut_high=median.high is not None and axis.is_outside(median.high),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A log axis."""

    low: float
    high: float
    """Its ends, as logarithms."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> _Axis:
        logs = [math.log(value) for value in values if value is not None and 0 < value < math.inf]
        margin = math.log(_MARGIN)
        low = min([-_LEAST_SPAN, *(x - margin for x in logs)])
        high = max([_LEAST_SPAN, *(x + margin for x in logs)])
        return cls(max(low, -_MOST_SPAN), min(high, _MOST_SPAN))

    def place(self, value: float) -> float:
        """Position [%], at an edge if it is outside."""
        if value <= 0:
            return 0.0
        at = (math.log(value) - self.low) / (self.high - self.low) if value < math.inf else 1.0
        return 100 * min(max(at, 0.0), 1.0)

    def is_outside(self, value: float) -> bool:
        """Whether the axis does not reach it."""
        return value <= 0 or not self.low <= math.log(value) <= self.high

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Labels that do not touch each other: 1 first, then outwards."""
        found: dict[float, str] = {}
        for value in sorted(_TICKS, key=lambda v: abs(math.log(v))):
            at = self.place(value)
            if not self.is_outside(value) and all(abs(at - other) >= _TICK_DISTANCE for other in found):
                found[at] = f"{value:g}"
        return tuple(sorted(found.items()))
