"""`upshift compare`. Heavy modules are imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from upshift.commands.tables import AsJson, Format, MetricName, Unproven

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
        MetricName,
        typer.Option("--metric", help="Compare download times [s], or mean throughputs [Mbit/s]."),
    ] = MetricName.TIME,
    layout: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
    unproven: Unproven = False,
    as_json: AsJson = False,
) -> None:
    """What moved from campaign A to campaign B (dates, kernels, client versions), and what differs between them.

    Per configuration: median time, share of ok downloads. Per comparison of both: median speed-up, share of faster
    pairs. Only targets count that both measured from the same vantage point. Each row has a 95 % interval over domains
    and a q-value: signed-rank test, adjusted for all rows (Benjamini-Hochberg). It is worse if q < 0.05 and the
    whole interval is beyond the threshold, equal if the whole interval is within, else undecided.

    Times also move with the network between the two dates; speed-ups are measured back to back and move less.

    Exit code 1: a row got worse (warm-ups, noise floors and effects of caches do not count); 0: none did; 2: wrong
    input.
    """
    from analysis.compare import result
    from analysis.measures.pairs import Metric
    from analysis.measures.selection import Selection

    selection = Selection(unproven=unproven)
    made = result.compare(a, b, threshold=threshold / 100, metric=Metric(metric.value), selection=selection)
    if as_json:
        typer.echo(json.dumps(made.document(), indent=1))
    elif layout is Format.TEXT:
        made.show(sys.stdout)
    else:
        typer.echo(made.sentence(), err=True)
        typer.echo(made.files("csv" if layout is Format.CSV else "md"), nl=False)
    if made.worse:
        raise typer.Exit(1)
