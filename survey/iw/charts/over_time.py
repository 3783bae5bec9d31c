"""Shares of windows over the dates of several scans (the paper's Fig. 4 and 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any

from core.pictures import COLOURS, INK
from survey.charts import SHARE_HEADER, Chart, Scan, Table, share_cells
from survey.iw import paper
from survey.iw.record import IwRecord
from survey.iw.windows import COMMON, OTHERS, bucket, fit_scans
from survey.shares import wilson

_PAPER = (
    ("2017-05-31", "IPv4, HTTP, MSS 64: IW10 at the end of May 2017"),
    ("2018-05-31", "IPv4, HTTP, MSS 64: IW10 a year later"),
)


def _table(scans: Sequence[Scan], beside: bool) -> Table:
    kept, notes = fit_scans(scans)
    rows: list[tuple[Any, ...]] = []
    for day, records in sorted(_by_day(kept).items()):
        for scheme in ("http", "https"):
            counts = Counter(name for r in records if r.scheme == scheme and (name := bucket(r)) is not None)
            if not counts:
                continue
            for name in (*COMMON, OTHERS):
                share = wilson(counts[name], counts.total())
                rows.append(("measured", day, scheme, name, *share_cells(share)))
    if beside:
        rows += [
            (paper.NAME, day, "http", "10", None, None, int(paper.fact(what)) / 100, None, None) for day, what in _PAPER
        ]
        overtakes = paper.fact("IPv4, TLS: IW10 overtakes IW4")
        notes.append(f"In the paper, 10 segments became more frequent than 4 over TLS about {overtakes}.")
    return Table(
        title="Initial windows over time: shares of servers with a decided window, 95 % intervals",
        header=("source", "date", "scheme", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _by_day(scans: Sequence[Scan]) -> dict[str, list[IwRecord]]:
    """The records of each date: shards of a scan are one scan; of a server found twice, the later result counts."""
    by_day: dict[str, dict[tuple[str, str | None, str | None], IwRecord]] = {}
    for scan in scans:
        servers = by_day.setdefault(scan.day, {})
        for record in scan.records:
            key = record.domain, record.scheme, record.mime_type
            if key not in servers or (record.surveyed_at or 0.0) >= (servers[key].surveyed_at or 0.0):
                servers[key] = record
    return {day: list(servers.values()) for day, servers in by_day.items()}


def _draw(table: Table, figure: Any) -> None:
    rows = table.dicts()
    schemes = [scheme for scheme in ("http", "https") if any(row["scheme"] == scheme for row in rows)]
    axes = figure.subplots(1, len(schemes), sharey=True, squeeze=False)[0]
    for axis, scheme in zip(axes, schemes, strict=True):
        here = [row for row in rows if row["scheme"] == scheme and row["source"] == "measured"]
        for name, colour in zip((*COMMON, OTHERS), COLOURS, strict=False):
            line = [row for row in here if row["window"] == name]
            days = [date.fromisoformat(row["date"]) for row in line]
            heights = [row["share"] * 100 for row in line]
            errors = [
                [max(0.0, (row["share"] - row["low"]) * 100) for row in line],
                [max(0.0, (row["high"] - row["share"]) * 100) for row in line],
            ]
            style = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.2, "capsize": 2}
            axis.errorbar(days, heights, yerr=errors, label=f"IW {name}" if name != OTHERS else name, **style)
        for row in rows:
            if row["source"] == paper.NAME and row["scheme"] == scheme:
                axis.axhline(row["share"] * 100, color=INK, linestyle=":", linewidth=1)
                text = f"paper, {row['date'][:7]}: IW {row['window']}"
                axis.annotate(
                    text,
                    (0.5, row["share"] * 100),
                    xycoords=("axes fraction", "data"),
                    ha="center",
                    va="bottom",
                    fontsize=7,
                )
        axis.set_xticks(sorted({date.fromisoformat(row["date"]) for row in here}))
        axis.tick_params(axis="x", rotation=30)
        axis.set_title({"http": "HTTP", "https": "TLS"}[scheme], fontsize=9)
        axis.set_ylim(0, 100)
    axes[0].set_ylabel("share of servers [%]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=5, fontsize=8, frameon=False)


OVER_TIME = Chart(
    name="over-time",
    help="Shares of windows of 1, 2, 4, 10 and other segments over the dates of several scans, HTTP and TLS.",
    table=_table,
    draw=_draw,
)
