"""`run_study`: all repetitions of a study in a folder, or the rest of them."""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import random
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.domain import RouteAttribute, Sysctl
from core.errors import LabError, PlaceError
from core.files.atomic import whole_file, write_json, write_text
from core.files.lock import folder_lock
from core.files.schemas import with_metadata
from core.files.study import Cell, Study
from core.files.study_terms import METRICS, Knobs, text
from core.outreach.ledger import Entry, Ledger
from core.progress import Progress
from upshift.study.lane import CLIENT, MSS, RTTS, Lane, LaneFaultError, Outcome
from vantage.lab.lab import Lab, open_lab

Say = Callable[[str], None]
"""Shows a line to the user."""

TOPOLOGY = "studies"
MOST_TOGETHER_MBIT = 150.0
"""Rates of the paths that are used at the same time; a faster one is used alone."""
MOST_REPEATS = 3
"""How often a void repetition is repeated."""
MOST_BREAKDOWNS = 3
"""Labs or clients that end in a row without a repetition in between."""
INITRWND = 310
"""The client's initial receive window [segments]."""
RECEIVE_BUFFER = (2 * INITRWND * 1460, 64 << 20)
"""What that window needs, and enough for an elephant at 100 Mbit/s and 250 ms behind two products [bytes]."""


LAB_S, BLOCK_S, FLOW_S, FILL_S = 3.0, 0.3, 0.06, 8.0
"""About what it takes to build the lab, to change the path, between two flows, and for an elephant [s]."""
AGAIN = 1.1
"""About what void repetitions add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Repetitions on one path beside the same thing, in the order in which they are made."""

    level: object
    """Value of the study's lanes; blocks of one level are never made at the same time."""
    knobs: Knobs
    """Of its first cell: what `Lane.prepare` needs is the same in all."""
    work: tuple[tuple[str, Cell], ...]
    """Names in the ledger, and cells."""

    @property
    def mbit(self) -> float:
        """What it takes of the rates that run together; a faster path takes all."""
        return min(self.knobs.rate_mbit or MOST_TOGETHER_MBIT, MOST_TOGETHER_MBIT)

    @property
    def seconds(self) -> float:
        """About how long it takes, void repetitions included."""
        fill = FILL_S if self.knobs.beside == "elephant" else 0.0
        return BLOCK_S + fill + AGAIN * sum(flow_s(cell.knobs) for _, cell in self.work)


class StudyLedger(Ledger):
    """A row per repetition, named by its cell and number."""

    WHAT = "study"
    OPTION = "--out"

    def done(self) -> set[str]:
        """Names of the repetitions that are done."""
        return {entry.domain for entry, _, _ in self.results()}

    def fill(self, study: Study, *, quick: bool) -> None:
        """Writes all repetitions, if they are not there yet."""
        if not self.filled:
            with self._filling():
                self._add(Entry(domain=name) for name, _ in repetitions(study, quick=quick))


def repetitions(study: Study, *, quick: bool) -> Iterator[tuple[str, Cell]]:
    """Name and cell of each repetition."""
    times = study.quick_repetitions if quick else study.repetitions
    for number, cell in enumerate(study.cells(quick=quick)):
        for repetition in range(1, times + 1):
            yield f"{number}/{repetition}", cell


def blocks(study: Study, names: set[str], *, quick: bool) -> list[Block]:
    """The blocks of these repetitions, in random order, and in each its repetitions in random order."""
    order = random.Random(study.seed)
    members: dict[str, list[tuple[str, Cell]]] = {}
    for name, cell in repetitions(study, quick=quick):
        knobs = cell.knobs
        path = (knobs.rtt_ms, knobs.rate_mbit, knobs.queue_bytes, knobs.loss_percent, knobs.drop, knobs.uplink_mbit)
        members.setdefault(str((path, asdict(knobs.lost), knobs.beside)), []).append((name, cell))
    made = []
    for work in members.values():
        order.shuffle(work)
        cell = work[0][1]
        level = cell.values[study.lanes] if study.lanes else None
        left = tuple(pair for pair in work if pair[0] in names)
        made.append(Block(level=level, knobs=cell.knobs, work=left))
    order.shuffle(made)
    return [block for block in made if block.work]


