"""Figures 1 to 3 of the paper: CDFs of mean throughput and handshake RTT per vantage point, configuration and provider.

Drawn by matplotlib without a display. Reproducible: no date, a fixed salt for ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.measures.columns import Codes, Floats, Ints, Mask, Texts, rows_by_code
from analysis.measures.costs import THROUGHPUT_KPI
from analysis.measures.dataset import Dataset
from analysis.measures.folders import writing
from analysis.measures.selection import DEFAULT, Selection, runs_without_hits
from analysis.measures.tables import provider_rank
from core import pictures
from core.domain import Outcome
from core.files import disk
from core.pictures import COLOURS, GRID, INK, canvas
from core.untrusted import plain

_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
"""Line styles, for greyscale print; with eight colours a pair repeats only after 40 lines."""

_BAND = 1.06
"""The hatched band around a curve goes from a value divided by this to the value times it."""
_HATCH = "//////"

MOST_STEPS = 2_000
"""Steps of a curve. One of more downloads is drawn by as many points, evenly spaced from its first to its last and
through its median, joined by lines: it differs from the whole one by less than a quarter of a pixel."""
_MOST_BANDS = 200
"""Parts of such a curve that are hatched or not, as most of their downloads ask for."""

_COVERS = 0.03
"""Curves cover each other if half of their quantiles differ by less: 3 %, on a log scale."""
_APART_PT = 1.6
"""Such curves are drawn side by side, so far apart to the right and downwards [points]."""
APART = "Curves that would cover each other are drawn side by side."

_STYLE: Mapping[str, Any] = {
    "font.size": 10,
    "axes.grid": True,
    "axes.grid.which": "major",
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.7,
    "legend.fontsize": 8.5,
    "legend.frameon": True,
    "legend.framealpha": 0.0,
    "legend.edgecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.constrained_layout.w_pad": 0.12,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figure:
    """One figure: two panels, a line per group."""

    name: str
    """File name without extension."""
    title: str
    lines: Mapping[str, Codes]
    """Name -> indices of its downloads in the dataset."""
    panels: Mapping[str, Floats]
    """Axis label, with the unit -> the value of each download of the dataset; NaN: unknown."""
    near: Mask
    """Whether each download of the dataset was near its client's ceiling."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The values of a line that a panel can show (a log scale cannot show zero), sorted."""

    values: Floats
    near: Mask
    """Whether each is of a download near its client's ceiling."""

    def __len__(self) -> int:
        return len(self.values)


def body_rates(dataset: Dataset) -> Floats:
    """Body bits over the whole time of each download [Mbit/s], which needs no capture; NaN where it is not known."""
    body_bytes, last_byte_s = dataset.kpi("body_bytes"), dataset.downloads.last_byte_s
    known = (body_bytes != 0) & (last_byte_s != 0)
    rates: Floats = np.divide(body_bytes * 8, last_byte_s, out=np.full(len(body_bytes), math.nan), where=known) / 1e6
    return rates


def plan(dataset: Dataset, *, selection: Selection = DEFAULT) -> list[Figure]:
    """The figures that this data allows; without KPIs, the body's rate replaces the mean throughput."""
    d = dataset.downloads
    chosen = d.outcome.are(Outcome.OK) & ~d.is_warmup & d.usable(unproven=selection.unproven)
    if selection.unlimited_only:
        chosen &= d.near_ceiling != 1
    if selection.only_hits:
        chosen &= runs_without_hits(d).codes[d.run] < 0
    good = np.flatnonzero(chosen)
    throughput, rtt = dataset.kpi(THROUGHPUT_KPI), dataset.kpi("handshake_rtt")
    if np.nan_to_num(throughput[good]).any():
        panels = {"mean throughput [Mbit/s]": throughput}
    else:
        panels = {"body bits / download time [Mbit/s]": body_rates(dataset)}
    # The RTT that TCP and QUIC both show: later ones, under load, are hidden by QUIC, so they are on no axis.
    if np.nan_to_num(rtt[good]).any():
        panels["handshake RTT [ms]"] = rtt
    shapes: list[tuple[str, str, Texts, Callable[[str], Any]]] = [
        ("figure1-vantage", "per vantage point", d.runs.vantage[d.run[good]], str),
        ("figure2-configuration", "per configuration", d.configuration[good], dataset.design.rank),
        ("figure3-provider", "per provider", d.provider[good], provider_rank),
    ]
    figures = []
    for number, (name, words, groups, rank) in enumerate(shapes, start=1):
        members = dict(zip(groups.names, rows_by_code(groups.codes, len(groups.names)), strict=True))
        what = "mean throughput and handshake RTT" if len(panels) == 2 else next(iter(panels)).partition(" [")[0]
        figures.append(
            Figure(
                name=name,
                title=f"Figure {number}: CDF of {what} {words}",
                lines={group: good[members[group]] for group in sorted(groups.present(), key=rank)},
                panels=panels,
                near=d.near_ceiling == 1,
            )
        )
    return figures


