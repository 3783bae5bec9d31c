"""The work of a vantage point, with attempts that contact nobody: what is told and counted when a disk is full."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from core.domain import Disturbance, Download, Failure, Outcome, Target
from core.errors import LabError, PlaceError
from core.reach import ANYWHERE, parse_prefixes
from downloader.campaign.expected import IN_FLIGHT_BYTES, download_bytes, with_overhead
from downloader.campaign.limits import Disk
from downloader.campaign.plan import PlannedRun
from downloader.client import ClientResult
from downloader.control.reporter import PATIENCE_S, Reporter, VantageReport
from downloader.execution import attempt, calls, capture, engine
from downloader.execution.calls import RESOLVE, Reply, Resolution, StoppedError
from downloader.execution.capture import QUIET_S, Capture, Captured, part_names
from downloader.execution.engine import Session, Worker
from downloader.execution.journal import Ended, Journal
from downloader.limits.captures import CaptureStore, CaptureTable
from downloader.limits.disk import FolderDisk
from downloader.programs import resolve
from downloader.schedule.schedule import Cut, Turns
from downloader.schedule.slots import share
from tests.campaigns import Silent
from tests.unit.test_budget import campaign
from tests.unit.test_capture_files import write
from tests.unit.test_downloader_journal import LATE, download

TARGETS = [Target(domain=f"d{n}.example", url=f"https://d{n}.example/f", size_bytes=1_000_000) for n in range(3)]


class Attempt:
    """One that sends nothing."""

    disturbed: ClassVar[Mapping[tuple[int, int], Disturbance]] = {}
    """Those that are void, by number of run and attempt."""

    def __init__(self, _vantage: object, run: PlannedRun, attempt: int, *_: object) -> None:
        self._run, self._attempt = run, attempt
        self.downloads: list[Download] = []

    def make(self) -> tuple[list[Download], Disturbance | None]:
        places = range(len(self._run.configurations))
        made = [download(self._run, place, attempt=self._attempt) for place in places]
        return made, self.disturbed.get((self._run.number, self._attempt))

    def ended(self) -> Ended:
        return Ended(ip_bytes=5, at=0.0)

    def close(self) -> None:
        pass


class Bench:
    """A worker with three measurement runs, on a disk that is short all the time."""

    def __init__(self, folder: Path, report: VantageReport, journal: Journal, worker: Worker) -> None:
        self.folder, self.report, self.journal, self.worker = folder, report, journal, worker


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def bench(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(engine, "Attempt", Attempt)
    monkeypatch.setattr(engine, "Caller", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(FolderDisk, "is_short", True)
    place: Any = SimpleNamespace(
        name="A",
        ca_file=tmp_path,
        check=lambda: None,
        limit_settings=lambda _: None,
        measuring=contextlib.nullcontext,
        allowed_prefixes=parse_prefixes("198.18.0.0/15", where="test"),
        nameservers=(),
        apply=lambda _: None,
        watch=lambda _: None,
    )
    plan = share(campaign(), TARGETS, ["A"], ["A"])
    runs = plan.runs("A")
    with (
        contextlib.closing(Journal.open(tmp_path / "vantage" / "A", runs, plan_hash="h")) as journal,
        Reporter(tmp_path, campaign="c", monotonic=lambda: clock[0]) as reporter,
    ):
        reporter.begin(plan_sha256="h", versions={}, counts={"A": journal.counts()})
        session = Session(plan=plan, out=tmp_path, progress=Silent(), reporter=reporter)
        disk = FolderDisk(tmp_path, Disk(reserve=0))
        worker = Worker(session, place, journal, runs, turns=Turns(), disk=disk)
        yield Bench(tmp_path, reporter.vantage_point("A"), journal, worker)


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception, *, calls_before: int = 0
) -> None:
    """The method raises the error when it is called first, or after that many calls."""
    errors, real = [None] * calls_before + [error], getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if errors and (error := errors.pop(0)) is not None:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("disturbed", [{}, {(0, 1): LATE}], ids=["recorded", "void"])
def test_a_run_that_the_journal_has_is_told_though_what_follows_fails(
    bench: Bench, disturbed: dict[tuple[int, int], Disturbance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attempt, "disturbed", disturbed)
    fail_once(monkeypatch, CaptureStore, "tidy", OSError("no space left"))
    bench.worker.work()
    counts = bench.journal.counts()
    assert (counts.recorded, counts.void_runs) == (counts.planned, len(disturbed))
    assert bench.report.counts == counts
    assert bench.worker._disk._needed == {}, "the room of its last run is free for others"


def test_the_environment_of_a_process_is_stored_before_its_first_run_is_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loses the network before has measured nothing, so what its data says stays."""
    told: list[int] = []
    bench.worker.before_record = lambda: told.append(bench.journal.counts().recorded)
    with monkeypatch.context() as patch:
        patch.setattr(FolderDisk, "is_short", False)
        patch.setattr(engine, "SIGNAL_S", 0.0)
        fail_once(patch, Attempt, "make", PlaceError("no name server can be reached from A"))
        with pytest.raises(PlaceError, match="no name server"):
            bench.worker.work()
    assert told == []
    monkeypatch.setattr(Attempt, "disturbed", {(0, 2): LATE})
    bench.worker.work()
    assert len(told) == 4 and told[:2] == [0, 0], "also before a void run"


