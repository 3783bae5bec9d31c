"""Writes the status and the metrics of a running campaign every 5 s, and feeds systemd's watchdog.

The worker of each vantage point says what it does, and from time to time that it lives. A worker that has been quiet
for longer than any of its steps may take is hung: its status says so, and the watchdog is fed no more.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import core
from core.domain import Download, Outcome
from core.domain.download import Counts, total
from core.errors import UsageError
from core.files import disk
from core.files.disk import is_running
from core.system.signals import Notifier
from core.untrusted import scrub
from downloader.control import metrics
from downloader.control.metrics import Endpoint
from downloader.control.status import (
    ENDED,
    FILE_NAME,
    Activity,
    BudgetUse,
    DiskUse,
    Fault,
    Status,
    VantagePoint,
    read_status,
)
from downloader.control.stop_pause import day_start
from downloader.schedule.schedule import State

INTERVAL_S = 5.0

PATIENCE_S = 90.0
"""Longest time between two signs of life of a worker. Every program that it waits for is killed after 60 s, unless it
gives signs of life meanwhile (`core.system.process.run`)."""

_RATE_WINDOW_S = 3600.0


class Reporter:
    """The status of a campaign. Use as a context manager around all of its work.

    Args:
        endpoint: where the metrics are served; None: nowhere.
        others: tells the names of the other campaigns that run on this host.
        clock, monotonic: Unix time, and a clock that nobody sets.
    """

    def __init__(
        self,
        folder: Path,
        *,
        campaign: str,
        endpoint: Endpoint | None = None,
        notifier: Notifier | None = None,
        others: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._clock, self._monotonic = folder, clock, monotonic
        self._endpoint, self._notifier = endpoint, notifier or Notifier()
        watchdog_s = self._notifier.watchdog_s
        self._interval_s = INTERVAL_S if watchdog_s is None else min(INTERVAL_S, watchdog_s / 3)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="status", daemon=True)
        self._closing = contextlib.ExitStack()
        self._started_at = clock()
        self._campaign, self._plan_sha256 = campaign, ""
        self._versions: dict[str, str | None] = {}
        self._parts: dict[str, VantageReport] = {}
        self._own: Activity | None = None
        self._last_error: Fault | None = None
        self._recorded: deque[tuple[float, int]] = deque()
        self._others = others
        self._beside = self._earlier_beside()
        self._limit_bytes: int | None = None
        self._reserve_bytes: int | None = None
        self._used_bytes: int | None = None

    def __enter__(self) -> Reporter:
        if self._endpoint is not None:
            from downloader.control.page_server import serve

            self._closing.enter_context(serve(self._endpoint, self._page))
        return self

    def begin(
        self,
        *,
        plan_sha256: str,
        versions: Mapping[str, str | None],
        counts: Mapping[str, Counts],
        times: Mapping[str, Iterable[Mapping[str, float]]] | None = None,
        limit_bytes: int | None = None,
        reserve_bytes: int | None = None,
    ) -> None:
        """The campaign starts, with what its journals hold. From now on its status is written.

        Args:
            times: vantage point -> where the time of each of its attempts went: part -> seconds.
            limit_bytes, reserve_bytes: most bytes of its folder, and bytes of the disk that stay free.
        """
        self._limit_bytes, self._reserve_bytes = limit_bytes, reserve_bytes
        self._plan_sha256 = plan_sha256
        own = {"upshift": core.__version__, "python": platform.python_version(), "kernel": platform.release()}
        self._versions = {**own, **versions}
        self._parts = {name: VantageReport(self, name, part) for name, part in counts.items()}
        for name, attempts in (times or {}).items():
            for took in attempts:
                self._parts[name].took(took)
        self._sample()
        self._write()
        self._notifier.ready()
        self._thread.start()

    def vantage_point(self, name: str) -> VantageReport:
        """The part that the worker of a vantage point reports to."""
        return self._parts[name]

    def does(self, state: State, reason: str) -> None:
        """What the whole campaign does, in place of its vantage points."""
        with self._lock:
            self._own = Activity(state=state, reason=scrub(reason), since=self._clock())
        if self._began:
            self._write()

    def takes(self, used_bytes: int) -> None:
        """What the campaign's folder takes on the disk."""
        self._used_bytes = used_bytes

    def error(self, what: str) -> None:
        """Something went wrong."""
        with self._lock:
            self._last_error = Fault(at=self._clock(), what=scrub(what))

    def end(self, state: State, reason: str) -> None:
        """The campaign has ended; `state` is one of those in `ENDED`."""
        self._over.set()
        self._notifier.stopping()
        if state is State.FAILED:
            self.error(reason)
        if self._began:
            self._thread.join()
            for part in self._parts.values():
                part.does(state, reason)
                part.finished()
            self.does(state, reason)
        elif state is State.FAILED:
            self._append_failure(reason)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._began:
            self._thread.join()
        self._closing.close()

    @property
    def beside(self) -> tuple[str, ...]:
        """The other campaigns that have run on this host beside this one, in earlier processes, too."""
        self._beside |= set(self._others())
        return tuple(sorted(self._beside))

    def _earlier_beside(self) -> set[str]:
        with contextlib.suppress(UsageError, OSError):
            earlier = read_status(self._folder)
            return set(earlier.beside) if earlier.campaign == self._campaign else set()
        return set()

    @property
    def _began(self) -> bool:
        return self._thread.ident is not None

    def _append_failure(self, reason: str) -> None:
        """A start that failed: the status of the campaign's earlier process tells it, unless another one works."""
        now = self._clock()
        with contextlib.suppress(UsageError, OSError):
            before = read_status(self._folder)
            if before.campaign != self._campaign or is_running(self._folder):
                return
            activity = Activity(state=State.FAILED, reason=scrub(reason), since=now)
            fault = Fault(at=now, what=scrub(reason))
            self._save(replace(before, written_at=now, activity=activity, last_error=fault, pid=os.getpid()))

    def status(self) -> Status:
        """The campaign at this moment."""
        now = self._clock()
        with self._lock:
            parts = {name: part.snapshot() for name, part in self._parts.items()}
            own, last_error = self._own, self._last_error
            budgets = tuple(use for part in self._parts.values() for use in part.budgets_of(day_start(now)))
            rate = self._rate()
        progress = total(part.progress for part in parts.values())
        to_go = total(part.progress for part in parts.values() if part.activity.state is not State.DONE)
        activity = own or _together([part.activity for part in parts.values()], now)
        return Status(
            written_at=now,
            activity=activity,
            progress=progress,
            rate_per_s=rate,
            eta_s=_eta_s(to_go.planned - to_go.recorded, rate, activity, now),
            campaign=self._campaign,
            plan_sha256=self._plan_sha256,
            started_at=self._started_at,
            pid=os.getpid(),
            versions=self._versions,
            vantage_points=parts,
            budgets=budgets,
            disk=self._disk(),
            last_error=last_error,
            beside=self.beside,
        )

    def _loop(self) -> None:
        while not self._over.wait(self._interval_s):
            with self._lock:
                self._sample()
            self._write()
            if all(part.lives for part in self._parts.values()):
                self._notifier.alive()

    def _write(self) -> None:
        status = self.status()
        with self._writing, contextlib.suppress(OSError):  # a full disk is the workers' to report
            self._save(status)
        self._notifier.say(f"{status.activity.state}: {status.activity.reason}")

    def _save(self, status: Status) -> None:
        # Not flushed to the disk: that would disturb what is measured, and the next one comes in 5 s.
        disk.write_text(self._folder / FILE_NAME, disk.json_text(status.document()), durable=False)
        disk.write_text(self._folder / metrics.FILE_NAME, metrics.page(status), durable=False)

    def _page(self) -> str | None:
        return metrics.page(self.status()) if self._began else None

    def _sample(self) -> None:
        now = self._monotonic()
        self._recorded.append((now, sum(part.counts.recorded for part in self._parts.values())))
        while len(self._recorded) > 2 and now - self._recorded[0][0] > _RATE_WINDOW_S:
            self._recorded.popleft()

    def _rate(self) -> float:
        if not self._recorded:
            return 0.0
        began, before = self._recorded[0]
        elapsed = self._monotonic() - began
        done = sum(part.counts.recorded for part in self._parts.values()) - before
        return round(done / elapsed, 4) if elapsed > 0 else 0.0

    def _disk(self) -> DiskUse:
        return DiskUse(
            free_bytes=shutil.disk_usage(self._folder).free,
            used_bytes=self._used_bytes,
            limit_bytes=self._limit_bytes,
            reserve_bytes=self._reserve_bytes,
        )


