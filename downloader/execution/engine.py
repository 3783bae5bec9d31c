"""The work of one vantage point: its measurement runs in order, each recorded completely or repeated."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from downloader.campaign.campaign import Campaign, Order
from downloader.campaign.plan import PlannedRun
from downloader.campaign.published import client_with, pauses_s, settings_with
from downloader.campaign.trust import trusted
from downloader.client import Client, ClientResult, DownloadRequest
from downloader.execution.calls import Caller, Resolution, StoppedError
from downloader.execution.capture import Capture
from downloader.execution.journal import Journal
from downloader.execution.records import Planned, complete, mark_void, not_started, record, reused_port
from downloader.execution.stopping import Stopping
from downloader.execution.tcpdump import Captured
from upshift.domain import Disturbance, Download, Failure, Outcome, Target
from upshift.errors import PlaceError, ReachError
from upshift.files.target_rules import host_and_port
from upshift.progress import Progress
from upshift.reach import check_address
from upshift.scrub import file_name, scrub
from upshift.system.place import Place, Verdict, Watch


class Turns:
    """Ensures that no two vantage points download from the same target at the same time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._busy: set[str] = set()

    def each(self, runs: Iterable[PlannedRun], stop: threading.Event) -> Generator[PlannedRun]:
        """All runs in order, except those whose target is in use: they follow as soon as it is free.

        The target of a run is in use until the next run is requested, or this is closed. Only the runs that are needed
        are examined: the first, and one for each target in use. Ends early when stopped.
        """
        # A linked list: its head is found at once, even after many removals (a dict would scan over them).
        waiting = OrderedDict((run.number, run) for run in runs)
        while waiting and (run := self._take(waiting.values(), stop)) is not None:
            del waiting[run.number]
            try:
                yield run
            finally:
                self._give_back(run.target.domain)

    def _take(self, runs: Iterable[PlannedRun], stop: threading.Event) -> PlannedRun | None:
        """The first run whose target is not in use; waits while all are in use, None when stopped."""
        with self._condition:
            while not stop.is_set():
                for run in runs:
                    if run.target.domain not in self._busy:
                        self._busy.add(run.target.domain)
                        return run
                self._condition.wait(0.2)
        return None

    def _give_back(self, domain: str) -> None:
        with self._condition:
            self._busy.discard(domain)
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class _Address:
    """The address for the downloads of a run, or why there is none."""

    address: str | None
    looked_up: Resolution
    failure: Failure | None = None
    detail: str = ""


