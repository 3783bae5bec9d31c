"""Figures of a study: one function draws all of them, as bars or lines in panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.study.flows import CellRow, Flows
from core.files.study import Cell, Draw, StudyFigure
from core.files.study_terms import KNOBS, METRICS
from core.pictures import COLOURS, GREY, GRID, INK, canvas

_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
_DASHES: Sequence[Any] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 3)))
_MARKERS = "osD^vP"
_GROUP = 0.84
"""Share of the distance of two groups of bars that the bars of one fill."""
_MOST_ROUND_TRIPS = 40
_LINE = 2.0
"""Height of a line, in characters."""
_STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "hatch.linewidth": 0.5,
    "font.size": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The data of a figure."""

    name: str
    figure: StudyFigure
    title: str
    rows: Mapping[tuple[str, ...], CellRow]
    """(row, column, colour, hatch, x) -> what the cell shows."""
    second: Mapping[tuple[str, ...], CellRow]
    """The same of `gain_percent`, for a figure of `gain_ms`."""
    levels: Mapping[str, Sequence[str]]
    """What is drawn by -> its values, in the order of the study; one empty value where a column is not named."""
    places: Mapping[str, float]
    """Value of x -> where it is."""
    to_scale: bool
    """Whether x is a scale: lines whose values of x are numbers."""


_PLACES = ("rows", "columns", "colour", "hatch", "x")


def plan(flows: Flows) -> list[Plot]:
    """The figures of a study that have something to show."""
    plots = []
    for number, figure in enumerate(flows.study.figures, 1):
        rows = _rows(flows, figure, figure.metric)
        if not rows:
            continue
        keys = [_key(figure, cell) for cell in flows.study.cells_of(figure.metric)]
        shown = [{key[at] for key in rows} for at in range(len(_PLACES))]
        levels = {
            place: [value for value in dict.fromkeys(key[at] for key in keys) if value in shown[at]]
            for at, place in enumerate(_PLACES)
        }
        numbers = _numbers(levels["x"]) if figure.draw.kind == "lines" else None
        plots.append(
            Plot(
                name=f"figure-{number}",
                figure=figure,
                title=f"{number}. {figure.title or f'{_unit_of(figure.metric)} by {_unit_of(figure.draw.x)}'}",
                rows=rows,
                second=_rows(flows, figure, "gain_percent") if figure.metric == "gain_ms" else {},
                levels=levels,
                places=dict(zip(levels["x"], numbers or map(float, range(len(levels["x"]))), strict=True)),
                to_scale=numbers is not None,
            )
        )
    return plots


def _rows(flows: Flows, figure: StudyFigure, metric: str) -> dict[tuple[str, ...], CellRow]:
    rows = {}
    for cell in flows.study.cells_of(metric):
        if cell.matches(figure.only) and (row := flows.rows[metric, cell.key]).n:
            rows[_key(figure, cell)] = row
    return rows


def _key(figure: StudyFigure, cell: Cell) -> tuple[str, ...]:
    names = [getattr(figure.draw, place) for place in _PLACES]
    return tuple(cell.texts[name] if name else "" for name in names)


def draw(plot: Plot, *kinds: str, inline: bool = False) -> dict[str, bytes]:
    """The figure as `svg` and `png`; `inline`: without title and background, for a page that has both."""
    levels = plot.levels
    rows, columns = levels["rows"], levels["columns"]
    with canvas(*kinds, size=_size(plot), style=_STYLE, transparent=inline) as (drawn, pictures):
        axes = drawn.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey="col")
        panels = [
            (axes[down][across], row, column) for down, row in enumerate(rows) for across, column in enumerate(columns)
        ]
        for axis, row, column in panels:
            _panel(axis, plot, row, column, last=column == columns[-1])
        for axis, row, column in panels:  # once all data of a shared axis are there
            _finish(axis, plot, row, column)
            if row == rows[0] and column:
                axis.set_title(_named(plot.figure.draw.columns, column), fontsize=9)
            if column == columns[0]:
                label = _unit_of(plot.figure.metric)
                axis.set_ylabel(f"{_named(plot.figure.draw.rows, row)}\n{label}" if row else label)
            if row == rows[-1]:
                axis.set_xlabel(_unit_of(plot.figure.draw.x))
        handles = list(_legend(plot))
        if handles:
            across = max(1, int(_size(plot)[0] / 1.6))
            drawn.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), across), frameon=False)
        if not inline:
            drawn.suptitle(plot.title, x=0.012, ha="left", fontsize=11)
    return pictures


