"""The repetitions of a study by cell, and what each cell shows of each metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.measures.statistics.intervals import CONFIDENCE, Floats, median_interval, t_quantile
from core.errors import UsageError
from core.files import store
from core.files.study import FLOW_COLUMNS, FLOWS_FILE, FLOWS_KIND, Cell, Ending, Study
from core.files.study_terms import METRICS, text

Key = tuple[str, ...]
NOTHING: Floats = np.array([])
MOST = 1e12
"""A metric cannot be larger, whatever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The repetitions of one cell."""

    ok: Mapping[str, Floats] = field(default_factory=dict)
    """Metric -> a value of each repetition that ended well, NaN if it has none; in the order of `repetitions`."""
    repetitions: tuple[int, ...] = ()
    disturbed: int = 0
    censored_ms: tuple[float, ...] = ()
    """How long each censored repetition took at least."""

    @property
    def made(self) -> int:
        """How many there are."""
        return len(self.repetitions) + self.disturbed + len(self.censored_ms)


@dataclass(frozen=True, kw_only=True)
class Flows:
    """The repetitions of a study."""

    study: Study
    samples: Mapping[Key, Sample]
    """Key of a cell -> its repetitions."""

    @cached_property
    def rows(self) -> Mapping[tuple[str, Key], CellRow]:
        """Metric and key of a cell -> what the cell shows of it, with NaN where it has no value."""
        return {
            (metric, cell.key): _described(self, metric, cell)
            for metric in self.study.metrics
            for cell in self.study.cells_of(metric)
        }

    def sample(self, cell: Cell) -> Sample:
        return self.samples.get(cell.key, Sample())

    def sources(self, metric: str, cell: Cell) -> tuple[Cell, ...]:
        """The cells whose repetitions make a metric of a cell: two for a gain."""
        if metric in METRICS:
            return (cell,)
        both, names = self.study.gains[cell.key][1:], list(self.study.metrics)[-2:]
        return (both[names.index(metric)],) if metric in names else both

    def values(self, metric: str, cell: Cell) -> Floats:
        """The values of a metric in the repetitions that ended well; of a gain, of those that did so on both sides."""
        sources = [self.sample(source) for source in self.sources(metric, cell)]
        name = metric if metric in METRICS else "time_ms"
        if any(name not in sample.ok for sample in sources):
            return NOTHING
        if len(sources) == 1:
            values = sources[0].ok[name]
        else:
            # Repetitions of equal number: any pairing of independent ones gives the variance of the difference.
            shared = set(sources[0].repetitions) & set(sources[1].repetitions)
            first, second = (own.ok[name][[number in shared for number in own.repetitions]] for own in sources)
            values = first - second if metric == "gain_ms" else _percent(first, second)
        return values[~np.isnan(values)]

    @property
    def left(self) -> str:
        """How much was not made yet, in words; empty: nothing."""
        cells = self.study.cells
        counts = [count for cell in cells if (count := self.study.repetitions - self.sample(cell).made)]
        return f"{sum(counts):,} flows of {len(counts):,} of {len(cells):,} cells" if counts else ""

    def timeouts(self, cells: Iterable[Cell]) -> int | None:
        """Repetitions of these cells in which the sender's timer expired; None if one does not tell: Linux below 6.7,
        iwprobe."""
        own = [(self.values("timeouts", cell), len(self.sample(cell).repetitions)) for cell in cells]
        if any(len(values) < made for values, made in own):
            return None
        return sum(int(np.count_nonzero(values)) for values, _ in own)


def _percent(first: Floats, second: Floats) -> Floats:
    """Gains in per cent: their mean is the gain of the mean times, with the variance that the delta method gives it.

    Of times that vary, a mean of gains that are each of the time of one repetition is too small.
    """
    known = ~np.isnan(first - second)
    first, second = first[known], second[known]
    mean = first.sum() / max(len(first), 1)
    if mean <= 0:
        return NOTHING
    ratio = second.mean() / mean
    values: Floats = 100 * (1 - ratio - (second - ratio * first) / mean)
    return values


def read(study: Study, folder: Path) -> Flows:
    """The repetitions in `flows.parquet` of a folder, which has those of the study's form.

    Raises:
        UsageError: there is no such file, it lacks a column, has a row of a cell that the study lacks, or a value that
            cannot be.
    """
    path = folder / FLOWS_FILE
    table = store.read_table(path, FLOWS_KIND)
    for name in (*study.columns, *FLOW_COLUMNS, *METRICS):
        if name not in table.column_names:
            raise UsageError(f"the column {name} is missing", where=str(path), remedy="run the study again")
    known = {cell.key for cell in study.cells}
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        key = tuple(text(row[column]) for column in study.columns)
        if key not in known:
            raise UsageError(f"the study has no cell {', '.join(key)}", where=str(path), remedy="run the study again")
        if wrong := [name for name in METRICS if row[name] is not None and not abs(row[name]) <= MOST]:
            what = f"{wrong[0]} is {row[wrong[0]]:g} in a row of the cell {', '.join(key)}"
            raise UsageError(what, where=str(path), remedy="run the study again")
        rows.setdefault(key, []).append(row)
    return Flows(study=study, samples={key: _sample(own) for key, own in rows.items()})


def _sample(rows: list[dict[str, Any]]) -> Sample:
    rows = sorted(rows, key=lambda row: row["repetition"])
    ok = [row for row in rows if row["outcome"] == Ending.OK]
    return Sample(
        ok={name: np.array([math.nan if row[name] is None else row[name] for row in ok]) for name in METRICS},
        repetitions=tuple(row["repetition"] for row in ok),
        disturbed=sum(row["outcome"] == Ending.DISTURBED for row in rows),
        censored_ms=tuple(row["time_ms"] or 0.0 for row in rows if row["outcome"] == Ending.CENSORED),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """What a cell shows of a metric."""

    cell: Cell
    metric: str
    n: int
    """Repetitions with a value."""
    open: int
    """Repetitions that were not made yet."""
    disturbed: int
    censored: int
    """If there are any, mean and SD are those of the others."""
    mean: float = math.nan
    sd: float | None = None
    """None below two repetitions, as the interval."""
    low: float | None = None
    """t interval (95 %) of the mean."""
    high: float | None = None
    median: float = math.nan
    """NaN, too, where censored repetitions leave it open, and for a gain in per cent."""
    median_low: float = math.nan
    """Interval (95 %) of the median from order statistics; infinite with few repetitions."""
    median_high: float = math.nan


CELL_COLUMNS = tuple(one.name for one in fields(CellRow))[2:]
"""Those that tables have beside cell and metric."""


def _described(flows: Flows, metric: str, cell: Cell) -> CellRow:
    values, samples = flows.values(metric, cell), [flows.sample(source) for source in flows.sources(metric, cell)]
    least_ms = [time for sample in samples for time in sample.censored_ms]
    row = CellRow(
        cell=cell,
        metric=metric,
        n=len(values),
        open=sum(flows.study.repetitions - sample.made for sample in samples),
        disturbed=sum(sample.disturbed for sample in samples),
        censored=len(least_ms),
    )
    if not row.n:
        return row
    # A time that is not known is at least that of the censored repetition; of other metrics nothing is known.
    lows, highs = values, values
    if least_ms:
        lows = np.append(values, least_ms if metric == "time_ms" else [-math.inf] * len(least_ms))
        highs = np.append(values, [math.inf] * len(least_ms))
    mean = float(values.mean())
    row = replace(row, mean=mean)
    if metric != "gain_percent":  # its values are parts of one gain
        least, most = (float(np.median(ends)) for ends in (lows, highs))
        low, high = median_interval(lows, highs)
        row = replace(row, median=least if least == most else math.nan, median_low=low, median_high=high)
    if row.n < 2:
        return row
    sd = float(values.std(ddof=1))
    half = t_quantile(CONFIDENCE, row.n - 1) * sd / math.sqrt(row.n)
    return replace(row, sd=sd, low=mean - half, high=mean + half)


def cell_rows(flows: Flows) -> list[CellRow]:
    """A row for each cell and metric that has a value, may get one, or has none as no repetition ended well."""
    metrics = flows.study.metrics
    return [
        row
        for (metric, _), row in flows.rows.items()
        if row.n or ((row.open or row.disturbed or row.censored) and metrics[metric].fault(row.cell.knobs) is None)
    ]
