"""Our data read as the published ANRW'23 pipeline would: which quirks, and how far each moves the tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from analysis.measures import quirks, tables
from analysis.measures.dataset import Dataset, Record
from analysis.measures.folders import writing
from analysis.measures.quirks import Affects, ReadingQuirk
from analysis.measures.rows import BIN_NAMES, Metric, SpeedupRow
from analysis.measures.selection import DEFAULT, Selection
from analysis.report import records, render
from core import terminal
from core.domain import Outcome, Transport
from core.errors import UsageError
from core.files import disk

METRIC, TOGETHER = "throughput instead of time", "all together"
"""Names of the first and the last part of the effects, both against our own Table 2, which is of times. The quirks
between them are against our own Table 2 by throughput."""

_WORDS = ("quirk", "comparison", "configuration")
_NOTHING = "·"


def choose(
    names: Sequence[str], *, as_published: bool, metric: Metric | None
) -> tuple[Metric, tuple[ReadingQuirk, ...]]:
    """The metric and the quirks of the options `--metric`, `--quirk` and `--as-published`.

    Raises:
        UsageError: an unknown quirk, or one of throughput with `--metric time`.
    """
    named = [quirks.ALL.pick(name, where="--quirk") for name in names]
    chosen = tuple(quirks.ALL.values()) if as_published else tuple(dict.fromkeys(named))
    if metric is Metric.TIME:
        idle = [one.name for one in named if one.affects is Affects.THROUGHPUT]
        if idle or as_published:
            raise UsageError(
                f"{idle[0] if idle else '--as-published'} changes throughputs, and this metric does not use them",
                where="--metric time",
                remedy="leave it out, or use --metric throughput",
            )
    return metric or (Metric.THROUGHPUT if chosen else Metric.TIME), chosen


def split(chosen: Iterable[ReadingQuirk]) -> tuple[tuple[ReadingQuirk, ...], tuple[ReadingQuirk, ...]]:
    """Quirks of Table 1, and those of the other tables."""
    both = tuple(chosen)
    first = tuple(one for one in both if one.affects is Affects.TABLE1)
    return first, tuple(one for one in both if one.affects is not Affects.TABLE1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CongestionRow:
    """The ok downloads of one configuration over TCP. None: not known without captures."""

    configuration: str
    downloads: int
    """Ok downloads over TCP with the number of their retransmissions."""
    retransmissions: float | None
    """Packets that the servers retransmitted, summed."""
    retransmission_rate: float | None
    """Mean over the downloads, 0 to 1."""
    ece: float | None
    """Segments of the client with ECE, summed."""
    cwr: float | None
    """Segments of the servers with CWR, summed."""


def congestion(data: Dataset) -> list[CongestionRow]:
    """One row per configuration over TCP, in the campaign's order, warm-ups left out; also of one without ok downloads,
    as a quirk may leave none."""
    groups: dict[str, list[Record]] = {}
    for record in data.records:
        d = record.download
        if d.transport == Transport.TCP and not record.is_warmup:
            members = groups.setdefault(d.configuration, [])
            if d.outcome == Outcome.OK:
                members.append(record)
    return [_congestion_row(name, groups[name]) for name in sorted(groups, key=data.design.rank)]


def _congestion_row(name: str, records: Sequence[Record]) -> CongestionRow:
    rates = _numbers(records, "retransmission_rate")
    return CongestionRow(
        configuration=name,
        downloads=len(_numbers(records, "true_retransmissions")),
        retransmissions=_sum(records, "true_retransmissions"),
        retransmission_rate=math.fsum(rates) / len(rates) if rates else None,
        ece=_sum(records, "ece_segments"),
        cwr=_sum(records, "cwr_segments"),
    )


def _numbers(records: Sequence[Record], kpi: str) -> list[float]:
    return [value for record in records if (value := record.number(kpi)) is not None]


def _sum(records: Sequence[Record], kpi: str) -> float | None:
    values = _numbers(records, kpi)
    return math.fsum(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuirkEffect:
    """One row of a table without and with a quirk."""

    quirk: str
    """Its name, or `METRIC`, or `TOGETHER`."""
    without: SpeedupRow | CongestionRow
    changed: SpeedupRow | CongestionRow

    @property
    def table(self) -> str:
        """`table2` or `congestion`."""
        return "table2" if isinstance(self.without, SpeedupRow) else "congestion"

    @property
    def row(self) -> str:
        """Name of the comparison, or of the configuration."""
        return self.without.comparison.name if isinstance(self.without, SpeedupRow) else self.without.configuration

    def cells(self) -> list[dict[str, Any]]:
        """The cells that moved, by more than rounding: flat rows of `EFFECTS_CSV`."""
        before, after = (_flat(row) for row in (self.without, self.changed))
        return [
            {"quirk": self.quirk, "table": self.table, "row": self.row, "column": name, "without": old, "with": new}
            | {"moved": new - old if isinstance(old, (int, float)) and isinstance(new, (int, float)) else None}
            for name, old in before.items()
            if records.csv_value(new := after[name]) != records.csv_value(old)
        ]


EFFECTS_CSV = ("quirk", "table", "row", "column", "without", "with", "moved")
"""Columns of quirk_effects.csv, one line per cell that moved: shares 0 to 1."""


def _flat(row: SpeedupRow | CongestionRow) -> dict[str, Any]:
    if isinstance(row, SpeedupRow):
        # What depends on the other rows of the table moves with them.
        return {
            name: cell for name, cell in records.FLAT["table2"].records([row])[0].items() if name not in _OF_THE_TABLE
        }
    return dataclasses.asdict(row)


_OF_THE_TABLE = ("q_bh", "q_by", "q_parts", "margin", "verdict", "size", "mixed_by")
"""Columns of table2.csv that depend on all rows, by q or by the noise floor's margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """How far each quirk alone, and all together, move the cells of Table 2 and the counts of each configuration."""

    metric: Metric
    quirks: tuple[str, ...]
    """Names; of all quirks with `METRIC` first and `TOGETHER` last."""
    effects: tuple[QuirkEffect, ...]
    """Only rows of which a cell moved."""
    notes: tuple[str, ...]

    def table2_cells(self, *, bins: bool = True) -> render.Cells:
        """Heading and rows: per cent without and with the quirk; of bins, percentage points by which they moved."""
        names = BIN_NAMES if bins else ()
        cells = [["quirk", "comparison", "n", "faster %", "slower %", *names, "median"]]
        for effect in self.effects:
            old, new = effect.without, effect.changed
            if not isinstance(old, SpeedupRow) or not isinstance(new, SpeedupRow):
                continue
            line = [effect.quirk, effect.row, _arrow(str(old.n), str(new.n))]
            for one, other in ((old.faster, new.faster), (old.slower, new.slower)):
                moved = _arrow(render.percent(one), render.percent(other))
                intervals = _arrow(render.percent_interval(one), render.percent_interval(other))
                line.append(moved if moved != _NOTHING else intervals)
            if bins:
                line += [_points(one.share, other.share) for one, other in zip(old.bins, new.bins, strict=True)]
            moved = _arrow(render.median_text(old.median), render.median_text(new.median))
            intervals = _arrow(render.median_interval(old.median), render.median_interval(new.median))
            cells.append([*line, moved if moved != _NOTHING else intervals])
        return cells

    def congestion_cells(self) -> render.Cells:
        """Heading and rows: counts without and with the quirk."""
        cells = [["quirk", "configuration", "retransmissions", "rate %", "ECE", "CWR"]]
        for effect in self.effects:
            old, new = effect.without, effect.changed
            if isinstance(old, CongestionRow) and isinstance(new, CongestionRow):
                before, after = (congestion_cells([row])[1][2:] for row in (old, new))
                cells.append([effect.quirk, effect.row, *map(_arrow, before, after)])
        return cells

    def idle(self) -> list[str]:
        """Quirks that move nothing here."""
        moving = {effect.quirk for effect in self.effects}
        return [name for name in self.quirks if name not in moving]

    def files(self, suffix: str) -> str:
        """The effects as `csv` or `md`."""
        if suffix == "csv":
            return records.csv_text(EFFECTS_CSV, (cell for effect in self.effects for cell in effect.cells()))
        return render.markdown(self.table2_cells()) + "\n" + render.markdown(self.congestion_cells())

    def document(self) -> dict[str, Any]:
        """All of it as plain data for JSON (schema 1); a bound at infinity is null."""
        cells = [cell for effect in self.effects for cell in effect.cells()]
        document = {"schema": 1, "metric": self.metric.value, "quirks": list(self.quirks), "effects": cells}
        return {str(key): value for key, value in records.finite(document | {"notes": list(self.notes)}).items()}

    def write(self, folder: Path) -> None:
        """Writes quirk_effects.csv and .md, atomically."""
        with writing(folder):
            for suffix in ("csv", "md"):
                disk.write_text(folder / f"quirk_effects.{suffix}", self.files(suffix))

    def show(self, stream: TextIO) -> None:
        """Prints the effects in the terminal's width (120 columns without a terminal)."""
        to = terminal.console(stream)
        forms = (self.table2_cells(), self.table2_cells(bins=False))
        title = "How far each quirk of the published pipeline moves Table 2 [%; bins: percentage points]"
        if terminal.print_table(to, forms, title=title, words=_WORDS):
            terminal.print_line(to, "Bins and intervals in quirk_effects.csv, or in a wider terminal.", indent=2)
            to.print()
        terminal.print_table(to, (self.congestion_cells(),), title=CONGESTION_TITLE, words=_WORDS)
        terminal.print_line(to, f"Speed-up: {render.METRIC_WORDS[self.metric]}.", indent=2)
        if METRIC in self.quirks:
            against = f"Against our Table 2 of times: {METRIC}; {TOGETHER}. The others: against that of throughputs."
            terminal.print_line(to, against, indent=2)
        if self.idle():
            terminal.print_line(to, f"Nothing moves by: {', '.join(self.idle())}.", indent=2)
        for note in self.notes:
            terminal.print_line(to, note, indent=2)


