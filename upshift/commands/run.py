"""`upshift run`, a campaign or the rest of one that was interrupted; `upshift demo`, the whole pipeline in the lab."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core import terminal as progress_display
from core.errors import AskedToStopError, IncompleteError, PlaceError, UnusableError, UsageError
from core.files.disk import is_running
from core.options import with_options
from core.system import signals
from upshift.commands.inspect import require_evidence
from upshift.run_options import LetCpusSleep, RunOptions

if TYPE_CHECKING:
    from analysis.evidence import Inspection
    from downloader.client import ClientOption
    from downloader.execution.run import RunSummary

MOST_VOID = 0.1
"""Share of measurement runs that may be void: above, a campaign is not what was planned."""

AsJson = Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")]


@with_options
def run(
    campaign: Annotated[
        Path, typer.Argument(help="Campaign file (TOML); examples/ has some.", metavar="CAMPAIGN.toml")
    ],
    out: Annotated[Path, typer.Option(help="Folder for all results; use the same one again to resume.")],
    options: RunOptions,
    json: AsJson = False,
) -> None:
    """Run a campaign, or resume the one in a folder.

    Exit code 0 if every planned download is recorded, ok or not, or if the rule to stop early is met; 1 if the plan is
    incomplete, no download is ok, more than a tenth of the measurement runs are void, or earlier captures are missing;
    75 for a fault of this host, after which the same command may succeed; 130 if it was stopped before its end, by
    Ctrl-C, SIGTERM, SIGHUP, `upshift stop` or --until. The tables are made at the end; of a campaign that was stopped
    `upshift inspect` makes them.
    """
    from upshift.campaign import run_file

    with _stopped_in(out), progress_display.show_progress(as_json=json) as progress:
        summary, inspection = run_file(campaign, out, options, progress=progress)
    if json:
        typer.echo(dumps({**summary.document(), "inspection": inspection and asdict(inspection)}))
    else:
        typer.echo(summary.sentence(out))
        if inspection is not None:
            typer.echo(inspection.sentence())
    require_evidence([complete(summary, inspection, out)])
    if not json and summary.void:
        typer.echo(f"{out}: {summary.not_usable}")
    if not json:
        typer.echo(f"next: {shlex.join(['upshift', 'report', str(out)])}")


def run_listing() -> dict[str, list[tuple[str, str]]]:
    """What a campaign file can use, for `upshift run --help`."""
    from downloader import clients, factors, presets, quirks

    return {
        "Presets (field `configurations`)": [(preset.name, preset.help) for preset in presets.ALL.values()],
        "Factors (field `permute`, and `levels` of a configuration)": [
            (factor.name, f"{factor.help} Levels: {factor.accepted}. [default: {factor.default}]")
            for factor in factors.ALL.values()
        ],
        "Clients (field `client` of a configuration)": [
            (client.name, " ".join([client.help, *(_option(option) for option in client.options)]))
            for client in clients.ALL.values()
        ],
        'Quirks of the published code (field `published_quirks`, with order = "published")': [
            (quirk.name, f"{quirk.help} Source: {quirk.source}.") for quirk in quirks.ALL.values()
        ],
    }


def _option(option: ClientOption) -> str:
    return f"Option {option.name}: {option.help.rstrip('.')} [default: {option.default}]."


def complete(summary: RunSummary, inspection: Inspection | None, out: Path) -> Inspection:
    """The inspection of a campaign that is complete."""
    left = f"{summary.planned - summary.recorded} of {summary.planned} planned downloads are not recorded"
    if inspection is None:
        raise AskedToStopError(f"stopped ({summary.ended_by}); {left}", where=str(out), remedy=_tables(out))
    if not summary.complete:
        raise IncompleteError(left, where=str(out), remedy="run the same command again")
    if not summary.ok:
        cause = next(iter(summary.causes), "unknown")
        raise UnusableError(f"no download is ok (most often: {cause})", where=str(out), remedy="see upshift tables")
    if sum(summary.void.values()) > MOST_VOID * summary.runs:
        raise UnusableError(summary.not_usable, where=str(out), remedy="run again on a quieter host, in another --out")
    return inspection


@contextlib.contextmanager
def _stopped_in(out: Path) -> Iterator[None]:
    """Says how to make the tables of a campaign that is stopped in the block, by a signal or while it makes them."""
    try:
        yield
    except (KeyboardInterrupt, AskedToStopError) as stop:
        if not any(out.glob("vantage/*/journal.sqlite")):
            raise
        what = stop.what if isinstance(stop, AskedToStopError) else f"stopped ({signals.reason()})"
        raise AskedToStopError(what, where=str(out), remedy=_tables(out)) from None


def _tables(out: Path) -> str:
    """What makes the tables of a campaign that was stopped."""
    return f"for tables of what is recorded: {shlex.join(['upshift', 'inspect', str(out)])}"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("demo"),
    topology: Annotated[str, typer.Option(help="Lab: anrw (three vantage points, minutes) or small.")] = "anrw",
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the folder of an earlier demo first.")] = False,
    let_cpus_sleep: LetCpusSleep = False,
    json: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines, no tables.")] = False,
) -> None:
    """Everything in the lab: list, crawl, map, survey, compose, campaign, report.

    An interrupted demo is resumed; of a finished one, tables and report are made again.
    """
    from analysis import api
    from upshift.demo import MARK, run_demo

    if fresh and out.exists():
        if any(out.iterdir()) and not (out / MARK).exists():
            raise UsageError(
                "this folder was not made by a demo, so --fresh does not remove it",
                where=str(out),
                remedy="use another --out",
            )
        if is_running(out):
            remedy = f"stop it: {shlex.join(['upshift', 'stop', str(out)])}"
            raise PlaceError("a demo is running in this folder", where=str(out), remedy=remedy)
        shutil.rmtree(out)

    def say(line: str) -> None:
        typer.echo(line, err=json)

    summary, inspection = run_demo(out, topology=topology, say=say, as_json=json, let_cpus_sleep=let_cpus_sleep)
    inspection = complete(summary, inspection, out)
    made = api.make_all([out])
    if json:
        typer.echo(dumps({**summary.document(), "inspection": asdict(inspection)}))
        typer.echo(dumps({"report": str(made.report)}))
    else:
        made.tables.show(sys.stdout)
        made.summary.show(sys.stdout)
        typer.echo(summary.sentence(out))
        typer.echo(inspection.sentence())
        typer.echo(f"report: {made.report}")
    require_evidence([inspection])
