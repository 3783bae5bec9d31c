"""`upshift inspect`: the tables of a folder again, from journals and captures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core import terminal as progress_display
from core.errors import IncompleteError

if TYPE_CHECKING:
    from analysis.evidence import Inspection

_MOST_NAMED = 20
"""Most lost captures that are listed by name."""


def inspect(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Campaign folders: what `upshift run` writes to --out.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Make the tables of the folders together, in this folder: for the folders of hosts that shared a "
            "campaign (upshift run --here). Journals and captures stay where they are.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Captures read at once. Default: one per core.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Progress and one result per folder as JSON lines.")] = False,
) -> None:
    """Make downloads.parquet with KPIs and the proof of treatment again, from journals and captures.

    It needs no network, no root and no lab, so it works on a copy of a folder on any machine. Rows that cannot be made
    again because their capture is missing are kept and named, and the exit code is 1.
    """
    from analysis.evidence import inspect_campaign, link_together
    from downloader.factors import ALL as FACTORS

    if out is not None:
        link_together(folders, out)
        folders = [out]
    inspections = []
    for folder in folders:
        with progress_display.show_progress(as_json=json) as progress:
            inspections.append(inspect_campaign(folder, factors=FACTORS, progress=progress, jobs=jobs))
        typer.echo(dumps(asdict(inspections[-1])) if json else inspections[-1].sentence())
    require_evidence(inspections)


def require_evidence(inspections: Sequence[Inspection]) -> None:
    """Lists what is lost; exit code 1 if anything is."""
    lost = [f"{inspection.folder}/{lost.path}: {lost.why}" for inspection in inspections for lost in inspection.lost]
    for line in lost[:_MOST_NAMED]:
        typer.echo(f"upshift: {line}", err=True)
    if len(lost) > _MOST_NAMED:
        typer.echo(f"upshift: and {len(lost) - _MOST_NAMED} more; --json names all", err=True)
    if lost:
        kept = sum(inspection.kept for inspection in inspections)
        raise IncompleteError(
            f"{len(lost)} captures or journals are missing or damaged; {kept} downloads keep their earlier rows",
            remedy="restore them, then run upshift inspect",
        )