class Worker:
    """The measurement runs of one vantage point.

    Args:
        out: the campaign's folder.
        runs: all runs of the plan; those that are in the journal already are skipped.
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
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self.campaign, self.place, self.journal = campaign, place, journal
        self._runs = {run.number: run for run in runs}
        self.ca_file = trusted(campaign, place)
        self._out, self._turns, self._progress, self._stop = out, turns, progress, stop
        self._folder = out / "vantage" / place.name / "captures"
        counts = journal.counts()
        self._planned, self._recorded, self._failed = counts.planned, counts.recorded, counts.failed
        self._stopping = Stopping(campaign, journal.downloads())

    def work(self) -> None:
        """Makes all remaining runs. Returns early when stopped, and as soon as the campaign's `stop_when` is met.

        Raises:
            StoppedError: stopped in the middle of a run, which the next start repeats.
            PlaceError: the place cannot do what a run needs.
        """
        waiting = [self._runs[number] for number in self.journal.open_runs()]
        self._show("")
        self.journal.set_meta("stopping", json.dumps(self._stopping.state()))
        if not waiting or self._stopping.reached:
            return
        self._remove_parts()
        used = {self.campaign.configuration(name).client for run in waiting for name in run.configurations}
        with (
            Caller(self.place, [self.client(name) for name in sorted(used)], self._stop) as caller,
            contextlib.closing(self._turns.each(waiting, self._stop)) as runs,
        ):
            for run in runs:
                self._record(run, caller)
                if self._stopping.reached:
                    return

    def _record(self, run: PlannedRun, caller: Caller) -> None:
        """One run, repeated until it is recorded."""
        while True:
            attempt = self.journal.begin(run.number)
            self._remove_interrupted(run, attempt)
            try:
                with self.place.measuring():
                    downloads, disturbed = _Attempt(self, run, attempt, caller).make()
            except PlaceError:
                if not self._stop.is_set():
                    self.place.check()  # if the place itself is the cause, its error is more precise
                raise
            if self._stop.is_set():  # Ctrl-C at a terminal also reaches clients and tcpdump: this run is not valid
                raise StoppedError
            # In a place that no longer exists every download fails: that is not a result, and must not be recorded.
            self.place.check()
            last = self.journal.voids(run.number) + 1 >= self.campaign.max_attempts
            if disturbed is None or last:
                if disturbed is not None:
                    downloads = mark_void(downloads, disturbed)
                self.journal.accept(run.number, downloads, void=disturbed)
                self._stopping.record(downloads)
                self.journal.set_meta("stopping", json.dumps(self._stopping.state()))
                self._recorded += len(downloads)
                self._failed += sum(d.outcome == Outcome.FAILED for d in downloads)
                self._show(run.target.domain)
                return
            self.journal.void(run.number, disturbed, downloads)
            self._show(f"{run.target.domain}: void, again ({disturbed.detail})")

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
                self.capture_path(run, earlier).unlink(missing_ok=True)

    def _remove_parts(self) -> None:
        """Removes captures that an earlier process left unfinished."""
        for part in self._folder.glob(".*.part.pcap"):
            part.unlink(missing_ok=True)


class _Attempt:
    """One attempt of one measurement run: look-up, watch, capture, warm-ups, all configurations."""

    def __init__(self, worker: Worker, run: PlannedRun, attempt: int, caller: Caller) -> None:
        self._worker, self._run, self._attempt, self._caller = worker, run, attempt, caller
        self._campaign, self._place = worker.campaign, worker.place
        self._host, self._port = host_and_port(run.target.url)
        self._budget_s = self._campaign.budget_for(run.target)

    def make(self) -> tuple[list[Download], Disturbance | None]:
        """The downloads of the attempt, and why it is void, if it is."""
        fixed = self._look_up()
        if fixed.address is None and self._campaign.order != Order.PUBLISHED:
            downloads = [self._one(index, fixed) for index in range(len(self._run.configurations))]
            return complete(downloads, capture=None, captured=None, verdict=None), None
        watch = self._watch(fixed.address)
        path = self._worker.capture_path(self._run, self._attempt)
        published = self._campaign.order == Order.PUBLISHED
        capture = Capture.start(self._place, path, address=None if published else fixed.address, port=self._port)
        captured: Captured | None = None
        try:
            downloads = []
            for index, name in enumerate(self._run.configurations):
                self._worker.show(self._run, index, name)
                goal = self._look_up() if published and index > 0 else fixed
                downloads.append(self._one(index, goal))
                self._worker.journal.stage(self._run.number, self._attempt, downloads[-1])
            if watch is not None:
                watch.settle()
            captured = capture.finish()
        finally:
            if captured is None:
                capture.abandon()
        verdict: Verdict | None = None if watch is None else watch.finish()
        done = complete(downloads, capture=self._worker.relative(path), captured=captured, verdict=verdict)
        return done, (None if verdict is None else verdict.disturbed) or reused_port(done)

    def _look_up(self) -> _Address:
        """A fresh address that may be contacted, or why there is none."""
        found: Resolution = self._caller.resolve(self._host, family=self._campaign.address_family)
        if not found.addresses:
            return _Address(None, found, Failure.DNS_ERROR, found.error or "no address")
        address = found.addresses[0]
        try:
            check_address(address, self._place.allowed_prefixes)
        except ReachError as error:
            return _Address(None, found, Failure.ADDRESS_REFUSED, error.what)
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
        result: ClientResult
        if goal.address is None:
            failure = goal.failure or Failure.UNKNOWN
            result = not_started(failure, goal.detail, at=time.time(), address=None)
        else:
            self._place.apply(settings_with(self._campaign.published_quirks, configuration))
            client = self._worker.client(configuration.client)
            before_s, after_s = pauses_s(self._campaign.published_quirks, client.transport)
            self._worker.pause(before_s)
            request = DownloadRequest(
                url=target.url,
                address=goal.address,
                port=self._port,
                ca_file=self._worker.ca_file,
                budget_s=self._budget_s,
                max_bytes=self._campaign.max_bytes,
                user_agent=self._campaign.user_agent,
                allowed=tuple(str(prefix) for prefix in self._place.allowed_prefixes),
                options=configuration.options,
                logs=self._worker.logs_path(self._run, self._attempt) / configuration.name,
            )
            result = self._caller.download(client, request)
            self._worker.pause(after_s)
        return record(planned, result, looked_up=goal.looked_up)
