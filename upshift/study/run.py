"""`run_study`: all repetitions of a study in a folder, or the rest of them."""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import core
from core.domain import RouteAttribute, Sysctl
from core.errors import LabError, PlaceError, UsageError
from core.files import store
from core.files.config import read_json
from core.files.disk import folder_lock, whole_file, write_json
from core.files.study import ENVIRONMENT_FILE, FLOWS_FILE, FLOWS_KIND, STUDY_FILE, Ending, Study, flow_row, flow_schema
from core.files.study_file import keep
from core.files.study_terms import METRICS, RECEIVE_WINDOW, Knobs
from core.outreach.ledger import Ledger, LedgerEntry
from core.terminal import Progress
from downloader.control.status import span
from upshift.study.clients import EndedError
from upshift.study.lane import CENSORED_S, CLIENT, Lane, RepetitionEnd
from upshift.study.schedule import Agenda, LaneBlock, blocks, makespan, repetitions
from vantage.lab import control
from vantage.lab.lab import Lab, open_lab

Say = Callable[[str], None]
"""Shows a line to the user."""

TOPOLOGY = "studies"
MOST_REPEATS = 3
"""How often a void repetition is repeated, and an elephant that does not fill its link."""
MOST_BREAKDOWNS = 3
"""Clients, or labs, that end in a row without a repetition in between."""
INITRWND = RECEIVE_WINDOW
"""The client's initial receive window [segments]."""
RECEIVE_BUFFER = (2 * INITRWND * 1460, 64 << 20)
"""What that window needs, and enough for an elephant at 100 Mbit/s and 250 ms behind two products [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """What a run came to."""

    endings: Counter[str]
    void: int
    """Attempts of this run that were void."""
    left: int
    """Repetitions that are still to be made, as the run was stopped."""


class StudyLedger(Ledger):
    """A row per repetition, named by the number of its cell and its own."""

    WHAT = "study"
    OPTION = "--out"

    def fill(self, study: Study) -> None:
        """Writes all repetitions, if they are not there yet."""
        if not self.filled:
            with self._filling():
                self._add(LedgerEntry(domain=name) for _, names in repetitions(study) for name in names)

    def pending(self) -> set[str]:
        """Names of the repetitions that have not ended."""
        return {name for (name,) in self._db.execute("SELECT domain FROM domains WHERE outcome IS NULL")}


def run_study(
    study: Study,
    out: Path,
    *,
    lanes: int,
    progress: Progress,
    say: Say,
    until: float = math.inf,
) -> StudySummary:
    """Makes all repetitions that a folder lacks; writes the study, `flows.parquet` and `environment.json`.

    Args:
        lanes: most paths side by side.
        until: no repetition starts after this time (Unix).

    Raises:
        LabError: the lab cannot be built, or breaks again and again.
        PlaceError: the kernel lacks something, or the disk is full.
        UsageError: the folder belongs to another study, or its flows are of another kernel or Upshift.
    """
    check_kernel(study)
    with folder_lock(out):
        plan = {"study": study.files[STUDY_FILE], "quick": study.is_quick}
        with closing(StudyLedger(out / "ledger.sqlite", plan)) as ledger:
            ledger.fill(study)
            keep(study, out)
            report = StudyProgress(study, ledger, out, progress=progress, say=say)
            try:
                _make_all(study, ledger, report, lanes=lanes, until=until)
            finally:
                write_flows(study, ledger, out / FLOWS_FILE)
            total, endings = ledger.counts()
            return StudySummary(endings=endings, void=report.void, left=total - endings.total())


def check_kernel(study: Study) -> None:
    """Raises PlaceError if this kernel lacks a congestion control of the study."""
    for name in sorted({str(cell.knobs.send["cc"]) for cell in study.cells if "cc" in cell.knobs.send}):
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except FileNotFoundError:
                remedy = f"load its module (modprobe tcp_{name}), or leave its cells out"
                raise PlaceError(f"this kernel has no congestion control {name}", remedy=remedy) from None
            except OSError:
                continue  # it is there, and only the lab may choose it


class StudyProgress:
    """Records repetitions as they end, and shows how far the run is."""

    def __init__(self, study: Study, ledger: StudyLedger, out: Path, *, progress: Progress, say: Say) -> None:
        self._study, self._ledger, self._out = study, ledger, out
        self.progress, self.say = progress, say
        self._total, endings = ledger.counts()
        self.done, self._disturbed = sum(endings.values()), endings[Ending.DISTURBED]
        self.void = 0

    def begin(self, lab: Lab, client_fifo: int) -> None:
        """Writes what the numbers depend on; warns if the lab has no real-time priority.

        Raises UsageError if the folder has flows of another kernel or Upshift, or with another real-time priority.
        """
        environment = dict(lab.place(CLIENT).environment())
        timing = {**lab.timing(), "client_fifo_priority": client_fifo}
        record = {"study": self._study.name, "upshift": core.__version__, **environment, "timing": timing}
        path = self._out / ENVIRONMENT_FILE
        here, there = _kind(record), _kind_at(path) if self.done else None
        if there is not None and there != here:
            raise UsageError(
                f"its flows are of {there}, and this host has {here}", where=str(self._out), remedy="use another --out"
            )
        write_json(path, record)
        if not client_fifo or not timing["servers_fifo_priority"]:
            self.say("client and senders have no real-time priority here (SCHED_FIFO): more flows will be void")

    def add(self, name: str, outcome: RepetitionEnd, *, final: bool) -> None:
        """A repetition, or an attempt that was void."""
        disturbed = outcome.ending is Ending.DISTURBED
        self.void += disturbed
        if final:
            metrics = {metric: None if disturbed else outcome.metrics.get(metric) for metric in METRICS}
            self._ledger.record([(name, outcome.ending.value, {"reason": outcome.reason, "metrics": metrics})])
            self.done += 1
            self._disturbed += disturbed
        note = f"{self.void} void" if self.void else ""
        task = f"study {self._study.name}"
        self.progress.update(task, done=self.done, total=self._total, failed=self._disturbed, note=note)


def _kind(record: Mapping[str, Any]) -> str:
    """In words what flows of one folder have in common, of an `environment.json`.

    Client and senders are granted the same; the client's is 0 where it ended before it was asked for, too.
    """
    is_real_time = record["timing"]["servers_fifo_priority"]
    system = f"Upshift {record.get('upshift', core.__version__)} on Linux {record['kernel']}"
    return f"{system} with{'' if is_real_time else 'out'} real-time priority"


def _kind_at(path: Path) -> str | None:
    """The same of a file; None if that does not tell."""
    try:
        return _kind(read_json(path))
    except (UsageError, KeyError, TypeError):
        return None


def _make_all(study: Study, ledger: StudyLedger, report: StudyProgress, *, lanes: int, until: float) -> None:
    """Makes what is missing, in a new lab where one breaks. A lab that this process has up is used."""
    folder = control.lab_of(TOPOLOGY)
    control.wait_abandoned(folder)
    if folder.alive() and not folder.is_own():
        what = f"a lab named {TOPOLOGY} is up, and a run builds its own"
        raise LabError(what, remedy=f"wait for the other run, or run: upshift lab down {TOPOLOGY}")
    breakdowns = 0
    while (left := ledger.pending()) and time.time() < until:
        waiting, before = blocks(study, left), report.done
        report.say(f"{len(left):,} flows to go, about {span(makespan(waiting, lanes))}")
        try:
            with open_lab(TOPOLOGY, progress=report.progress) as lab:
                make(lab, study, Agenda(waiting, until), lanes=lanes, report=report)
        except LabError as error:
            breakdowns = breakdowns + 1 if report.done == before else 1
            if breakdowns >= MOST_BREAKDOWNS:
                raise
            report.say(f"{error.what}: the lab is built again")


def make(lab: Lab, study: Study, agenda: Agenda, *, lanes: int, report: StudyProgress) -> None:
    """Makes the blocks of an agenda in a lab. Raises what ended a lane."""
    client = lab.place(CLIENT)
    client.claim()
    reports = queue.SimpleQueue[Any]()  # its `get` stays whole if a signal comes, as `Queue.get` does not
    with closing(client):
        least, most = RECEIVE_BUFFER
        client.apply(
            [
                RouteAttribute(name="initrwnd", value=str(INITRWND)),
                Sysctl(name="net.ipv4.tcp_rmem", value=str(least), field=1),
                Sysctl(name="net.ipv4.tcp_rmem", value=str(most), field=2),
            ]
        )
        workers = [LaneWorker(lab, number, study, agenda, reports) for number in range(1, lanes + 1)]
        for worker in workers:
            worker.start()
        running, begun = len(workers), False
        try:
            while running:
                match reports.get():
                    case None:
                        running -= 1
                    case BaseException() as error:
                        raise error
                    case name, outcome, final, client_fifo:
                        if not begun:
                            report.begin(lab, client_fifo)
                            begun = True
                        report.add(name, outcome, final=final)
        finally:
            agenda.stop()


class LaneWorker(threading.Thread):
    """A lane at work: makes blocks, and reports each attempt, then None or what ended it."""

    def __init__(self, lab: Lab, number: int, study: Study, agenda: Agenda, reports: queue.SimpleQueue[Any]) -> None:
        super().__init__(name=f"lane-{number}", daemon=True)
        self._lab, self._number, self._study, self._agenda, self._reports = lab, number, study, agenda, reports

    def run(self) -> None:
        try:
            names = sorted({name for cell in self._study.cells for name in cell.knobs.sysctls})
            seed, stopped = self._study.seed, lambda: self._agenda.stopped
            with closing(Lane(self._lab, self._number, sysctls=names, seed=seed, stopped=stopped)) as lane:
                while (block := self._agenda.begin()) is not None:
                    self._make(lane, block)
                    lane.leave()
                    self._agenda.end(block)
            self._reports.put(None)
        except BaseException as error:  # the main thread raises it
            self._reports.put(error)

    def _make(self, lane: Lane, block: LaneBlock) -> None:
        prepared, broken = False, None
        for name, cell in block.work:
            attempts = breakdowns = 0
            final = False
            while not final and not self._agenda.stopped:
                try:
                    if not prepared:
                        broken, prepared = _prepare(lane, block.knobs, self._agenda), True
                        if self._agenda.stopped:  # an elephant takes its time, and so does a path to become empty
                            return
                    outcome = _disturbed(broken) if broken else lane.once(cell, name)
                    attempts += 1
                    # What a flow that was cut off has left in the queue would hold up the next one beside voice.
                    prepared = (outcome.metrics.get("time_ms") or 0) < CENSORED_S * 1000
                except EndedError as error:
                    lane.check()
                    prepared, breakdowns, outcome = False, breakdowns + 1, _disturbed(str(error))
                disturbed = outcome.ending is Ending.DISTURBED
                final = not disturbed or bool(broken) or attempts > MOST_REPEATS or breakdowns >= MOST_BREAKDOWNS
                self._reports.put((name, outcome, final, lane.fifo_priority))


def _prepare(lane: Lane, knobs: Knobs, agenda: Agenda) -> str | None:
    """As `Lane.prepare`, several times before what is to be beside the flows of a whole block cannot be had."""
    for _ in range(1 + MOST_REPEATS):
        broken = lane.prepare(knobs)
        if not broken or agenda.stopped:
            break
    return broken


def _disturbed(reason: str) -> RepetitionEnd:
    return RepetitionEnd(ending=Ending.DISTURBED, reason=reason, metrics={})


def write_flows(study: Study, ledger: StudyLedger, path: Path) -> None:
    """The table of all repetitions that have ended, in the order of cells."""
    with whole_file(path) as temporary, store.RowWriter(temporary, FLOWS_KIND, flow_schema(study)) as table:
        for entry, ending, document in ledger.results():
            number, _, repetition = entry.domain.partition("/")
            metrics, reason = document["metrics"], document["reason"]
            table.add(flow_row(study, study.cells[int(number)], int(repetition), Ending(ending), metrics, reason))
