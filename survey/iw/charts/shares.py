"""Shares of windows: over the dates of several scans (the paper's Fig. 4 and 6), in a full scan beside samples of it
(Fig. 5), and per MIME type (Fig. 9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any

from core.errors import UsageError
from core.pictures import COLOURS, INK
from survey.charts import SHARE_HEADER, Chart, ChartTable, Scan, share_cells
from survey.figures import shares_of
from survey.iw import figures
from survey.iw.figures import COMMON, OTHERS, beside_first, bucket, fit_scans, label, window
from survey.iw.record import IwRecord

_PAPER = (
    ("2017-05-31", "IPv4, HTTP, MSS 64: IW10 at the end of May 2017"),
    ("2018-05-31", "IPv4, HTTP, MSS 64: IW10 a year later"),
)


def _over_time(scans: Sequence[Scan], beside: bool) -> ChartTable:
    kept, notes = fit_scans(scans)
    rows: list[tuple[Any, ...]] = []
    for day, records in sorted(_by_day(kept).items()):
        for scheme in ("http", "https"):
            if named := _named(r for r in records if r.scheme == scheme):
                rows += [("measured", day, scheme, *cells) for cells in _windows(named)]
    if beside:
        rows += [
            (figures.IN_THE_WILD, day, "http", "10", None, None, int(figures.paper_fact(what)) / 100, None, None)
            for day, what in _PAPER
        ]
        overtakes = figures.paper_fact("IPv4, TLS: IW10 overtakes IW4")
        notes.append(f"In the paper, 10 segments became more frequent than 4 over TLS about {overtakes}.")
    return ChartTable(
        title="Initial windows over time: shares of servers with a decided window, 95 % intervals",
        header=("source", "date", "scheme", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _named(records: Iterable[IwRecord]) -> list[tuple[str, str]]:
    """Domains and names of windows, of those that are known."""
    return [(record.domain, name) for record in records if (name := bucket(record)) is not None]


def _windows(named: Sequence[tuple[str, str]]) -> Iterator[tuple[Any, ...]]:
    """Each kind of window, and the cells of its share."""
    for name, share in shares_of(named, (*COMMON, OTHERS)).items():
        yield name, *share_cells(share)


def _percentages(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[list[float]]]:
    """Shares of rows, and the lengths of their intervals below and above."""
    shares = [(row["share"] or 0) * 100 for row in rows]
    below = [max(0.0, share - row["low"] * 100) for row, share in zip(rows, shares, strict=True)]
    above = [max(0.0, row["high"] * 100 - share) for row, share in zip(rows, shares, strict=True)]
    return shares, [below, above]


def _by_day(scans: Sequence[Scan]) -> dict[str, list[IwRecord]]:
    """The records of each date: shards of a scan are one scan; of a server found twice, the later result counts."""
    by_day: dict[str, dict[tuple[str, str | None, str | None], IwRecord]] = {}
    for scan in scans:
        if not scan.day:
            raise UsageError("these results have no dates", where=str(scan.path), remedy="give results of a survey")
        servers = by_day.setdefault(scan.day, {})
        for record in scan.records:
            key = record.domain, record.scheme, record.mime_type
            if key not in servers or (record.surveyed_at or 0.0) >= (servers[key].surveyed_at or 0.0):
                servers[key] = record
    return {day: list(servers.values()) for day, servers in by_day.items()}


def _draw_over_time(table: ChartTable, figure: Any) -> None:
    rows = table.dicts()
    schemes = [scheme for scheme in ("http", "https") if any(row["scheme"] == scheme for row in rows)]
    axes = figure.subplots(1, len(schemes), sharey=True, squeeze=False)[0]
    for axis, scheme in zip(axes, schemes, strict=True):
        here = [row for row in rows if row["scheme"] == scheme and row["source"] == "measured"]
        for name, colour in zip((*COMMON, OTHERS), COLOURS, strict=False):
            line = [row for row in here if row["window"] == name]
            days = [date.fromisoformat(row["date"]) for row in line]
            heights, errors = _percentages(line)
            style = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.2, "capsize": 2}
            axis.errorbar(days, heights, yerr=errors, label=f"IW {name}" if name != OTHERS else name, **style)
        for row in rows:
            if row["source"] == figures.IN_THE_WILD and row["scheme"] == scheme:
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
    table=_over_time,
    draw=_draw_over_time,
)


def _samples(scans: Sequence[Scan], beside: bool) -> ChartTable:
    kept, notes = beside_first(scans)
    rows = []
    names = [scan.path.name for scan in kept]
    if len(set(names)) < len(names):  # of several vantage points, or days
        names = [str(scan.path) for scan in kept]
    for number, (scan, called) in enumerate(zip(kept, names, strict=True)):
        rows += [(called, "sample" if number else "full", *cells) for cells in _windows(_named(scan.records))]
    if beside:
        enough = figures.paper_fact("sample that is enough for the shares of IPv4")
        notes.append(f"In the paper, a sample of {enough} % is enough for the shares of IPv4.")
    return ChartTable(
        title="Initial windows: a full scan (bars) beside samples (points with 95 % intervals)",
        header=("scan", "role", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _draw_samples(table: ChartTable, figure: Any) -> None:
    every_row = table.dicts()
    names = (*COMMON, OTHERS)
    axis = figure.subplots()
    full, *samples = [every_row[start : start + len(names)] for start in range(0, len(every_row), len(names))]
    axis.bar(
        range(len(names)),
        [(row["share"] or 0) * 100 for row in full],
        0.8,
        color=COLOURS[0],
        alpha=0.2,
        label=full[0]["scan"],
    )
    for number, rows in enumerate(samples):
        at = [place - 0.3 + 0.6 * (number + 0.5) / len(samples) for place in range(len(names))]
        shares, errors = _percentages(rows)
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        axis.errorbar(at, shares, yerr=errors, fmt="o", markersize=3, capsize=2, color=colour, label=rows[0]["scan"])
    axis.set_xticks(range(len(names)), [f"IW {name}" if name != OTHERS else name for name in names])
    axis.set_ylabel("share of servers [%]")
    axis.set_ylim(bottom=0)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8, frameon=False)


SAMPLES = Chart(
    name="samples",
    help="Shares of windows in a full scan (the first file) beside those of samples (the others).",
    table=_samples,
    draw=_draw_samples,
)


TYPES = ("application/mp2t", "image/png", "application/javascript", "application/octet-stream")
"""Those of the paper; results of other types are left out if one of these is there."""

_BY_SUBTYPE = {name.partition("/")[2]: name for name in TYPES}


def _known(mime_type: str) -> str:
    """The paper's name of a type with several: `text/javascript` (RFC 9239), `video/mp2t` (RFC 3555), `image/x-png`."""
    return _BY_SUBTYPE.get(mime_type.partition("/")[2].removeprefix("x-"), mime_type)


