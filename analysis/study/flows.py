"""The repetitions of a study by cell, and what each cell shows of each metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.measures.statistics.intervals import CONFIDENCE, Floats, median_interval
from core.errors import UsageError
from core.files import store
from core.files.study import FLOW_COLUMNS, FLOWS_FILE, FLOWS_KIND, Cell, Ending, Study
from core.files.study_terms import METRICS, text

Key = tuple[str, ...]
NOTHING: Floats = np.array([])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The repetitions of one cell."""

    ok: Mapping[str, Floats] = field(default_factory=dict)
    """Metric -> a value of each repetition that ended well, NaN if it has none; in the order of `repetitions`."""
    repetitions: tuple[int, ...] = ()
    disturbed: int = 0
    censored_ms: tuple[float, ...] = ()
    """How long each censored repetition took at least."""


@dataclass(frozen=True, kw_only=True)
class Flows:
    """The repetitions of a study."""

    study: Study
    quick: bool
    samples: Mapping[Key, Sample]
    """Key of a cell -> its repetitions."""

    @cached_property
    def gains(self) -> Mapping[Key, tuple[Cell, Cell, Cell]]:
        return self.study.gains(quick=self.quick)

    @property
    def repetitions(self) -> int:
        """How many of each cell are planned."""
        return self.study.quick_repetitions if self.quick else self.study.repetitions

    def sample(self, cell: Cell) -> Sample:
        return self.samples.get(cell.key, Sample())

    def sources(self, metric: str, cell: Cell) -> tuple[Cell, ...]:
        """The cells whose repetitions make a metric of a cell: two for a gain."""
        if metric in METRICS:
            return (cell,)
        both, names = self.gains[cell.key][1:], list(self.study.metrics)[-2:]
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
            values = first - second if metric == "gain_ms" else 100 * (first - second) / first
        return values[~np.isnan(values)]

    def censored(self, metric: str, cell: Cell) -> int:
        return sum(len(self.sample(source).censored_ms) for source in self.sources(metric, cell))

    def timeouts(self, cells: Iterator[Cell]) -> int:
        """Repetitions of these cells in which the sender's timer expired."""
        return sum(int(np.count_nonzero(np.nan_to_num(self.values("timeouts", cell)))) for cell in cells)


def read(study: Study, folder: Path, *, quick: bool) -> Flows:
    """The repetitions in `flows.parquet` of a folder.

    Raises:
        UsageError: there is no such file, it lacks a column, or has a row of a cell that the study lacks.
    """
    path = folder / FLOWS_FILE
    table = store.read_table(path, FLOWS_KIND)
    for name in (*study.columns, *FLOW_COLUMNS, *METRICS):
        if name not in table.column_names:
            raise UsageError(f"the column {name} is missing", where=str(path), remedy="run the study again")
    known = {cell.key for cell in study.cells(quick=quick)}
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        key = tuple(text(row[column]) for column in study.columns)
        if key not in known:
            raise UsageError(f"the study has no cell {', '.join(key)}", where=str(path), remedy="run the study again")
        rows.setdefault(key, []).append(row)
    return Flows(study=study, quick=quick, samples={key: _sample(own) for key, own in rows.items()})


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
    disturbed: int
    censored: int
    """If there are any, mean and SD are those of the others."""
    mean: float
    sd: float | None
    """None below two repetitions, as the interval."""
    low: float | None
    """t interval (95 %) of the mean."""
    high: float | None
    median: float
    median_low: float
    """Interval (95 %) of the median from order statistics; infinite with few repetitions."""
    median_high: float


CELL_COLUMNS = ("n", "disturbed", "censored", "mean", "sd", "low", "high", "median", "median_low", "median_high")


def describe(flows: Flows, metric: str, cell: Cell) -> CellRow | None:
    """The row of a cell; None if it has no value of the metric."""
    values = flows.values(metric, cell)
    if not len(values):
        return None
    sources = [flows.sample(source) for source in flows.sources(metric, cell)]
    censored = flows.censored(metric, cell)
    # A time that is not known is at least that of the censored repetition; of other metrics nothing is known.
    lows, highs = values, values
    if censored:
        bounds = [least for sample in sources for least in sample.censored_ms]
        lows = np.append(values, bounds if metric == "time_ms" else [-math.inf] * censored)
        highs = np.append(values, [math.inf] * censored)
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    half = None if sd is None else t_quantile(CONFIDENCE, len(values) - 1) * sd / math.sqrt(len(values))
    mean = float(values.mean())
    median_low, median_high = median_interval(lows, highs)
    return CellRow(
        cell=cell,
        metric=metric,
        n=len(values),
        disturbed=sum(sample.disturbed for sample in sources),
        censored=censored,
        mean=mean,
        sd=sd,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        median=float(np.median(lows)),
        median_low=median_low,
        median_high=median_high,
    )


def cell_rows(flows: Flows) -> list[CellRow]:
    """A row for each cell and metric that has a value."""
    rows = []
    for metric in flows.study.metrics:
        for cell in flows.study.cells_of(metric, quick=flows.quick):
            if (row := describe(flows, metric, cell)) is not None:
                rows.append(row)
    return rows


def t_quantile(confidence: float, df: float) -> float:
    """How many standard errors a two-sided t interval reaches to each side."""
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, df))
