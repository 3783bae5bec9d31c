"""The commands `upshift survey NAME` and `upshift survey figures`, made from the descriptions of the surveys."""

from __future__ import annotations

import csv
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from core.errors import UsageError
from core.options import as_command, parameters_of, with_options
from core.outreach import arguments
from core.untrusted import no_formula
from survey.surveys import ResultKind, Site, Survey, SurveyOptions

if TYPE_CHECKING:
    from survey.charts import Chart, Scan
    from survey.engine import SurveySummary
    from survey.figures import Figures

Place = Callable[[str | None, str | None, Mapping[str, str], bool, bool], AbstractContextManager[Site]]
"""Opens a place with kernel settings: `--isolation`, name server, setting (relative to /proc/sys) -> value, whether the
survey's programs need an address of their own, and whether they use IPv6."""

OBJECTS = "objects"
"""Name of the results of `upshift crawl objects`."""

Isolation = Annotated[
    str | None,
    typer.Option(
        help="Where kernel settings are changed: netns (a namespace), host, or here (they are already correct)."
        " Default: here in a lab or if they are correct, else netns."
    ),
]


def command(survey: Survey, place: Place | None = None) -> Callable[..., None]:
    """The command of a survey: a function whose signature Typer reads.

    Args:
        survey: its options are those of `SurveyOptions`, its own settings, and `--json`.
        place: where its programs start; only for a survey that needs kernel settings.
    """
    shared = {entry.name for entry in fields(SurveyOptions)}
    own = {entry.name for entry in fields(survey.settings)}

    def work(**given: Any) -> None:
        from core.outreach.blocks import block_list_paths
        from core.terminal import show_progress
        from survey import engine

        options = SurveyOptions(**{name: value for name, value in given.items() if name in shared})
        if survey.contact:
            arguments.check_contact(options.contact)
        settings = survey.settings(**{name: value for name, value in given.items() if name in own})
        subjects = engine.check(survey, options, settings)  # before a namespace is made for it
        opened: AbstractContextManager[Site | None] = nullcontext()
        if place is not None and survey.starts_programs:
            opened = place(given["isolation"], options.nameserver, survey.kernel, survey.raw, options.ipv6)
        elif not survey.starts_programs:  # it reads all answers itself
            arguments.give_up_rights(
                reads=(options.source, *_files_of(settings), getattr(settings, "trusted", None)),
                lists=block_list_paths(options.block_list, options.opt_out),
                written=(options.out, arguments.ledger_beside(options.out, options.ledger), options.targets_out),
            )
        with show_progress(as_json=given["as_json"]) as progress, opened as site:
            summary = engine.run(survey, options, settings, subjects, progress, site=site)
        _print_summary(survey, summary, options.out, as_json=given["as_json"])

    parameters = sorted(_parameters(survey, place), key=lambda parameter: parameter.default is not parameter.empty)
    work.__name__, work.__doc__ = survey.name, survey.help
    return as_command(work, parameters, like=work)


def _files_of(settings: Any) -> Iterator[Path]:
    """Files that a survey's own settings name; what it writes is among the shared options."""
    for value in (getattr(settings, entry.name) for entry in fields(settings)):
        yield from (one for one in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(one, Path))


def _parameters(survey: Survey, place: Place | None) -> Iterator[inspect.Parameter]:
    for model in (SurveyOptions, survey.settings):
        for parameter in parameters_of(model, survey.defaults):
            if parameter.name == "contact":
                if survey.contact:
                    yield parameter.replace(default=parameter.empty)
            elif parameter.name == "targets_out":
                if survey.targets:
                    yield parameter.replace(annotation=_filling(parameter.annotation, ", ".join(survey.targets)))
            else:
                yield parameter
    own = {"isolation": (Isolation, None)} if place is not None and survey.starts_programs else {}
    for name, (annotation, default) in {**own, "as_json": (arguments.AsJson, False)}.items():
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _filling(annotation: Any, columns: str) -> Any:
    """The option `--targets-out`, with the columns named in its help."""
    kind, option = get_args(annotation)
    return Annotated[kind, typer.Option(help=option.help.format(columns))]


