"""Named figures of a survey: a table, and how to draw it. What is drawn is what the table has.

A survey lists its charts in `Survey.charts`; `upshift survey figures --figure NAME` prints, exports and draws one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from core.pictures import canvas
from core.terminal import console, print_line, print_table
from survey.shares import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The records of one file."""

    path: Path
    records: Sequence[Any]

    @property
    def day(self) -> str:
        """Date (UTC) of the middle of the scan; empty if unknown."""
        times = [record.surveyed_at for record in self.records if record.surveyed_at is not None]
        return datetime.fromtimestamp(statistics.median(times), UTC).date().isoformat() if times else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The data of a figure."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as JSON objects."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A named figure."""

    name: str
    help: str
    """One sentence: what it shows of which files."""
    table: Callable[[Sequence[Scan], bool], Table]
    """(scans in the order of the files, whether to set the paper's values beside) -> the data. Raises UsageError."""
    draw: Callable[[Table, Any], None]
    """Draws the data on an empty matplotlib figure."""
    size: Callable[[Table], tuple[float, float]] = lambda _: (8.0, 4.4)
    """Width and height [inches]."""


SHARE_HEADER = ("count", "n", "share", "low", "high")


def share_cells(share: Share) -> tuple[Any, ...]:
    """The cells of `SHARE_HEADER`; empty where n is 0."""
    return (share.count, share.n, None if math.isnan(share.share) else share.share, share.low, share.high)


def print_chart(table: Table, stream: TextIO) -> None:
    """Prints the data as a table in the terminal's width; shares in per cent."""
    to = console(stream)
    cells = [list(table.header)]
    for row in table.rows:
        cells.append(
            [
                _text(value, "share" in table.header and name in _SHARES)
                for name, value in zip(table.header, row, strict=True)
            ]
        )
    words = [name for name, value in zip(table.header, table.rows[0], strict=True) if isinstance(value, str)]
    print_table(to, [cells], title=table.title, words=words)
    for note in table.notes:
        print_line(to, note)


_SHARES = ("share", "low", "high")


def _text(value: Any, is_share: bool) -> str:
    if value is None:
        return "-"
    if is_share:
        return f"{value * 100:.1f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_chart(chart: Chart, table: Table, kind: str) -> bytes:
    """The picture as `svg` or `png`."""
    with canvas(kind, chart.size(table)) as (figure, out):
        chart.draw(table, figure)
        figure.suptitle(table.title, x=0.012, ha="left", fontsize=11)
    return out.getvalue()
