"""One attempt of one measurement run: look-up, watch, capture, all configurations; and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from core.domain import Configuration, Disturbance, Download, Failure, FailureCode, Outcome
from core.errors import LabError, ReachError
from core.reach import check_address, check_named, unmapped
from core.system.place import Place, Watch
from core.untrusted import host_and_port
from downloader.campaign.campaign import Campaign, Order
from downloader.campaign.configurations import client_with, pauses_s, settings_with
from downloader.campaign.plan import PlannedRun
from downloader.client import Client, ClientResult, DownloadRequest
from downloader.execution.calls import Caller, CutError, Resolution
from downloader.execution.capture import Capture, ip_bytes
from downloader.execution.journal import Ended, Journal
from downloader.execution.records import (
    clock_offset_s,
    complete,
    not_started,
    record,
    reused_port,
    stepped_clock,
)
from downloader.limits.budget import interrupted_bytes, network_of
from downloader.schedule.schedule import Cut


class Part(StrEnum):
    """A part of an attempt's time; each moment belongs to one."""

    LOOK_UP = "look_up"
    CAPTURE_START = "capture_start"
    SETTINGS = "settings"
    """Writing the kernel settings of a configuration."""
    SET_UP = "set_up"
    """From the call of a client to its first packet."""
    DOWNLOAD = "download"
    """From the first packet to the last byte of the body; of a download that is not whole, to the client's end."""
    CLIENT_END = "client_end"
    """From the last byte to the client's end: hash, document, close."""
    PAUSE = "pause"
    """Pauses of quirks."""
    SETTLE = "settle"
    """Until no packet is in flight any more."""
    CAPTURE_END = "capture_end"
    JOURNAL = "journal"
    PACKING = "packing"
    """Reading the capture and compressing it, or dropping it."""
    REST = "rest"


class Parts:
    """The parts of one attempt, in seconds.

    Args:
        clock: gives seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.seconds = dict.fromkeys(Part, 0.0)

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """The block is of this part."""
        began = self._clock()
        try:
            yield
        finally:
            self.seconds[part] += self._clock() - began

    def called(self, result: ClientResult, seconds: float) -> None:
        """A client was called, for so long."""
        set_up = min(result.setup_s or 0.0, seconds)
        whole_s = result.last_byte_s if result.outcome is Outcome.OK else None  # a censored one has one, too
        download = seconds - set_up if whole_s is None else min(whole_s, seconds - set_up)
        self.seconds[Part.SET_UP] += set_up
        self.seconds[Part.DOWNLOAD] += download
        self.seconds[Part.CLIENT_END] += seconds - set_up - download

    def end(self) -> dict[str, float]:
        """Part -> seconds, to the microsecond; what belongs to no other part is `REST`."""
        self.seconds[Part.REST] += max(0.0, self._clock() - self._began - sum(self.seconds.values()))
        return {part.value: round(seconds, 6) for part, seconds in self.seconds.items()}


class Vantage(Protocol):
    """What an attempt asks of the vantage point that makes it (`downloader.execution.engine.Worker`)."""

    campaign: Campaign
    place: Place
    journal: Journal
    ca_file: Path
    clock: Callable[[], float]

    def check(self, run: PlannedRun) -> None:
        """To be called before each look-up and download, and every second meanwhile.

        Raises:
            StoppedError: the campaign is being stopped.
            CutError: a gate ends the run.
            PlaceError: the place is broken.
        """

    def resolved(self, run: PlannedRun, attempt: int, address: str) -> None:
        """To be called with the server's address, before anything is sent to it. Raises as `check`."""

    def show(self, run: PlannedRun, done: int, name: str) -> None:
        """Shows the current download."""

    def pause(self, seconds: float) -> None:
        """Waits. Raises StoppedError when stopped meanwhile."""

    def capture_path(self, run: PlannedRun, attempt: int) -> Path:
        """The path of an attempt's capture."""

    def logs_path(self, run: PlannedRun, attempt: int) -> Path:
        """The folder for logs that clients write during an attempt; made by the client that writes some."""

    def relative(self, path: Path) -> str:
        """A path as stored in records."""


