"""Windows per MIME type, stacked (the paper's Fig. 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.pictures import COLOURS, INK
from survey.charts import SHARE_HEADER, Chart, Scan, Table, share_cells
from survey.iw import paper
from survey.iw.windows import fit_scans, label, window
from survey.shares import wilson

TYPES = ("application/mp2t", "image/png", "application/javascript", "application/octet-stream")
"""Those of the paper; results of other types are left out if one of these is there."""

_BY_SUBTYPE = {name.partition("/")[2]: name for name in TYPES}


def _known(mime_type: str) -> str:
    """The paper's name of a type with several: `text/javascript` (RFC 9239), `video/mp2t` (RFC 3555), `image/x-png`."""
    return _BY_SUBTYPE.get(mime_type.partition("/")[2].removeprefix("x-"), mime_type)


def _table(scans: Sequence[Scan], beside: bool) -> Table:
    kept, notes = fit_scans(scans)
    counts: dict[str, Counter[tuple[str, float]]] = {}
    for record in (record for scan in kept for record in scan.records):
        iw = window(record)
        if record.mime_type is not None and iw is not None:
            counts.setdefault(_known(record.mime_type), Counter())[iw[1], round(iw[0], 3)] += 1
    types = [name for name in TYPES if name in counts] or sorted(counts)
    if left := sum(counts[name].total() for name in counts if name not in types):
        notes.append(f"Objects of other types are left out: {left:,}.")
    rows: list[tuple[Any, ...]] = [
        ("measured", name, label(value, unit), *share_cells(wilson(count, counts[name].total())))
        for name in types
        for (unit, value), count in sorted(counts[name].items(), key=lambda item: (item[0][0] != "segments", item[0]))
    ]
    if beside:
        for row in paper.rows("mime-types"):
            share = row["share_iw32_percent"]
            value = int(share) / 100 if share.isdecimal() else None
            rows.append((paper.NAME, row["mime_type"], "32", None, int(row["urls"]), value, None, None))
            if value is None:
                notes.append(f"In the paper, {share} objects of {row['mime_type']} have a window of 32 segments.")
    return Table(
        title="Initial windows per MIME type: shares of objects",
        header=("source", "mime_type", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _draw(table: Table, figure: Any) -> None:
    rows = table.dicts()
    measured = [row for row in rows if row["source"] == "measured"]
    types = list(dict.fromkeys(row["mime_type"] for row in measured))
    windows = list(dict.fromkeys(row["window"] for row in measured))
    windows.sort(key=lambda text: (text.endswith("B"), float(text.split()[0])))
    axis = figure.subplots()
    bottoms = dict.fromkeys(types, 0.0)
    for number, name in enumerate(windows):
        again, colour = divmod(number, len(COLOURS))
        shares = {row["mime_type"]: row["share"] * 100 for row in measured if row["window"] == name}
        heights = [shares.get(kind, 0.0) for kind in types]
        style = {"color": COLOURS[colour], "hatch": "///" if again else "", "label": f"IW {name}"}
        axis.bar(range(len(types)), heights, 0.6, bottom=[bottoms[kind] for kind in types], **style)
        for kind, height in zip(types, heights, strict=True):
            bottoms[kind] += height
    marks = [
        row for row in rows if row["source"] == paper.NAME and row["share"] is not None and row["mime_type"] in types
    ]
    for row in marks:
        at = types.index(row["mime_type"])
        axis.annotate(
            f"paper: IW 32 {row['share'] * 100:.0f} %", (at, 101), ha="center", va="bottom", fontsize=7, color=INK
        )
    sizes = {row["mime_type"]: row["n"] for row in measured}
    axis.set_xticks(range(len(types)), [f"{kind}\nn = {sizes[kind]:,}" for kind in types])
    axis.set_ylabel("share of objects [%]")
    axis.set_ylim(0, 107 if marks else 100)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower left", ncols=6, fontsize=8, frameon=False)


MIME_TYPES = Chart(
    name="mime-types",
    help="Windows per MIME type, stacked.",
    table=_table,
    draw=_draw,
)