class Agenda:
    """Hands out blocks to lanes: never two of a level at once, and no more rate at once than the emulator keeps to."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._waiting = list(blocks)
        self._running: list[Block] = []
        self._changed = threading.Condition()
        self._stopped = False

    def take(self) -> Block | None:
        """Takes the next block that may run beside those that do; None if there is none."""
        used = sum(block.mbit for block in self._running)
        levels = {block.level for block in self._running}
        for block in self._waiting:
            if block.level not in levels and used + block.mbit <= MOST_TOGETHER_MBIT:
                self._waiting.remove(block)
                self._running.append(block)
                return block
        return None

    def begin(self) -> Block | None:
        """Takes a block, once one fits; None if there is nothing left."""
        with self._changed:
            while self._waiting and not self._stopped:
                if (block := self.take()) is not None:
                    return block
                self._changed.wait()
            return None

    def end(self, block: Block) -> None:
        """Gives its rate and its level free."""
        with self._changed:
            self._running.remove(block)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hands out no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        return self._stopped


class Worker(threading.Thread):
    """A lane at work: makes blocks, and reports each repetition, or what ended it."""

    def __init__(self, lab: Lab, number: int, study: Study, agenda: Agenda, reports: queue.Queue[Any]) -> None:
        super().__init__(name=f"lane-{number}", daemon=True)
        self._lab, self._number, self._study, self._agenda, self._reports = lab, number, study, agenda, reports

    def run(self) -> None:
        try:
            names = sorted({name for cell in self._study.whole for name in cell.knobs.sysctls})
            with closing(Lane(self._lab, self._number, sysctls=names, seed=self._study.seed)) as lane:
                while (block := self._agenda.begin()) is not None:
                    self._make(lane, block)
                    self._agenda.end(block)
            self._reports.put(None)
        except BaseException as error:  # the main thread raises it
            self._reports.put(error)

    def _make(self, lane: Lane, block: Block) -> None:
        broken: str | None = "not prepared"
        prepared = False
        for name, cell in block.work:
            breakdowns, attempts = 0, 0
            while not self._agenda.stopped:
                try:
                    if not prepared:
                        broken, prepared = lane.prepare(block.knobs), True
                    if broken:
                        outcome = Outcome(outcome="disturbed", reason=broken, metrics=dict.fromkeys(METRICS))
                    else:
                        outcome = lane.once(cell)
                except LaneFaultError as fault:
                    prepared, breakdowns = False, breakdowns + 1
                    if breakdowns < MOST_BREAKDOWNS:
                        continue
                    outcome = Outcome(outcome="disturbed", reason=str(fault), metrics=dict.fromkeys(METRICS))
                attempts += 1
                final = outcome.outcome != "disturbed" or attempts > MOST_REPEATS or bool(broken)
                self._reports.put((name, outcome, final, lane.fifo_priority))
                if final:
                    break


@dataclass(slots=True, kw_only=True)
class RunSummary:
    """What a run came to."""

    outcomes: Counter[str]
    void: int
    """Attempts of this run that were void."""


def run_study(study: Study, out: Path, *, quick: bool, lanes: int, progress: Progress, say: Say) -> RunSummary:
    """Makes all repetitions that are missing in the folder, and writes `study.toml`, `flows.parquet` and
    `environment.json`.

    Raises:
        LabError: the lab cannot be built, or ends again and again.
        PlaceError: the kernel lacks something, or the disk is full.
        UsageError: the folder belongs to another study.
    """
    check_kernel(study)
    with folder_lock(out):
        try:
            return _run(study, out, quick=quick, lanes=lanes, progress=progress, say=say)
        except sqlite3.OperationalError as error:
            raise PlaceError(
                f"results cannot be written ({error})",
                where=str(out),
                remedy="free some space there, then run the same command again",
            ) from None


def _run(study: Study, out: Path, *, quick: bool, lanes: int, progress: Progress, say: Say) -> RunSummary:
    with closing(StudyLedger(out / "ledger.sqlite", {"study": study.text, "quick": quick})) as ledger:
        ledger.fill(study, quick=quick)
        write_text(out / "study.toml", study.text)
        total, _ = ledger.counts()
        report = Report(study, ledger, out / "environment.json", total=total, progress=progress, say=say)
        breakdowns = 0
        try:
            while left := {name for name, _ in repetitions(study, quick=quick)} - ledger.done():
                waiting = blocks(study, left, quick=quick)
                say(f"{len(left):,} flows to go, about {spoken(makespan(waiting, lanes))}")
                try:
                    with open_lab(TOPOLOGY, progress=progress) as lab:
                        make(lab, study, waiting, lanes=lanes, report=report)
                except LabError as error:
                    breakdowns = breakdowns + 1 if len(left) == total - report.done else 1
                    if breakdowns >= MOST_BREAKDOWNS:
                        raise
                    say(f"{error.what}: the lab is built again")
        finally:
            write_flows(study, ledger, out / "flows.parquet", quick=quick)
        return RunSummary(outcomes=ledger.counts()[1], void=report.void)


class Report:
    """Records repetitions as they end, and shows how far the run is."""

    def __init__(
        self, study: Study, ledger: StudyLedger, environment: Path, *, total: int, progress: Progress, say: Say
    ) -> None:
        self._study, self._ledger, self._environment = study, ledger, environment
        self._progress, self._say, self._total = progress, say, total
        _, outcomes = ledger.counts()
        self.done, self._disturbed = sum(outcomes.values()), outcomes["disturbed"]
        self.void = 0

    def begin(self, lab: Lab, client_fifo: int) -> None:
        """Writes what the numbers depend on; warns if something is missing."""
        document = dict(lab.place(CLIENT).environment())
        timing = {**lab.timing(), "client_fifo_priority": client_fifo}
        write_json(self._environment, {"study": self._study.name, **document, "timing": timing})
        if not client_fifo or not timing["servers_fifo_priority"]:
            self._say("client and senders have no real-time priority here (SCHED_FIFO): more repetitions will be void")

    def add(self, name: str, outcome: Outcome, *, final: bool) -> None:
        """A repetition, or an attempt that was void."""
        self.void += outcome.outcome == "disturbed"
        if final:
            document = {"reason": outcome.reason, **outcome.metrics}
            self._ledger.record([(name, outcome.outcome, document)])
            self.done += 1
            self._disturbed += outcome.outcome == "disturbed"
        note = f"{self.void} void" if self.void else ""
        task = f"study {self._study.name}"
        self._progress.update(task, done=self.done, total=self._total, failed=self._disturbed, note=note)


def make(lab: Lab, study: Study, waiting: Sequence[Block], *, lanes: int, report: Report) -> None:
    """Makes these blocks in a lab. Raises what ended a lane."""
    client = lab.place(CLIENT)
    client.claim()
    agenda, reports = Agenda(waiting), queue.Queue[Any]()
    with closing(client):
        least, most = RECEIVE_BUFFER
        client.apply(
            [
                RouteAttribute(name="initrwnd", value=str(INITRWND)),
                Sysctl(name="net.ipv4.tcp_rmem", value=str(least), field=1),
                Sysctl(name="net.ipv4.tcp_rmem", value=str(most), field=2),
            ]
        )
        workers = [Worker(lab, n, study, agenda, reports) for n in range(1, min(lanes, len(lab.topology.server)) + 1)]
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
                    case name, outcome, final, fifo:
                        if not begun:
                            report.begin(lab, fifo)
                            begun = True
                        report.add(name, outcome, final=final)
        finally:
            agenda.stop()


def write_flows(study: Study, ledger: StudyLedger, path: Path, *, quick: bool) -> None:
    """The table of all repetitions that are done: columns of cells, number, outcome, reason, all metrics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = study.cells(quick=quick)
    rows = []
    for entry, outcome, document in ledger.results():
        number, _, repetition = entry.domain.partition("/")
        values = cells[int(number)].values
        rows.append({**values, "repetition": int(repetition), "outcome": outcome, **document})
    columns = {name: _column([row[name] for row in rows]) for name in study.columns}
    columns |= {"repetition": pa.array([row["repetition"] for row in rows], pa.int64())}
    columns |= {name: pa.array([row[name] for row in rows], pa.string()) for name in ("outcome", "reason")}
    columns |= {name: pa.array([row[name] for row in rows], pa.float64()) for name in METRICS}
    table = pa.table(columns)
    with whole_file(path) as temporary:
        pq.write_table(table.cast(with_metadata(table.schema, "flows")), temporary, compression="zstd")