CONGESTION = records.FlatTable(
    tuple(field.name for field in dataclasses.fields(CongestionRow)), lambda row: [dataclasses.asdict(row)]
)
"""The table congestion.csv."""

CONGESTION_TITLE = "Signs of loss and congestion over TCP: sums over the ok downloads, mean retransmission rate"


def congestion_cells(rows: Sequence[CongestionRow]) -> render.Cells:
    """Heading and rows."""
    cells = [["configuration", "n", "retransmissions", "rate %", "ECE", "CWR"]]
    for row in rows:
        rate = "–" if row.retransmission_rate is None else f"{100 * row.retransmission_rate:.2f}"
        counts = ["–" if count is None else f"{count:.0f}" for count in (row.retransmissions, row.ece, row.cwr)]
        cells.append([row.configuration, str(row.downloads), counts[0], rate, *counts[1:]])
    return cells


def effects(
    data: Dataset,
    *,
    metric: Metric,
    chosen: Sequence[ReadingQuirk] = (),
    selection: Selection = DEFAULT,
) -> Effects:
    """The effects of quirks that move other tables than Table 1; see `tables.table2` for the other arguments.

    Args:
        chosen: none of them means all.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    _, members = split(chosen or quirks.ALL.values())
    plain = _rows(data, metric, selection)
    parts = [(one.name, plain, _rows(quirks.with_quirks(data, (one,)), metric, selection)) for one in members]
    if len(members) > 1:
        ours = plain if metric is Metric.TIME else _rows(data, Metric.TIME, selection)
        parts.append((TOGETHER, ours, _rows(quirks.with_quirks(data, members), metric, selection)))
        if metric is Metric.THROUGHPUT:
            parts.insert(0, (METRIC, ours, plain))
    moved: list[QuirkEffect] = []
    for name, without, changed in parts:
        pairs = zip(without, changed, strict=True)
        made = [QuirkEffect(quirk=name, without=old, changed=new) for old, new in pairs if old != new]
        moved += [effect for effect in made if effect.cells()]
    names = tuple(name for name, _, _ in parts)
    return Effects(metric=metric, quirks=names, effects=tuple(moved), notes=data.notes)


def _rows(data: Dataset, metric: Metric, selection: Selection) -> list[SpeedupRow | CongestionRow]:
    return [*tables.table2(data, metric=metric, selection=selection), *congestion(data)]


def _arrow(old: str, new: str) -> str:
    return _NOTHING if old == new else f"{old}→{new}"


def _points(old: float | None, new: float | None) -> str:
    if old is None or new is None or f"{100 * (new - old):+.0f}" in ("+0", "-0"):
        return _NOTHING
    return f"{100 * (new - old):+.0f}"
