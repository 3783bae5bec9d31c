"""The states of a campaign on all hosts, as one table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core import terminal
from core.errors import UsageError
from core.files.config import build
from core.files.disk import size_text
from core.untrusted import scrub
from downloader.control.status import SCHEMA, SILENT_S, Status, headline, span
from downloader.schedule.schedule import State
from vantage.fleet.report import named
from vantage.fleet.verdicts import Verdict

HEADINGS = ("host", "state", "done", "planned", "per hour", "time left", "disk free", "last error")
WORDS = {"host", "state", "last error"}

_UNREADABLE = "its answer cannot be read: provision it again, with the Upshift of this machine"


def cells(verdicts: Mapping[str, Verdict], now: float) -> terminal.Cells:
    """The table at a Unix time."""
    return [HEADINGS, *(_row(host, verdict, now) for host, verdict in verdicts.items())]


def ended(verdicts: Mapping[str, Verdict]) -> bool:
    """Whether the campaign has ended on all hosts that answered."""
    found = [_status(verdict.result) for verdict in verdicts.values() if verdict.fault is None]
    return bool(found) and all(status is not None and status.ended for status in found)


def unconfirmed(verdicts: Mapping[str, Verdict], digest: str) -> list[str]:
    """Hosts that may lack opt-outs: they do not answer, or have not confirmed this list since they booted."""
    found = []
    for host, verdict in verdicts.items():
        answer = (verdict.result or {}).get("opt_outs")
        has = isinstance(answer, Mapping) and answer.get("current") is True and answer.get("sha256") == digest
        if verdict.unreachable or (verdict.result and not has):
            found.append(host)
    return found


def running(verdicts: Mapping[str, Verdict]) -> set[str]:
    """Hosts on which the campaign has neither ended nor is paused."""
    found = {host: _status(verdict.result) for host, verdict in verdicts.items()}
    return {
        host
        for host, status in found.items()
        if status is not None and not status.ended and status.activity.state is not State.PAUSED
    }


def _row(host: str, verdict: Verdict, now: float) -> list[str]:
    blank = ["–"] * (len(HEADINGS) - 2)
    if verdict.fault is not None:
        return [host, named(host, verdict.fault), *blank]
    status = _status(verdict.result)
    if status is None or verdict.result is None:
        return [host, _UNREADABLE, *blank]
    try:
        return [host, *(scrub(cell) for cell in _told(status, verdict.result, now))]
    except (ValueError, OverflowError):  # numbers without sense
        return [host, _UNREADABLE, *blank]


def _told(status: Status, result: Mapping[str, Any], now: float) -> list[str]:
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
