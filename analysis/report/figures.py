"""Figures 1 to 3 of the paper: CDFs of mean throughput and handshake RTT per vantage point, configuration and provider.

Drawn by matplotlib without a display. Reproducible: no date, a fixed salt for ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.measures.costs import THROUGHPUT_KPI
from analysis.measures.dataset import Dataset, Record
from analysis.measures.folders import writing
from analysis.measures.selection import DEFAULT, Selection
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

_COVERS = 0.03
"""Curves cover each other if half of their quantiles differ by less (3 % on a log scale)."""
_APART_PT = 1.6
"""Such curves are drawn side by side, so far apart to the right and downwards [points]."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The quantity of a panel."""

    label: str
    """Axis label, with the unit."""
    value: Callable[[Record], float | None]
    log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: two panels, a line per group."""

    name: str
    """File name without extension."""
    title: str
    lines: Mapping[str, Sequence[Record]]
    panels: tuple[Panel, ...]


def body_rate(record: Record) -> float | None:
    """Body bits over the whole download time [Mbit/s]; needs no capture."""
    d = record.download
    return d.body_bytes * 8 / d.last_byte_s / 1e6 if d.last_byte_s and d.body_bytes else None


def handshake_rtt(record: Record) -> float | None:
    """Round-trip time of the handshake [ms]: the one that TCP and QUIC both show. Later ones, under load, are hidden by
    QUIC, so they are never drawn on one axis."""
    return record.number("handshake_rtt")


def plan(dataset: Dataset, *, selection: Selection = DEFAULT) -> list[Figure]:
    """The figures that this data allows; without KPIs, the body's rate replaces the mean throughput."""
    measured = [r for r in dataset.records if r.download.outcome == Outcome.OK and not r.is_warmup]
    good = [r for r in measured if r.accepted(unproven=selection.unproven)]
    if selection.unlimited_only:
        good = [r for r in good if not r.near_ceiling]
    if any(r.number(THROUGHPUT_KPI) for r in good):
        rate = Panel(label="mean throughput [Mbit/s]", value=lambda r: r.number(THROUGHPUT_KPI))
    else:
        rate = Panel(label="body bits / download time [Mbit/s]", value=body_rate)
    panels: tuple[Panel, ...] = (rate,)
    if any(handshake_rtt(r) for r in good):
        panels += (Panel(label="handshake RTT [ms]", value=handshake_rtt),)
    shapes: list[tuple[str, str, Callable[[Record], str], Callable[[str], Any]]] = [
        ("figure1-vantage", "per vantage point", lambda r: r.download.vantage, str),
        ("figure2-configuration", "per configuration", lambda r: r.download.configuration, dataset.design.rank),
        ("figure3-provider", "per provider", lambda r: r.download.provider, provider_rank),
    ]
    figures = []
    for number, (name, words, key, rank) in enumerate(shapes, start=1):
        lines: dict[str, list[Record]] = {}
        for record in good:
            lines.setdefault(key(record), []).append(record)
        ordered = {group: lines[group] for group in sorted(lines, key=rank)}
        what = "mean throughput and handshake RTT" if len(panels) == 2 else panels[0].label.partition(" [")[0]
        figures.append(Figure(name=name, title=f"Figure {number}: CDF of {what} {words}", lines=ordered, panels=panels))
    return figures


MOST_ROWS = 20_000
"""Most downloads whose data is in the page."""


def data_rows(figure: Figure) -> tuple[Sequence[str], list[dict[str, object]]]:
    """Columns and rows of the data behind a figure, and behind all that draw the same downloads otherwise grouped."""
    names = ("vantage", "configuration", "provider", "domain", "iteration")
    columns = (*names, *(panel.label for panel in figure.panels))
    rows = []
    for record in itertools.chain.from_iterable(figure.lines.values()):
        row = {name: getattr(record.download, name) for name in names}
        rows.append(row | {panel.label: panel.value(record) for panel in figure.panels})
    return columns, rows


def write(dataset: Dataset, folder: Path, *, selection: Selection = DEFAULT) -> list[Path]:
    """Draws all figures as SVG and PNG into the folder; files are written atomically."""
    written = []
    with writing(folder):
        for figure in plan(dataset, selection=selection):
            for suffix in ("svg", "png"):
                path = folder / f"{figure.name}.{suffix}"
                with disk.whole_file(path) as temporary:
                    temporary.write_bytes(draw(figure, suffix))
                written.append(path)
    return written


