"""What is asked of a campaign: stop after the present measurement run, pause, go on.

A request is a file in the campaign's folder, so it can come from another session, another user or over SSH; who may
write there may ask. A request to stop is for the present process: the next one removes it. A pause also holds for the
processes that come later, until it is removed or over. Root asks as the folder's owner, whose campaign has to remove
the request.

    DIR/asked/stop.json     {"at": Unix time}
    DIR/asked/pause.json    {"at": Unix time, "until": Unix time or null}
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import AskedToStopError, UsageError
from core.files import disk
from core.terminal import Progress
from downloader.campaign.campaign import Campaign
from downloader.campaign.expected import worst_s
from downloader.campaign.plan import PlannedRun
from downloader.schedule.schedule import Gate, State, Wait

_STOP, _PAUSE = "asked/stop.json", "asked/pause.json"

STOP = "upshift stop"
"""The reason of a stop that was asked for."""

_LOOK_S = 0.5


class Pause(NamedTuple):
    """A pause that was asked for; times are Unix times."""

    at: float | None
    """None: nobody knows, as its file cannot be read."""
    until: float | None
    """None: until `upshift resume`."""


def request_stop(folder: Path, now: float) -> None:
    """Asks the process that works in this folder to end after its measurement run."""
    _write(folder, _STOP, {"at": now})


def stop_requested(folder: Path) -> bool:
    return (folder / _STOP).exists()


def clear_stop(folder: Path) -> None:
    """Removes a request to stop: it was for an earlier process, or was followed."""
    (folder / _STOP).unlink(missing_ok=True)


def request_pause(folder: Path, now: float, until: float | None) -> None:
    """Asks for no new measurement run before `until`."""
    _write(folder, _PAUSE, {"at": now, "until": until})


def resume(folder: Path) -> bool:
    """Ends a pause; False if there was none."""
    try:
        with _as_owner(folder) as there:
            (there / _PAUSE).unlink()
    except FileNotFoundError:
        return False
    except PermissionError:
        raise _denied(folder) from None
    return True


def pause_requested(folder: Path, now: float) -> Pause | None:
    """The pause that holds now. A file that cannot be read counts as a pause without end: somebody asked for one."""
    try:
        document: Any = json.loads((folder / _PAUSE).read_text(encoding="utf-8"))
        at, until = (None if document[name] is None else float(document[name]) for name in ("at", "until"))
        utc(at or 0.0), utc(until or 0.0)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return Pause(None, None)
    return Pause(at, until) if until is None or now < until else None


def _write(folder: Path, name: str, document: object) -> None:
    try:
        with _as_owner(folder) as there:
            disk.write_json(there / name, document)
    except PermissionError:
        raise _denied(folder) from None
    except OSError as error:
        error.filename = str(folder / name)
        raise


@contextlib.contextmanager
def _as_owner(folder: Path) -> Iterator[Path]:
    """The folder; root works there as the user whose it is, and so follows no link that this user may not follow."""
    if os.geteuid() != 0 or folder.stat().st_uid == 0:
        yield folder
        return
    group, descriptor = os.getegid(), os.open(folder, os.O_PATH)
    owner = os.fstat(descriptor)
    try:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield Path(f"/proc/self/fd/{descriptor}")  # as its owner may not be let through the folders above it
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.close(descriptor)


def _denied(folder: Path) -> UsageError:
    if os.geteuid() == 0:
        what, remedy = "its owner may not write in it", f"give it and {folder / 'asked'} to the account of the campaign"
    else:
        what, remedy = "you may not write in this folder", "use the account of the campaign"
    return UsageError(what, where=str(folder), remedy=remedy)


class StopGate(Gate):
    """Follows the requests in the folder, and `--until`.

    Args:
        until: Unix time at which the campaign ends; a run whose worst case ends later does not start. None: with its
            plan.
    """

    def __init__(self, campaign: Campaign, folder: Path, *, until: float | None) -> None:
        self._campaign, self._folder, self._until = campaign, folder, until

    def holds(self, now: float) -> Wait | None:
        if stop_requested(self._folder):
            return Wait(State.STOPPING, STOP)
        if self._until is not None and now >= self._until:
            return Wait(State.STOPPING, f"--until {utc(self._until)}")
        if (pause := pause_requested(self._folder, now)) is not None:
            asked = "" if pause.at is None else f" at {utc(pause.at)}"
            return Wait(State.PAUSED, f"upshift pause{asked}", pause.until)
        return None

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        if self._until is not None and now + worst_s(self._campaign, run.target) > self._until:
            return Wait(State.STOPPING, f"--until {utc(self._until)}; no run that is left fits before", self._until)
        return None


class StoppableProgress:
    """Progress of work in a campaign's folder that ends when the campaign is asked to stop.

    `update` raises AskedToStopError then; the request is followed, so it is removed.
    """

    def __init__(self, progress: Progress, folder: Path) -> None:
        self._progress, self._folder = progress, folder
        self._look_at = 0.0

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if stop_requested(self._folder):
                clear_stop(self._folder)
                raise AskedToStopError(f"stopped ({STOP})", where=str(self._folder))
        self._progress.update(task, done=done, total=total, failed=failed, note=note)


def utc(at: float) -> str:
    """A Unix time as people read it. Raises ValueError or OverflowError for one that no calendar of ours has."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


DAY_S = 86_400
"""A UTC day in Unix time, which has no leap seconds."""


def day_start(now: float) -> float:
    """Unix time of the last midnight UTC."""
    return now - now % DAY_S


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h|d)")
_END = 253_402_300_800.0
"""Unix time at which `datetime` ends."""
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": DAY_S}


def parse_time(text: str, *, where: str, now: float) -> float:
    """A moment after `now`, as Unix time: `2027-01-05T06:00Z`, or how far away it is (`90min`, `6h`, `2d`).

    Raises:
        UsageError: it is neither a duration nor a date and time of ISO 8601, has no time zone, is past, or too late to
            be shown.
    """
    if (duration := _DURATION.fullmatch(text)) is not None:
        until = now + float(duration[1]) * _SECONDS[duration[2]]
    else:
        until = _moment(text, where=where, now=now)
    if until >= _END:
        raise UsageError(f"{text!r} is after the year 9999", where=where, remedy="give an earlier time")
    return until


def _moment(text: str, *, where: str, now: float) -> float:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    remedy = "write it as 2027-01-05T06:00Z, in UTC, or as 6h from now"
    if moment is None or moment.tzinfo is None:
        what = "is neither a date and time nor a duration" if moment is None else "has no time zone"
        raise UsageError(f"{text!r} {what}", where=where, remedy=remedy)
    if moment.timestamp() <= now:
        raise UsageError(f"{text!r} is in the past", where=where, remedy=remedy)
    return moment.timestamp()
