"""`upshift survey figures`."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from upshift.errors import UsageError


def figures(
    files: Annotated[list[Path], typer.Argument(help="Results of `upshift survey options` (Parquet), taken together.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document; shares from 0 to 1.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV; shares from 0 to 1.")] = False,
    picture: Annotated[
        list[Path] | None, typer.Option(help="Draw them here, too: .svg or .png; may be repeated.")
    ] = None,
) -> None:
    """Shares of hosts that negotiate ECN, SACK, window scaling, timestamps: in all, by rank, by provider."""
    from survey.options import figures as counted
    from survey.options.record import KIND, OptionsRecord
    from upshift.files import store

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other", remedy="leave one out")
    for path in picture or []:
        if path.suffix not in (".svg", ".png"):
            raise UsageError(f"{path} is no picture that we draw", where="--picture", remedy="end it in .svg or .png")
    records = [record for path in files for record in store.read_rows(path, KIND, OptionsRecord)]
    if not records:
        raise UsageError("there is no record in it", where=", ".join(map(str, files)), remedy="survey more domains")
    found = counted.figures(records)
    for path in picture or []:
        from survey.options.picture import draw

        drawn = draw(found, path.suffix[1:])
        with store.whole_file(path) as temporary:
            temporary.write_bytes(drawn)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(counted.as_rows(found))
    elif as_json:
        typer.echo(json.dumps(counted.as_document(found)))
    else:
        counted.print_figures(found, sys.stdout)
