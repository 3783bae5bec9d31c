"""Windows per CDN, in segments and in kB (the paper's Fig. 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.pictures import COLOURS, INK
from survey.charts import SHARE_HEADER, Chart, Scan, Table, share_cells
from survey.iw import paper
from survey.iw.windows import fit_scans, window
from survey.shares import wilson

_MEASURED = "measured"


def _table(scans: Sequence[Scan], beside: bool) -> Table:
    kept, notes = fit_scans(scans)
    windows: Counter[tuple[str, str, float]] = Counter()
    paces: dict[tuple[str, str, float], Counter[str]] = {}
    for record in (record for scan in kept for record in scan.records):
        iw = window(record)
        if record.cdn is None or iw is None:
            continue
        key = (record.cdn, iw[1], round(iw[0], 3))
        windows[key] += 1
        paces.setdefault(key, Counter())[record.pace or ""] += 1
    totals = Counter[str]()
    for (cdn, _, _), count in windows.items():
        totals[cdn] += count
    rows: list[tuple[Any, ...]] = [
        (_MEASURED, cdn, value, unit, _pacing(paces[cdn, unit, value]), *share_cells(wilson(count, totals[cdn])))
        for (cdn, unit, value), count in sorted(windows.items())
    ]
    if beside:
        for row in paper.rows("cdn-initial-windows"):
            value, unit = float(row["iw"]), row["unit"]
            value, unit = (value / 1000, "kB") if unit == "bytes" else (value, unit)
            rows.append((paper.NAME, row["cdn"], value, unit, row["pacing"] or None, *[None] * len(SHARE_HEADER)))
    return Table(
        title="Initial windows per CDN: shares of the CDN's servers, 95 % intervals",
        header=("source", "cdn", "window", "unit", "pacing", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _pacing(judgements: Counter[str]) -> str | None:
    """The most frequent judgement; None if pacing was not judged."""
    judgements = Counter({pace: count for pace, count in judgements.items() if pace})
    return judgements.most_common(1)[0][0] if judgements else None


def _draw(table: Table, figure: Any) -> None:
    rows = table.dicts()
    cdns = sorted({row["cdn"] for row in rows}, reverse=True)
    units = [unit for unit in ("segments", "kB") if any(row["unit"] == unit for row in rows)]
    axes = figure.subplots(1, len(units), sharey=True, squeeze=False)[0]
    for axis, unit in zip(axes, units, strict=True):
        for row in (row for row in rows if row["unit"] == unit):
            at = cdns.index(row["cdn"])
            if row["source"] == _MEASURED:
                colour = COLOURS[1] if row["pacing"] == "paced" else COLOURS[0]
                axis.scatter(row["window"], at, s=30 + 120 * row["share"], color=colour, zorder=3)
                axis.annotate(
                    f"{row['window']:.4g}",
                    (row["window"], at),
                    (0, 8),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                )
            else:
                axis.scatter(row["window"], at, s=200, facecolors="none", edgecolors=INK, linewidths=0.8)
        axis.set_xlabel(f"initial window [{unit}]")
        axis.set_xlim(0, 1.12 * max(row["window"] for row in rows if row["unit"] == unit))
        axis.margins(y=0.1)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes[0].set_yticks(range(len(cdns)), cdns)
    for name, style in (
        ("burst, or not judged", {"color": COLOURS[0]}),
        ("paced", {"color": COLOURS[1]}),
        ("the paper", {"facecolors": "none", "edgecolors": INK}),
    ):
        if name != "the paper" or any(row["source"] == paper.NAME for row in rows):
            axes[0].scatter([], [], s=40, label=name, **style)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=8, frameon=False)


CDNS = Chart(
    name="cdns",
    help="Windows per CDN, in segments and in kB, and whether they are paced.",
    table=_table,
    draw=_draw,
    size=lambda table: (8.0, 1.8 + 0.4 * len({row["cdn"] for row in table.dicts()})),
)
