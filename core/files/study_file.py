"""Study files (TOML) and the tables beside them (CSV), read and checked; each error is one sentence with its field."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from core.errors import UsageError, use_one_of
from core.files.config import MOST_TOML_BYTES, Strict, build, read_json, read_text, read_toml
from core.files.disk import write_json, write_text
from core.files.study import (
    FLOW_COLUMNS,
    STUDY_FILE,
    Cell,
    Claim,
    Expected,
    Gain,
    Row,
    Rule,
    Selector,
    Study,
    StudyFigure,
    Tolerance,
    pairs,
)
from core.files.study_terms import KNOBS, METRICS, Knobs, same_text, text

SCHEMA = 1
MOST_CELLS = 20_000
KEPT = "study"
"""The folder within one of results that keeps the study."""
_PLAN = "plan.json"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CHECK = "fix that field"
Repetitions = Annotated[int, Field(strict=True, ge=2, le=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(Strict):
    """The top level of a study file."""

    schema: int
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    source: str
    repetitions: Repetitions
    cells: list[dict[str, Any]]
    quick_repetitions: Repetitions = 3
    seed: Annotated[int, Field(strict=True)] = 1
    lanes: Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    levels: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    gain: dict[str, list[str | int | float]] = field(default_factory=dict)
    figure: list[StudyFigure] = field(default_factory=list)
    claim: list[Claim] = field(default_factory=list)
    expected: list[dict[str, Any]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)


def load(path: Path, *shipped: Path) -> Study:
    """The study in a file; its tables are beside it, or in one of the folders `shipped`.

    Raises:
        UsageError: a file is missing, or anything in it is wrong.
    """
    files = {STUDY_FILE: read_text(path, most_bytes=MOST_TOML_BYTES)}

    def table(name: str) -> str:
        places = [folder / name for folder in (path.parent, *shipped)]
        file = next((place for place in places if place.is_file()), places[0])
        return files.setdefault(name, read_text(file, most_bytes=MOST_TOML_BYTES))

    return parse(read_toml(path), where=str(path), table=table, files=files)


def keep(study: Study, folder: Path) -> None:
    """Keeps a study and its tables in the folder of its results, for `kept`."""
    for name, content in study.files.items():
        write_text(folder / KEPT / name, content)
    write_json(folder / KEPT / _PLAN, {"schema": SCHEMA, "quick": study.is_quick})


def kept(folder: Path) -> Study:
    """The study of a folder of results, in the form that was run. Raises UsageError."""
    plan = read_json(folder / KEPT / _PLAN, remedy="name the folder of `upshift study run`")
    return load(folder / KEPT / STUDY_FILE).form(quick=plan.get("quick") is True)


def parse(
    data: Mapping[str, Any], *, where: str, table: Callable[[str], str], files: Mapping[str, str] | None = None
) -> Study:
    """The whole study in plain data.

    Args:
        data: the TOML file.
        where: its name, for errors.
        table: gives the text of a CSV file by the name that the study has for it.
        files: `Study.files`.

    Raises:
        UsageError: anything is wrong, in one sentence with its field.
    """
    file = build(data, _File, where=where)
    if file.schema != SCHEMA:
        what = f"it has schema {file.schema}, this Upshift reads {SCHEMA}"
        raise UsageError(what, where=where, remedy=f"write schema = {SCHEMA}")
    read = _Reader(where, table, file)
    read.check_levels()
    cells, few = read.cells(quick=False), read.cells(quick=True)
    study = Study(
        name=file.name,
        source=file.source,
        seed=file.seed,
        repetitions=file.repetitions,
        cells=cells,
        lanes=file.lanes,
        columns=tuple(cells[0].values),
        figures=tuple(file.figure),
        claims=tuple(file.claim),
        tables={name: read.rows(name, f"tables {name}") for name in file.tables},
        files=files or {},
    )
    for column in file.lanes:
        read.check_name(column, study.columns, "lanes")
    study = dataclasses.replace(study, gain=read.gain(study))
    read.check_figures(study, dataclasses.replace(study, cells=few))
    read.check_claims(study)
    expected = tuple(read.expected(one, f"expected {number}", study) for number, one in enumerate(file.expected, 1))
    study = dataclasses.replace(study, expected=expected)
    return dataclasses.replace(study, short=dataclasses.replace(study, cells=few, repetitions=file.quick_repetitions))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checks the parts of one file."""

    where: str
    table: Callable[[str], str]
    file: _File

    def error(self, place: str, what: str, remedy: str = _CHECK) -> UsageError:
        return UsageError(what, where=self._in(place), remedy=remedy)

    def check_name(self, name: str, known: Collection[str], place: str, what: str = "") -> None:
        """Raises UsageError with those that are known if a name is not; `what` is its clause."""
        if name not in known:
            raise self.error(place, what or f"there is no column {name}", use_one_of(name, known))

    def check_levels(self) -> None:
        """Names of columns, and what `fixed` and each level set."""
        taken = {*KNOBS, *METRICS, *FLOW_COLUMNS}
        for column, levels in self.file.levels.items():
            if not _NAME.fullmatch(column) or column in taken:
                raise self.error(f"levels.{column}", "a column of levels cannot have this name", "choose another one")
            for level, settings in levels.items():
                build(settings, Knobs, where=self._in(f"levels.{column}.{level}"))
        build(self.file.fixed, Knobs, where=self._in("fixed"))

    def cells(self, *, quick: bool) -> tuple[Cell, ...]:
        """The product of each table of cells, one after the other; equal cells count once."""
        if not self.file.cells:
            raise self.error("cells", "there are none", "write a table [[cells]]")
        columns = dict.fromkeys(name for table in self.file.cells for name in table if name != "quick")
        made: dict[tuple[str, ...], Cell] = {}
        for number, table in enumerate(self.file.cells, 1):
            place = f"cells {number}"
            lists = self._lists(table, place, quick=quick)
            if math.prod(map(len, lists.values())) + len(made) > MOST_CELLS:
                raise self.error(place, f"the study has more than {MOST_CELLS} cells", "shorten its lists")
            for values in itertools.product(*lists.values()):
                chosen = dict(zip(lists, values, strict=True))
                knobs = self._knobs(chosen, place)
                # Of a knob that this table does not list: what it is set to.
                cell = Cell(
                    values={name: chosen.get(name, getattr(knobs, name, None)) for name in columns}, knobs=knobs
                )
                made.setdefault(cell.key, cell)
        return tuple(made.values())

    def _lists(self, table: Mapping[str, Any], place: str, *, quick: bool) -> dict[str, list[Any]]:
        lists = {name: value for name, value in table.items() if name != "quick"}
        replaced = table.get("quick", {})
        if not isinstance(replaced, Mapping):
            raise self.error(f"{place}.quick", "it is not a table", "write quick = { column = [...] }")
        for column, values in (*lists.items(), *replaced.items()):
            inside = f"{place}.{column}" if values is lists.get(column) else f"{place}.quick.{column}"
            self.check_name(column, [*self.file.levels, *KNOBS], inside, "unknown column")
            if column not in lists:
                raise self.error(inside, "only a list of the table can be replaced", f"add {column} to {place}")
            if not isinstance(values, list) or not values:
                raise self.error(inside, "it is not a list of values", "write [...]")
            for value in values:
                self._check_value(column, value, inside)
        return {**lists, **replaced} if quick else lists

    def _check_value(self, column: str, value: Any, inside: str) -> None:
        levels = self.file.levels
        if isinstance(value, Mapping):
            raise self.error(inside, "a value cannot be a table", "name it as a level in [levels]")
        if column not in levels:
            build({column: value}, Knobs, where=self._in(inside))
        elif not isinstance(value, str) or value not in levels[column]:
            raise self.error(inside, f"unknown level {text(value)!r}", use_one_of(text(value), levels[column]))

    def _knobs(self, chosen: Mapping[str, Any], place: str) -> Knobs:
        """What a cell sets: `fixed`, then its levels and values, of which no two may set the same."""
        settings: dict[str, Any] = {}
        for column, value in chosen.items():
            levels = self.file.levels.get(column)
            for name, own in (levels[value] if levels else {column: value}).items():
                before = settings.get(name)
                if isinstance(own, Mapping) and isinstance(before, Mapping) and not set(own) & set(before):
                    settings[name] = {**before, **own}
                elif name in settings and own != before:
                    raise self.error(place, f"its column {column} sets {name}, as another one does", "keep one of them")
                else:
                    settings[name] = own
        for name, common in self.file.fixed.items():
            own = settings.get(name, common)
            settings[name] = {**common, **own} if isinstance(common, Mapping) and isinstance(own, Mapping) else own
        knobs = build(settings, Knobs, where=self._in(place))
        if (fault := knobs.fault()) is not None:
            cell = ", ".join(f"{column} {text(value)}" for column, value in chosen.items())
            raise self.error(place, f"{fault} ({cell})", _CHECK)
        return knobs

    def gain(self, study: Study) -> Gain | None:
        if not self.file.gain:
            return None
        (column, values), *others = self.file.gain.items()
        if others or len(values) != 2 or text(values[0]) == text(values[1]):
            raise self.error("gain", "it is not one column with two values", "write gain = { iw = [3, 10] }")
        made = Gain(column=column, values=(text(values[0]), text(values[1])))
        self.check_selector({column: made.values}, study.cells, "gain")
        if not dataclasses.replace(study, gain=made).gains:
            raise self.error("gain", "no two cells differ in nothing else", "give both values the same other columns")
        return made

    def check_figures(self, study: Study, quick: Study) -> None:
        """Each has cells, and each place in it one cell, with `--quick`, too."""
        for number, figure in enumerate(study.figures, 1):
            place = f"figure {number}"
            cells = self._cells_of(figure.metric, figure.only, study, place)
            few = [cell for cell in quick.cells_of(figure.metric) if cell.matches(figure.only)]
            columns = tuple(cells[0].values)
            for column in figure.draw.used:
                self.check_name(column, columns, f"{place}.draw")
            for column in columns:
                most = max(len({cell.texts[column] for cell in form}) for form in (cells, few))
                if column not in figure.draw.used and most > 1:
                    what = f"column {column} has {most} values there, and is not drawn"
                    raise self.error(place, what, f"add it to draw, or choose a value in only = {{ {column} = ... }}")

    def check_claims(self, study: Study) -> None:
        """Each has a range and pairs of different cells."""
        ids: set[str] = set()
        for number, claim in enumerate(study.claims, 1):
            place = f"claim {claim.id}"
            if claim.id in ids:
                raise self.error(f"claim {number}.id", f"there are two claims {claim.id}", "rename one")
            ids.add(claim.id)
            if (claim.ratio is None) == (claim.difference is None):
                raise self.error(place, "it needs either ratio or difference", "write one of them as [low, high]")
            low, high = claim.bounds
            if not low <= high or (claim.ratio is not None and low < 0):
                raise self.error(place, f"[{low:g}, {high:g}] is not a range", "write [low, high]")
            cells = self._cells_of(claim.metric, claim.where, study, place)
            for side, selector in (("a", claim.a), ("b", claim.b)):
                self.check_selector(selector, cells, f"{place}.{side}")
                if twice := set(selector) & set(claim.where):
                    raise self.error(f"{place}.{side}", f"where has the column {min(twice)}, too", "keep one of them")
            if not (partners := pairs(claim, cells)):
                raise self.error(place, "no cell of a has a partner in b", "name the columns that differ in both")
            if any(one is other for one, other in partners):
                raise self.error(place, "a and b have the same cells", "let them differ in a column")

    def expected(self, one: Mapping[str, Any], place: str, study: Study) -> Expected:
        """A table, or the same for all cells."""
        rest = {name: value for name, value in one.items() if name not in ("table", "only")}
        fixed = build({name: value for name, value in one.items() if name not in rest}, Expected, where=self._in(place))
        rules: dict[str, Rule] = {}
        for metric, value in rest.items():
            self.check_name(metric, study.metrics, place, f"unknown metric {metric}")
            rules[metric] = self._rule(value, f"{place}.{metric}", has_table=fixed.table is not None)
            self._cells_of(metric, fixed.only, study, place)
        if not rules:
            raise self.error(place, "it has no metric", "write one, such as time_ms = { percent = 5 }")
        if fixed.table is None:
            return dataclasses.replace(fixed, rules=rules)
        rows = self.rows(fixed.table, place)
        if not rows or (missing := set(rules) - set(rows[0])):
            what = f"has no column {min(missing)}" if rows else "is empty"
            raise self.error(place, f"the table {fixed.table} {what}", "name another table or metric")
        known = dict.fromkeys((*study.columns, *study.metrics, *KNOBS))
        for column in rows[0]:
            if column not in known or (study.gain and column == study.gain.column and not set(rules) <= set(METRICS)):
                what = f"column {column} of the table {fixed.table} is neither a column of cells nor a metric"
                raise self.error(place, what, use_one_of(column, known))
        left = tuple(
            {name: value for name, value in row.items() if name in rules or name not in study.metrics}
            for row in rows
            if all((row.get(column) or among[0]) in among for column, among in fixed.only.items())
        )
        made = dataclasses.replace(fixed, rules=rules, rows=left)
        self._check_rows(made, study, place)
        return made

    def _check_rows(self, expected: Expected, study: Study, place: str) -> None:
        if not expected.rows:
            raise self.error(place, f"no row of the table {expected.table} is left by only", _CHECK)
        for row in expected.rows:
            for metric in expected.rules:
                try:
                    float(row[metric] or 0)
                except ValueError:
                    what = f"{row[metric]!r} in column {metric} of the table {expected.table} is no number"
                    raise self.error(place, what, "fix the table") from None
                selector = expected.matched(row)
                if any(cell.matches(selector) for cell in study.cells_of(metric)):
                    continue
                named = ", ".join(f"{column} {among[0]}" for column, among in selector.items())
                raise self.error(place, f"a row of the table {expected.table} has no cell ({named})", "add the cell")

    def _rule(self, value: Any, inside: str, *, has_table: bool) -> Rule:
        if isinstance(value, Mapping) or value == "exact":
            if not has_table:
                raise self.error(inside, "this needs a table", 'write table = "FILE.csv", or a number')
            return "exact" if value == "exact" else build(value, Tolerance, where=self._in(inside))
        if has_table or isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.error(inside, "it is no comparison", 'write "exact" or { percent = 5, least = 3 }')
        if isinstance(value, str):
            self.check_name(value, METRICS, inside, f"unknown metric {value}")
        return value

    def rows(self, name: str, place: str) -> tuple[Row, ...]:
        """The rows of a CSV file: column -> text in the form of `text`."""
        if Path(name).name != name:
            raise self.error(place, f"{name!r} is not the name of a file", "put the table beside the study")
        reader = csv.reader(io.StringIO(self.table(name), newline=""))
        try:
            header, *lines = list(reader) or [[]]
        except csv.Error as error:
            raise self.error(place, f"{name} is not valid CSV ({error})", "fix the table") from None
        for number, line in enumerate(lines, 2):
            if line and len(line) != len(header):
                raise self.error(place, f"row {number} of {name} has {len(line)} cells, not {len(header)}", "fix it")
        return tuple(dict(zip(header, map(same_text, line), strict=True)) for line in lines if line)

    def _cells_of(self, metric: str, only: Selector, study: Study, place: str) -> list[Cell]:
        """The cells of a metric with these values; each of them has the metric."""
        self.check_name(metric, study.metrics, place, f"unknown metric {metric}")
        cells = study.cells_of(metric)
        self.check_selector(only, cells, place)
        chosen = [cell for cell in cells if cell.matches(only)]
        if not chosen:
            raise self.error(place, "no cell has these values", "choose others")
        for cell in chosen:
            if (fault := study.metrics[metric].fault(cell.knobs)) is not None:
                raise self.error(place, fault, "choose other cells or another metric")
        return chosen

    def check_selector(self, selector: Selector, cells: Sequence[Cell], place: str) -> None:
        """The cells have each column, and there each value."""
        for column, values in selector.items():
            self.check_name(column, cells[0].values, place)
            known = dict.fromkeys(cell.texts[column] for cell in cells)
            for value in values:
                self.check_name(value, known, place, f"no cell there has {column} {value!r}")

    def _in(self, place: str) -> str:
        return f"{self.where}: {place}"
