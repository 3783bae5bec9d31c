"""Arrivals within one flight: ms against kB, a panel per CDN and window (the paper's Fig. 10 and 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from core.errors import UsageError
from core.pictures import COLOURS
from survey.charts import Chart, Scan, Table
from survey.iw.record import arrivals_of
from survey.iw.windows import fit_scans, label, window

MOST_PANELS = 16


def _table(scans: Sequence[Scan], beside: bool) -> Table:  # noqa: ARG001 - the paper's arrivals are not known
    kept, notes = fit_scans(scans)
    rows: list[tuple[Any, ...]] = []
    panels: set[str] = set()
    for record in (record for scan in kept for record in scan.records):
        iw, arrivals = window(record), arrivals_of(record)
        if iw is None or not arrivals:
            continue
        panel = f"{record.cdn or record.domain}, IW {label(*iw)}, {record.pace or 'not judged'}"
        if panel in panels or len(panels) == MOST_PANELS:
            continue
        panels.add(panel)
        rtt_ms = None if record.rtt_s is None else record.rtt_s * 1000
        rows += [(panel, record.domain, rtt_ms, at / 1000, end / 1000) for at, end in arrivals]
    if not rows:
        raise UsageError("no arrivals in these results", remedy="survey with --pacing")
    return Table(
        title="Arrivals within one flight, before the first ACK",
        header=("panel", "domain", "rtt_ms", "at_ms", "kB"),
        rows=rows,
        notes=notes,
    )


def _draw(table: Table, figure: Any) -> None:
    every_row = table.dicts()
    panels = list(dict.fromkeys(row["panel"] for row in every_row))
    columns, lines = _grid(len(panels))
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        rows = [row for row in every_row if row["panel"] == panel]
        axis.plot([row["at_ms"] for row in rows], [row["kB"] for row in rows], ".", markersize=4, color=COLOURS[0])
        axis.set_title(panel.replace("_", " "), fontsize=8)
        rtt_ms = rows[0]["rtt_ms"]
        axis.set_xlim(-1, max([row["at_ms"] for row in rows] + [10.0]) * 1.08)
        if rtt_ms is not None:
            axis.annotate(f"RTT {rtt_ms:.1f} ms", (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=7)
        axis.set_ylim(bottom=0)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel("time since the first segment [ms]", fontsize=9)
    figure.supylabel("data [kB]", fontsize=9)


def _grid(panels: int) -> tuple[int, int]:
    columns = min(4, math.ceil(math.sqrt(panels)))
    return columns, math.ceil(panels / columns)


def _size(table: Table) -> tuple[float, float]:
    columns, lines = _grid(len({row["panel"] for row in table.dicts()}))
    return 1.0 + 2.8 * columns, 1.2 + 2.0 * lines


ARRIVALS = Chart(
    name="arrivals",
    help="Arrivals within one flight, ms against kB, a panel per CDN and window; needs --pacing.",
    table=_table,
    draw=_draw,
    size=_size,
)