def _size(plot: Plot) -> tuple[float, float]:
    """Width and height [inches], so that bars stay visible."""
    levels = plot.levels
    marks = len(levels["x"]) * (len(levels["colour"]) * len(levels["hatch"]) if plot.figure.draw.kind == "bars" else 3)
    width = min(max(2.6, 0.07 * marks + 1.0), 9.0) * len(levels["columns"])
    return min(max(width, 6.5), 18.0), min(2.3 * len(levels["rows"]) + 1.3, 24.0)


def _panel(axis: Any, plot: Plot, row: str, column: str, *, last: bool) -> None:
    """One panel: a series for each colour and hatch."""
    levels, draw_as = plot.levels, plot.figure.draw
    series = [(colour, hatch) for colour in levels["colour"] for hatch in levels["hatch"]]
    series = [one for one in series if any((row, column, *one, x) in plot.rows for x in levels["x"])]
    other = axis.twinx() if plot.second else None
    for at, (colour, hatch) in enumerate(series):
        look = (levels["colour"].index(colour), levels["hatch"].index(hatch))
        shift = (at + 0.5) / len(series) - 0.5 if draw_as.kind == "bars" else 0.0
        xs = [x for x in levels["x"] if (row, column, colour, hatch, x) in plot.rows]
        shown = [plot.rows[row, column, colour, hatch, x] for x in xs]
        at_x = [plot.places[x] + _GROUP * shift for x in xs]
        _marks(axis, draw_as, at_x, shown, _GROUP / len(series), look)
        for where, one in zip(at_x, shown, strict=True):
            if one.censored or one.open:
                axis.annotate("†" if one.censored else "○", (where, one.mean), ha="center", va="bottom", fontsize=9)
        if other is not None:
            second = [plot.second[row, column, colour, hatch, x].mean for x in xs]
            other.plot(at_x, second, "D:", markersize=3.5, markerfacecolor="none", color=INK, linewidth=0.6)
    if other is not None:
        other.set_ylim(bottom=min(0.0, other.get_ylim()[0]))
        # Each has a scale of its own.
        other.spines["right"].set_visible(True)
        other.tick_params(right=True, labelright=True)
        other.set_ylabel("gain [%]" if last else "")


def _marks(
    axis: Any, draw_as: Draw, at_x: Sequence[float], rows: Sequence[CellRow], width: float, look: tuple[int, int]
) -> None:
    """The bars or the line of a series, with the numbers of its colour and its hatch."""
    means, colour, error = [row.mean for row in rows], COLOURS[look[0] % len(COLOURS)], None
    if draw_as.error == "sd":
        error = [math.nan if row.sd is None else row.sd for row in rows]
    elif draw_as.error:
        error = [math.nan if row.high is None else row.high - row.mean for row in rows]
    if draw_as.kind == "bars":
        axis.bar(
            at_x,
            means,
            width,
            yerr=error,
            color=colour,
            hatch=_HATCHES[look[1] % len(_HATCHES)],
            edgecolor="white" if look[1] else "none",
            linewidth=0,
            error_kw={"ecolor": INK, "elinewidth": 0.7, "capsize": min(2.0, 14 * width)},
        )
        return
    axis.errorbar(
        at_x,
        means,
        yerr=error,
        color=colour,
        linestyle=_DASHES[look[1] % len(_DASHES)],
        marker=_MARKERS[look[1] % len(_MARKERS)],
        markersize=3,
        linewidth=1.1,
        elinewidth=0.7,
        capsize=2,
    )


def _round_trips(axis: Any, plot: Plot, row: str, column: str) -> None:
    """Lines at whole round trips, across the panel or, where x is no scale, across each group of bars."""
    top = axis.get_ylim()[1]
    times = [(key[4], one.cell.knobs.rtt_ms) for key, one in plot.rows.items() if key[:2] == (row, column)]
    look: dict[str, Any] = {"color": GRID, "linewidth": 0.6, "linestyle": (0, (4, 3)), "zorder": 0}
    for xs in [list(plot.places)] if plot.to_scale else [[x] for x in plot.places]:
        rtts = {rtt for x, rtt in times if x in xs}
        if len(rtts) != 1:
            continue
        (rtt,) = rtts
        for count in range(1, min(int(top / rtt), _MOST_ROUND_TRIPS) + 1):
            if plot.to_scale:
                axis.axhline(count * rtt, **look)
            else:
                place = plot.places[xs[0]]
                axis.hlines(count * rtt, place - 0.5, place + 0.5, **look)