@pytest.mark.parametrize(
    ("ends", "runs"),
    [("its plan", 3), ("its plan, started again", 3), ("stop_when", 1), ("a signal", 2), ("a fault", 2)],
)
def test_what_the_last_run_took_is_told(bench: Bench, ends: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = property(lambda _: ends == "stop_when" and bench.journal.counts().recorded > 0)
    monkeypatch.setattr(engine.Stopping, "reached", reached)
    monkeypatch.setattr(engine, "SIGNAL_S", 0.0)
    monkeypatch.setattr(FolderDisk, "is_short", False)
    error = {"a signal": StoppedError(), "a fault": PlaceError("tcpdump ended")}.get(ends)
    if error is not None:
        fail_once(monkeypatch, Attempt, "make", error, calls_before=1)
    with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
        bench.worker.work()
    if ends.endswith("again"):
        bench.report._budgets = ()
        bench.worker.work()
    told = {use.budget: use.used_bytes for use in bench.report.budgets_of(bench.report._budgets_day)}
    spent = [entry.ip_bytes for entry in bench.journal.spent.entries()]
    assert spent == [5] * runs and told.get("campaign") == sum(spent)


def test_runs_of_earlier_processes_have_their_numbers(bench: Bench) -> None:
    """Also where one before them waits, for its slot or its budget."""
    made = {}
    for number in (2, 1):
        run = bench.worker._runs[number]
        made[number] = [download(run, place) for place in range(len(run.configurations))]
        bench.journal.begin(number)
        bench.journal.accept(number, made[number])
        assert list(bench.worker._earlier()) == sorted(made.items())


def test_an_attempt_whose_end_could_not_be_journalled_is_settled_once_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, Journal, "accept", sqlite3.OperationalError("database or disk is full"))
    bench.worker.work()
    assert bench.journal.counts().recorded == bench.journal.counts().planned
    assert [(entry.attempt, entry.ip_bytes, entry.settled) for entry in bench.journal.spent.entries()] == [
        (1, 0, True),  # it had sent nothing
        (2, 5, True),
        (1, 5, True),
        (1, 5, True),
    ]


class Tcpdump:
    """One that has written some packets, and ended well."""

    def __init__(self, path: Path, packets: int) -> None:
        self.path = path
        self._captured = Captured(packets=packets, received=packets, dropped=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, [(1, n, PACKET) for n in range(packets)])

    def finish(self) -> Captured:
        return self._captured

    def close(self) -> None:
        pass

    abandon = close


class Caller:
    """Clients that have got a body of 1 MB, whatever the capture says."""

    def __init__(self) -> None:
        self._ports = itertools.count(40_000)

    def resolve(self, *_: Any, **__: Any) -> Resolution:
        return Resolution(addresses=("198.18.1.1",), cnames=(), dns_s=0.1, error=None)

    def download(self, *_: Any) -> ClientResult:
        whole = {"outcome": Outcome.OK, "failure": None, "failure_detail": None, "body_sha256": "a", "last_byte_s": 0.5}
        return ClientResult(started_at=1.0, body_bytes=1_000_000, local_port=next(self._ports), **whole)  # type: ignore[arg-type]