def _print_summary(survey: Survey, summary: SurveySummary, out: Path, *, as_json: bool) -> None:
    """Prints what was read, and the figures."""
    from survey.figures import as_document, print_figures

    figures = survey.figures(summary.records)
    subjects = summary.subjects
    if as_json:
        read: dict[str, object] = {"complaints": summary.complaints}
        if subjects is not None:
            read |= {"broken_rows": dict(subjects.broken), "duplicates": subjects.duplicates}
        typer.echo(json.dumps({**as_document(figures), **read, **{r.name: r.value for r in summary.remarks}}))
        return
    for sentence in (remark.sentence for remark in summary.remarks if remark.value):
        typer.echo(sentence, err=True)
    if subjects is not None:
        for fault in subjects.faults:
            typer.echo(str(fault), err=True)
        for reason, number in subjects.broken.items():
            typer.echo(f"rows skipped: {number:,} {reason}", err=True)
        if subjects.duplicates:
            typer.echo(f"rows skipped: {subjects.duplicates:,} duplicate domains", err=True)
    print_figures(figures, sys.stdout)
    typer.echo(f"Results: {out}; to print them again, or as CSV or a picture: upshift survey figures {out}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresOptions:
    """What of the results is shown, and where."""

    figure: Annotated[
        str | None, typer.Option(help="One named figure of that kind, instead of the shares; list: their names.")
    ] = None
    beside: Annotated[str | None, typer.Option(help="Set a paper's values beside ours: iw-in-the-wild.")] = None
    windows: Annotated[
        Path | None,
        typer.Option(help="For objects: results of upshift survey iw of the same domains; flights that objects need."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document; shares from 0 to 1.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV; shares from 0 to 1.")] = False
    picture: Annotated[
        list[Path] | None, typer.Option(help="Also draw them to this file: .svg or .png; may be repeated.")
    ] = None

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise UsageError("--json and --csv cannot be combined", remedy="leave one out")
        for path in self.picture or []:
            if path.suffix not in (".svg", ".png"):
                what = f"{path} is not a supported picture format"
                raise UsageError(what, where="--picture", remedy="use .svg or .png")

    def check(self, survey: ResultKind) -> None:
        """Raises UsageError for options that results of this kind do not have."""
        if self.windows is not None and (survey.name != OBJECTS or self.figure is not None):
            what = "it needs the shares of objects"
            raise UsageError(what, where="--windows", remedy="give results of upshift crawl objects, without --figure")
        if self.beside not in (None, "iw-in-the-wild"):
            raise UsageError(f"{self.beside!r} is not known", where="--beside", remedy="write iw-in-the-wild")
        if self.beside is not None and self.figure is None:
            raise UsageError("--beside needs a figure", where="--beside", remedy=f"name one: --figure {_names(survey)}")
        if self.figure == "list" and not survey.charts:
            what = f"survey {survey.name} has no named figures"
            raise UsageError(what, where="--figure", remedy="leave --figure out")


@with_options
def figures(
    files: Annotated[
        list[Path],
        typer.Argument(help="Results of one kind of survey, or objects of pages (Parquet); several are combined."),
    ],
    options: FiguresOptions,
) -> None:
    """Shares of what servers support, with 95 % intervals: overall, by rank, by provider; or one named figure."""
    from survey import figures as counted

    survey = survey_of(files[0])
    options.check(survey)
    figure, windows, pictures = options.figure, options.windows, options.picture or []
    if figure == "list":
        for chart in survey.charts.values():
            typer.echo(f"{chart.name}: {chart.help}")
        return
    scans = _scans(files, survey)
    if figure is not None:
        _one_figure(_chart(survey, figure), scans, options)
        return
    records = [record for scan in scans for record in scan.records]
    measured = survey.figures(records)
    if windows is not None:
        measured = _with_flights(measured, records, windows)
    from survey.charts import draw_chart, draw_figures

    if survey.picture is None:
        _write_pictures(pictures, lambda kind: draw_figures(measured, kind))
    elif pictures:
        chart = survey.charts[survey.picture]
        _write_pictures(pictures, lambda kind: draw_chart(chart, chart.table(scans, False), kind))
    if options.as_csv:
        _print_csv(counted.as_rows(measured))
    elif options.as_json:
        typer.echo(json.dumps(counted.as_document(measured)))
    else:
        counted.print_figures(measured, sys.stdout)


def _print_csv(rows: Iterable[Iterable[Any]]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows(map(no_formula, row) for row in rows)


def _with_flights(measured: Figures, records: Sequence[Any], windows: Path) -> Figures:
    from core.files import store
    from survey.iw.record import IwRecord
    from survey.objects import with_flights

    surveyed = store.read_rows(windows, "survey_iw", IwRecord)
    known = {record.domain for record in records}
    if not any(record.domain in known for record in surveyed):
        raise UsageError("it has none of these domains", where=str(windows), remedy="survey the same list")
    return with_flights(measured, records, surveyed)


def _scans(files: Sequence[Path], survey: ResultKind) -> list[Scan]:
    """The files' records. Raises UsageError if there are none, or a file is of another kind."""
    from core.files import store
    from survey.charts import Scan

    scans = [Scan(path=path, records=store.read_rows(path, survey.kind, survey.record)) for path in files]
    if not any(scan.records for scan in scans):
        raise UsageError("no records found", where=", ".join(map(str, files)), remedy="survey more domains")
    return scans


def _names(survey: ResultKind) -> str:
    return ", ".join(survey.charts) or "(there is none)"


def _chart(survey: ResultKind, name: str) -> Chart:
    if name not in survey.charts:
        what = f"upshift survey {survey.name} has no figure {name!r}"
        raise UsageError(what, where="--figure", remedy=f"there are: {_names(survey)}")
    return survey.charts[name]


def _one_figure(chart: Chart, scans: Sequence[Scan], options: FiguresOptions) -> None:
    """Prints one named figure as text, JSON or CSV, and draws it."""
    from survey.charts import draw_chart, print_chart

    table = chart.table(scans, options.beside is not None)
    if not table.rows:
        raise UsageError("these results have nothing for this figure", where=chart.name, remedy=chart.help)
    _write_pictures(options.picture or [], lambda kind: draw_chart(chart, table, kind))
    if options.as_csv:
        _print_csv([table.header, *table.rows])
    elif options.as_json:
        typer.echo(
            json.dumps({"figure": chart.name, "title": table.title, "rows": table.dicts(), "notes": table.notes})
        )
    else:
        print_chart(table, sys.stdout)


def _write_pictures(paths: Sequence[Path], draw: Callable[[str], bytes]) -> None:
    from core.files.disk import whole_file

    for path in paths:
        drawn = draw(path.suffix[1:])
        with whole_file(path) as temporary:
            temporary.write_bytes(drawn)


def survey_of(path: Path) -> ResultKind:
    """The kind of results that a file has. Raises UsageError for any other file."""
    from core.files import schemas, store
    from survey.objects import OBJECTS
    from survey.surveys import ALL

    with store.parquet(path, "survey's results") as file:
        kind = schemas.kind_in(file.schema_arrow)
    for survey in (*ALL.values(), OBJECTS):
        if survey.kind == kind:
            return survey
    raise UsageError(
        f"this holds {kind or 'no'} records of Upshift, not survey results",
        where=str(path),
        remedy=f"give a file written by one of these: upshift survey {', '.join(ALL)}; upshift crawl objects",
    )