@dataclass(frozen=True, slots=True)
class _Address:
    """The address for the downloads of a run, or why there is none."""

    address: str | None
    looked_up: Resolution | None
    failure: Failure | None = None
    detail: str = ""
    code: FailureCode | None = None


class Attempt:
    """One attempt of one measurement run. It is made once."""

    def __init__(self, vantage: Vantage, run: PlannedRun, attempt: int, caller: Caller, parts: Parts) -> None:
        self._parts = parts
        self._vantage, self._run, self._attempt, self._caller = vantage, run, attempt, caller
        self._campaign, self._place = vantage.campaign, vantage.place
        self._host, self._port = host_and_port(run.target.url)
        self._budget_s = self._campaign.budget_for(run.target)
        # On the Internet only what the campaign itself names: a place adds its name servers, which may be private.
        self._named = self._place.allowed_prefixes if self._campaign.lab else self._campaign.allowed_prefixes
        self._cut: Cut | None = None
        self._void: Disturbance | None = None
        """Why the cut makes the attempt void."""
        self._capture: Capture | None = None
        self._entered: str | None = None
        """The address in the account."""
        self._ip_bytes = 0
        self._is_whole = True
        """Whether `_ip_bytes` are all: the capture is complete, or nothing was sent to a server."""
        self.downloads: list[Download] = []
        """What has been finished."""

    def close(self) -> None:
        """Waits for the end of its programs. To be called once all else is done."""
        if self._capture is not None:
            with self._parts.on(Part.CAPTURE_END):
                self._capture.close()

    def ended(self) -> Ended:
        """What the attempt took; for the account."""
        taken = self._ip_bytes
        if not self._is_whole:
            taken = interrupted_bytes(self._campaign, self._run.target, self._ip_bytes, self.downloads)
        return Ended(ip_bytes=taken, at=self._vantage.clock(), exact=self._is_whole)

    def make(self) -> tuple[list[Download], Disturbance | None]:
        """The downloads of the attempt, and why it is void, if it is."""
        clock_s = clock_offset_s()
        fixed = self._look_up()
        if fixed.address is None and self._campaign.order != Order.PUBLISHED:
            downloads = [self._one(index, fixed) for index in range(len(self._run.configurations))]
            return complete(downloads, capture=None, dropped=None, verdict=None), self._void
        watch = self._watch(fixed.address)
        path = self._vantage.capture_path(self._run, self._attempt)
        published = self._campaign.order == Order.PUBLISHED
        with self._parts.on(Part.CAPTURE_START):
            only = None if published else fixed.address
            self._capture = capture = Capture.start(self._place, path, address=only, port=self._port)
        dropped: int | None = None
        self._is_whole = False
        try:
            for index, name in enumerate(self._run.configurations):
                self._vantage.show(self._run, index, name)
                goal = self._look_up() if published and index > 0 else fixed
                self.downloads.append(self._one(index, goal))
                with self._parts.on(Part.JOURNAL):
                    self._vantage.journal.stage(self._run.number, self._attempt, self.downloads[-1])
            if watch is not None:
                with self._parts.on(Part.SETTLE):
                    watch.settle()
            with self._parts.on(Part.CAPTURE_END):
                dropped = capture.finish()
        finally:
            if dropped is None:
                self._ip_bytes = capture.abandon()
        self._ip_bytes = ip_bytes(path)
        # A client that got a body proves an empty capture wrong: its packets went by another interface. And what was on
        # its way to a client that a cut killed is in no capture.
        seen = self._ip_bytes > 0 or not any(d.body_bytes for d in self.downloads)
        self._is_whole = dropped == 0 and seen and (self._cut is None or self._entered is None)
        verdict = None if watch is None else watch.finish()
        done = complete(self.downloads, capture=self._vantage.relative(path), dropped=dropped, verdict=verdict)
        disturbed = (None if verdict is None else verdict.disturbed) or stepped_clock(clock_s, clock_offset_s())
        return done, self._void or disturbed or reused_port(done)

    def _look_up(self) -> _Address:
        """A fresh address that may be contacted, or why there is none."""
        looked_up: Resolution | None = None
        try:
            self._check()
            with self._parts.on(Part.LOOK_UP):
                looked_up = self._caller.resolve(self._host, family=self._campaign.address_family)
            if not looked_up.addresses:
                failure = Failure.CLIENT_CRASHED if looked_up.crashed else Failure.DNS_ERROR
                return _Address(None, looked_up, failure, looked_up.error or "no address", looked_up.code)
            address = str(unmapped(looked_up.addresses[0]))  # whose packets are captured and counted
            check_address(address, self._place.allowed_prefixes)
            check_named(address, self._named)
            self._vantage.resolved(self._run, self._attempt, address)
        except ReachError as error:
            return _Address(None, looked_up, Failure.ADDRESS_REFUSED, error.what)
        except CutError as error:
            return _Address(None, looked_up, self._keep(error), error.cut.reason)
        return _Address(address, looked_up)

    def _watch(self, address: str | None) -> Watch | None:
        """A watch on the path; None if the place has no path to the address, e.g. for a name that was not resolved.

        Raises PlaceError where the place itself is the cause: no download gets an answer then.
        """
        if address is None:
            return None
        try:
            return self._place.watch(address)
        except (LabError, ReachError):
            return None

    def _one(self, index: int, goal: _Address) -> Download:
        configuration = self._campaign.configuration(self._run.configurations[index])
        client = client_with(self._campaign.published_quirks, configuration.client)
        try:
            result = self._download(configuration, client, goal)
        except CutError as error:
            result = not_started(self._keep(error), error.cut.reason, at=time.time(), address=goal.address)
        return record(
            result,
            campaign=self._campaign.name,
            vantage=self._place.name,
            run=self._run,
            index=index,
            configuration=configuration,
            client=client,
            attempt=self._attempt,
            budget_s=self._budget_s,
            looked_up=goal.looked_up,
        )

    def _check(self) -> None:
        """Raises CutError if the run has been cut, or is to be; StoppedError when stopped."""
        if self._cut is not None:
            raise CutError(self._cut)
        self._vantage.check(self._run)

    def _keep(self, error: CutError) -> Failure:
        """The cause of all downloads that are left in a run that was cut; raises the error if there is none."""
        if error.cut.failure is None:
            raise error
        self._cut, self._void = error.cut, error.cut.void
        return error.cut.failure

    def _download(self, configuration: Configuration, client: Client, goal: _Address) -> ClientResult:
        self._check()
        if goal.address is None:
            failure = goal.failure or Failure.UNKNOWN
            return not_started(failure, goal.detail, code=goal.code, at=time.time(), address=None)
        if goal.address != self._entered:  # now that packets are captured: a kill before this took no bytes
            self._entered = goal.address
            network = network_of(self._run.target, goal.address)
            with self._parts.on(Part.JOURNAL):
                self._vantage.journal.spent.resolved(self._run.number, self._attempt, goal.address, network)
        with self._parts.on(Part.SETTINGS):
            self._place.apply(settings_with(self._campaign.published_quirks, configuration))
        before_s, after_s = pauses_s(self._campaign.published_quirks, client.transport)
        with self._parts.on(Part.PAUSE):
            self._vantage.pause(before_s)
        if before_s:  # who opted out meanwhile, or whose slot ended, is sent nothing
            self._check()
        request = DownloadRequest(
            url=self._run.target.url,
            address=goal.address,
            port=self._port,
            ca_file=self._vantage.ca_file,
            budget_s=self._budget_s,
            max_bytes=self._campaign.max_bytes,
            expected_bytes=None if self._run.target.size_is_lower_bound else self._run.target.size_bytes,
            user_agent=self._campaign.user_agent,
            allowed=tuple(str(prefix) for prefix in self._place.allowed_prefixes),
            options=configuration.options,
            logs=self._vantage.logs_path(self._run, self._attempt) / configuration.name,
            nameservers=tuple(self._place.nameservers),
        )
        called = time.monotonic()
        result = self._caller.download(client, request)
        self._parts.called(result, time.monotonic() - called)
        if self._capture is not None and result.outcome is not Outcome.OK:
            with self._parts.on(Part.SETTLE):
                self._capture.settle(result.connect_s)
        with self._parts.on(Part.PAUSE):
            self._vantage.pause(after_s)
        return result
