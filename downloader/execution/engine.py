"""The work of one vantage point: its measurement runs in order, each recorded completely or repeated."""

from __future__ import annotations

import gc
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from core.domain import Download, Failure
from core.errors import PlaceError
from core.system.place import Place
from core.system.this_host import read_clock
from core.terminal import Progress
from core.untrusted import file_name, scrub
from downloader.campaign.campaign import Campaign, VantageClock
from downloader.campaign.configurations import client_with, written_settings
from downloader.campaign.limits import Stopping
from downloader.campaign.plan import PlannedRun
from downloader.campaign.targets import trusted
from downloader.control.reporter import Reporter
from downloader.control.stop_pause import StopGate, utc
from downloader.execution.attempt import Attempt, Part, Parts
from downloader.execution.calls import Caller, CutError, StoppedError
from downloader.execution.capture import ip_bytes, part_names
from downloader.execution.journal import Journal
from downloader.execution.records import mark_void
from downloader.limits.budget import AccountEntry, BudgetGate, interrupted_bytes, reserved
from downloader.limits.captures import CaptureStore, Inspect, Settled, packed_name
from downloader.limits.disk import DiskGate, FolderDisk
from downloader.limits.opt_out import OptOuts, block_lists
from downloader.schedule.schedule import POLL_S, Gate, Schedule, State, Turns
from downloader.schedule.slots import SharedPlan, SlotGate

SIGNAL_S = 1.0
"""How long a dead program waits for its explanation: a signal to all of a terminal's or a unit's processes may reach
clients and tcpdump before it reaches us. Then the run is interrupted, and nothing has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How this process works on a campaign: the same for all its vantage points."""

    plan: SharedPlan
    out: Path
    """The campaign's folder; created if missing, resumed if it holds the same plan."""
    progress: Progress
    reporter: Reporter
    """Told what the vantage points do; writes the status."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set it to end early, as Ctrl-C does; the next start repeats the unfinished run."""
    until: float | None = None
    """Unix time at which it ends; None: with its plan."""
    client_ceilings: Mapping[str, Any] | None = None
    """This host's calibration, for `environment.json`; None if there is none."""
    clock: Callable[[], float] = time.time
    """Gives Unix time, for all that depends on the day; times of downloads are the clients'."""
    inspect: Inspect | None = None
    """Reads a capture before it is dropped; None: captures are only packed."""
    run_as: tuple[int, int] | None = None
    """User and group that clients become; None: nobody."""


