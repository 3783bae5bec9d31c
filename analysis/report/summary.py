"""The report's first screen for a terminal: the question, a forest plot in characters, the noise floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from analysis.measures.rows import Verdict
from analysis.report.forest import Forest, ForestRow
from core import terminal

_COLUMNS = 33
"""Width of the plot."""
_BLANK = "·"
"""Between marks: headings would break at spaces."""
_WORDS = ("comparison", "verdict")
_ANSWER = ("comparison", "verdict", "typical", "interval", "domains", "runs")
"""What stays on a narrow terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was asked and found."""

    asked: str
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
            terminal.print_table(to, (full, narrow, answer), title=self.asked, words=(*_WORDS, full[0][plot]))
            for row in self.forest.rows:
                if row.verdict == Verdict.MIXED:
                    terminal.print_line(to, f"{row.name}: {row.adds}")
            to.print()
        else:
            terminal.print_line(to, self.asked)
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
        line = [row.name, row.words, _plot(row, forest), row.typical, row.interval, row.gain, row.lose]
        line += [row.durations or "–"] if by_part else []
        lines.append([*line, row.q, str(row.domains), str(row.n)])
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
