"""`upshift tables`, `figures`, `report`; `kpis` is found here too and lives in `analysis.cli_kpis`.

Heavy modules (numpy, pyarrow, matplotlib, jinja2) are imported when a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from analysis.dataset import Dataset
    from analysis.speedup import SpeedupRow
    from analysis.tables import ConfigurationRow, Table1Row


class Format(StrEnum):
    """How tables are printed."""

    TEXT = "text"
    CSV = "csv"
    MARKDOWN = "markdown"


class MetricName(StrEnum):
    """See analysis.speedup.Metric."""

    TIME = "time"
    THROUGHPUT = "throughput"


class GroupingName(StrEnum):
    """See analysis.tables.Grouping."""

    VANTAGE = "vantage"
    PROVIDER = "provider"
    ITERATION = "iteration"


class Which(StrEnum):
    """Which of the tables to print."""

    ALL = "all"
    DOWNLOADS = "1"
    SPEEDUPS = "2"


Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Campaign folders: the --out of `upshift run`.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the results; default: DIR itself, for several DIR/combined of the first."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the bootstrap over domains.")]
Metrics = Annotated[
    MetricName,
    typer.Option(
        "--metric",
        help="Speed-up as a ratio of download times [s], or of mean throughputs [Mbit/s] as in the paper "
        "(retransmitted bytes count as speed).",
    ),
]
Reference = Annotated[
    str, typer.Option("--reference", help="Configuration that those are compared with which the paper does not know.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def __getattr__(name: str) -> Any:
    if name == "kpis":
        return importlib.import_module("analysis.cli_kpis").kpis
    raise AttributeError(name)


def tables(
    folders: Folders,
    metric: Metrics = MetricName.TIME,
    by: Annotated[
        GroupingName | None, typer.Option("--by", help="Split Table 2 by vantage point, provider or iteration.")
    ] = None,
    layout: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
    which: Annotated[Which, typer.Option("--table", help="Print only Table 1 or Table 2.")] = Which.ALL,
    reference: Reference = "BL",
    seed: Seed = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tables 1 and 2: successful downloads, and shares of measurement runs by speed-up [per cent; in CSV 0 to 1].

    A speed-up of 1.2 means: 1.2 times as fast as the reference, in the same measurement run. Bins are half-open, [low,
    high). Intervals are 95 %, from a bootstrap over domains; below 10 domains there are none. BL2 against BL is the
    noise floor. Written to DIR/tables/: table1, configurations and table2 as .csv and .md.
    """
    from analysis import dataset, render
    from analysis import tables as tabling
    from analysis.speedup import Metric

    data = dataset.load(folders)
    first, states = tabling.table1(data), tabling.configurations(data)
    grouping = tabling.Grouping(by.value) if by else None
    second = tabling.table2(data, metric=Metric(metric.value), by=grouping, reference=reference, seed=seed)
    target = dataset.output_folder(folders, out) / "tables"
    _write_tables(target, first, states, second, by.value if by else None)
    if as_json:
        document: dict[str, Any] = {"schema": 1, "metric": metric.value, "by": by.value if by else None, "seed": seed}
        document |= {"table1": render.table1_rows(first), "configurations": render.configuration_rows(states)}
        document |= {"table2": render.table2_rows(second, by=by.value if by else None), "notes": list(data.notes)}
        document |= {"written": str(target)}
        typer.echo(json.dumps(render.finite(document), indent=1))
    elif layout is Format.TEXT:
        _print_text(data, first, states, second, which=which, metric=metric, by=by)
        typer.echo(f"Written to {target}/ as CSV and Markdown.", err=True)
    else:
        _print_files(target, which, "csv" if layout is Format.CSV else "md")


def figures(folders: Folders, out: Out = None, as_json: AsJson = False) -> None:
    """Figures 1 to 3: CDFs of mean throughput [Mbit/s] and RTT [ms] per vantage point, configuration and provider.

    Written as SVG and PNG to DIR/figures/; the paths are printed. Only downloads that are ok, warm-ups left out.
    """
    from analysis import dataset
    from analysis import figures as drawing

    data = dataset.load(folders)
    written = drawing.write(data, dataset.output_folder(folders, out) / "figures")
    if as_json:
        typer.echo(json.dumps({"schema": 1, "figures": [str(path) for path in written], "notes": list(data.notes)}))
        return
    for note in data.notes:
        typer.echo(note, err=True)
    for path in written:
        typer.echo(path)


