"""A status for people: some lines of text, as plain as possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.domain.download import Counts
from core.files.disk import size_text
from downloader.control.document import Activity, Status
from downloader.control.stop_pause import utc
from downloader.schedule.schedule import State

_WIDTH = 11
"""Width of the first column."""


def lines(status: Status, now: float, *, running: bool) -> list[str]:
    """The status at time `now`.

    Args:
        running: whether a process works in the folder.
    """
    shown = [f"{status.campaign}: {headline(status, now, running=running)}"]
    shown += [f"{name:{_WIDTH}}{text}" for name, text in _rows(status, now)]
    return shown


def headline(status: Status, now: float, *, running: bool) -> str:
    """What the campaign does."""
    silent_s = status.silent_s(now)
    if silent_s is not None:
        why = "its process hangs or was stopped" if running else "its process is gone; run the same command to go on"
        return f"silent for {span(silent_s)} ({why}); before: {_activity(status.activity)}"
    if not status.ended and not running:
        return f"its process is gone; before: {_activity(status.activity)}; run the same command to go on"
    return _activity(status.activity)


def _activity(activity: Activity) -> str:
    until = "" if activity.until is None else f" until {utc(activity.until)}"
    return f"{activity.state}{until} ({activity.reason})" if activity.reason else f"{activity.state}{until}"


def _rows(status: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "updated", f"{span(max(now - status.written_at, 0))} ago, {utc(status.written_at)}"
    yield "downloads", _progress(status.progress)
    if status.progress.causes:
        yield "causes", _listed(status.progress.causes)
    if not status.ended:
        eta = "" if status.eta_s is None else f", {span(status.eta_s)} left ({utc(now + status.eta_s)})"
        yield "rate", f"{status.rate_per_s:.2f}/s in the last hour{eta}"
    if len(status.vantage_points) > 1:
        for name, part in status.vantage_points.items():
            yield name, f"{_progress(part.progress)}; {_activity(part.activity)}"
    for budget in status.budgets:
        whose = budget.whose if len(status.vantage_points) == 1 else f"{budget.vantage}, {budget.whose}"
        yield "budget", f"{whose}: {size_text(budget.used_bytes)} of {size_text(budget.limit_bytes)} today"
    if status.disk is not None:
        yield "disk", _disk(status)
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


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _disk(status: Status) -> str:
    disk = status.disk
    if disk is None:
        return ""
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
