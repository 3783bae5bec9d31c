"""Sender studies as data: cells, figures, claims and expected tables, as `core.files.study_file` reads them.

The words that a study may use are in `core.files.study_terms`; docs/design/study.md explains the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from core.files.config import Strict
from core.files.study_terms import METRICS, Knobs, StudyMetric, text

if TYPE_CHECKING:
    import pyarrow as pa

FLOWS_KIND, FLOWS_FILE = "flows", "flows.parquet"
"""The results of a study: a row per repetition (`flow_schema`)."""
FLOW_COLUMNS = ("repetition", "outcome", "reason")
"""Columns of a row beside the study's own and the metrics."""


class Ending(StrEnum):
    """How a repetition ended."""

    OK = "ok"
    DISTURBED = "disturbed"
    """Void each time it was tried; `reason` is that of the last."""
    CENSORED = "censored"
    """It did not end within the time that a flow has, which is its `time_ms`."""


def _texts(value: Any) -> Any:
    """Column -> the texts of one value or of a list of values."""
    if not isinstance(value, Mapping):
        return value
    return {str(column): tuple(map(text, one if isinstance(one, list) else [one])) for column, one in value.items()}


Selector = Annotated[Mapping[str, tuple[str, ...]], BeforeValidator(_texts)]
"""Column -> the values (as `text` has them) that a cell may have there."""
Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw(Strict):
    """How a figure is drawn; columns that it does not name must have one value in its cells."""

    x: str
    kind: Literal["bars", "lines"] = "bars"
    colour: str | None = None
    hatch: str | None = None
    columns: str | None = None
    rows: str | None = None
    error: Literal["sd", "ci95"] | None = "ci95"
    round_trips: bool = False
    """Lines at whole round trips, for times."""
    log: tuple[Literal["x", "y"], ...] = ()
    """Axes with a logarithmic scale."""

    @property
    def used(self) -> tuple[str, ...]:
        """The columns of cells that it names."""
        return tuple(name for name in (self.x, self.colour, self.hatch, self.columns, self.rows) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigure(Strict):
    """A figure of one metric."""

    metric: str
    draw: Draw
    only: Selector = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Strict):
    """A sentence that can be true or false: a ratio or a difference of two groups of cells lies within bounds."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    text: str
    a: Selector
    b: Selector
    where: Selector = field(default_factory=dict)
    metric: str = "time_ms"
    of: Literal["mean", "sd"] = "mean"
    ratio: Bounds | None = None
    """Least and most of a's to b's."""
    difference: Bounds | None = None
    """Least and most of a's less b's, in the unit of the metric."""
    source: str = ""
    """What the source has for it."""

    @property
    def bounds(self) -> Bounds:
        bounds = self.ratio or self.difference
        if bounds is None:
            raise ValueError(f"claim {self.id} has no bounds")
        return bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance(Strict):
    """How far a cell's mean may be from the expected value: the larger of both."""

    percent: Annotated[float, Field(ge=0)] = 0.0
    """Per cent of the expected value."""
    least: Annotated[float, Field(ge=0)] = 0.0
    """A number in the unit of the metric."""

    def around(self, value: float) -> float:
        return max(abs(value) * self.percent / 100, self.least)


