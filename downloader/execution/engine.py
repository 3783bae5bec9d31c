"""The work of one vantage point: its measurement runs in order, each recorded completely or repeated."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from downloader.campaign.campaign import Campaign, Order
from downloader.campaign.plan import PlannedRun
from downloader.campaign.published import client_with, pauses_s, settings_with
from downloader.campaign.trust import trusted
from downloader.client import Client, ClientResult, DownloadRequest
from downloader.control.reporter import VantageReport
from downloader.execution import remains
from downloader.execution.calls import Caller, CutError, Resolution, StoppedError
from downloader.execution.capture import Capture
from downloader.execution.journal import Ended, Journal
from downloader.execution.records import Planned, complete, mark_void, not_started, record, reused_port
from downloader.execution.stopping import Stopping
from downloader.execution.tcpdump import Captured
from downloader.limits.captures import CaptureStore
from downloader.limits.disk import FolderDisk
from downloader.limits.packing import packed_name
from downloader.limits.spent import interrupted_bytes, network_of, reserved
from downloader.limits.traffic import ip_bytes
from downloader.schedule.gate import Cut, Gate, State
from downloader.schedule.schedule import POLL_S, Schedule
from downloader.schedule.turns import Turns
from upshift.domain import Configuration, Disturbance, Download, Failure, Outcome, Target
from upshift.errors import PlaceError, ReachError
from upshift.files.target_rules import host_and_port
from upshift.progress import Progress
from upshift.reach import check_address, check_named
from upshift.scrub import file_name, scrub
from upshift.system.place import Place, Verdict, Watch

SIGNAL_S = 1.0
"""How long a dead program waits for its explanation: a signal to all of a terminal's or a unit's processes may reach
clients and tcpdump before it reaches us. Then the run is interrupted, and nothing has failed."""


@dataclass(frozen=True, slots=True)
class _Address:
    """The address for the downloads of a run, or why there is none."""

    address: str | None
    looked_up: Resolution | None
    failure: Failure | None = None
    detail: str = ""


class Worker:
    """The measurement runs of one vantage point.

    Args:
        out: the campaign's folder.
        report: told what the vantage point does.
        runs: all runs of the plan; those that are in the journal already are skipped.
        clock: gives Unix time, for all that depends on the day; times of downloads are the clients'.
    """

    def __init__(
        self,
        campaign: Campaign,
        place: Place,
        journal: Journal,
        runs: Sequence[PlannedRun],
        *,
        out: Path,
        turns: Turns,
        gates: Sequence[Gate],
        store: CaptureStore,
        disk: FolderDisk,
        progress: Progress,
        report: VantageReport,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.campaign, self.place, self.journal = campaign, place, journal
        self.ca_file = trusted(campaign, place)
        self._out, self._progress, self._report, self._stop = out, progress, report, stop
        self._store, self._disk = store, disk
        self._folder = out / "vantage" / place.name / "captures"
        counts = journal.counts()
        self._planned, self._recorded, self._failed = counts.planned, counts.recorded, counts.failed
        self._runs = {run.number: run for run in runs}
        waiting = [self._runs[number] for number in journal.open_runs()]
        self._schedule = Schedule(waiting, turns=turns, gates=gates, stop=stop, tell=self._tell, clock=clock)
        self.clock = clock
        self._running: PlannedRun | None = None
        self._asked = 0.0
        self._stopping = Stopping(campaign, self._earlier())
        self.asked_to_stop: str | None = None
        """What ended the work before the plan; None: nothing."""

    def _earlier(self) -> Iterator[Download]:
        """The downloads of earlier processes; may take a while. Raises StoppedError when stopped meanwhile."""
        for download in self.journal.downloads():
            self._report.alive()
            self._poll()
            yield download

    def work(self) -> None:
        """Makes all remaining runs. Returns early when stopped, and as soon as the campaign's `stop_when` is met.

        Raises:
            StoppedError: stopped in the middle of a run, which the next start repeats.
            PlaceError: the place cannot do what a run needs.
        """
        self._show("")
        remains.settle(self.campaign, self.journal, self._runs, self.capture_path)
        self._store.tidy_all(self.journal.captures, self._poll)
        self.journal.set_meta("stopping", json.dumps(self._stopping.state()))
        if not self._schedule.left or self._stopping.reached:
            return
        self._remove_parts()
        used = {configuration.client for configuration in (*self.campaign.warmups, *self.campaign.configurations)}
        with Caller(self.place, [self.client(name) for name in sorted(used)], self._poll) as caller:
            while (run := self._schedule.next()) is not None:
                recorded = False
                self._running = run
                try:
                    recorded = self._record(run, caller)
                except (PlaceError, OSError, sqlite3.OperationalError):
                    if self._stop.is_set() or not self._disk.is_short:
                        raise
                    recorded = self.journal.is_done(run.number)
                    self._show(f"{run.target.domain}: interrupted, again later (the disk is full)")
                finally:
                    self._running = None
                    self._schedule.give_back(run, again=not recorded)
                if self._stopping.reached:
                    return

    def _record(self, run: PlannedRun, caller: Caller) -> bool:
        """One attempt of a run; False if it has to be repeated."""
        number = self.journal.begin(run.number, reserved(self.campaign, run.target, self.clock()))
        self._remove_interrupted(run, number)
        self._schedule.began(run, number)
        attempt = _Attempt(self, run, number, caller)
        try:
            with self.place.measuring():
                downloads, disturbed = attempt.make()
        except PlaceError:
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
        self._schedule.ended(run, number, downloads)
        last = self.journal.voids(run.number) + 1 >= self.campaign.max_attempts
        if disturbed is not None and last:
            downloads = mark_void(downloads, disturbed)
        again = disturbed is not None and not last
        downloads, capture = self._store.settle(run.number, downloads, valid=not again)
        if disturbed is not None and again:
            self.journal.void(run.number, disturbed, downloads, ended=attempt.ended(), capture=capture)
            self._store.tidy(capture)
            self._report.void_run(run.target.domain, disturbed.detail)
            self._show(f"{run.target.domain}: void, again ({disturbed.detail})")
            return False
        self.journal.accept(run.number, downloads, void=disturbed, ended=attempt.ended(), capture=capture)
        self._store.tidy(capture)
        self._stopping.record(downloads)
        self.journal.set_meta("stopping", json.dumps(self._stopping.state()))
        self._report.recorded_run(downloads, void=disturbed is not None)
        self._recorded += len(downloads)
        self._failed += sum(d.outcome == Outcome.FAILED for d in downloads)
        self._show(run.target.domain)
        return True

    def _interrupt(self, run: PlannedRun, number: int, attempt: _Attempt) -> None:
        """Journals an attempt as interrupted, with what it took."""
        self._schedule.ended(run, number, attempt.downloads)
        self.journal.interrupt(run.number, ended=attempt.ended())
        self._report.interrupted_run()

    def check(self, run: PlannedRun) -> None:
        """To be called before each look-up and download, and every second meanwhile.

        Raises:
            StoppedError: the campaign is being stopped.
            CutError: a gate ends the run.
            PlaceError: the place is broken.
        """
        self._asked = time.monotonic()
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
        """While a program runs: as `check`, but the gates are asked once a second."""
        if self._stop.is_set():
            raise StoppedError
        if self._running is not None and time.monotonic() - self._asked >= POLL_S:
            self.check(self._running)

    def _tell(self, state: State, reason: str, until: float | None) -> None:
        """What the vantage point does now, and why."""
        self._report.does(state, reason, until)
        if state is State.STOPPING:
            self.asked_to_stop = reason
        if state is not State.RUNNING:
            self.place.check()
            ends = "" if until is None else f" until {time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(until))}"
            self._show(f"{state}{ends}: {reason}")

    def show(self, run: PlannedRun, done: int, name: str) -> None:
        """Shows the current download."""
        self._show(f"{run.target.domain} {name}", extra=done)

    def _show(self, note: str, *, extra: int = 0) -> None:
        self._progress.update(
            self.place.name, done=self._recorded + extra, total=self._planned, failed=self._failed, note=scrub(note)
        )

    def client(self, name: str) -> Client:
        """The client of that name, or what a quirk runs in its place."""
        return client_with(self.campaign.published_quirks, name)

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
        return path.relative_to(self._out).as_posix()

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


class _Attempt:
    """One attempt of one measurement run: look-up, watch, capture, warm-ups, all configurations."""

    def __init__(self, worker: Worker, run: PlannedRun, attempt: int, caller: Caller) -> None:
        self._worker, self._run, self._attempt, self._caller = worker, run, attempt, caller
        self._campaign, self._place = worker.campaign, worker.place
        self._host, self._port = host_and_port(run.target.url)
        self._budget_s = self._campaign.budget_for(run.target)
        # On the Internet only what the campaign itself names: a place adds its name servers, which may be private.
        self._named = self._place.allowed_prefixes if self._campaign.lab else self._campaign.allowed_prefixes
        self._cut: Cut | None = None
        self._entered: str | None = None
        """The address in the account."""
        self._ip_bytes = 0
        self._is_whole = True
        """Whether `_ip_bytes` are all: the capture is complete, or nothing was sent to a server."""
        self.downloads: list[Download] = []
        """What has been finished."""

    def ended(self) -> Ended:
        """What the attempt took; for the account."""
        taken = self._ip_bytes
        if not self._is_whole:
            taken = interrupted_bytes(self._campaign, self._run.target, self._ip_bytes, self.downloads)
        return Ended(ip_bytes=taken, at=self._worker.clock())

    def make(self) -> tuple[list[Download], Disturbance | None]:
        """The downloads of the attempt, and why it is void, if it is."""
        fixed = self._look_up()
        if fixed.address is None and self._campaign.order != Order.PUBLISHED:
            downloads = [self._one(index, fixed) for index in range(len(self._run.configurations))]
            cut = None if self._cut is None else self._cut.void
            return complete(downloads, capture=None, captured=None, verdict=None), cut
        watch = self._watch(fixed.address)
        path = self._worker.capture_path(self._run, self._attempt)
        published = self._campaign.order == Order.PUBLISHED
        capture = Capture.start(self._place, path, address=None if published else fixed.address, port=self._port)
        captured: Captured | None = None
        self._is_whole = False
        try:
            for index, name in enumerate(self._run.configurations):
                self._worker.show(self._run, index, name)
                goal = self._look_up() if published and index > 0 else fixed
                self.downloads.append(self._one(index, goal))
                self._worker.journal.stage(self._run.number, self._attempt, self.downloads[-1])
            if watch is not None:
                watch.settle()
            captured = capture.finish()
        finally:
            if captured is None:
                self._ip_bytes = capture.abandon()
        self._ip_bytes, self._is_whole = ip_bytes(path), captured.dropped == 0
        verdict: Verdict | None = None if watch is None else watch.finish()
        done = complete(self.downloads, capture=self._worker.relative(path), captured=captured, verdict=verdict)
        cut = None if self._cut is None else self._cut.void
        return done, cut or (None if verdict is None else verdict.disturbed) or reused_port(done)

    def _look_up(self) -> _Address:
        """A fresh address that may be contacted, or why there is none."""
        found: Resolution | None = None
        try:
            self._check()
            found = self._caller.resolve(self._host, family=self._campaign.address_family)
            if not found.addresses:
                return _Address(None, found, Failure.DNS_ERROR, found.error or "no address")
            address = found.addresses[0]
            check_address(address, self._place.allowed_prefixes)
            check_named(address, self._named)
            self._worker.resolved(self._run, self._attempt, address)
        except ReachError as error:
            return _Address(None, found, Failure.ADDRESS_REFUSED, error.what)
        except CutError as error:
            return _Address(None, found, self._keep(error), error.cut.reason)
        return _Address(address, found)

    def _watch(self, address: str | None) -> Watch | None:
        """A watch on the path; None if the place has no path to the address, e.g. for a name that was not resolved."""
        if address is None:
            return None
        try:
            return self._place.watch(address)
        except PlaceError:
            return None

    def _one(self, index: int, goal: _Address) -> Download:
        configuration = self._campaign.configuration(self._run.configurations[index])
        target: Target = self._run.target
        planned = Planned(
            campaign=self._campaign.name,
            vantage=self._place.name,
            iteration=self._run.iteration,
            target=target,
            configuration=configuration,
            position=self._run.positions[index],
            attempt=self._attempt,
            budget_s=self._budget_s,
            port=self._port,
        )
        try:
            result = self._download(configuration, goal)
        except CutError as error:
            result = not_started(self._keep(error), error.cut.reason, at=time.time(), address=goal.address)
        return record(planned, result, looked_up=goal.looked_up)

    def _check(self) -> None:
        """Raises CutError if the run has been cut, or is to be; StoppedError when stopped."""
        if self._cut is not None:
            raise CutError(self._cut)
        self._worker.check(self._run)

    def _keep(self, error: CutError) -> Failure:
        """The cause of all downloads that are left in a run that was cut; raises the error if there is none."""
        if error.cut.failure is None:
            raise error
        self._cut = error.cut
        return error.cut.failure

    def _download(self, configuration: Configuration, goal: _Address) -> ClientResult:
        self._check()
        if goal.address is None:
            return not_started(goal.failure or Failure.UNKNOWN, goal.detail, at=time.time(), address=None)
        if goal.address != self._entered:  # now that packets are captured: a kill before this took no bytes
            self._entered = goal.address
            network = network_of(self._run.target, goal.address)
            self._worker.journal.resolved(self._run.number, self._attempt, goal.address, network)
        self._place.apply(settings_with(self._campaign.published_quirks, configuration))
        client = self._worker.client(configuration.client)
        before_s, after_s = pauses_s(self._campaign.published_quirks, client.transport)
        self._worker.pause(before_s)
        request = DownloadRequest(
            url=self._run.target.url,
            address=goal.address,
            port=self._port,
            ca_file=self._worker.ca_file,
            budget_s=self._budget_s,
            max_bytes=self._campaign.max_bytes,
            user_agent=self._campaign.user_agent,
            allowed=tuple(str(prefix) for prefix in self._place.allowed_prefixes),
            options=configuration.options,
            logs=self._worker.logs_path(self._run, self._attempt) / configuration.name,
            nameservers=tuple(self._place.nameservers),
        )
        result = self._caller.download(client, request)
        self._worker.pause(after_s)
        return result
