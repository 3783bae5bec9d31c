"""A full scan beside samples of it (the paper's Fig. 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.pictures import COLOURS
from survey.charts import SHARE_HEADER, Chart, Scan, Table, share_cells
from survey.iw import paper
from survey.iw.windows import COMMON, OTHERS, bucket, fit_scans
from survey.shares import wilson


def _table(scans: Sequence[Scan], beside: bool) -> Table:
    kept, notes = fit_scans(scans)
    rows = []
    for number, scan in enumerate(kept):
        counts = Counter(name for record in scan.records if (name := bucket(record)) is not None)
        for name in (*COMMON, OTHERS):
            share = wilson(counts[name], counts.total())
            rows.append((scan.path.name, "sample" if number else "full", name, *share_cells(share)))
    if beside:
        enough = paper.fact("sample that is enough for the shares of IPv4")
        notes.append(f"In the paper, a sample of {enough} % is enough for the shares of IPv4.")
    return Table(
        title="Initial windows: a full scan (bars) beside samples (points with 95 % intervals)",
        header=("scan", "role", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _draw(table: Table, figure: Any) -> None:
    every_row = table.dicts()
    names = (*COMMON, OTHERS)
    axis = figure.subplots()
    samples = list(dict.fromkeys(row["scan"] for row in every_row if row["role"] == "sample"))
    full = [row for row in every_row if row["role"] == "full"]
    axis.bar(
        range(len(names)), [(row["share"] or 0) * 100 for row in full], 0.8, color="#c9d6e2", label=full[0]["scan"]
    )
    for number, scan in enumerate(samples):
        rows = [row for row in every_row if row["scan"] == scan and row["role"] == "sample"]
        at = [place - 0.3 + 0.6 * (number + 0.5) / len(samples) for place in range(len(names))]
        shares = [(row["share"] or 0) * 100 for row in rows]
        errors = [
            [max(0.0, share - row["low"] * 100) for row, share in zip(rows, shares, strict=True)],
            [max(0.0, row["high"] * 100 - share) for row, share in zip(rows, shares, strict=True)],
        ]
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        axis.errorbar(at, shares, yerr=errors, fmt="o", markersize=3, capsize=2, color=colour, label=scan)
    axis.set_xticks(range(len(names)), [f"IW {name}" if name != OTHERS else name for name in names])
    axis.set_ylabel("share of servers [%]")
    axis.set_ylim(bottom=0)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8, frameon=False)


SAMPLES = Chart(
    name="samples",
    help="Shares of windows in a full scan (the first file) beside those of samples (the others).",
    table=_table,
    draw=_draw,
)
