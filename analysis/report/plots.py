"""Plots that need no script: the forest plot, on the page and in a terminal, and bars of limiters.

The forest plot has each comparison's typical speed-up with its interval, beside the margin that noise sets. Positions
are per cent of a plot's width, so the page draws them at any width; those of the forest plot are on a log scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from analysis.captures.limiter import Limiter
from analysis.measures.limiters import LimiterRow
from analysis.measures.rows import SpeedupRow
from analysis.report import render
from analysis.report.findings import ReportFinding
from core import terminal

_TICKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_LEAST_SPAN = math.log(1.12)
"""The axis shows at least a speed-up of 1.12 and its inverse."""
_MOST_SPAN = math.log(16.0)
_TICK_DISTANCE = 9.0
"""Least distance of two labels [% of the width]."""
_MARGIN = 1.06

_COLUMNS = 33
"""Width of the plot."""
_BLANK = "·"
"""Between marks: headings would break at spaces."""
_WORDS = ("comparison", "verdict")
_ANSWER = ("comparison", "verdict", "typical", "interval", "domains", "runs")
"""What stays on a narrow terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """One comparison."""

    of: SpeedupRow
    """Its row of Table 2."""
    finding: ReportFinding | None
    """None for other roles than effects, and where nothing is judged."""
    typical: str
    interval: str
    """Interval of the typical speed-up, empty if there is none; both as text."""
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

    @property
    def words(self) -> str:
        """The verdict with its size or its split, e.g. `faster, at least 2 %`; empty without a finding."""
        return render.verdict_words(self.of) if self.finding else ""

    @property
    def durations(self) -> str:
        """`2.00 and 0.99`: median speed-ups of handshake and transfer, where TCP and QUIC are compared."""
        both = (self.of.handshake, self.of.transfer)
        return "" if both == (None, None) else " and ".join(map(render.number, both))

    @property
    def q(self) -> str:
        """The q-value as text; empty for other roles than effects."""
        return "" if self.of.q is None else render.chance_text(self.of.q)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The plot."""

    rows: tuple[ForestRow, ...]
    ticks: tuple[tuple[float, str], ...]
    """Position [%] and label."""
    one: float
    """Position of a speed-up of 1 [%]."""


def forest(rows: Sequence[SpeedupRow], findings: Sequence[ReportFinding]) -> Forest:
    """The plot of these rows of Table 2, in their order; rows without pairs are left out.

    Args:
        findings: those of the same rows (`findings.findings`).
    """
    shown = [row for row in rows if row.n]
    axis = _Axis.of([v for row in shown for v in (row.typical.value, row.typical.low, row.typical.high)])
    by_name = {finding.name: finding for finding in findings}
    return Forest(
        rows=tuple(_row(row, axis, by_name.get(row.comparison.name)) for row in shown),
        ticks=axis.ticks(),
        one=axis.place(1.0),
    )


def _row(row: SpeedupRow, axis: _Axis, finding: ReportFinding | None) -> ForestRow:
    typical = row.typical
    text, _, interval = render.median_interval(typical).partition(" ")
    return ForestRow(
        of=row,
        finding=finding,
        typical=text,
        interval=interval,
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
        labels: dict[float, str] = {}
        for value in sorted(_TICKS, key=lambda v: abs(math.log(v))):
            at = self.place(value)
            if not self.is_outside(value) and all(abs(at - other) >= _TICK_DISTANCE for other in labels):
                labels[at] = f"{value:g}"
        return tuple(sorted(labels.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """The report's first screen for a terminal: the question, the forest plot in characters, the noise floor."""

    question: str
    forest: Forest
    noise: tuple[str, ...]
    """Sentences about the noise floor."""

    def show(self, stream: TextIO) -> None:
        """Prints it in the terminal's width; the plot is left out where it does not fit."""
        to = terminal.console(stream)
        if self.forest.rows:
            full = cells(self.forest)
            plot = full[0].index(_ruler(self.forest))
            narrow = [[cell for index, cell in enumerate(line) if index != plot] for line in full]
            kept = [narrow[0].index(name) for name in _ANSWER]
            answer = [[line[index] for index in kept] for line in narrow]
            terminal.print_table(to, (full, narrow, answer), title=self.question, words=(*_WORDS, full[0][plot]))
            for row in self.forest.rows:
                if row.finding and row.finding.why:
                    terminal.print_line(to, f"{row.finding.name}: {row.finding.why}")
            to.print()
        else:
            terminal.print_line(to, self.question)
            terminal.print_line(to, "No two configurations could be compared.")
        for sentence in self.noise:
            terminal.print_line(to, sentence)


