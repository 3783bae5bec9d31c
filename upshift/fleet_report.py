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
from core.files.config import build
from core.files.disk import size_text
from core.untrusted import scrub
from downloader.control.status import SCHEMA, SILENT_S, Status, headline, span
from downloader.schedule.schedule import State
from vantage.fleet.verdicts import HostVerdict, account_of

HEADINGS = ("host", "state", "done", "planned", "per hour", "time left", "disk free", "last error")
WORDS = {"host", "state", "last error"}

GOES_ON_S = 300.0
"""How long after it stopped or failed a campaign may go on by itself: the service starts one that failed again after
60 s, and one that a host's shutdown stopped after the boot."""

_UNREADABLE = "its answer cannot be read: provision it again, with the Upshift of this machine"


def document(verdicts: Mapping[str, HostVerdict]) -> dict[str, Any]:
    """The verdicts as plain data."""
    return {"hosts": {host: {"ok": v.fault is None, **asdict(v)} for host, v in verdicts.items()}}


def show(verdicts: Mapping[str, HostVerdict], *, as_json: bool, done: str) -> None:
    """Prints one line for each host: what failed, else `done` and how much was changed."""
    if as_json:
        typer.echo(json.dumps(document(verdicts), sort_keys=True))
        return
    rows = [["host", "verdict", "why"], *(_line(host, verdict, done) for host, verdict in verdicts.items())]
    terminal.console(sys.stdout).print(terminal.table(rows, words=set(rows[0])))


def _line(host: str, verdict: HostVerdict, done: str) -> list[str]:
    if verdict.fault is not None:
        return [host, "failed", named(host, verdict.fault)]
    words = f"{done} ({verdict.changed} changed)" if verdict.changed else done
    return [host, "ok", f"{words}; {verdict.note}" if verdict.note else words]


def named(host: str, fault: str) -> str:
    """A fault without the host's name before it, which the table has already."""
    return fault.removeprefix(f"{host}: ").removeprefix(f"{host} ").removeprefix("upshift: ")


def failed(verdicts: Mapping[str, HostVerdict]) -> dict[str, str]:
    """Host -> its fault, for those that failed."""
    return {host: verdict.fault for host, verdict in verdicts.items() if verdict.fault is not None}


def require_all(verdicts: Mapping[str, HostVerdict], *, campaign: str | None = None) -> None:
    """Raises IncompleteError that names the hosts that failed; UsageError for a campaign that none of them has."""
    faults = failed(verdicts)
    if not faults:
        return
    if all(_has_none(verdict, str(campaign)) for verdict in verdicts.values()):
        raise UsageError(
            f"no host has a campaign {campaign}",
            where="--campaign",
            remedy="name one that upshift fleet run has started",
        )
    raise IncompleteError(
        f"{len(faults)} of {len(verdicts)} hosts failed: {', '.join(faults)}",
        remedy="run the same command again once they are repaired",
    )


def end(verdicts: Mapping[str, HostVerdict], *, as_json: bool, done: str, campaign: str | None = None) -> None:
    """`show`, then `require_all`."""
    show(verdicts, as_json=as_json, done=done)
    require_all(verdicts, campaign=campaign)


def cells(verdicts: Mapping[str, HostVerdict], now: float) -> terminal.Cells:
    """The table of a campaign's states at a Unix time."""
    return [HEADINGS, *(_row(host, verdict, now) for host, verdict in verdicts.items())]


def ended(verdicts: Mapping[str, HostVerdict], campaign: str) -> bool:
    """Whether the campaign has ended on all hosts that have it.

    One that does not answer may still run it, or wait after its boot for the opt-outs that a watch hands over.
    """
    return all(_has_none(verdict, campaign) or _has_ended(verdict) for verdict in verdicts.values())


def _has_none(verdict: HostVerdict, campaign: str) -> bool:
    return not verdict.unreachable and f"no campaign {campaign}" in (verdict.fault or "")


def _has_ended(verdict: HostVerdict) -> bool:
    status = _status(verdict.result) if verdict.fault is None else None
    if status is None or not status.ended:
        return False
    account = account_of(verdict.result)  # its own clock: ours may be another
    return status.activity.state is State.DONE or account is None or account.now - status.written_at > GOES_ON_S


def unconfirmed(verdicts: Mapping[str, HostVerdict], digest: str) -> list[str]:
    """Hosts that may lack opt-outs: they do not answer, or have not confirmed this list since they booted."""
    lacking = []
    for host, verdict in verdicts.items():
        answer = (verdict.result or {}).get("opt_outs")
        has = isinstance(answer, Mapping) and answer.get("current") is True and answer.get("sha256") == digest
        if verdict.unreachable or (verdict.result and not has):
            lacking.append(host)
    return lacking


def running(verdicts: Mapping[str, HostVerdict]) -> set[str]:
    """Hosts on which the campaign has neither ended nor is paused."""
    states = {host: _status(verdict.result) for host, verdict in verdicts.items()}
    return {
        host
        for host, status in states.items()
        if status is not None and not status.ended and status.activity.state is not State.PAUSED
    }


def _row(host: str, verdict: HostVerdict, now: float) -> list[str]:
    blank = ["–"] * (len(HEADINGS) - 2)
    if verdict.fault is not None:
        return [host, named(host, verdict.fault), *blank]
    status = _status(verdict.result)
    if status is None or verdict.result is None:
        return [host, _UNREADABLE, *blank]
    try:
        return [host, *(scrub(cell) for cell in _values(status, verdict.result, now))]
    except (ValueError, OverflowError):  # numbers without sense
        return [host, _UNREADABLE, *blank]


def _values(status: Status, result: Mapping[str, Any], now: float) -> list[str]:
    silent = bool(result.get("silent"))
    at = _host_time(status, now, silent=silent)
    error = status.last_error
    return [
        headline(status, at, running=bool(result.get("process_runs")))
        + (f"; beside {', '.join(status.beside)}" if status.beside else ""),
        f"{status.progress.recorded:,}",
        f"{status.progress.planned:,}",
        f"{3600 * status.rate_per_s:,.0f}",
        "–" if status.eta_s is None or status.ended or silent else span(status.eta_s),
        "–" if status.disk is None else size_text(status.disk.free_bytes),
        "–" if error is None else f"{span(max(at - error.at, 0.0))} ago: {error.what}",
    ]


def _status(result: Mapping[str, Any] | None) -> Status | None:
    """The host's status; None if this version cannot read it: it is the host's, so it may be anything."""
    if result is None or result.get("schema") != SCHEMA:
        return None
    try:
        return build(result, Status, where="status")
    except UsageError:
        return None


def _host_time(status: Status, now: float, *, silent: bool) -> float:
    """The time for a host whose clock may differ from ours: it has told by its own whether it is silent."""
    edge = status.written_at + SILENT_S
    return max(now, edge + 1.0) if silent else min(now, edge)
