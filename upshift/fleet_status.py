"""The states of a campaign on all hosts, as one table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core import terminal
from core.files.sizes import size_text
from downloader.control.display import headline, span
from downloader.control.document import SILENT_S, Status, parse
from vantage.fleet.report import named
from vantage.fleet.verdicts import Verdict

HEADINGS = ("host", "state", "done", "planned", "per hour", "time left", "disk free", "last error")
WORDS = {"host", "state", "last error"}

_TOLD = ("silent", "process_runs")
"""What `upshift status --json` adds to the document."""


def cells(verdicts: Mapping[str, Verdict], now: float) -> terminal.Cells:
    """The table at a Unix time."""
    return [HEADINGS, *(_row(host, verdict, now) for host, verdict in verdicts.items())]


def ended(verdicts: Mapping[str, Verdict]) -> bool:
    """Whether the campaign has ended on all hosts that answered."""
    found = [_status(verdict.result) for verdict in verdicts.values() if verdict.fault is None]
    return bool(found) and all(status is not None and status.ended for status in found)


def _row(host: str, verdict: Verdict, now: float) -> list[str]:
    blank = ["–"] * (len(HEADINGS) - 2)
    if verdict.fault is not None:
        return [host, named(host, verdict.fault), *blank]
    status = _status(verdict.result)
    if status is None or verdict.result is None:
        return [host, "its answer cannot be read: provision it again, with the Upshift of this machine", *blank]
    silent = bool(verdict.result.get("silent"))
    at = _host_time(status, now, silent=silent)
    error = status.last_error
    return [
        host,
        headline(status, at, running=bool(verdict.result.get("process_runs"))),
        f"{status.progress.recorded:,}",
        f"{status.progress.planned:,}",
        f"{3600 * status.rate_per_s:,.0f}",
        "–" if status.eta_s is None or status.ended or silent else span(status.eta_s),
        "–" if status.disk is None else size_text(status.disk.free_bytes),
        "–" if error is None else f"{span(max(at - error.at, 0.0))} ago: {error.what}",
    ]


def _status(result: Mapping[str, Any] | None) -> Status | None:
    """The host's status; None if this version cannot read it."""
    if result is None:
        return None
    try:
        return parse({name: value for name, value in result.items() if name not in _TOLD})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _host_time(status: Status, now: float, *, silent: bool) -> float:
    """The time for a host whose clock may differ from ours: it has told by its own whether it is silent."""
    edge = status.written_at + SILENT_S
    return max(now, edge + 1.0) if silent else min(now, edge)
