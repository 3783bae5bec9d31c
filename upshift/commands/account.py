"""The command `upshift account`."""

from __future__ import annotations

import json as json_format
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from core import terminal
from core.files.disk import size_text


def account(
    who: Annotated[
        str,
        typer.Argument(
            metavar="DOMAIN|PREFIX|ASN",
            help="Who asks: www.example.org (with all names below it), 192.0.2.0/24 or an address, AS64500.",
        ),
    ],
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Campaign folders: what `upshift run` writes to --out.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with every request.")] = False,
) -> None:
    """What did you fetch from us, and when? Times, URLs, bytes, user agent and addresses, from the journals.

    One line per attempt of a measurement run: downloads of one file, back to back. Bytes are IP bytes in both
    directions; look-ups are not counted. Interrupted and void attempts are included.
    """
    from downloader.execution.account import fetched, parse

    attempts = sorted(fetched(parse(who), folders), key=lambda one: one.began)
    requests = sum(len(one.requests) for one in attempts)
    total = sum(one.ip_bytes for one in attempts)
    if json:
        document = {"asked": who, "ip_bytes": total, "requests": requests, "fetched": [asdict(one) for one in attempts]}
        typer.echo(json_format.dumps(document))
        return
    lines = [("from (UTC)", "to", "vantage", "requests", "bytes", "from address", "to address", "URL")]
    for one in attempts:
        sources = dict.fromkeys(request.local_ip for request in one.requests if request.local_ip is not None)
        lines.append(
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.began)),
                time.strftime("%H:%M:%S", time.gmtime(one.ended)),
                one.vantage,
                str(len(one.requests)),
                f"{'' if one.exact else 'at most '}{one.ip_bytes}",
                " ".join(sources) or "-",
                one.server_ip,
                one.url,
            )
        )
    if attempts and sys.stdout.isatty():  # in a pipe one line each, whatever its length
        forms: list[terminal.Cells] = [
            lines,
            [(row[0], *row[2:4], *row[6:]) for row in lines],
            [(row[0], *row[6:]) for row in lines],
        ]
        words = {*lines[0]} - {"requests", "bytes"}
        terminal.print_table(terminal.console(sys.stdout), forms, title=f"Attempts for {who}", words=words)
    elif attempts:
        for line in _aligned(lines):
            typer.echo(line)
        for agent in dict.fromkeys(one.user_agent for one in attempts):
            typer.echo(f"user agent: {agent}")
    typer.echo(f"{who}: {len(attempts)} measurement runs, {requests} requests recorded, {size_text(total)}")


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