def _column(values: Sequence[Any]) -> Any:
    """Numbers or truth values as they are, all else as text."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds and kinds <= {int, float}:
        return pa.array(values, pa.float64())
    return pa.array([None if value is None else text(value) for value in values], pa.string())


def check_kernel(study: Study) -> None:
    """Raises PlaceError if this kernel lacks a congestion control of the study."""
    for name in sorted({str(cell.knobs.send["cc"]) for cell in study.whole if "cc" in cell.knobs.send}):
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except FileNotFoundError:
                remedy = f"load its module (modprobe tcp_{name}), or leave its cells out"
                raise PlaceError(f"this kernel has no congestion control {name}", remedy=remedy) from None
            except OSError:
                continue  # only the lab may choose it


def makespan(waiting: Sequence[Block], lanes: int) -> float:
    """About how long blocks take in so many lanes [s]."""
    agenda, now = Agenda(waiting), 0.0
    running: list[tuple[float, int, Block]] = []
    for number in itertools.count():
        if len(running) < lanes and (block := agenda.take()) is not None:
            heapq.heappush(running, (now + block.seconds, number, block))
        elif running:
            now, _, block = heapq.heappop(running)
            agenda.end(block)
        else:
            break
    return LAB_S + now


def spoken(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def flow_s(knobs: Knobs) -> float:
    """About how long a repetition takes, with all that comes before the next [s]."""
    rtt, rate = knobs.rtt_ms / 1000, (knobs.rate_mbit or math.inf) * 1e6
    wire = (knobs.html + sum(knobs.objects)) * 8.3 / rate
    turns = 1 + _flights(knobs.html, knobs.iw) + (knobs.html > 0)
    if knobs.objects:
        share = knobs.objects[:: knobs.connections]
        turns += max(_flights(sum(share), knobs.iw), 1 if knobs.pipelined else len(share))
    if knobs.beside in ("elephant", "voice"):
        behind = rtt + (knobs.queue_bytes or 0) * 8 / rate if knobs.beside == "elephant" else rtt
        flow = max(turns * behind + 2 * wire, 4 * wire + RTTS * rtt)
        return FLOW_S + flow + rtt + RTTS * rtt + 0.5
    waits = knobs.idle_ms / 1000 + (2 if knobs.client in ("iw", "again") else 0) + 3.5 * len(knobs.lost.up)
    waits += (1 << len(knobs.lost.down)) - 1
    return FLOW_S + waits + (turns * rtt + wire) * (1 + 0.5 * knobs.loss_percent) + 2 * rtt


def _flights(size: int, window: int) -> int:
    """Flights of slow start for so many bytes."""
    return math.ceil(math.log2(math.ceil(size / MSS) / window + 1)) if size else 0
