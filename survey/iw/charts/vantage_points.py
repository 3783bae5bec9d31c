"""Vantage points against CDN and window (the paper's Tables II and III)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.errors import UsageError
from core.pictures import INK
from survey.charts import Chart, Scan, Table
from survey.iw import paper
from survey.iw.record import IwRecord
from survey.iw.windows import fit_scans, label, window

_FACTS = ("asn", "network", "country", "link")


def _table(scans: Sequence[Scan], beside: bool) -> Table:
    kept, notes = fit_scans(scans)
    if not kept or not any(record.vantage for scan in kept for record in scan.records):
        raise UsageError("these results name no vantage point", remedy="survey with --vantage NAME")
    # The first file is the reference: its windows are the columns, and tell which servers belong together.
    reference = {_key(record): iw for record in kept[0].records if (iw := window(record)) is not None}
    rows: list[tuple[Any, ...]] = []
    for scan in kept:
        groups: dict[tuple[str, str, float], list[IwRecord]] = {}
        for record in scan.records:
            if record.cdn is not None and (key := _key(record)) in reference:
                value, unit = reference[key]
                groups.setdefault((record.cdn, unit, round(value, 3)), []).append(record)
        name, *facts = _facts(scan.records[0].vantage or scan.path.name)
        for (cdn, unit, value), records in sorted(groups.items()):
            windows = [iw[0] for record in records if (iw := window(record)) is not None and iw[1] == unit]
            if windows:
                mark = "*" if any(r.losses for r in records) and set(windows) == {value} else None
                cells = (cdn, label(value, unit), min(windows), max(windows), unit, mark, len(windows))
                rows.append(("measured", name, *facts, *cells))
    rows += _of_paper() if beside else []
    return Table(
        title="Initial windows per vantage point, CDN and window at the reference",
        header=("source", "vantage", *_FACTS, "cdn", "reference", "low", "high", "unit", "mark", "servers"),
        rows=rows,
        notes=[*notes, "*: packets were lost, but never the last one of a flight."],
    )


def _key(record: IwRecord) -> tuple[str, str | None]:
    return record.domain, record.mime_type


def _facts(text: str) -> tuple[str | None, ...]:
    """Name, AS, network, country and link of `--vantage`."""
    parts = [part.strip() or None for part in text.split(",")]
    return tuple((parts + [None] * 5)[:5])


def _of_paper() -> list[tuple[Any, ...]]:
    networks = {row["number"]: row for row in paper.rows("vantage-points")}
    rows = []
    for row in paper.rows("cdn-windows-by-vantage"):
        mark = "*" if "never the last" in row["losses"] else None
        for number in row["vantage_points"].split(","):
            facts = tuple(networks[number][name] for name in _FACTS)
            unit, campus = row["unit"], row["campus"]
            reference = label(float(campus), unit) if campus else None
            cells = (row["cdn"], reference, float(row["low"]), float(row["high"]), unit, mark, None)
            rows.append((paper.NAME, f"paper {number}", *facts, *cells))
    return rows


def _draw(table: Table, figure: Any) -> None:
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
    low, high = f"{row['low']:.4g}", f"{row['high']:.4g}"
    return (low if low == high else f"{low}-{high}") + (row["mark"] or "")


def _size(table: Table) -> tuple[float, float]:
    rows = table.dicts()
    columns = len({(row["cdn"], row["reference"]) for row in rows})
    return 3.6 + 0.85 * columns, 1.2 + 0.26 * len({row["vantage"] for row in rows})


VANTAGE_POINTS = Chart(
    name="vantage-points",
    help="Vantage points (--vantage) against CDN and window; the first file is the reference.",
    table=_table,
    draw=_draw,
    size=_size,
)