class Worker:
    """The measurement runs of one vantage point; what its attempts ask of it is `downloader.execution.attempt.Vantage`.

    Args:
        runs: all runs of the plan; those that are in the journal already are skipped.

    Raises:
        UsageError: a block list is missing or not valid.
    """

    def __init__(
        self,
        session: Session,
        place: Place,
        journal: Journal,
        runs: Sequence[PlannedRun],
        *,
        turns: Turns,
        disk: FolderDisk,
    ) -> None:
        self.campaign, self.clock = session.plan.campaign, session.clock
        self.place, self.journal = place, journal
        self.ca_file = trusted(self.campaign, place)
        self._session, self._disk, self._stop = session, disk, session.stop
        self._report = session.reporter.vantage_point(place.name)
        self._store = CaptureStore(self.campaign, place.name, session.out, inspect=session.inspect)
        self._folder = session.out / "vantage" / place.name / "captures"
        self._runs = {run.number: run for run in runs}
        self._budgets = BudgetGate(
            self.campaign,
            journal.spent,
            vantage_points=len(session.plan.vantage_points),
            tell=self._report.spends,
        )
        waiting = [self._runs[number] for number in journal.open_runs()]
        self._schedule = Schedule(
            waiting, turns=turns, gates=self._gates(runs), stop=self._stop, tell=self._tell, clock=session.clock
        )
        self._running: PlannedRun | None = None
        self._checked_at = 0.0
        self._stopping = Stopping(self.campaign.stop_when, self.campaign.comparisons, self._earlier())
        self.ended_by: str | None = None
        """What ended the work before the plan; None: nothing."""
        self.before_record: Callable[[], None] = lambda: None
        """Called before each run is recorded, whether void or not."""

    def _gates(self, runs: Sequence[PlannedRun]) -> list[Gate]:
        """In the order in which they are asked."""
        plan, name = self._session.plan, self.place.name
        journal, store = self.journal, self._store
        gates: list[Gate] = [
            StopGate(self.campaign, self._session.out, until=self._session.until),
            OptOuts(block_lists(self.campaign)),
            DiskGate(self.campaign, name, self._disk, runs, store, journal.captures, journal.recorded_runs()),
            self._budgets,
        ]
        if plan.slots is not None:
            clock = None if trusts_clock(self.campaign) else read_clock
            gates.append(SlotGate(self.campaign, plan.slots, plan.index(name), clock=clock))
        return gates

    def _earlier(self) -> Iterator[tuple[int, list[Download]]]:
        """The runs of earlier processes by number; may take a while. Raises StoppedError when stopped meanwhile."""
        planned = iter(self._runs.values())
        for key, run in groupby(self.journal.downloads(), key=lambda d: (d.iteration, (d.domain, d.url))):
            self._poll()
            # Both are in the order of the plan.
            yield next(one.number for one in planned if (one.iteration, one.target.key) == key), list(run)

    def work(self) -> None:
        """Makes all remaining runs. Returns early when stopped, and as soon as the campaign's `stop_when` is met.

        Raises:
            StoppedError: stopped in the middle of a run, which the next start repeats.
            PlaceError: the place cannot do what a run needs.
        """
        try:
            self._work()
        finally:
            self._disk.leave(self.place.name)
            with suppress(sqlite3.Error):  # it would hide what ended the work
                self._budgets.look(self.clock())

    def _work(self) -> None:
        self._show("")
        settle_killed(self.campaign, self.journal, self._runs, self.capture_path)
        self._store.tidy_all(self.journal.captures, self._poll)
        self._note_stopping()
        if not self._schedule.left or self._stopping.reached:
            return
        self._remove_parts()
        quirks, was_full = self.campaign.published_quirks, False
        clients = [client_with(quirks, name) for name in sorted({one.client for one in self.campaign.every})]
        self.place.limit_settings(written_settings(quirks))
        with Caller(self.place, clients, self._poll, self._session.run_as) as caller:
            while (run := self._schedule.next()) is not None:
                recorded = False
                self._running = run
                try:
                    if was_full:  # an attempt may not have been journalled as ended, for lack of room
                        settle_killed(self.campaign, self.journal, self._runs, self.capture_path)
                        was_full = False
                    recorded = self._record(run, caller)
                except (PlaceError, OSError, sqlite3.OperationalError):
                    if self._stop.is_set() or not self._disk.is_short:
                        raise
                    was_full = True
                    recorded = self.journal.is_done(run.number)
                    self._show(f"{run.target.domain}: interrupted, again later (the disk is full)")
                finally:
                    self._running = None
                    self._schedule.give_back(run, again=not recorded)
                # The interpreter keeps up to 2,000 freed tuples of each size until a collection of all generations,
                # which it does by itself once in thousands of downloads: the process would grow all the while.
                gc.collect()
                if self._stopping.reached:
                    self._note_stopping()  # again, as it may have failed on a full disk
                    break

    def _note_stopping(self) -> None:
        self.journal.set_meta("stopping", json.dumps(self._stopping.state()))

    def _record(self, run: PlannedRun, caller: Caller) -> bool:
        """One attempt of a run; False if it has to be repeated."""
        parts = Parts()
        with parts.on(Part.JOURNAL):
            number = self.journal.begin(run.number, reserved(self.campaign, run.target, self.clock()))
        self._remove_interrupted(run, number)
        self._schedule.began(run, number)
        with closing(Attempt(self, run, number, caller, parts)) as attempt:
            return self._make(run, number, attempt, parts)

    def _make(self, run: PlannedRun, number: int, attempt: Attempt, parts: Parts) -> bool:
        try:
            with self.place.measuring():
                downloads, disturbed = attempt.make()
        except (PlaceError, OSError):  # a full disk, too: else it would count with its worst case
            self._interrupt(run, number, attempt)
            if self._stop.wait(SIGNAL_S):
                raise StoppedError from None
            self.place.check()  # if the place itself is the cause, its error is more precise
            raise
        except (CutError, StoppedError) as error:
            self._interrupt(run, number, attempt)
            if isinstance(error, StoppedError):
                raise
            self._show(f"{run.target.domain}: interrupted, again later ({error})")
            return False
        crashed = any(download.failure is Failure.CLIENT_CRASHED for download in downloads)
        if self._stop.wait(SIGNAL_S if crashed else 0.0):
            self._interrupt(run, number, attempt)
            raise StoppedError
        # In a place that no longer exists every download fails: that is not a result, and must not be recorded.
        self.place.check()
        last = self.journal.voids(run.number) + 1 >= self.campaign.max_attempts
        if disturbed is not None and last:
            downloads = mark_void(downloads, disturbed)
        again = disturbed is not None and not last
        try:
            with parts.on(Part.PACKING):
                downloads, capture = self._store.settle(run.number, downloads, valid=not again)
        except OSError:  # as above
            self._interrupt(run, number, attempt)
            raise
        self._schedule.ended(run, number, downloads)
        with parts.on(Part.JOURNAL):
            self.before_record()
        if disturbed is not None and again:
            self.journal.void(run.number, disturbed, downloads, ended=attempt.ended(), capture=capture)
            self._report.void_run(run.target.domain, disturbed.detail)
            self._tidy(run, number, attempt, capture, parts)
            self._show(f"{run.target.domain}: void, again ({disturbed.detail})")
            return False
        with parts.on(Part.JOURNAL):
            self.journal.accept(run.number, downloads, void=disturbed, ended=attempt.ended(), capture=capture)
        # At once: on a full disk what follows may fail, and the run is recorded.
        self._stopping.record(run.number, downloads)
        self._report.recorded_run(downloads, void=disturbed is not None)
        self._tidy(run, number, attempt, capture, parts)
        self._note_stopping()
        self._show(run.target.domain)
        return True

    def _tidy(self, run: PlannedRun, number: int, attempt: Attempt, capture: Settled | None, parts: Parts) -> None:
        """Brings the capture into its last form, and records where the attempt's time went."""
        with parts.on(Part.PACKING):
            self._store.tidy(capture)
        attempt.close()
        took = parts.end()
        self.journal.took(run.number, number, took)
        self._report.took(took)

    def _interrupt(self, run: PlannedRun, number: int, attempt: Attempt) -> None:
        """Journals an attempt as interrupted, with what it took."""
        self._schedule.ended(run, number, attempt.downloads)
        self.journal.interrupt(run.number, ended=attempt.ended())
        self._report.interrupted_run()

    def check(self, run: PlannedRun) -> None:
        """Raises what ends the run now, as `Vantage.check` says."""
        self._checked_at = time.monotonic()
        self._report.alive()
        if self._stop.is_set():
            raise StoppedError
        if (cut := self._schedule.cut(run)) is not None:
            raise CutError(cut)
        self.place.check()

    def resolved(self, run: PlannedRun, attempt: int, address: str) -> None:
        """To be called with the server's address, before anything is sent to it. Raises as `check`."""
        self._schedule.resolved(run, attempt, address)
        self.check(run)

    def _poll(self) -> None:
        """While a program runs: as `check`, but the gates are asked once a second. Between runs, a sign of life."""
        if self._stop.is_set():
            raise StoppedError
        if self._running is None:
            self._report.alive()
        elif time.monotonic() - self._checked_at >= POLL_S:
            self.check(self._running)

    def _tell(self, state: State, reason: str, until: float | None) -> None:
        """What the vantage point does now, and why."""
        self._report.does(state, reason, until)
        if state is State.STOPPING:
            self.ended_by = reason
        if state is not State.RUNNING:
            self.place.check()
            ends = "" if until is None else f" until {utc(until)}"
            self._show(f"{state}{ends}: {reason}")

    def show(self, run: PlannedRun, done: int, name: str) -> None:
        """Shows the current download."""
        self._show(f"{run.target.domain} {name}", extra=done)

    def _show(self, note: str, *, extra: int = 0) -> None:
        counts = self._report.counts
        self._session.progress.update(
            self.place.name,
            done=counts.recorded + extra,
            total=counts.planned,
            failed=counts.failed,
            note=scrub(note),
        )

    def pause(self, seconds: float) -> None:
        """Waits. Raises StoppedError when stopped meanwhile."""
        self._report.alive(seconds)
        if seconds and self._stop.wait(seconds):
            raise StoppedError

    def logs_path(self, run: PlannedRun, attempt: int) -> Path:
        """The folder for logs that clients write during an attempt; made by the client that writes some."""
        return self._folder.parent / "logs" / self.capture_path(run, attempt).stem

    def capture_path(self, run: PlannedRun, attempt: int) -> Path:
        """The path of an attempt's capture."""
        again = f"-a{attempt}" if attempt > 1 else ""
        return self._folder / f"{run.iteration}-{run.number:03d}-{file_name(run.target.domain)}{again}.pcap"

    def relative(self, path: Path) -> str:
        """A path as stored in records."""
        return path.relative_to(self._session.out).as_posix()

    def _remove_interrupted(self, run: PlannedRun, attempt: int) -> None:
        """Removes the captures of attempts that were interrupted between capture and record: no row refers to them."""
        if attempt > 1:
            for earlier in set(range(1, attempt)) - self.journal.void_attempts(run.number):
                for path in (plain := self.capture_path(run, earlier), packed_name(plain)):
                    path.unlink(missing_ok=True)

    def _remove_parts(self) -> None:
        """Removes captures that an earlier process left unfinished."""
        for part in self._folder.glob(".*.part.*"):
            part.unlink(missing_ok=True)


