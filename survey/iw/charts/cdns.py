"""CDNs: their windows in segments and in kB (the paper's Fig. 8), from several vantage points (Tables II and III), and
arrivals within one flight, for each CDN and window (Fig. 10 and 11)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.errors import UsageError
from core.pictures import COLOURS, INK
from survey.charts import SHARE_HEADER, Chart, ChartTable, Scan, share_cells
from survey.figures import shares_of
from survey.iw import figures
from survey.iw.figures import beside_first, fit_scans, label, window
from survey.iw.record import IwRecord, arrivals_of

_MEASURED = "measured"


def _cdns(scans: Sequence[Scan], beside: bool) -> ChartTable:
    kept, notes = fit_scans(scans)
    windows: dict[str, list[tuple[str, tuple[str, float]]]] = {}
    paces: dict[tuple[str, str, float], Counter[str]] = {}
    for record in (record for scan in kept for record in scan.records):
        iw = window(record)
        if record.cdn is None or iw is None:
            continue
        unit, value = iw[1], round(iw[0], 3)
        windows.setdefault(record.cdn, []).append((record.domain, (unit, value)))
        paces.setdefault((record.cdn, unit, value), Counter())[record.pace or ""] += 1
    rows: list[tuple[Any, ...]] = [
        (_MEASURED, cdn, value, unit, _pacing(paces[cdn, unit, value]), *share_cells(share))
        for cdn, named in sorted(windows.items())
        for (unit, value), share in sorted(shares_of(named).items(), key=lambda item: item[0])
    ]
    if beside:
        for row in figures.paper_rows("cdn-initial-windows"):
            value, unit = float(row["iw"]), row["unit"]
            value, unit = (value / 1000, "kB") if unit == "bytes" else (value, unit)
            rows.append(
                (figures.IN_THE_WILD, row["cdn"], value, unit, row["pacing"] or None, *[None] * len(SHARE_HEADER))
            )
    return ChartTable(
        title="Initial windows per CDN: shares of the CDN's servers, 95 % intervals",
        header=("source", "cdn", "window", "unit", "pacing", *SHARE_HEADER),
        rows=rows,
        notes=notes,
    )


def _pacing(judgements: Counter[str]) -> str | None:
    """The most frequent judgement; None if pacing was not judged."""
    judgements = Counter({pace: count for pace, count in judgements.items() if pace})
    return judgements.most_common(1)[0][0] if judgements else None


def _draw_cdns(table: ChartTable, figure: Any) -> None:
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
        if name != "the paper" or any(row["source"] == figures.IN_THE_WILD for row in rows):
            axes[0].scatter([], [], s=40, label=name, **style)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=8, frameon=False)


CDNS = Chart(
    name="cdns",
    help="Windows per CDN, in segments and in kB, and whether they are paced.",
    table=_cdns,
    draw=_draw_cdns,
    size=lambda table: (8.0, 1.8 + 0.4 * len({row["cdn"] for row in table.dicts()})),
)


_FACTS = ("asn", "network", "country", "link")


def _vantage_points(scans: Sequence[Scan], beside: bool) -> ChartTable:
    kept, notes = beside_first(scans)
    if not kept or not any(record.vantage for scan in kept for record in scan.records):
        raise UsageError("these results name no vantage point", remedy="survey with --vantage NAME")
    # The first file is the reference: its windows are the columns, and tell which servers belong together.
    reference = {_key(record): iw for record in kept[0].records if (iw := window(record)) is not None}
    rows: list[tuple[Any, ...]] = []
    called = [_facts(scan.records[0].vantage or scan.path.name) for scan in kept]
    often = Counter(name for name, *_ in called)
    for scan, (name, *facts) in zip(kept, called, strict=True):
        line = f"{name} ({scan.path})" if often[name] > 1 else name
        groups: dict[tuple[str, str, float], list[IwRecord]] = {}
        for record in scan.records:
            if record.cdn is not None and (key := _key(record)) in reference:
                value, unit = reference[key]
                groups.setdefault((record.cdn, unit, round(value, 3)), []).append(record)
        for (cdn, unit, value), records in sorted(groups.items()):
            there = [(r.losses, iw[0]) for r in records if (iw := window(r)) is not None and iw[1] == unit]
            windows = [iw for _, iw in there]
            mark = "*" if any(losses for losses, _ in there) and set(windows) == {value} else None
            ends = min(windows, default=None), max(windows, default=None)
            cells = (cdn, label(value, unit), *ends, unit, mark, len(windows), len(records) - len(windows))
            rows.append(("measured", line, *facts, *cells))
    rows += _of_paper() if beside else []
    return ChartTable(
        title="Initial windows per vantage point, CDN and window at the reference",
        header=("source", "vantage", *_FACTS, "cdn", "reference", "low", "high", "unit", "mark", "servers", "others"),
        rows=rows,
        notes=[
            *notes,
            "*: packets were lost, but never the last one of a flight.",
            "others: servers whose window there is counted in another unit, mixed, or not known.",
        ],
    )


def _key(record: IwRecord) -> tuple[str, str | None]:
    return record.domain, record.mime_type


def _facts(text: str) -> tuple[str | None, ...]:
    """Name, AS, network, country and link of `--vantage`."""
    parts = [part.strip() or None for part in text.split(",")]
    return tuple((parts + [None] * 5)[:5])


def _of_paper() -> list[tuple[Any, ...]]:
    networks = {row["number"]: row for row in figures.paper_rows("vantage-points")}
    rows = []
    for row in figures.paper_rows("cdn-windows-by-vantage"):
        mark = "*" if "never the last" in row["losses"] else None
        for number in row["vantage_points"].split(","):
            facts = tuple(networks[number][name] for name in _FACTS)
            unit, campus = row["unit"], row["campus"]
            reference = label(float(campus), unit) if campus else None
            cells = (row["cdn"], reference, float(row["low"]), float(row["high"]), unit, mark, None, None)
            rows.append((figures.IN_THE_WILD, f"paper {number}", *facts, *cells))
    return rows


def _draw_vantage_points(table: ChartTable, figure: Any) -> None:
    """A table: a line per vantage point, a column per CDN and window."""
    rows = table.dicts()
    columns = sorted({(row["cdn"], row["reference"] or "") for row in rows})
    lines = list(dict.fromkeys((row["vantage"], *(row[name] for name in _FACTS)) for row in rows))
    axis = figure.subplots()
    axis.set_axis_off()
    axis.set_xlim(0, 4.4 + len(columns))
    axis.set_ylim(len(lines) + 0.2, -1.2)
    for at, (cdn, reference) in enumerate(columns):
        axis.text(4.5 + at + 0.4, -0.5, f"{cdn}\n{reference}", ha="center", fontsize=7, fontweight="bold")
    for at, line in enumerate(lines):
        name, asn, network, country, link = line
        facts = ", ".join(part for part in (f"AS{asn}" if asn else None, network, country, link) if part)
        axis.text(0, at + 0.5, f"{name}  {facts}", fontsize=7, va="center", color=INK)
        for row in rows:
            if row["vantage"] == name:
                place = columns.index((row["cdn"], row["reference"] or ""))
                axis.text(4.5 + place + 0.4, at + 0.5, _cell(row), ha="center", va="center", fontsize=7)
        axis.axhline(at, color=INK, linewidth=0.3)


def _cell(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return "-"
    low, high = f"{row['low']:.4g}", f"{row['high']:.4g}"
    others = f" (+{row['others']})" if row["others"] else ""
    return (low if low == high else f"{low}-{high}") + (row["mark"] or "") + others


def _size_of_vantage_points(table: ChartTable) -> tuple[float, float]:
    rows = table.dicts()
    columns = len({(row["cdn"], row["reference"]) for row in rows})
    return 3.6 + 0.85 * columns, 1.2 + 0.26 * len({row["vantage"] for row in rows})


VANTAGE_POINTS = Chart(
    name="vantage-points",
    help="Vantage points (--vantage) against CDN and window; the first file is the reference.",
    table=_vantage_points,
    draw=_draw_vantage_points,
    size=_size_of_vantage_points,
)


MOST_PANELS = 16


def _arrivals(scans: Sequence[Scan], beside: bool) -> ChartTable:  # noqa: ARG001 - the paper's arrivals are not known
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
    return ChartTable(
        title="Arrivals within one flight, before the first ACK",
        header=("panel", "domain", "rtt_ms", "at_ms", "kB"),
        rows=rows,
        notes=notes,
    )


def _draw_arrivals(table: ChartTable, figure: Any) -> None:
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


def _size_of_arrivals(table: ChartTable) -> tuple[float, float]:
    columns, lines = _grid(len({row["panel"] for row in table.dicts()}))
    return 1.0 + 2.8 * columns, 1.2 + 2.0 * lines


ARRIVALS = Chart(
    name="arrivals",
    help="Arrivals within one flight, ms against kB, a panel per CDN and window; needs --pacing.",
    table=_arrivals,
    draw=_draw_arrivals,
    size=_size_of_arrivals,
)