def _finish(axis: Any, plot: Plot, row: str, column: str) -> None:
    """Scales, ticks, and lines at whole round trips."""
    draw_as, ticks, labels = plot.figure.draw, list(plot.places.values()), list(plot.places)
    is_log = plot.to_scale and "x" in draw_as.log and min(ticks) > 0
    if is_log:
        axis.set_xscale("log")
        axis.minorticks_off()
    characters = 14 * _size(plot)[0] / len(plot.levels["columns"])
    gaps = _gaps(ticks, characters, is_log)
    is_crowded = any(gap < len(labels[at]) + 2 for at, gap in gaps)
    for at, gap in gaps if is_crowded else ():
        if gap < _LINE:
            labels[at] = ""  # even upright the two would touch
    axis.set_xticks(ticks, labels, rotation=90 if is_crowded else 0)
    if not plot.to_scale:
        axis.set_xlim(-0.6, len(ticks) - 0.4)
    if "y" in draw_as.log:
        axis.set_yscale("log")
    elif all(one.mean >= 0 for one in plot.rows.values()):
        axis.set_ylim(bottom=0)  # intervals of few repetitions may reach below
    if draw_as.round_trips:
        _round_trips(axis, plot, row, column)


def _gaps(ticks: Sequence[float], characters: float, is_log: bool) -> list[tuple[int, float]]:
    """Each tick but the last with the distance to the next one, in characters, where a panel has so many."""
    places = [math.log(tick) for tick in ticks] if is_log else list(ticks)
    span = (max(places) - min(places)) or 1.0
    order = sorted(range(len(places)), key=places.__getitem__)
    return [(at, (places[after] - places[at]) / span * characters) for at, after in itertools.pairwise(order)]


def _legend(plot: Plot) -> Iterator[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def line(**look: Any) -> Any:
        return Line2D([], [], color=INK, **look)

    draw_as = plot.figure.draw
    for index, colour in enumerate(plot.levels["colour"]):
        if colour:
            yield Patch(facecolor=COLOURS[index % len(COLOURS)], label=_named(draw_as.colour, colour))
    for index, hatch in enumerate(plot.levels["hatch"]):
        label = _named(draw_as.hatch, hatch)
        if hatch and draw_as.kind == "bars":
            look: Any = {"facecolor": GREY, "edgecolor": "white", "linewidth": 0}
            yield Patch(hatch=_HATCHES[index % len(_HATCHES)], label=label, **look)
        elif hatch:
            dash, marker = _DASHES[index % len(_DASHES)], _MARKERS[index % len(_MARKERS)]
            yield line(linestyle=dash, marker=marker, markersize=3, label=label)
    if plot.second:
        yield line(linewidth=0, marker="D", markersize=3.5, markerfacecolor="none", label="in % (right)")
    if draw_as.error:
        words = "standard deviation" if draw_as.error == "sd" else "95 % interval of the mean"
        yield line(linewidth=0, marker="|", markersize=8, label=words)


_UNITS = {"_ms": "ms", "_mbit": "Mbit/s", "_percent": "%"}
"""Ends of names that have a unit."""


def _split(name: str) -> tuple[str, str]:
    """`rtt_ms` is rtt and ms; `iw` is iw and segments."""
    for end, unit in _UNITS.items():
        if name.endswith(end):
            return name.removesuffix(end), unit
    known = METRICS.get(name) or KNOBS.get(name)
    return name, known.unit if known else ""


def _named(column: str | None, value: str) -> str:
    """`rtt 30 ms`; of levels the level alone."""
    if column is None or column not in KNOBS:
        return value
    name, unit = _split(column)
    return f"{name} {value} {unit}" if name != column else f"{name} {value}"


def _unit_of(name: str) -> str:
    words, unit = _split(name)
    return f"{words.replace('_', ' ')} [{unit}]" if unit else words.replace("_", " ")


def _numbers(texts: Sequence[str]) -> list[float] | None:
    try:
        numbers = [float(one) for one in texts]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