Rule = Tolerance | Literal["exact"] | float | str
"""A tolerance of the table's value for the cell's mean; `exact`: each repetition has the table's value; a number or
another metric: each repetition has this."""
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Strict):
    """Values that cells must have: of a table, or the same for all cells."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Metric -> how it is compared."""
    only: Selector = field(default_factory=dict)
    table: str | None = None
    rows: tuple[Row, ...] = ()
    """Rows of the table that `only` leaves: column -> text, as `text` has it."""

    def matched(self, row: Row) -> Selector:
        """What the cells of a row have."""
        return {**self.only, **{name: (value,) for name, value in row.items() if name not in self.rules and value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Two values of a column whose difference in time is a metric of its own, of cells without that column."""

    column: str
    values: tuple[str, str]

    @property
    def metrics(self) -> Mapping[str, StudyMetric]:
        """`gain_ms`, `gain_percent`, and the times of both sides, e.g. `iw3_ms`."""
        sides = [(f"{self.column}{value}_ms".replace(".", "_"), f"{self.column} {value}") for value in self.values]
        (_, first), (_, second) = sides
        metrics = (
            StudyMetric("gain_ms", "ms", f"Time with {first} less that with {second}."),
            StudyMetric("gain_percent", "%", f"The same, of the time with {first}."),
            *(StudyMetric(name, "ms", f"Time with {side}.") for name, side in sides),
        )
        return {metric.name: metric for metric in metrics}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting of all knobs."""

    values: Mapping[str, Any]
    """Column -> its value; None where a table of cells has no such column of levels."""
    knobs: Knobs

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Column -> its value as tables have it."""
        return {column: text(value) for column, value in self.values.items()}

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.texts.values())

    def matches(self, selector: Mapping[str, Sequence[str]]) -> bool:
        """Whether it has one of the values of each column, or knob."""
        return all(self._text(column) in among for column, among in selector.items())

    def _text(self, name: str) -> str:
        return self.texts[name] if name in self.texts else text(getattr(self.knobs, name, None))


STUDY_FILE = "study.toml"
"""The name of a study file among `Study.files`."""
ENVIRONMENT_FILE = "environment.json"
"""What the flows of a folder depend on: kernel, timing."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study file that was checked, in its whole or its quick form."""

    name: str
    source: str
    seed: int
    repetitions: int
    """Of each cell."""
    cells: tuple[Cell, ...]
    short: Study | None = None
    """The same with the cells and repetitions of `--quick`; None: this is that form."""
    lanes: tuple[str, ...]
    """Columns; cells that differ in one of them may be made side by side."""
    columns: tuple[str, ...]
    gain: Gain | None = None
    figures: tuple[StudyFigure, ...] = ()
    claims: tuple[Claim, ...] = ()
    expected: tuple[Expected, ...] = ()
    tables: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Name -> rows of the sources' tables that the page shows."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of the study file (`STUDY_FILE`) and of its tables."""

    def form(self, *, quick: bool) -> Study:
        """The whole study, or that of `--quick`."""
        return self.short if quick and self.short else self

    @property
    def is_quick(self) -> bool:
        return self.short is None

    @cached_property
    def gains(self) -> Mapping[tuple[str, ...], tuple[Cell, Cell, Cell]]:
        """Key of a cell without the gain's column -> that cell, and the two whose times make its gain."""
        return {} if self.gain is None else _gains(self.gain, self.cells)

    @cached_property
    def metrics(self) -> Mapping[str, StudyMetric]:
        """Name -> metric, with those of its gain."""
        return {**METRICS, **(self.gain.metrics if self.gain else {})}

    @cached_property
    def numeric(self) -> frozenset[str]:
        """The columns of cells whose values all are numbers."""
        kinds = {column: {type(cell.values[column]) for cell in self.cells} for column in self.columns}
        return frozenset(column for column, types in kinds.items() if types <= {int, float})

    def cells_of(self, metric: str) -> Sequence[Cell]:
        """The cells of a metric: those of a gain lack the gain's column."""
        return self.cells if metric in METRICS else [cell for cell, _, _ in self.gains.values()]


def _gains(gain: Gain, cells: Iterable[Cell]) -> dict[tuple[str, ...], tuple[Cell, Cell, Cell]]:
    sides: dict[tuple[str, ...], tuple[Cell, dict[str, Cell]]] = {}
    for cell in cells:
        values = {column: value for column, value in cell.values.items() if column != gain.column}
        joint = Cell(values=values, knobs=cell.knobs)
        sides.setdefault(joint.key, (joint, {}))[1][cell.texts[gain.column]] = cell
    first, second = gain.values
    return {
        key: (joint, own[first], own[second]) for key, (joint, own) in sides.items() if first in own and second in own
    }


def pairs(claim: Claim, cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Each cell of `a` with each of `b` that equals it in every column that not both sides name."""
    among = [cell for cell in cells if cell.matches(claim.where)]
    free = set(claim.a) & set(claim.b)

    def rest(cell: Cell) -> tuple[str, ...]:
        return tuple(value for column, value in cell.texts.items() if column not in free)

    partners: dict[tuple[str, ...], list[Cell]] = {}
    for cell in among:
        if cell.matches(claim.b):
            partners.setdefault(rest(cell), []).append(cell)
    return [(cell, partner) for cell in among if cell.matches(claim.a) for partner in partners.get(rest(cell), ())]


def flow_schema(study: Study) -> pa.Schema:
    """The columns of `flows.parquet`: those of cells, `FLOW_COLUMNS`, all metrics.

    Numbers of cells are floats; a column with anything else has the texts of its values. A metric that a client does
    not have, or a disturbed repetition, has no value.
    """
    import pyarrow as pa

    fields = [pa.field(name, pa.float64() if name in study.numeric else pa.string()) for name in study.columns]
    fields += [pa.field("repetition", pa.int64()), pa.field("outcome", pa.string()), pa.field("reason", pa.string())]
    for metric in METRICS.values():
        fields.append(pa.field(metric.name, pa.float64(), metadata={"unit": metric.unit} if metric.unit else None))
    return pa.schema(fields)


def flow_row(
    study: Study, cell: Cell, repetition: int, outcome: Ending, metrics: Mapping[str, float | None], reason: str = ""
) -> dict[str, Any]:
    """A row of `flows.parquet`; `repetition` counts from 0, a metric that is not there has no value."""
    values = {name: cell.values[name] if name in study.numeric else cell.texts[name] for name in study.columns}
    ending = {"repetition": repetition, "outcome": outcome.value, "reason": reason or None}
    return {**values, **ending, **{name: metrics.get(name) for name in METRICS}}
