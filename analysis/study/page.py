"""What `upshift study report` writes: tables as CSV, figures, and one HTML page that needs no network."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TextIO

import jinja2
from markupsafe import Markup

import core
from analysis.report import records, render
from analysis.study import claims, expected, figures, flows
from analysis.study.claims import CHANCE, Judged
from analysis.study.expected import Compared
from analysis.study.flows import CELL_COLUMNS, CellRow, Flows
from core import terminal
from core.errors import UsageError
from core.files import disk
from core.files.config import read_json
from core.files.study import ENVIRONMENT_FILE
from core.files.study_file import KEPT, kept
from core.pictures import inline_svg
from core.untrusted import plain

_MARKS = {"holds": "within", "within": "within", "fails": "outside", "outside": "outside", "missing": "outside"}
"""Verdict -> class of the style sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """The results of a study."""

    flows: Flows
    claims: Sequence[Judged]
    expected: Sequence[Compared]
    cells: Sequence[CellRow]
    path: Path
    """The page."""

    @property
    def wrong(self) -> int:
        """Expected values that were not measured."""
        return sum(not row.within for row in self.expected)

    def show(self, stream: TextIO) -> None:
        """Prints verdicts and what is outside of its tolerance, in the terminal's width."""
        to = terminal.console(stream)
        if self.claims:
            full = claim_cells(self.claims)
            noted = any(one.note for one in self.claims)
            middle = [[line[at] for at in (0, 1, 2, 3, 4, *([11] if noted else []))] for line in full]
            narrow = [[line[at] for at in (0, 2, 3, 4)] for line in full]
            title = f"{self.flows.study.name}: {claim_sentence(self.claims)}"
            terminal.print_table(to, (full, middle, narrow), title=title, words=("claim", "text", "verdict", "note"))
        wrong = [row for row in self.expected if not row.within]
        if wrong:
            cells = expected_cells(self.flows, wrong[:40])
            terminal.print_table(to, (cells,), title="Not as expected:", words=(*self.flows.study.columns, "metric"))
        terminal.print_line(to, expected_sentence(self.expected))
        if left := self.flows.left:
            terminal.print_line(to, f"Still to be made: {left}. The same upshift study run makes them.")
        terminal.print_line(to, f"Report: {self.path}")


def report(folder: Path) -> StudyReport:
    """Makes tables, figures and page of a folder of `upshift study run`.

    Raises:
        UsageError: the folder has no results of a study.
    """
    if not (folder / KEPT).is_dir():
        what = "this folder has no results of a study" if folder.is_dir() else "folder not found"
        raise UsageError(what, where=str(folder), remedy="name the folder of upshift study run")
    study = kept(folder)
    data = flows.read(study, folder)
    made = StudyReport(
        flows=data,
        claims=claims.judge(data),
        expected=expected.compare(data),
        cells=flows.cell_rows(data),
        path=folder / "report.html",
    )
    _write_rows(folder / "cells.csv", study.columns, ("metric", *CELL_COLUMNS), made.cells)
    _write_rows(folder / "expected.csv", study.columns, expected.COLUMNS, made.expected)
    disk.write_text(folder / "claims.csv", records.csv_text(claims.COLUMNS, map(claims.record, made.claims)))
    plots = figures.plan(data)
    for plot in plots:
        for kind, picture in figures.draw(plot, "svg", "png").items():
            with disk.whole_file(folder / "figures" / f"{plot.name}.{kind}") as temporary:
                temporary.write_bytes(picture)
    svgs = [figures.draw(plot, "svg", inline=True)["svg"] for plot in plots]
    drawings = [(plot.title, Markup(inline_svg(svg, plot.name))) for plot, svg in zip(plots, svgs, strict=True)]  # noqa: S704
    disk.write_text(made.path, _html(made, drawings, _environment(folder)))
    return made


def _write_rows(path: Path, columns: Sequence[str], names: Sequence[str], rows: Sequence[CellRow | Compared]) -> None:
    """A CSV file: the columns of the cell, then the fields of the row with these names; NaN is no value."""
    values = ({name: getattr(row, name) for name in names} for row in rows)
    known = ({name: None if value != value else value for name, value in own.items()} for own in values)
    places = ({name: row.cell.texts.get(name) for name in columns} for row in rows)
    disk.write_text(path, records.csv_text((*columns, *names), map(operator.or_, places, known)))


def _environment(folder: Path) -> render.Cells:
    """Heading and rows: names of `environment.json`, joined by dots, and values."""
    path = folder / ENVIRONMENT_FILE
    document = read_json(path) if path.is_file() else {}
    return [["name", "value"], *([name, records.listed(value)] for name, value in records.flat(document, "."))]