def draw(figure: Figure, kind: str, *, width_in: float = 10.0, inline: bool = False) -> bytes:
    """The figure as `svg` or `png` (160 dpi); `inline`: without title and background, for a page that has both."""
    with canvas(kind, (width_in, 4.4), style=_STYLE, transparent=inline) as (drawn, out):
        axes = drawn.subplots(1, len(figure.panels), squeeze=False)
        for axis, panel in zip(axes[0], figure.panels, strict=True):
            _panel(axis, figure, panel)
        axes[0][0].set_ylabel("share of downloads")
        _legend(drawn, figure)
        if not inline:
            drawn.suptitle(figure.title, x=0.012, ha="left", fontsize=11)
    return out.getvalue()


def inline_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element for an HTML page."""
    return pictures.inline_svg(draw(figure, "svg", width_in=9.6, inline=True), figure.name)


def _values(panel: Panel, records: Sequence[Record]) -> list[float]:
    """Sorted values that the panel can show."""
    return [value for value, _ in _shown(panel, records)]


def _shown(panel: Panel, records: Sequence[Record]) -> list[tuple[float, bool]]:
    """Sorted values that the panel can show (a log scale cannot show zero), each with `near_ceiling` of its record."""
    pairs = ((panel.value(record), bool(record.near_ceiling)) for record in records)
    return sorted((value, near) for value, near in pairs if value is not None and (value > 0 or not panel.log))


def _hatch(axis: Any, panel: Panel, records: Sequence[Record], *, colour: str) -> None:
    """Hatches the steps of a curve that are downloads near their client's ceiling: there the client may be measured."""
    shown = _shown(panel, records)
    for position, (value, near) in enumerate(shown):
        if near:
            heights = (position / len(shown), (position + 1) / len(shown))
            look = {"hatch": _HATCH, "facecolor": "none", "edgecolor": colour, "linewidth": 0}
            axis.fill_betweenx(heights, value / _BAND, value * _BAND, **look)


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}


def _panel(axis: Any, figure: Figure, panel: Panel) -> None:
    import numpy as np

    shown: list[float] = []
    curves = {index: _values(panel, records) for index, records in enumerate(figure.lines.values())}
    apart = _apart(axis, {index: values for index, values in curves.items() if values}, log=panel.log)
    for index, records in enumerate(figure.lines.values()):
        values = curves[index]
        if not values:
            continue
        _hatch(axis, panel, records, colour=_look(index)["color"])
        shown += [values[0], values[-1]]
        # A step at each value, from 0: the empirical distribution function itself.
        steps = np.arange(len(values) + 1) / len(values)
        axis.plot([values[0], *values], steps, drawstyle="steps-post", transform=apart[index], **_look(index))
    axis.set_ylim(0, 1.005)
    axis.set_xlabel(panel.label)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if not shown:
        axis.text(0.5, 0.5, "no data", ha="center", va="center", transform=axis.transAxes)
    elif panel.log:
        _log_axis(axis, min(shown), max(shown))


def _apart(axis: Any, curves: Mapping[int, Sequence[float]], *, log: bool) -> dict[int, Any]:
    """How to place each curve: those that would cover each other stand side by side, `_APART_PT` points apart."""
    import numpy as np
    from matplotlib.transforms import ScaledTranslation

    shares = np.linspace(0.05, 0.95, 19)
    places = {index: np.quantile(np.log(values) if log else values, shares) for index, values in curves.items()}
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


def _legend(drawn: Any, figure: Figure) -> None:
    """One legend for both panels, with the number of downloads in each."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    labels: list[str] = []
    for index, (name, records) in enumerate(figure.lines.items()):
        counts = [len(_values(panel, records)) for panel in figure.panels]
        n = str(counts[0]) if len(set(counts)) == 1 else " and ".join(map(str, counts))
        handles.append(Line2D([], [], **_look(index)))
        labels.append(f"{plain(name)} (n={n})")
    near = sum(bool(record.near_ceiling) for records in figure.lines.values() for record in records)
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
