"""Pictures of a survey: its figures as one picture, and named figures, each a table and how to draw it.

A survey lists its charts in `Survey.charts`; `upshift survey figures --figure NAME` prints, exports and draws one. What
is drawn is what the table has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from core.pictures import COLOURS, INK, canvas
from core.terminal import console, print_line, print_table
from survey.figures import Breakdown, Figures, Share, plain

_YEAR_3000 = 32_503_680_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The records of one file."""

    path: Path
    records: Sequence[Any]

    @property
    def day(self) -> str:
        """Date (UTC) of the middle of the scan; empty if unknown."""
        times = [at for record in self.records if 0 <= (at := record.surveyed_at or -1.0) < _YEAR_3000]
        return datetime.fromtimestamp(statistics.median(times), UTC).date().isoformat() if times else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartTable:
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
    table: Callable[[Sequence[Scan], bool], ChartTable]
    """(scans in the order of the files, whether to set the paper's values beside) -> the data. Raises UsageError."""
    draw: Callable[[ChartTable, Any], None]
    """Draws the data on an empty matplotlib figure."""
    size: Callable[[ChartTable], tuple[float, float]] = lambda _: (8.0, 4.4)
    """Width and height [inches]."""


SHARE_HEADER = ("count", "n", "share", "low", "high")


def share_cells(share: Share) -> tuple[Any, ...]:
    """The cells of `SHARE_HEADER`; empty where n is 0."""
    return tuple(plain(share).values())


def print_chart(table: ChartTable, stream: TextIO) -> None:
    """Prints the data as a table in the terminal's width; shares in per cent."""
    to = console(stream)
    in_percent = _SHARES if "share" in table.header else ()
    rows = [[_text(value, name in in_percent) for name, value in row.items()] for row in table.dicts()]
    words = [name for name, value in zip(table.header, table.rows[0], strict=True) if isinstance(value, str)]
    print_table(to, [[list(table.header), *rows]], title=table.title, words=words)
    for note in table.notes:
        print_line(to, note)


_SHARES = ("share", "low", "high")


def _text(value: Any, is_share: bool) -> str:
    if value is None:
        return "-"
    if is_share:
        return f"{value * 100:.1f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_chart(chart: Chart, table: ChartTable, kind: str) -> bytes:
    """The picture as `svg` or `png`."""
    with canvas(kind, size=chart.size(table)) as (figure, pictures):
        chart.draw(table, figure)
        figure.suptitle(table.title, x=0.012, ha="left", fontsize=11)
    return pictures[kind]


def draw_figures(figures: Figures, kind: str) -> bytes:
    """The picture as `svg` or `png` (160 dpi). Reproducible: no date, a fixed salt for ids."""
    with canvas(kind, size=(11, 4.4)) as (figure, pictures):
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (3, 2)})
        _groups(left, figures)
        _breakdown(right, next(iter(figures.breakdowns.values()), None))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8, frameon=False)
        figure.suptitle(figures.title.rstrip(":"), x=0.012, ha="left", fontsize=11)
    return pictures[kind]


def _groups(axis: Any, figures: Figures) -> None:
    """A block of bars per share, one bar per group."""
    names = figures.names
    shown = {group: shares for group, shares in figures.shares.items() if next(iter(shares.values())).n}
    width = 0.8 / max(1, len(shown))
    for number, (group, shares) in enumerate(shown.items()):
        at = [place - 0.4 + width * (number + 0.5) for place in range(len(names))]
        again, colour = divmod(number, len(COLOURS))
        style = {
            "color": COLOURS[colour],
            "hatch": "///" if again else "",
            "label": f"{group} (n = {next(iter(shares.values())).n:,})",
        }
        _bars(axis, at, list(shares.values()), width, style)
    for place, name in enumerate(names):
        if name in figures.paper:
            axis.hlines(figures.paper[name], place - 0.45, place + 0.45, colors=INK, linestyles=":", linewidth=1)
    if figures.paper:
        axis.plot([], [], color=INK, linestyle=":", linewidth=1, label=figures.paper_name)
    first = next(iter(figures.shares.values()), {})
    # The legend has the n of the first share; a share that is of others has its own.
    own = [f"\nn = {first[name].n:,}" if first[name].n != first[names[0]].n else "" for name in names]
    axis.set_xticks(range(len(names)), [figures.label(name) + n for name, n in zip(names, own, strict=True)])
    axis.set_ylabel("share [%]")
    axis.set_ylim(0, 105)


def _breakdown(axis: Any, breakdown: Breakdown | None) -> None:
    if breakdown is None:
        axis.set_axis_off()
        return
    shares = list(breakdown.shares.values())
    _bars(axis, list(range(len(shares))), shares, 0.7, {"color": COLOURS[0]})
    for place, share in enumerate(shares):
        axis.text(place, share.high * 100 + 1, f"{share.count:,}", ha="center", fontsize=7)
    names = [breakdown.labels.get(name, name) for name in breakdown.shares]
    axis.set_xticks(range(len(shares)), names, rotation=40, ha="right")
    axis.set_ylim(0, 112)
    axis.set_ylabel(f"share of {breakdown.group} [%]")


def _bars(axis: Any, at: list[float], shares: list[Share], width: float, style: Mapping[str, str]) -> None:
    """Bars with their intervals; no bar if n is 0."""
    shown = [(place, share) for place, share in zip(at, shares, strict=True) if share.n]
    heights = [share.share * 100 for _, share in shown]
    # A share of 0 or 1 is an end of its interval, up to rounding.
    below = [max(0.0, (share.share - share.low) * 100) for _, share in shown]
    above = [max(0.0, (share.high - share.share) * 100) for _, share in shown]
    error = {"ecolor": INK, "capsize": 1.5, "error_kw": {"linewidth": 0.8}}
    axis.bar([place for place, _ in shown], heights, width, yerr=(below, above), **error, **style)
