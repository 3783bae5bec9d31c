"""`upshift study`: published experiments with senders, repeated in the lab."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import AskedToStopError, UsageError, use_one_of
from core.options import ListingCommand, command_group

if TYPE_CHECKING:
    from core.files.study import Study

app = command_group("Published experiments with initial windows, pacing and pipelining, on real kernels in the lab.")

SHIPPED = Path(__file__).resolve().parent.parent / "studies"
"""The studies that come with Upshift, and their tables."""


def named(study: str) -> Study:
    """The study of a name, or in a file. Raises UsageError."""
    from core.files.study_file import load

    if study.endswith(".toml") or "/" in study:
        return load(Path(study), SHIPPED)
    path = SHIPPED / f"{study}.toml"
    if not path.is_file():
        names = [own.stem for own in sorted(SHIPPED.glob("*.toml"))]
        raise UsageError(f"there is no study {study!r}", where="STUDY", remedy=use_one_of(study, names))
    return load(path)


@app.command("list", cls=ListingCommand)
def list_studies(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Study files of your own.")] = None,
) -> None:
    """The studies that Upshift has: cells, flows, claims and expected values; with FILE, whether these are right."""
    from analysis.study.expected import compare
    from analysis.study.flows import Flows
    from core import terminal
    from core.files.study_file import load

    cells = [["study", "cells", "flows", "quick", "claims", "expected", "source"]]
    for path in (*sorted(SHIPPED.glob("*.toml")), *(files or ())):
        study = load(path, SHIPPED)
        whole, quick = (len(one.cells) * one.repetitions for one in (study, study.form(quick=True)))
        values = compare(Flows(study=study, samples={}))  # those that a report counts
        numbers = (len(study.cells), whole, quick, len(study.claims), len(values))
        cells.append([study.name, *map(str, numbers), study.source])
    to = terminal.console(sys.stdout)
    terminal.print_table(
        to, (cells,), title="Flows: repetitions of all cells, and with --quick.", words=("study", "source")
    )


def list_studies_listing() -> dict[str, list[tuple[str, str]]]:
    """What a study file can use, for `upshift study list --help`."""
    from core.files.study_terms import KNOBS, METRICS

    return {
        title: [(name, f"{one.help} [{one.unit}]" if one.unit else one.help) for name, one in terms.items()]
        for title, terms in (("Knobs of a cell", KNOBS), ("Metrics of a repetition", METRICS))
    }


@app.command()
def run(
    study: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="A study of upshift study list, or a file.")],
    out: Annotated[Path, typer.Option(help="Folder for all results; use the same one again to resume.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cells and repetitions: minutes.")] = False,
    lanes: Annotated[
        int, typer.Option(min=1, max=12, help="Most paths side by side; the study says which may be.")
    ] = 12,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start no flow after that, e.g. 2027-01-05T06:00Z, or 90min from now, and report what there is. The "
            "same command makes the rest. Default: the end of the study.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON lines.")] = False,
) -> None:
    """Run a study in the lab, or resume one; then verdicts, figures and page as `upshift study report`.

    Builds the lab `studies` and takes it down; prints about how long it will take. Flows that the host disturbed are
    void, and repeated up to three times. Exit code 1: as for `report`; 75: a fault of this host, after which the same
    command may succeed; 130: stopped by Ctrl-C, SIGTERM or --until, and the same command makes what is left.
    """
    from analysis.study import page
    from core.terminal import show_progress
    from downloader.control.stop_pause import parse_time
    from upshift.study.run import run_study

    loaded = named(study).form(quick=quick)
    end = math.inf if until is None else parse_time(until, where="--until", now=time.time())
    with show_progress(as_json=as_json) as progress:
        summary = run_study(
            loaded,
            out,
            lanes=lanes,
            progress=progress,
            say=lambda line: typer.echo(line, err=True),
            until=end,
        )
    ends = ", ".join(f"{count:,} {ending}" for ending, count in sorted(summary.endings.items(), reverse=True))
    typer.echo(f"Flows: {ends}; {summary.void:,} void attempts in this run.")
    if summary.left:
        page.report(out).show(sys.stdout)
        what = f"stopped (--until) with {summary.left:,} flows to go"
        raise AskedToStopError(what, where=str(out), remedy="the same command makes them")
    report(out)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of upshift study run.")],
) -> None:
    """Verdicts, figures and one HTML page of a study that was run; needs neither the lab nor root.

    Writes cells.csv, expected.csv, claims.csv, figures/ and report.html. Exit code 1: an expected value is outside of
    its tolerance or missing; a claim that fails is a finding, and does not change the exit code.
    """
    from analysis.study import page

    made = page.report(folder)
    made.show(sys.stdout)
    if made.wrong:
        raise typer.Exit(1)