def report(
    folders: Folders,
    metric: Metrics = MetricName.TIME,
    reference: Reference = "BL",
    targets: Annotated[
        int, typer.Option("--targets", min=0, help="Targets shown in detail, those with failures first.")
    ] = 200,
    seed: Seed = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Everything in one HTML file that needs no network: DIR/report/index.html. Its path is printed."""
    from analysis import dataset
    from analysis import report as reporting
    from analysis.speedup import Metric

    data = dataset.load(folders)
    path = dataset.output_folder(folders, out) / "report" / "index.html"
    options = reporting.Options(metric=Metric(metric.value), reference=reference, targets=targets, seed=seed)
    reporting.write(data, path, options)
    typer.echo(json.dumps({"schema": 1, "report": str(path), "notes": list(data.notes)}) if as_json else path)


def _write_tables(
    folder: Path, first: list[Table1Row], states: list[ConfigurationRow], second: list[SpeedupRow], by: str | None
) -> None:
    from analysis import render
    from analysis.dataset import writing
    from upshift import store

    header = (by, *render.TABLE2_CSV) if by else render.TABLE2_CSV
    texts = {
        "table1.csv": render.csv_text(render.TABLE1_CSV, render.table1_rows(first)),
        "table1.md": render.markdown(render.table1_wide(first)),
        "configurations.csv": render.csv_text(render.CONFIGURATIONS_CSV, render.configuration_rows(states)),
        "configurations.md": render.markdown(render.configuration_cells(states)),
        "table2.csv": render.csv_text(header, render.table2_rows(second, by=by)),
        "table2.md": "\n".join(
            (f"**{by}: {render.plain(group)}**\n\n" if by else "") + render.markdown(render.table2_cells(members))
            for group, members in _grouped(second)
        ),
    }
    with writing(folder):
        for name, text in texts.items():
            store.write_text(folder / name, text)


def _grouped(rows: list[SpeedupRow]) -> list[tuple[str, list[SpeedupRow]]]:
    groups: dict[str, list[SpeedupRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.items())


def _print_files(folder: Path, which: Which, suffix: str) -> None:
    names = {Which.DOWNLOADS: ["table1"], Which.SPEEDUPS: ["table2"]}.get(which, ["table1", "configurations", "table2"])
    typer.echo("\n".join((folder / f"{name}.{suffix}").read_text(encoding="utf-8") for name in names), nl=False)


def _print_text(
    data: Dataset,
    first: list[Table1Row],
    states: list[ConfigurationRow],
    second: list[SpeedupRow],
    *,
    which: Which,
    metric: MetricName,
    by: GroupingName | None,
) -> None:
    import sys

    from rich.console import Console

    from analysis import render
    from analysis.speedup import Metric

    console = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        console.width = 120
    if which is not Which.SPEEDUPS:
        title = "Table 1: successful downloads per vantage point and provider (warm-ups left out)"
        console.print(render.terminal_table(render.table1_wide(first), title=title, left=2))
        title = "What became of the downloads of each configuration"
        console.print(render.terminal_table(render.configuration_cells(states), title=title))
    if which is not Which.DOWNLOADS:
        words = render.METRIC_WORDS[Metric(metric.value)]
        for group, members in _grouped(second):
            title = "Table 2: share of measurement runs by speed-up [%]" + (f", {by.value} {group}" if by else "")
            table, detail = render.fitting_table2(members, console, title=title)
            console.print(table)
            for note in render.table2_notes(members):
                console.print(f"  {render.plain(note)}")
            if detail < 2:
                console.print("  More (intervals, bins) in table2.csv, or in a wider terminal.")
        console.print(f"  Speed-up: {words}. [ ]: 95 % interval, bootstrap over domains. BL2 / BL: noise floor.")
    for note in data.notes:
        console.print(f"  {render.plain(note)}")