def cells(forest: Forest) -> list[list[str]]:
    """Heading and rows of the table."""
    by_part = any(row.durations for row in forest.rows)
    heading = ["comparison", "verdict", _ruler(forest), "typical", "interval", "gain %", "lose %"]
    heading += [*(["handshake, transfer"] if by_part else []), "q", "domains", "runs"]
    lines = []
    for row in forest.rows:
        line = [row.of.comparison.name, row.words, _plot(row, forest), row.typical, row.interval]
        line += [render.of_domains(row.of, share) for share in (row.of.gain, row.of.lose)]
        line += [row.durations or "–"] if by_part else []
        lines.append([*line, row.q, str(row.of.domains), str(row.of.n)])
    return [heading, *lines]


def _ruler(forest: Forest) -> str:
    """The labels of the axis, in place; those that would touch are left out."""
    line = [_BLANK] * _COLUMNS
    ends = [forest.ticks[0], forest.ticks[-1]]
    for at, label in [*(tick for tick in forest.ticks if tick[1] == "1"), *ends, *forest.ticks]:
        start = min(max(0, _column(at) - len(label) // 2), _COLUMNS - len(label))
        around = line[max(0, start - 1) : start + len(label) + 1]
        if all(character == _BLANK for character in around):
            line[start : start + len(label)] = label
    return "".join(line)


def _plot(row: ForestRow, forest: Forest) -> str:
    """`░` margin, `┊` a speed-up of 1, `─` interval, `●` typical speed-up."""
    line = [_BLANK] * _COLUMNS
    if row.band is not None:
        first, last = map(_column, row.band)
        line[first : last + 1] = "░" * (last + 1 - first)
    line[_column(forest.one)] = "┊"
    if row.low is not None and row.high is not None:
        first, last = _column(row.low), _column(row.high)
        line[first : last + 1] = "─" * (last + 1 - first)
    if row.at is not None:
        line[_column(row.at)] = "●"
    return "".join(line)


def _column(place: float) -> int:
    return min(_COLUMNS - 1, int(place / 100 * _COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One configuration, all providers together."""

    configuration: str
    n: int
    """Downloads whose limiter is known."""
    parts: tuple[tuple[Limiter, float, float], ...]
    """Limiter, where its part begins, and how wide it is [%]; only limiters that occur."""


def bars(rows: Sequence[LimiterRow]) -> tuple[list[Bar], list[Limiter]]:
    """One bar per configuration, in order; and the limiters of the legend."""
    groups: dict[str, list[LimiterRow]] = {}
    for row in rows:
        groups.setdefault(row.configuration, []).append(row)
    all_bars = [_bar(name, members) for name, members in groups.items() if any(row.n for row in members)]
    return all_bars, [name for name in Limiter if any(name == part for bar in all_bars for part, _, _ in bar.parts)]


def _bar(configuration: str, rows: Sequence[LimiterRow]) -> Bar:
    n = sum(row.n for row in rows)
    parts = []
    at = 0.0
    for name in Limiter:
        width = 100 * sum(row.n * row.downloads[name] for row in rows) / n
        if width > 0:
            parts.append((name, at, width))
        at += width
    return Bar(configuration=configuration, n=n, parts=tuple(parts))
