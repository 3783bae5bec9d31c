"""The commands that put stages and places together."""

from __future__ import annotations

import shutil
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from upshift import progress as progress_display
from upshift.errors import IncompleteError, UsageError

if TYPE_CHECKING:
    from downloader.client import ClientOption
    from downloader.run import RunSummary

AsJson = Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")]


def run(
    campaign: Annotated[
        Path, typer.Argument(help="Campaign file (TOML); examples/ has some.", metavar="CAMPAIGN.toml")
    ],
    out: Annotated[Path, typer.Option(help="Folder for all results; the same one again goes on where it stopped.")],
    order: Annotated[
        str | None, typer.Option(help="balanced or published (the paper's fixed order). Default: the campaign's.")
    ] = None,
    vantage: Annotated[list[str] | None, typer.Option(help="Only this vantage point; may be repeated.")] = None,
    isolation: Annotated[
        str | None,
        typer.Option(help="netns or host: where kernel settings are changed outside a lab. Default: the campaign's."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Run a campaign, or resume the one in a folder.

    Ends with 0 when every planned download is recorded, whatever its outcome, and with 1 when the plan is incomplete.
    """
    from upshift.compose.run import run_file

    with progress_display.show(as_json=json) as progress:
        summary = run_file(
            campaign, out, progress=progress, order=order, vantage_points=vantage or (), isolation=isolation
        )
    typer.echo(summary.as_json() if json else summary.sentence(out))
    _require_whole(summary, out)


def run_listing() -> dict[str, list[tuple[str, str]]]:
    """What a campaign file can name: for `upshift run --help`."""
    from downloader import clients, factors

    return {
        "Factors (field `permute`, and `levels` of a configuration)": [
            (factor.name, f"{factor.help} Levels: {factor.accepted}. [default: {factor.default}]")
            for factor in factors.ALL.values()
        ],
        "Clients (field `client` of a configuration)": [
            (client.name, " ".join([client.help, *(_option(option) for option in client.options)]))
            for client in clients.ALL.values()
        ],
    }


def _option(option: ClientOption) -> str:
    return f"Option {option.name}: {option.help.rstrip('.')} [default: {option.default}]."


def _require_whole(summary: RunSummary, out: Path) -> None:
    if not summary.complete:
        raise IncompleteError(
            f"{summary.planned - summary.recorded} of {summary.planned} planned downloads are not recorded",
            where=str(out),
            remedy="give the same command again",
        )


def demo(
    out: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("demo"),
    topology: Annotated[str, typer.Option(help="Lab: anrw (three vantage points, minutes) or small.")] = "anrw",
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the folder of an earlier demo first.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines, no tables.")] = False,
) -> None:
    """Everything in the lab: list, crawl, map, survey, compose, campaign, report.

    A folder of a demo that was interrupted goes on, and one that is finished is reported again.
    """
    from upshift.compose.demo import MARK, present, run_demo

    if fresh and out.exists():
        if any(out.iterdir()) and not (out / MARK).exists():
            raise UsageError(
                "this folder was not made by a demo, so --fresh does not remove it",
                where=str(out),
                remedy="name another folder by --out",
            )
        shutil.rmtree(out)

    def say(line: str) -> None:
        typer.echo(line, err=json)

    summary = run_demo(out, topology=topology, say=say, as_json=json)
    _require_whole(summary, out)
    made = present(out)
    if json:
        typer.echo(summary.as_json())
        typer.echo(dumps({"report": str(made.report)}))
        return
    made.tables.show(sys.stdout)
    typer.echo(summary.sentence(out))
    typer.echo(f"report: {made.report}")