CapturePath = Callable[[PlannedRun, int], Path]
"""(run, attempt) -> path of its capture."""


def settle_killed(campaign: Campaign, journal: Journal, runs: Mapping[int, PlannedRun], path_of: CapturePath) -> None:
    """Counts killed attempts from their captures, whole or partial; one without keeps its worst case."""
    for entry in journal.spent.unsettled():
        run = runs[entry.run]
        took, exact = _taken(campaign, journal, entry, run, path_of(run, entry.attempt))
        journal.spent.settle(entry.run, entry.attempt, took, exact=exact)


def _taken(
    campaign: Campaign, journal: Journal, entry: AccountEntry, run: PlannedRun, path: Path
) -> tuple[int | None, bool]:
    """IP bytes of a killed attempt, and whether they are all of them and no more; None: nobody knows."""
    if entry.address is None:
        return 0, True
    # Killed between the end of the capture and the record, it is whole, but nobody knows what the kernel dropped of it.
    files = [file for file in (path, *part_names(path)) if file.exists()]
    if not files:  # lost in a power cut
        return None, False
    finished = journal.attempt(entry.run, entry.attempt)
    return interrupted_bytes(campaign, run.target, sum(map(ip_bytes, files)), finished), False


def trusts_clock(campaign: Campaign) -> bool:
    """Whether slots are told by this host's clock unchecked: in a lab all vantage points have the same one."""
    return campaign.lab is not None or campaign.vantage_clock == VantageClock.TRUSTED
