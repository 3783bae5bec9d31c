"""What a command on hosts prints, and how it ends: 0 all did it, 1 some failed, 2 wrong input."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from core import terminal
from core.errors import IncompleteError, UsageError
from vantage.fleet.verdicts import Verdict


def document(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """The verdicts as plain data."""
    return {"hosts": {host: {"ok": v.fault is None, **asdict(v)} for host, v in verdicts.items()}}


def show(verdicts: Mapping[str, Verdict], *, as_json: bool, said: str = "done") -> None:
    """Prints one line for each host: what failed, else `said` and how much was changed."""
    if as_json:
        typer.echo(json.dumps(document(verdicts), sort_keys=True))
        return
    rows = [["host", "verdict", "why"], *(_row(host, verdict, said) for host, verdict in verdicts.items())]
    terminal.console(sys.stdout).print(terminal.table(rows, words=set(rows[0])))


def _row(host: str, verdict: Verdict, said: str) -> list[str]:
    if verdict.fault is not None:
        return [host, "failed", named(host, verdict.fault)]
    told = f"{said} ({verdict.changed} changed)" if verdict.changed else said
    return [host, "ok", f"{told}; {verdict.note}" if verdict.note else told]


def named(host: str, fault: str) -> str:
    """A fault without the host's name before it, which the table has already."""
    return fault.removeprefix(f"{host}: ").removeprefix(f"{host} ").removeprefix("upshift: ")


def require_all(verdicts: Mapping[str, Verdict], *, campaign: str | None = None) -> None:
    """Raises IncompleteError that names the hosts that failed; UsageError for a campaign that none of them has."""
    failed = {host: verdict.fault for host, verdict in verdicts.items() if verdict.fault is not None}
    if not failed:
        return
    if len(failed) == len(verdicts) and all(f"no campaign {campaign}" in fault for fault in failed.values()):
        raise UsageError(
            f"no host has a campaign {campaign}",
            where="--campaign",
            remedy="name one that upshift fleet run has started",
        )
    raise IncompleteError(
        f"{len(failed)} of {len(verdicts)} hosts failed: {', '.join(failed)}",
        remedy="run the same command again once they are repaired",
    )