def members_sentence(selection: Selection) -> str:
    """Which downloads are in the figures."""
    treated = "not treated otherwise than asked" if selection.unproven else "treated as asked"
    limits = ", not above 70 % of their client's ceiling" if selection.unlimited_only else ""
    hits = ", in measurement runs with cache hits only" if selection.only_hits else ""
    return f"Downloads that are ok and {treated}{limits}{hits}; warm-ups left out."


MOST_ROWS = 20_000
"""Most downloads whose data is in the page."""


def data_rows(dataset: Dataset, figure: Figure) -> tuple[Sequence[str], list[dict[str, object]]]:
    """Columns and rows of the data behind a figure, and behind all that draw the same downloads otherwise grouped."""
    d = dataset.downloads
    rows = np.concatenate([np.empty(0, dtype=np.int64), *figure.lines.values()])
    run = d.run[rows]
    texts = {"vantage": d.runs.vantage[run], "configuration": d.configuration[rows], "provider": d.provider[rows]}
    texts["domain"] = d.runs.domain[run]
    columns: dict[str, Sequence[object]] = {
        name: [column.names[code] for code in column.codes.tolist()] for name, column in texts.items()
    }
    columns["iteration"] = d.runs.iteration[run].tolist()
    for label, values in figure.panels.items():
        columns[label] = [None if math.isnan(value) else value for value in values[rows].tolist()]
    return tuple(columns), [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write(dataset: Dataset, folder: Path, *, selection: Selection = DEFAULT) -> list[Path]:
    """Draws all figures as SVG and PNG into the folder; files are written atomically."""
    written = []
    with writing(folder):
        for figure in plan(dataset, selection=selection):
            for kind, picture in draw(figure, "svg", "png").items():
                path = folder / f"{figure.name}.{kind}"
                with disk.whole_file(path) as temporary:
                    temporary.write_bytes(picture)
                written.append(path)
    return written


def draw(figure: Figure, *kinds: str, inline: bool = False) -> dict[str, bytes]:
    """The figure as `svg` and `png` (160 dpi); `inline`: without title and background, for a page that has both, and
    as wide as that."""
    curves = [[_curve(figure, values, rows) for rows in figure.lines.values()] for values in figure.panels.values()]
    with canvas(*kinds, size=(9.6 if inline else 10.0, 4.4), style=_STYLE, transparent=inline) as (drawn, pictured):
        axes = drawn.subplots(1, len(figure.panels), squeeze=False)
        for axis, label, of_panel in zip(axes[0], figure.panels, curves, strict=True):
            _panel(axis, label, of_panel)
        axes[0][0].set_ylabel("share of downloads")
        _legend(drawn, figure, curves)
        if not inline:
            drawn.suptitle(figure.title, x=0.012, ha="left", fontsize=11)
            drawn.text(0.995, 0.985, APART, ha="right", va="top", fontsize=8)
    return pictured


def inline_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element for an HTML page."""
    return pictures.inline_svg(draw(figure, "svg", inline=True)["svg"], figure.name)


def _curve(figure: Figure, all_values: Floats, rows: Codes) -> Curve:
    values, near = all_values[rows], figure.near[rows]
    shown = values > 0
    values, near = values[shown], near[shown]
    order = np.lexsort((near, values)) if near.any() else np.argsort(values)
    return Curve(values=values[order], near=near[order])


def _ranks(count: int, most: int) -> Ints:
    """All ranks from 1 to `count`, or `most` evenly spaced ones; with the middle (the lower of two) and the last."""
    return np.arange(1, count + 1) if count <= most else -(-np.arange(1, most + 1) * count // most)


def _near(curve: Curve) -> list[tuple[int, int]]:
    """First rank, from 0, and end of each part of a curve that is hatched."""
    if len(curve) <= MOST_STEPS:
        return [(at, at + 1) for at in np.flatnonzero(curve.near).tolist()]
    ends = np.append(0, _ranks(len(curve), _MOST_BANDS))
    most = np.diff(np.append(0, np.cumsum(curve.near))[ends]) * 2 > np.diff(ends)
    turns = np.flatnonzero(np.diff(np.concatenate([[False], most, [False]]).astype(np.int8)))
    return [(int(ends[first]), int(ends[last])) for first, last in turns.reshape(-1, 2)]


def _hatch(axis: Any, curve: Curve, *, colour: str) -> None:
    """Hatches the steps of a curve that are downloads near their client's ceiling: there the client may be measured."""
    for first, end in _near(curve):
        ranks = np.append(first, first + _ranks(end - first, _MOST_BANDS))
        values = curve.values[np.maximum(ranks - 1, first)]
        look = {"hatch": _HATCH, "facecolor": "none", "edgecolor": colour, "linewidth": 0}
        axis.fill_betweenx(ranks / len(curve), values / _BAND, values * _BAND, **look)


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}