def _html(made: StudyReport, drawings: Sequence[tuple[str, Markup]], environment: render.Cells) -> str:
    page = (resources.files("analysis.study") / "page.html.j2").read_text(encoding="utf-8")
    style = (resources.files("analysis.report") / "templates" / "report.css").read_text(encoding="utf-8")
    undefined = jinja2.StrictUndefined
    jinja = jinja2.Environment(autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters["plain"] = plain
    study, data = made.flows.study, made.flows
    shown = dict.fromkeys([*(figure.metric for figure in study.figures), *(claim.metric for claim in study.claims)])
    samples = data.samples.values()
    facts = [
        ("cells", len(study.cells)),
        ("repetitions of each", study.repetitions),
        ("ended well", sum(len(sample.repetitions) for sample in samples)),
        ("disturbed, left out", sum(sample.disturbed for sample in samples)),
        ("censored", sum(len(sample.censored_ms) for sample in samples)),
        ("form", "quick" if study.is_quick else "whole"),
        *([("still to be made", data.left)] if data.left else []),
    ]
    return jinja.from_string(page).render(
        name=study.name,
        source=study.source,
        style=Markup(style),  # noqa: S704 - ours
        marks=_MARKS,
        facts=[(name, str(value)) for name, value in facts],
        columns=study.columns,
        repetitions=study.repetitions,
        confidence=f"{100 * (1 - CHANCE / max(len(study.claims), 1)):.4g}",
        claims=claim_cells(made.claims),
        claim_sentence=claim_sentence(made.claims),
        drawings=drawings,
        expected=expected_cells(data, made.expected),
        expected_sentence=expected_sentence(made.expected),
        tables=[
            (name, [list(rows[0]), *(list(row.values()) for row in rows)])
            for name, rows in study.tables.items()
            if rows
        ],
        cells=[(metric, _metric_cells(data, metric, made.cells)) for metric in shown],
        environment=environment,
        version=core.__version__,
    )


def claim_sentence(judged: Sequence[Judged]) -> str:
    """`Of 23 claims 7 hold, 1 fail, 15 are undecided.`"""
    counts = [sum(one.verdict == verdict for one in judged) for verdict in claims.ClaimVerdict]
    return f"Of {len(judged)} claims {counts[0]} hold, {counts[1]} fail, {counts[2]} are undecided."


def claim_cells(judged: Sequence[Judged]) -> render.Cells:
    """Heading and rows."""
    names = ("claim", "text", "verdict", "value [interval]", "claimed", "a", "b", "pairs", "agree", "timeouts")
    cells = [[*names, "source", "note"]]
    for one in judged:
        claim = one.claim
        interval = "–" if one.value is None else f"{number(one.value)} [{number(one.low)}–{number(one.high)}]"
        what = ("SD " if claim.of == "sd" else "") + ("ratio" if claim.ratio else "difference")
        low, high = map(number, claim.bounds)
        line = [claim.id, claim.text, one.verdict.value, interval, f"{what} {low}–{high}", number(one.a), number(one.b)]
        timeouts = f"{number(one.a_timeouts)}:{number(one.b_timeouts)}"
        line += [str(one.pairs), str(one.agree), timeouts, claim.source, one.note]
        cells.append(line)
    return cells


def expected_sentence(rows: Sequence[Compared]) -> str:
    """How many values are as expected."""
    if not rows:
        return "The study expects no values."
    return f"{sum(row.within for row in rows)} of {len(rows)} expected values are within their tolerance."


def expected_cells(data: Flows, rows: Sequence[Compared]) -> render.Cells:
    """Heading and rows; a value outside of its tolerance comes first."""
    cells = [[*data.study.columns, "metric", "expected", "measured", "n", "differing", "censored"]]
    cells[0] += ["tolerance", "verdict"]
    for row in sorted(rows, key=lambda row: row.within):
        place = [row.cell.texts.get(name, "") for name in data.study.columns]
        values = [number(row.expected), number(row.measured), str(row.n), str(row.wrong), str(row.censored), row.rule]
        cells.append([*place, row.metric, *values, row.verdict])
    return cells


def _metric_cells(data: Flows, metric: str, rows: Sequence[CellRow]) -> render.Cells:
    cells = [[*data.study.columns, *CELL_COLUMNS]]
    for row in rows:
        if row.metric == metric:
            place = [row.cell.texts.get(name, "") for name in data.study.columns]
            cells.append([*place, *(number(getattr(row, name)) for name in CELL_COLUMNS)])
    return cells


def number(value: float | None) -> str:
    """A number with four digits; `–` if there is none, `∞` if it has no bound."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
