"""`status.json`: what a campaign is doing, and how far it is. Plain data and how it is read; no writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.domain.download import Counts
from core.errors import UsageError, not_found
from downloader.schedule.schedule import State

FILE_NAME = "status.json"

SCHEMA = 1

SILENT_S = 60.0
"""A campaign that has not ended and whose status is older than this is silent: killed, stopped or hung."""

ENDED = frozenset({State.DONE, State.FAILED, State.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a vantage point, or the whole campaign, does now."""

    state: State
    reason: str
    """For the user: the target that is measured, or why nothing is."""
    since: float
    """Unix time."""
    until: float | None = None
    """Unix time before which a wait cannot end; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VantagePoint:
    """One vantage point of the campaign."""

    activity: Activity
    progress: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """How much of a vantage point's share of a budget is used on this UTC day.

    Of the budgets for an AS and for a domain, it is that which is used most.
    """

    vantage: str
    budget: str
    """`campaign`, `as` or `domain`."""
    whose: str
    """The AS, network or domain; for people."""
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """The disk that the campaign's folder is on."""

    free_bytes: int
    used_bytes: int | None = None
    """By the campaign: journals, captures and tables; None where nobody counts them."""
    limit_bytes: int | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The last thing that went wrong."""

    at: float
    """Unix time."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A campaign at one moment."""

    written_at: float
    """Unix time."""
    activity: Activity
    progress: Counts
    rate_per_s: float
    """Downloads per second in the last hour, waits included."""
    eta_s: float | None
    """Time left at that rate; None: unknown."""
    campaign: str
    plan_sha256: str
    started_at: float
    """Unix time of the start of this process."""
    pid: int
    versions: Mapping[str, str | None]
    vantage_points: Mapping[str, VantagePoint]
    budgets: tuple[BudgetUse, ...] = ()
    disk: DiskUse | None = None
    last_error: Fault | None = None
    beside: tuple[str, ...] = ()
    """Other campaigns that have run on this host at the same time, now or earlier."""

    @property
    def ended(self) -> bool:
        """Whether the campaign's process has ended by itself."""
        return self.activity.state in ENDED

    def silent_s(self, now: float) -> float | None:
        """For how long a campaign that should speak has not; None if it does."""
        age = now - self.written_at
        return age if not self.ended and age > SILENT_S else None

    def document(self) -> dict[str, Any]:
        """The status as plain data, with the counts that are sums."""
        document = {"schema": SCHEMA, **asdict(self)}
        document["progress"]["recorded"] = self.progress.recorded
        for name, part in self.vantage_points.items():
            document["vantage_points"][name]["progress"]["recorded"] = part.progress.recorded
        return document


def read_status(folder: Path) -> Status:
    """The status in a campaign's folder.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not folder.is_dir():
            raise not_found(folder, "folder", remedy="name the --out of an upshift run") from None
        raise UsageError(
            "no campaign has run in this folder", where=str(folder), remedy="name the --out of an upshift run"
        ) from None
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            "this is not a status that this version of Upshift can read",
            where=str(path),
            remedy="use the Upshift that runs the campaign",
        ) from None


def parse(document: Mapping[str, Any]) -> Status:
    """The status from its document. Raises ValueError, KeyError, TypeError or AttributeError for another document."""
    if document["schema"] != SCHEMA:
        raise ValueError("another schema")
    fields = {name: value for name, value in document.items() if name != "schema"}
    fields["activity"] = _activity(document["activity"])
    fields["progress"] = _counts(document["progress"])
    fields["vantage_points"] = {
        name: VantagePoint(activity=_activity(part["activity"]), progress=_counts(part["progress"]))
        for name, part in document["vantage_points"].items()
    }
    fields["budgets"] = tuple(BudgetUse(**budget) for budget in document["budgets"])
    fields["beside"] = tuple(document.get("beside", ()))
    fields["disk"] = None if document["disk"] is None else DiskUse(**document["disk"])
    fields["last_error"] = None if document["last_error"] is None else Fault(**document["last_error"])
    return Status(**fields)


def _activity(document: Mapping[str, Any]) -> Activity:
    return Activity(**{**document, "state": State(document["state"])})


def _counts(document: Mapping[str, Any]) -> Counts:
    return Counts(**{name: value for name, value in document.items() if name != "recorded"})