PACKET = b"\0" * 12 + b"\x08\x00\x45\x00" + (1_000).to_bytes(2, "big") + b"\0" * 100
"""Ethernet with the beginning of an IPv4 packet of 1,000 bytes."""


def capturing(monkeypatch: pytest.MonkeyPatch, packets: int) -> None:
    """Attempts as they are, save that nobody is contacted: each of their two tcpdumps writes so many packets."""

    def start(_: object, path: Path, **__: object) -> Capture:
        headers, long_headers = (Tcpdump(part, packets) for part in part_names(path))
        return Capture(path, headers, long_headers)  # type: ignore[arg-type]

    monkeypatch.setattr(Capture, "start", start)
    monkeypatch.setattr(engine, "Attempt", attempt.Attempt)
    monkeypatch.setattr(engine, "Caller", lambda *_: contextlib.nullcontext(Caller()))
    monkeypatch.setattr(engine, "SIGNAL_S", 0.0)


def test_an_attempt_whose_capture_finds_no_room_counts_with_what_it_took(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing(monkeypatch, packets=10)
    fail_once(monkeypatch, capture, "insert", OSError(errno.ENOSPC, "no space left"))
    bench.worker.work()
    plan = bench.worker.campaign
    bodies = with_overhead(1_000_000) * len(plan.of(TARGETS[0]))
    first, again, *_ = bench.journal.spent.entries()
    in_flight = min(download_bytes(plan, TARGETS[0]), IN_FLIGHT_BYTES)
    assert (first.attempt, first.ip_bytes, first.settled) == (1, bodies + in_flight, False), "what was on its way"
    assert (again.attempt, again.ip_bytes, again.settled) == (2, 20_000, True)
    assert bench.journal.counts().recorded == bench.journal.counts().planned
    assert not list(bench.folder.rglob(".*.part.pcap"))


def test_a_body_proves_an_empty_capture_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packets went by another interface than the one that was captured on: they count all the same."""
    capturing(monkeypatch, packets=0)
    bench.worker.work()
    bodies = 1_000_000 * len(bench.worker.campaign.of(TARGETS[0]))
    entries = list(bench.journal.spent.entries())
    assert len(entries) == len(TARGETS) and all(entry.ip_bytes > bodies and not entry.settled for entry in entries)


def test_what_is_on_its_way_to_a_client_that_an_opt_out_kills_is_in_no_capture(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator who had just opted out was told that the packets until then were all."""
    capturing(monkeypatch, packets=10)
    cut = calls.CutError(Cut("d0.example is on a block list", Failure.OPTED_OUT))
    fail_once(monkeypatch, Caller, "download", cut, calls_before=1)
    bench.worker.work()
    assert [one.failure for one in bench.journal.attempt(0, 1)] == [None, Failure.OPTED_OUT]
    (first, *others) = sorted(bench.journal.spent.entries(), key=lambda entry: entry.run)
    in_flight = min(download_bytes(bench.worker.campaign, TARGETS[0]), IN_FLIGHT_BYTES)
    assert (first.ip_bytes, first.settled) == (with_overhead(1_000_000) + in_flight, False)
    assert [(entry.ip_bytes, entry.settled) for entry in others] == [(20_000, True)] * 2


def test_who_opts_out_in_a_pause_before_a_download_is_sent_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quirk `pauses` waits up to 5 s there: the client was started, and killed once it had begun."""
    capturing(monkeypatch, packets=10)
    monkeypatch.setattr(attempt, "pauses_s", lambda *_: (0.001, 0.0))
    called: list[object] = []
    monkeypatch.setattr(Caller, "download", lambda *given: called.append(given))
    cut = Cut("it is on a block list", Failure.OPTED_OUT)
    pause = bench.worker.pause

    def opt_out(seconds: float) -> None:
        pause(seconds)
        monkeypatch.setattr(bench.worker._schedule, "cut", lambda _: cut)

    monkeypatch.setattr(bench.worker, "pause", opt_out)
    bench.worker.work()
    assert not called and {one.failure for one in bench.journal.downloads()} == {Failure.OPTED_OUT}


def test_what_is_on_its_way_to_a_cut_download_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It delayed the next one's handshake by what the path's queue held, and after the last one it was not counted."""
    capturing(monkeypatch, packets=10)
    cut = ClientResult(
        outcome=Outcome.CENSORED,
        failure=Failure.BYTE_BUDGET,
        failure_detail=None,
        started_at=1.0,
        connect_s=0.05,
        body_bytes=1_000,
    )
    ended: list[float] = []

    def download(caller: Caller, *_: Any) -> ClientResult:
        ended.append(time.monotonic())
        return replace(cut, local_port=next(caller._ports))

    def write_on(part: Path) -> None:
        for _ in range(10):
            time.sleep(0.04)
            with part.open("ab") as file:
                file.write(PACKET)

    monkeypatch.setattr(Caller, "download", download)
    run = bench.worker._runs[0]
    made = attempt.Attempt(bench.worker, run, 1, Caller(), attempt.Parts())  # type: ignore[arg-type]
    bench.journal.begin(0)
    made._capture = Capture.start(None, bench.folder / "a.pcap", address=None, port=443)  # type: ignore[arg-type]
    writer = threading.Thread(target=write_on, args=(part_names(bench.folder / "a.pcap")[0],))
    writer.start()
    made._one(0, attempt._Address("198.18.1.1", None))
    assert not writer.is_alive() and time.monotonic() - ended[0] > 0.4 + QUIET_S
    writer.join()


def test_a_lost_network_is_no_fault_of_the_domains(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign ends, to be run again: all runs that were left were recorded as `dns_error`, in a moment."""
    capturing(monkeypatch, packets=1)
    monkeypatch.setattr(FolderDisk, "is_short", False)
    monkeypatch.setattr(resolve, "_DNS_PORT", 0)  # which the kernel refuses, as without a route
    ours = {"family": "ipv4", "nameservers": ["127.0.0.1"], "timeout_s": 1.0, "allowed": ANYWHERE}
    document = json.dumps(resolve.resolve("d0.example", **ours))  # type: ignore[arg-type]
    lost = calls.Caller(bench.worker.place, [], lambda: None)
    program = SimpleNamespace(ask=lambda *_, **__: Reply(returncode=0, stdout=document, stderr=""))
    lost._warm = {RESOLVE: program}  # type: ignore[dict-item]
    monkeypatch.setattr(engine, "Caller", lambda *_: contextlib.nullcontext(lost))
    with pytest.raises(PlaceError, match=r"no name server can be reached from A; check the network") as caught:
        bench.worker.work()
    counts = bench.journal.counts()
    assert caught.value.exit_code == 75 and counts.recorded == 0
    monkeypatch.setattr(engine, "Caller", lambda *_: contextlib.nullcontext(Caller()))
    bench.worker.work()
    counts = bench.journal.counts()
    assert counts.ok == counts.planned == counts.recorded


@pytest.mark.parametrize(
    ("error", "recorded"),
    [(PlaceError("nft failed"), 0), (LabError("no server of the lab has this address"), 3)],
    ids=["host", "lab"],
)
def test_a_path_that_cannot_be_watched_is_no_fault_of_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: PlaceError, recorded: int
) -> None:
    """Without our nftables table no download gets an answer. A lab has no path to an address that is not its own."""
    capturing(monkeypatch, packets=1)
    monkeypatch.setattr(FolderDisk, "is_short", False)

    def watch(_: str) -> None:
        raise error

    monkeypatch.setattr(bench.worker.place, "watch", watch)
    with pytest.raises(PlaceError, match="nft failed") if not recorded else contextlib.nullcontext():
        bench.worker.work()
    assert bench.journal.counts().recorded == recorded * len(bench.worker.campaign.of(TARGETS[0]))


def test_a_look_through_many_captures_gives_signs_of_life(
    bench: Bench, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = bench.folder / "vantage" / "A" / "captures"
    captures.mkdir()
    for number in range(4):
        (captures / f"{number}.pcap.zst").touch()
    lives: list[bool] = []

    def slow(_: CaptureTable, __: str) -> bool:
        clock[0] += PATIENCE_S / 2
        lives.append(bench.report.lives)
        return False

    monkeypatch.setattr(CaptureTable, "is_dropped", slow)
    bench.worker.work()
    assert lives == [True] * 4
