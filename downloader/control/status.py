"""`status.json`: what a campaign is doing, and how far it is; as plain data, and as lines for people. No writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.domain.download import Counts
from core.errors import UsageError, not_found
from core.files.config import build, read_json
from core.files.disk import size_text
from core.untrusted import plain
from downloader.control.stop_pause import day_start, utc
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
    times: Mapping[str, float] = field(default_factory=dict)
    """Part of the work -> seconds that it took so far (`downloader.execution.attempt`)."""


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
    if not folder.is_dir():
        raise not_found(folder, "folder", remedy="name the --out of an upshift run")
    if not path.exists():
        remedy = "name the --out of an upshift run"
        raise UsageError("no campaign has run in this folder", where=str(folder), remedy=remedy)
    with suppress(UsageError):
        document = read_json(path)
        if document.get("schema") == SCHEMA:
            status = build(document, Status, where=str(path))
            with suppress(ValueError, OverflowError, OSError):  # a time that no calendar has
                lines(status, status.written_at, running=False)
                return status
    raise UsageError(
        "this is not a status that this version of Upshift can read",
        where=str(path),
        remedy="use the Upshift that runs the campaign",
    )


INDENT = 11
"""Width of the first column."""


def lines(status: Status, now: float, *, running: bool) -> list[str]:
    """The status at time `now`.

    Args:
        running: whether a process works in the folder.
    """
    shown = [f"{status.campaign}: {headline(status, now, running=running)}"]
    shown += [f"{name:{INDENT}}{text}" for name, text in _rows(status, now)]
    return [plain(line) for line in shown]


def headline(status: Status, now: float, *, running: bool) -> str:
    """What the campaign does."""
    silent_s = status.silent_s(now)
    if silent_s is not None:
        why = "its process hangs or was stopped" if running else "its process is gone; run the same command to go on"
        return f"silent for {span(silent_s)} ({why}); before: {_doing(status.activity)}"
    if not status.ended and not running:
        return f"its process is gone; before: {_doing(status.activity)}; run the same command to go on"
    return _doing(status.activity)


def _doing(activity: Activity) -> str:
    until = "" if activity.until is None else f" until {utc(activity.until)}"
    return f"{activity.state}{until} ({activity.reason})" if activity.reason else f"{activity.state}{until}"


def _rows(status: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "updated", f"{span(max(now - status.written_at, 0))} ago, {utc(status.written_at)}"
    yield "downloads", _progress(status.progress)
    if status.progress.causes:
        yield "causes", ", ".join(f"{cause} {count:,}" for cause, count in status.progress.causes.items())
    if not status.ended:
        eta = "" if status.eta_s is None else f", {span(status.eta_s)} left ({utc(now + status.eta_s)})"
        yield "rate", f"{status.rate_per_s:.2f}/s in the last hour{eta}"
    if took := _times(status):
        yield "time", took
    if len(status.vantage_points) > 1:
        for name, part in status.vantage_points.items():
            yield name, f"{_progress(part.progress)}; {_doing(part.activity)}"
    for budget in status.budgets if day_start(now) == day_start(status.written_at) else ():
        whose = budget.whose if len(status.vantage_points) == 1 else f"{budget.vantage}, {budget.whose}"
        yield "budget", f"{whose}: {size_text(budget.used_bytes)} of {size_text(budget.limit_bytes)} today"
    if status.disk is not None:
        yield "disk", _disk(status.disk)
    if status.beside:
        yield "beside", f"shared this host with {', '.join(status.beside)}: slots and budgets were for each alone"
    yield "plan", f"{status.plan_sha256[:12]}, process {status.pid} since {utc(status.started_at)}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in status.versions.items() if version)
    if status.last_error is not None and status.activity.state is not State.FAILED:
        yield "last error", f"{utc(status.last_error.at)}: {status.last_error.what}"


def _progress(progress: Counts) -> str:
    share = f" ({progress.recorded / progress.planned:.0%})" if progress.planned else ""
    discarded = ", ".join(
        f"{count} {name}"
        for name, count in (("void", progress.void_runs), ("interrupted", progress.interrupted_runs))
        if count
    )
    runs = f"; runs repeated: {discarded}" if discarded else ""
    return (
        f"{progress.recorded:,} of {progress.planned:,}{share}: {progress.ok:,} ok, {progress.failed:,} failed, "
        f"{progress.censored:,} censored{runs}"
    )


def _times(status: Status) -> str:
    """Shares of the measurement runs' time, the largest first; those under half a percent are left out."""
    seconds: dict[str, float] = {}
    for place in status.vantage_points.values():
        for part, took in place.times.items():
            seconds[part] = seconds.get(part, 0.0) + took
    whole = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda each: -each[1])
    return ", ".join(
        f"{part.replace('_', ' ')} {took / whole:.0%}" for part, took in parts if took >= 0.005 * whole > 0
    )


def _disk(disk: DiskUse) -> str:
    free = f"{size_text(disk.free_bytes)} free"
    if disk.used_bytes is None:
        return free
    limit = "" if disk.limit_bytes is None else f" of {size_text(disk.limit_bytes)}"
    return f"{size_text(disk.used_bytes)}{limit} used, {free}"


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    left = round(seconds)
    parts: list[str] = []
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or name == "s":
            parts.append(f"{count} {name}")
        if len(parts) == 2:
            break
    return " ".join(part for index, part in enumerate(parts) if index == 0 or not part.startswith("0 "))
