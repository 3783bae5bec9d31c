"""The command `upshift snapshot`."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UsageError
from core.files.disk import size_text


def snapshot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Campaign folder: the --out of `upshift run`.")],
    free: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead, remove the captures in this snapshot.json, which were copied and verified; what was found "
            "in them stays in the journal.",
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HASH", help="With --free: only if FILE has this SHA-256.")
    ] = None,
    restore: Annotated[
        Path | None,
        typer.Option(metavar="JOURNAL", help="Instead, go on from this collected journal, if --here has none."),
    ] = None,
    here: Annotated[str, typer.Option(metavar="NAME", help="With --restore: the vantage point.")] = "",
    plan: Annotated[
        str | None, typer.Option(metavar="SHA256", help="With --restore: hash of the plan that it has to be of.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write DIR/snapshot: what to copy of a campaign's folder, with SHA-256, also while the campaign runs.

    It has copies of the journals and of small files, and lists the captures to which these journals refer. A capture
    is read for its hash once. `sha256sum --check` reads captures.sha256, and `rsync --files-from` captures.list.
    """
    from downloader.execution import snapshot as snapshots

    if restore is not None:
        if not here:
            raise UsageError("the vantage point is not named", where="--restore", remedy="add --here NAME")
        done = snapshots.restore(folder, restore, here, plan_sha256=plan)
        said = f"goes on from {restore}" if done else "has a journal, which stays"
        typer.echo(json_format.dumps({"restored": done}) if json else f"{folder}: {here} {said}")
        return
    if free is not None:
        freed = snapshots.free(folder, free, sha256=sha256)
        sentence = f"{folder}: {freed.captures} captures removed, {size_text(freed.bytes)}"
        typer.echo(json_format.dumps(asdict(freed)) if json else sentence)
        return
    taken = snapshots.take(folder)
    if json:
        typer.echo(json_format.dumps(taken.document()))
        return
    size = size_text(sum(file.bytes for file in taken.files))
    typer.echo(f"{folder / snapshots.FOLDER}: {len(taken.files)} files, {size}, {len(taken.captures)} of them captures")
