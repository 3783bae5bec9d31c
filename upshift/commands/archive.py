"""`upshift archive` and `upshift reproduce`: a folder to publish, and whether it makes its own results again."""

from __future__ import annotations

import json as json_format
import secrets
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from core import terminal
from core.errors import IncompleteError
from core.untrusted import plain
from upshift.archive_pages import CapturesOf, Identities


def archive(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Campaign folders: the --out of `upshift run`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="NAME", help="The archive, a new folder.")],
    licence: Annotated[
        str,
        typer.Option("--licence", metavar="SPDX", help="What others may do with the data, e.g. CC-BY-4.0, CC0-1.0."),
    ],
    author: Annotated[
        list[str], typer.Option("--author", metavar='"FAMILY, GIVEN <ORCID>"', help="Who made it; may be repeated.")
    ],
    captures: Annotated[
        CapturesOf,
        typer.Option("--captures", help="Captures in it: none (their findings are in the journals) or all."),
    ] = CapturesOf.NONE,
    names: Annotated[
        Identities,
        typer.Option(
            "--names",
            help="Domains, URLs, addresses and prefixes: keep, or hash with a key that stays beside the archive "
            "(NAME.key); journals, targets and the lab's paths stay out then.",
        ),
    ] = Identities.KEEP,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Pack campaigns for publication: data, tables, figures, report and the code, with SHA-256 of every file.

    NAME is a BagIt bag (RFC 8493): `sha256sum --check manifest-sha256.txt` in it checks it without Upshift, and
    `upshift reproduce NAME` rebuilds all results and compares them. Results are made from what is packed. Nothing is
    changed in DIR.
    """
    from upshift import archive as archives

    with terminal.show_progress(as_json=json) as progress:
        contents = archives.pack(
            folders,
            out,
            licence=licence,
            authors=author,
            captures=captures,
            names=names,
            now=datetime.now(UTC),
            key=secrets.token_bytes(32),
            progress=progress,
        )
    if json:
        typer.echo(json_format.dumps({"schema": 1, "archive": str(out), **asdict(contents)}))
        return
    if contents.kept:
        typer.echo(f"{contents.kept} downloads keep the rows that they had: what they were made from is lost", err=True)
    typer.echo(f"{out}: {', '.join(contents.folders)}; check it: upshift reproduce {out}")


def reproduce(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="An archive of `upshift archive`.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only compare every file with its SHA-256; make nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON line per file.")] = False,
) -> None:
    """Check every file of an archive, then make its tables, figures and report anew and compare them byte for byte.

    A line per file; exit code 1 if one was changed, is missing or was added, or differs when it is rebuilt. It needs
    no lab, no root and no network, and changes nothing in NAME.
    """
    from analysis.evidence.rows import ENGINE
    from core.files import bag
    from upshift import archive as archives

    def line(path: str, fault: str | None, good: str) -> bool:
        result = fault or good
        typer.echo(json_format.dumps({"file": path, "result": result}) if json else f"{result:<16}  {plain(path)}")
        return fault is not None

    files = 0
    wrong = 0
    for path, fault in bag.verify(name):
        files += 1
        if fault is not None:
            wrong += line(path, fault, "")
    if wrong:
        raise IncompleteError(f"{wrong} of {files} files are not as they were packed", remedy="copy the archive again")
    if not json:
        typer.echo(f"{name}: {files} files are as they were packed")
    if check:
        return
    contents = archives.read_contents(name)
    if contents.engine != ENGINE:
        typer.echo(f"made by {plain(contents.engine)}; this is {ENGINE}: trying all the same", err=True)
    with terminal.show_progress(as_json=json) as progress:
        compared = list(archives.reproduce(name, contents, progress))
    differing = sum(line(f"data/{path}", fault, "same bytes") for path, fault in compared)
    if differing:
        raise IncompleteError(
            f"{differing} of {len(compared)} rebuilt files differ",
            remedy="use the Upshift in data/software of the archive",
        )
    if not json:
        typer.echo(f"{name}: {len(compared)} of {len(compared)} rebuilt files have the same bytes")
