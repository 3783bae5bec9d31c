"""`upshift tables`, `figures`, `report` and `compare`; `kpis` is in `upshift.commands.kpis`.

Heavy modules (numpy, pyarrow, matplotlib, jinja2) are imported when a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TextIO

import typer

from analysis.measures.rows import Grouping, Metric
from core.errors import UsageError
from core.options import with_options
from core.paper import Paper

Format = Literal["text", "csv", "markdown"]

_FILES = {"1": "table1", "2": "table2", "clients": "client_effects"}
"""Value of --table -> the table's name among the files, where that is another one."""

_SPEEDUP = (
    "Speed-up as a ratio of download times [s], or of mean throughputs [Mbit/s] as in the paper (retransmitted bytes "
    "count as speed)."
)

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Campaign folders: the --out of `upshift run`.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the results; default: DIR itself, for several DIR/combined of the first."),
]
Metrics = Annotated[Metric, typer.Option("--metric", help=_SPEEDUP)]
Unproven = Annotated[
    bool,
    typer.Option(
        "--unproven",
        help="Include downloads whose treatment could not be determined (e.g. without a capture).",
    ),
]
OnlyHits = Annotated[
    bool,
    typer.Option(
        "--only-hits",
        help="Keep only measurement runs in which every download after the warm-up came from the edge's cache, as its "
        "response headers show.",
    ),
]
UnlimitedOnly = Annotated[
    bool,
    typer.Option(
        "--unlimited-only",
        help="Leave out downloads above 70 % of their client's ceiling, as `upshift doctor --calibrate` measured it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """Which tables, of which downloads, and how they are printed."""

    metric: Annotated[
        Metric | None,
        typer.Option("--metric", show_default="time; throughput with quirks or --beside", help=_SPEEDUP),
    ] = None
    by: Annotated[
        Grouping | None, typer.Option("--by", help="Split Table 2 by vantage point, provider or iteration.")
    ] = None
    layout: Annotated[Format, typer.Option("--format", help="How to print.")] = "text"
    latex: Annotated[
        bool, typer.Option("--latex", help="Print as LaTeX (booktabs); with --table 2 what a paper needs.")
    ] = False
    which: Annotated[
        Literal["all", "1", "2", "splits", "dose", "clients", "limiters"],
        typer.Option(
            "--table",
            help="Print only Table 1, Table 2, Table 2 by what limited the reference or by dose, what "
            "clients do, or limiters.",
        ),
    ] = "all"
    unproven: Unproven = False
    only_hits: OnlyHits = False
    unlimited_only: UnlimitedOnly = False
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Read the data as the published pipeline would: by all its quirks.")
    ] = False
    quirk: Annotated[
        list[str] | None,
        typer.Option(
            "--quirk",
            metavar="NAME",
            help="By this quirk; may be repeated. Quirks change single downloads: at most 500,000 of them.",
        ),
    ] = None
    quirk_effects: Annotated[
        bool,
        typer.Option(
            "--quirk-effects",
            help="Print instead how far each quirk (of --quirk; else all) alone, and all together, move each cell of "
            "Table 2, and retransmissions, ECE and CWR.",
        ),
    ] = False
    beside: Annotated[
        Paper | None, typer.Option("--beside", help="Print instead Tables 1 and 2 beside those of the paper.")
    ] = None
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", help="Write pairs.parquet also of more than 500,000 downloads: it takes longer than all tables."
        ),
    ] = False

    def refuse_contradictions(self, *, as_json: bool) -> None:
        """Raises UsageError for options that cannot be given together."""
        printed = "--latex" if self.latex else None if self.layout == "text" else "--format"
        if as_json and printed:
            raise UsageError(f"{printed} cannot be given with it", where="--json", remedy="give one of the two")
        if self.latex and self.layout != "text":
            raise UsageError("--format cannot be given with it", where="--latex", remedy="give one of the two")
        if self.pairs and (self.quirk or self.as_published or self.quirk_effects or self.beside):
            what = "pairs are written as they are, without quirks and without a paper beside them"
            raise UsageError(what, where="--pairs", remedy="run `upshift tables --pairs` by itself")
        option = "--quirk-effects" if self.quirk_effects else "--beside"
        if self.quirk_effects and (self.beside or self.as_published):
            other = "--beside" if self.beside else "--as-published"
            raise UsageError(f"{other} cannot be given with it", where=option, remedy="give one of the two")
        if (self.quirk_effects or self.beside) and (self.by or self.latex or self.which != "all"):
            other = "--by" if self.by else "--latex" if self.latex else "--table"
            raise UsageError(f"{other} cannot be given with it", where=option, remedy="give one of the two")


@with_options
def tables(
    folders: Folders,
    options: TablesOptions,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tables 1 and 2: successful downloads, and shares of measurement runs by speed-up [per cent; in CSV 0 to 1].

    A speed-up of 1.2 means: 1.2 times as fast as the reference, in the same measurement run. Bins are half-open, [low,
    high). Intervals are 95 %, with domains as their unit (of the typical speed-up providers, where their effects may
    differ); below 10 domains there are none, and below 10 pairs there are counts instead of percentages. The rows are
    the comparisons of the campaign file (`[[comparisons]]`). The typical speed-up is Hodges and Lehmann's estimate,
    gain and lose are the domains that are at least 2 % faster or slower (in brackets: by chance alone), q is the false
    discovery rate over all tests;
    the verdict is faster or slower (at least 2 %, perhaps less, or at these providers: counted once each, their
    interval holds 1), equivalent, mixed by what tells who gains, host too busy, or undecided.
    By dose, each row of an option is split into runs in which it took effect (ECN: a mark was seen) and others.
    Written to DIR/tables/: table1, configurations, table2, splits, dose, client_effects and limiters as .csv, .md, and
    pairs.parquet, a row per pair; what is made with quirks or beside a paper to DIR/tables/published/.
    """
    from analysis import api
    from analysis.measures import dataset
    from analysis.measures.folders import output_folder
    from analysis.measures.selection import Selection
    from analysis.report import published
    from analysis.report.beside import beside as lay_beside

    special = options.quirk_effects or options.beside is not None
    options.refuse_contradictions(as_json=as_json)
    chosen_metric, quirks = published.choose(
        options.quirk or (), as_published=options.as_published, metric=options.metric
    )
    if special and options.metric is None:
        chosen_metric = Metric.THROUGHPUT
    data = dataset.load_few(folders) if quirks or special else dataset.load(folders)
    selection = Selection(unproven=options.unproven, only_hits=options.only_hits, unlimited_only=options.unlimited_only)
    target = output_folder(folders, out) / "tables"
    if quirks or special:
        target /= "published"
    if options.quirk_effects:
        moved = published.effects(data, metric=chosen_metric, chosen=quirks, selection=selection)
        _output(moved, target, options.layout, as_json)
        return
    made = api.make_tables(data, metric=chosen_metric, by=options.by, selection=selection, quirks=quirks)
    if options.beside is not None:
        _output(lay_beside(options.beside, data, made.table2), target, options.layout, as_json)
        return
    names = made.names if options.which == "all" else (_FILES.get(options.which, options.which),)
    written = made.write(target, pairs=options.pairs)
    if not (as_json or quirks) and target / "pairs.parquet" not in written:
        typer.echo(f"Without pairs.parquet, of more than {dataset.MOST_RECORDS:,} downloads: see --pairs.", err=True)
    if as_json:
        typer.echo(json.dumps(made.document(names) | {"written": str(target)}, indent=1))
    elif options.layout == "text" and not options.latex:
        made.show(sys.stdout, names)
        typer.echo(f"Written to {target}/ as CSV and Markdown.", err=True)
    else:
        typer.echo(made.head(), err=True)
        typer.echo(made.ceilings(), err=True)
        suffix = "tex" if options.latex else "csv" if options.layout == "csv" else "md"
        typer.echo(made.files(suffix, names), nl=False)


def tables_listing() -> dict[str, list[tuple[str, str]]]:
    """The quirks of the published pipeline, for `upshift tables --help`."""
    from analysis.measures.quirks import ALL

    return {"Quirks": [(one.name, f"{one.help} Moves: {one.affects}. Source: {one.source}.") for one in ALL.values()]}


class _Shown(Protocol):
    """What is printed in any of the formats."""

    def show(self, stream: TextIO) -> None: ...
    def files(self, suffix: str) -> str: ...
    def document(self) -> dict[str, Any]: ...
    def write(self, folder: Path) -> None: ...


def _output(made: _Shown, target: Path, layout: Format, as_json: bool) -> None:
    made.write(target)
    if as_json:
        typer.echo(json.dumps(made.document() | {"written": str(target)}, indent=1))
    elif layout == "text":
        made.show(sys.stdout)
        typer.echo(f"Written to {target}/.", err=True)
    else:
        typer.echo(made.files("csv" if layout == "csv" else "md"), nl=False)


def figures(
    folders: Folders,
    unproven: Unproven = False,
    unlimited_only: UnlimitedOnly = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Figures 1 to 3: CDFs of mean throughput [Mbit/s] and handshake RTT [ms] by place, configuration and provider.

    Written as SVG and PNG to DIR/figures/; the paths are printed. Only downloads that are ok with
    proven treatment, without warm-ups. Hatched: above 70 % of the client's ceiling.
    """
    from analysis.measures import dataset
    from analysis.measures import tables as counting
    from analysis.measures.folders import output_folder
    from analysis.measures.selection import Selection, client_limits
    from analysis.report import figures as drawing
    from analysis.report import findings

    data = dataset.load(folders)
    selection = Selection(unproven=unproven, unlimited_only=unlimited_only)
    written = drawing.write(data, output_folder(folders, out) / "figures", selection=selection)
    if as_json:
        typer.echo(json.dumps({"schema": 1, "figures": [str(path) for path in written], "notes": list(data.notes)}))
        return
    typer.echo(findings.treatment_sentence(counting.configurations(data), unproven=unproven), err=True)
    typer.echo(findings.ceiling_sentence(client_limits(data.downloads), unlimited_only=unlimited_only), err=True)
    for note in data.notes:
        typer.echo(note, err=True)
    for path in written:
        typer.echo(path)


def report(
    folders: Folders,
    metric: Metrics = Metric.TIME,
    unproven: Unproven = False,
    only_hits: OnlyHits = False,
    unlimited_only: UnlimitedOnly = False,
    targets: Annotated[
        int, typer.Option("--targets", min=0, help="Targets shown in detail, those with failures first.")
    ] = 200,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Everything in one HTML file that needs no network: DIR/report/index.html.

    Its path is printed, and on standard error its first screen: the question, the answer for each comparison, the noise
    floor.

    Tables and figures are of all downloads, however many; what lists, drawings and targets leave out is said there.
    """
    from analysis.measures import dataset
    from analysis.measures.folders import output_folder
    from analysis.measures.selection import Selection
    from analysis.report import report as reporting

    data = dataset.load(folders)
    path = output_folder(folders, out) / "report" / "index.html"
    selection = Selection(unproven=unproven, only_hits=only_hits, unlimited_only=unlimited_only)
    options = reporting.ReportOptions(metric=metric, selection=selection, targets=targets)
    summary = reporting.write(data, path, options)
    if not as_json:
        summary.show(sys.stderr)
    typer.echo(json.dumps({"schema": 1, "report": str(path), "notes": list(data.notes)}) if as_json else path)


Side = Annotated[Path, typer.Argument(help="Campaign folder: the --out of `upshift run`.")]


def compare(
    a: Side,
    b: Side,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold",
            min=0,
            max=100,
            metavar="PERCENT",
            help="What counts as worse, better or equal: per cent of times, throughputs and speed-ups, percentage "
            "points of shares.",
        ),
    ] = 5.0,
    metric: Annotated[
        Metric,
        typer.Option("--metric", help="Compare download times [s], or mean throughputs [Mbit/s]."),
    ] = Metric.TIME,
    layout: Annotated[Format, typer.Option("--format", help="How to print.")] = "text",
    unproven: Unproven = False,
    as_json: AsJson = False,
) -> None:
    """What moved from campaign A to campaign B (dates, kernels, client versions), and what differs between them.

    Per configuration: median time, share of ok downloads. Per comparison of both: median speed-up, share of faster
    pairs. Only targets count that both measured from the same vantage point. Each row has a 95 % interval over domains
    and a q-value: signed-rank test, adjusted for all rows (Benjamini-Hochberg). It is worse if q < 0.05 and the
    whole interval is beyond the threshold, equal if the whole interval is within, else undecided.

    Times also move with the network between the two dates; speed-ups are measured back to back and move less.

    Exit code 1: a row got worse (warm-ups, noise floors, effects of caches and what a busy host slowed do not count);
    0: none did; 2: wrong input.
    """
    from analysis.compare import result
    from analysis.measures.selection import Selection

    selection = Selection(unproven=unproven)
    made = result.compare(a, b, threshold=threshold / 100, metric=metric, selection=selection)
    if as_json:
        typer.echo(json.dumps(made.document(), indent=1))
    elif layout == "text":
        made.show(sys.stdout)
    else:
        typer.echo(made.sentence(), err=True)
        typer.echo(made.files("csv" if layout == "csv" else "md"), nl=False)
    if made.worse:
        raise typer.Exit(1)