class VantageReport:
    """What one vantage point's worker reports. Its methods may be called from any thread."""

    def __init__(self, reporter: Reporter, name: str, counts: Counts) -> None:
        self._reporter, self._name, self.counts = reporter, name, counts
        self._budgets: tuple[BudgetUse, ...] = ()
        self._budgets_day = 0.0
        """The UTC day of which they are: on the next nobody tells of any until a measurement run is chosen."""
        self._times: defaultdict[str, float] = defaultdict(float)
        self._activity = Activity(state=State.RUNNING, reason="starting", since=reporter._clock())
        self._seen = self._back_by = 0.0
        self.alive()

    def does(self, state: State, reason: str, until: float | None = None) -> None:
        """What the vantage point does now, why, and until when (Unix time)."""
        self.alive()
        with self._reporter._lock:
            since = self._activity.since if self._activity.state is state else self._reporter._clock()
            self._activity = Activity(state=state, reason=scrub(reason), since=since, until=until)

    def alive(self, seconds: float = 0.0) -> None:
        """A sign of life; the next one may take this much longer than usual."""
        self._seen = self._reporter._monotonic()
        self._back_by = self._seen + seconds + PATIENCE_S

    def spends(self, budget: str, whose: str, used_bytes: int, limit_bytes: int) -> None:
        """How much of a budget is used today (see `BudgetUse`)."""
        use = BudgetUse(
            vantage=self._name, budget=budget, whose=scrub(whose), used_bytes=used_bytes, limit_bytes=limit_bytes
        )
        day = day_start(self._reporter._clock())
        with self._reporter._lock:
            self._budgets = (*(known for known in self.budgets_of(day) if known.budget != budget), use)
            self._budgets_day = day

    def budgets_of(self, day: float) -> tuple[BudgetUse, ...]:
        """What is known of a UTC day; call it with the reporter's lock held."""
        return self._budgets if self._budgets_day == day else ()

    def finished(self) -> None:
        """The vantage point's worker has ended."""
        self._back_by = float("inf")

    @property
    def lives(self) -> bool:
        """Whether the worker gave a sign of life in time."""
        return self._reporter._monotonic() <= self._back_by

    def recorded_run(self, downloads: Sequence[Download], *, void: bool) -> None:
        """A run is recorded; `void` if its last attempt was disturbed, too."""
        with self._reporter._lock:
            self.counts = self.counts.with_run(downloads, void=void)
        for download in downloads:
            if download.outcome == Outcome.FAILED:
                detail = f": {download.failure_detail}" if download.failure_detail else ""
                self._reporter.error(f"{download.domain} {download.configuration}: {download.failure}{detail}")

    def took(self, parts: Mapping[str, float]) -> None:
        """Where the time of an attempt went: part -> seconds."""
        with self._reporter._lock:
            for part, seconds in parts.items():
                self._times[part] += seconds

    def void_run(self, domain: str, why: str) -> None:
        """An attempt was disturbed and will be repeated."""
        with self._reporter._lock:
            self.counts = replace(self.counts, void_runs=self.counts.void_runs + 1)
        self._reporter.error(f"{domain}: void ({why})")

    def interrupted_run(self) -> None:
        """An attempt was interrupted and will be repeated."""
        with self._reporter._lock:
            self.counts = replace(self.counts, interrupted_runs=self.counts.interrupted_runs + 1)

    def snapshot(self) -> VantagePoint:
        """The vantage point at this moment; call it with the reporter's lock held."""
        activity = self._activity
        if not self.lives:
            quiet = self._reporter._monotonic() - self._seen
            activity = replace(activity, reason=f"hung: no sign of life for {quiet:.0f} s ({activity.reason})")
        times = {part: round(seconds, 3) for part, seconds in self._times.items()}
        return VantagePoint(activity=activity, progress=self.counts, times=times)


_ORDER = (State.RUNNING, State.STOPPING)
"""The first of several vantage points in one of these states tells for all; else the one that may go on first."""


def _eta_s(left: int, rate_per_s: float, activity: Activity, now: float) -> float | None:
    """Time that so many downloads take at a rate, but not less than the present wait: the last hour tells nothing of
    one until midnight."""
    if left == 0:
        return 0.0
    return max(left / rate_per_s, (activity.until or now) - now) if rate_per_s > 0 else None


def _together(parts: Sequence[Activity], now: float) -> Activity:
    """What the campaign does, from what its vantage points do; those that have ended wait for the others."""
    working = [part for part in parts if part.state not in ENDED]
    for state in _ORDER:
        if first := [part for part in working if part.state is state]:
            return replace(first[0], since=min(part.since for part in first))
    if not working:
        return Activity(state=State.RUNNING, reason="ending" if parts else "starting", since=now)
    return min(working, key=lambda part: float("inf") if part.until is None else part.until)