def _mime_types(scans: Sequence[Scan], beside: bool) -> ChartTable:
    kept, notes = fit_scans(scans)
    windows: dict[str, list[tuple[str, tuple[str, float]]]] = {}
    for record in (record for scan in kept for record in scan.records):
        iw = window(record)
        if record.mime_type is not None and iw is not None:
            windows.setdefault(_known(record.mime_type), []).append((record.domain, (iw[1], round(iw[0], 3))))
    types = [name for name in TYPES if name in windows] or sorted(windows)
    if left := sum(len(windows[name]) for name in windows if name not in types):
        notes.append(f"Objects of other types are left out: {left:,}.")
    rows: list[tuple[Any, ...]] = [
        ("measured", name, label(value, unit), *share_cells(share))
        for name in types
        for (unit, value), share in sorted(
            shares_of(windows[name]).items(), key=lambda item: (item[0][0] != "segments", item[0])
        )
    ]
    if beside:
        for row in figures.paper_rows("mime-types"):
            share = row["share_iw32_percent"]
            value = int(share) / 100 if share.isdecimal() else None
            rows.append((figures.IN_THE_WILD, row["mime_type"], "32", None, int(row["urls"]), value, None, None))
            if value is None:
                notes.append(f"In the paper, {share} objects of {row['mime_type']} have a window of 32 segments.")
    return ChartTable(
        title="Initial windows per MIME type: shares of objects",
        header=("source", "mime_type", "window", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _draw_mime_types(table: ChartTable, figure: Any) -> None:
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
        row
        for row in rows
        if row["source"] == figures.IN_THE_WILD and row["share"] is not None and row["mime_type"] in types
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
    table=_mime_types,
    draw=_draw_mime_types,
)