def _panel(axis: Any, label: str, curves: Sequence[Curve]) -> None:
    shown: list[float] = []
    present = {index: curve for index, curve in enumerate(curves) if len(curve)}
    apart = _apart(axis, {index: curve.values for index, curve in present.items()})
    for index, curve in present.items():
        _hatch(axis, curve, colour=_look(index)["color"])
        shown += [curve.values[0], curve.values[-1]]
        # A step at each value, from 0: the empirical distribution function itself.
        ranks = np.append(0, _ranks(len(curve), MOST_STEPS))
        steps = curve.values[np.maximum(ranks - 1, 0)], ranks / len(curve)
        # Steps that are too small to be seen would make the way along them, and so dashes, another one.
        style = "steps-post" if len(curve) <= MOST_STEPS else "default"
        axis.plot(*steps, drawstyle=style, transform=apart[index], **_look(index))
    axis.set_ylim(0, 1.005)
    axis.set_xlabel(label)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if not shown:
        axis.text(0.5, 0.5, "no data", ha="center", va="center", transform=axis.transAxes)
    else:
        _log_axis(axis, min(shown), max(shown))


def _apart(axis: Any, curves: Mapping[int, Floats]) -> dict[int, Any]:
    """How to place each curve: those that would cover each other stand side by side, `_APART_PT` points apart."""
    from matplotlib.transforms import ScaledTranslation

    shares = np.linspace(0.05, 0.95, 19)
    places = {index: np.quantile(np.log(values), shares) for index, values in curves.items()}
    groups: list[list[int]] = []
    for index, place in places.items():
        group = next((g for g in groups if np.median(np.abs(places[g[0]] - place)) < _COVERS), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    transforms = {}
    for group in groups:
        for number, index in enumerate(group):
            inches = (number - (len(group) - 1) / 2) * _APART_PT / 72
            transforms[index] = axis.transData + ScaledTranslation(inches, -inches, axis.figure.dpi_scale_trans)
    return transforms


def _legend(drawn: Any, figure: Figure, curves: Sequence[Sequence[Curve]]) -> None:
    """One legend for both panels, with the number of downloads in each."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    labels: list[str] = []
    for index, name in enumerate(figure.lines):
        counts = [len(of_panel[index]) for of_panel in curves]
        n = str(counts[0]) if len(set(counts)) == 1 else " and ".join(map(str, counts))
        handles.append(Line2D([], [], **_look(index)))
        labels.append(f"{plain(name)} (n={n})")
    near = sum(int(np.count_nonzero(figure.near[rows])) for rows in figure.lines.values())
    if near:
        handles.append(Patch(hatch=_HATCH, facecolor="none", edgecolor=INK, linewidth=0))
        labels.append(f"above 70 % of the client's ceiling (n={near})")
    if handles:
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 4), handlelength=3.2)


def _log_axis(axis: Any, smallest: float, largest: float) -> None:
    """A log scale with plain numbers: 5, 10, 20 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_xlim(smallest / 1.12, largest * 1.12)
    span = largest / smallest
    steps = (1,) if span > 1000 else (1, 2, 5) if span > 8 else (1, 1.5, 2, 3, 4, 5, 7)
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=20))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
