"""The forest plot: each comparison's typical speed-up with its interval, beside the margin that noise sets. Pure.

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
    words: str
    """The verdict with its size or its split, e.g. `faster, at least 2 %`; empty for other roles than effects."""
    sentence: str
    adds: str
    """The part of the sentence that the columns do not show."""
    n: int
    domains: int
    amount: str
    """`16 domains, 48 runs`."""
    median: str
    typical: str
    interval: str
    """Of the typical speed-up, empty if there is none; all three as text."""
    gain: str
    lose: str
    """Per cent of the domains that are at least 2 % faster, or slower, as text."""
    durations: str
    """`2.00 and 0.99`: median speed-ups of handshake and transfer, where TCP and QUIC are compared."""
    q: str
    """The q-value as text; empty for other roles than effects."""
    band: tuple[float, float] | None
    """Positions [%] of the margin that the interval has to leave: 2 %, or the noise floor's if that is larger."""
    at: float | None
    """Position of the typical speed-up [%]; None if only bounds are known."""
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
    axis = _Axis.of([v for _, row in shown for v in (row.typical.value, row.typical.low, row.typical.high)])
    told = {finding.name: finding for finding in found}
    return Forest(
        rows=tuple(_row(index, row, axis, told.get(row.comparison.name)) for index, row in shown),
        ticks=axis.ticks(),
        one=axis.place(1.0),
        ends=(axis.low, axis.high),
    )


def _row(index: int, row: SpeedupRow, axis: _Axis, finding: ReportFinding | None) -> ForestRow:
    typical = row.typical
    whole = render.typical_interval(typical)
    durations = (row.handshake, row.transfer)
    return ForestRow(
        index=index,
        name=row.comparison.name,
        role=row.comparison.role,
        verdict=finding.verdict if finding else "",
        words=render.verdict_words(row) if finding else "",
        sentence=finding.sentence if finding else "",
        adds=finding.adds if finding else "",
        n=row.n,
        domains=row.domains,
        amount=f"{render.count_of(row.domains, 'domain')}, {render.count_of(row.n, 'run')}",
        median=render.median_text(row.median),
        typical=whole.partition(" ")[0],
        interval=whole.partition(" ")[2],
        gain=render.percent(row.gain),
        lose=render.percent(row.lose),
        durations="" if durations == (None, None) else " and ".join(map(render.part_text, durations)),
        q=render.chance_text(row.q_bh) if row.q_bh is not None else "",
        band=(axis.place(1 / row.margin), axis.place(row.margin)) if row.margin else None,
        at=None if typical.value is None else axis.place(typical.value),
        low=None if typical.low is None else axis.place(typical.low),
        high=None if typical.high is None else axis.place(typical.high),
        cut_low=typical.low is not None and axis.is_outside(typical.low),
        cut_high=typical.high is not None and axis.is_outside(typical.high),
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
