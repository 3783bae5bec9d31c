"""The journal: a run enters whole or not at all, whatever kills the process."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.domain import Configuration, Disturbance, Download, Failure, Outcome, Target, Transport, VoidReason
from core.errors import IncompleteError, PlaceError, UsageError
from core.files import schemas, store
from core.files.disk import folder_lock
from core.files.journal import JournalReader, environment, open_journals
from core.system.place import FlowCount, Suitability
from downloader import clients
from downloader.campaign.plan import PlannedRun
from downloader.client import ClientResult
from downloader.execution.calls import Resolution
from downloader.execution.journal import Journal
from downloader.execution.records import (
    clock_offset_s,
    complete,
    mark_void,
    record,
    reused_port,
    same_object,
    stepped_clock,
)

NAMES = ("warmup", "BL", "WS")
LOOKED_UP = Resolution(addresses=("198.18.1.1",), cnames=("a.cdn.example", "b.cdn.example"), dns_s=0.1, error=None)
LATE = Disturbance(reason=VoidReason.EMULATOR_LATE, detail="late")
AGAIN = Disturbance(reason=VoidReason.EMULATOR_LOST, detail="late again")


def runs(count: int = 3) -> list[PlannedRun]:
    return [
        PlannedRun(
            number=n,
            iteration=1,
            target=Target(domain=f"d{n}.example", url=f"https://d{n}.example/"),
            configurations=NAMES,
        )
        for n in range(count)
    ]


def download(run: PlannedRun, position: int, *, attempt: int = 1, sha: str = "a", size: int = 5) -> Download:
    result = ClientResult(
        outcome=Outcome.OK,
        failure=None,
        failure_detail=None,
        started_at=1.0,
        body_bytes=size,
        body_sha256=sha,
        headers_s=0.2,
        last_byte_s=0.5,
        content_type="video/mp4",
        local_port=1000 + position,
    )
    return record(
        result,
        campaign="c",
        vantage="A",
        run=run,
        index=position,
        configuration=Configuration(name=run.configurations[position], client="requests"),
        client=clients.ALL["requests"],
        attempt=attempt,
        budget_s=9.0,
        looked_up=LOOKED_UP,
    )


def test_a_row_has_the_network_of_its_target() -> None:
    run = runs()[0]
    mapped = dataclasses.replace(run, target=dataclasses.replace(run.target, prefix="198.18.0.0/24", asn=64496))
    rows = [download(one, 1) for one in (run, mapped)]
    assert [(row.prefix, row.asn) for row in rows] == [(None, None), ("198.18.0.0/24", 64496)]


def test_what_resolver_and_client_say_is_kept(tmp_path: Path) -> None:
    """Through journal and Parquet: aliases, type of the content, and when the header fields were here."""
    journal = opened(tmp_path)
    made = make(journal, runs()[0])
    journal.accept(0, made)
    kept = list(journal.downloads())
    journal.close()
    assert kept == made and {row.dns_s for row in kept} == {0.1}
    assert {json.loads(row.cnames or "") == ["a.cdn.example", "b.cdn.example"] for row in kept} == {True}
    assert {(row.content_type, row.headers_s) for row in kept} == {("video/mp4", 0.2)}
    store.write_rows(tmp_path / "downloads.parquet", "downloads", kept)
    assert list(store.read_rows(tmp_path / "downloads.parquet", "downloads", Download)) == kept
    assert (
        store.read_table(tmp_path / "downloads.parquet", "downloads").schema.field("headers_s").metadata[b"unit"]
        == b"s"
    )


_OPENED: list[Journal] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Python 3.13 warns of what is left open."""
    yield
    while _OPENED:
        _OPENED.pop().close()


def opened(folder: Path, plan_hash: str = "h") -> Journal:
    _OPENED.append(Journal.open(folder, runs(), plan_hash=plan_hash, meta={"campaign": "{}"}))
    return _OPENED[-1]


def make(journal: Journal, run: PlannedRun) -> list[Download]:
    attempt = journal.begin(run.number)
    rows = [download(run, position, attempt=attempt) for position in range(len(NAMES))]
    for row in rows:
        journal.stage(run.number, attempt, row)
    return rows


def test_accepted_runs_are_recorded_once(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first, second, _ = runs()
    rows = make(journal, first)
    assert list(journal.downloads()) == []
    journal.accept(0, rows)
    assert list(journal.downloads()) == rows and journal.open_runs() == [1, 2]
    with pytest.raises(Exception, match="UNIQUE"):
        journal.accept(0, rows)
    with pytest.raises(AssertionError, match="2 downloads of 3"):
        journal.accept(1, [download(second, 0), download(second, 1)])
    assert list(journal.downloads()) == rows
    counts = journal.counts()
    assert (counts.planned, counts.recorded, counts.ok, counts.interrupted_runs) == (9, 3, 3, 0)


def test_an_interrupted_run_is_made_again_whole(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    run = runs()[0]
    attempt = journal.begin(0)
    journal.stage(0, attempt, download(run, 0))
    journal.stage(0, attempt, download(run, 1))
    journal.close()
    again = opened(tmp_path)
    assert again.open_runs() == [0, 1, 2] and list(again.downloads()) == []
    assert [(d.configuration, d.attempt, d.reason, d.detail, d.capture) for d in again.superseded()] == [
        ("warmup", 1, "interrupted", None, None),
        ("BL", 1, "interrupted", None, None),
    ]
    rows = make(again, run)
    assert {row.attempts for row in rows} == {2}
    again.accept(0, rows)
    assert again.counts().interrupted_runs == 1 and len(list(again.superseded())) == 2


def test_void_runs_are_counted_apart_from_interrupted_ones(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    run = runs()[0]
    journal.void(0, LATE, make(journal, run))
    journal.begin(0)  # interrupted
    journal.close()
    journal = opened(tmp_path)
    assert journal.voids(0) == 1
    journal.void(0, LATE, make(journal, run))
    journal.accept(0, mark_void(make(journal, run), AGAIN), void=AGAIN)
    assert journal.counts().void_runs == 3 and journal.counts().interrupted_runs == 1
    void = {(d.void_reason, d.void_detail, d.treatment_ok, d.accepted) for d in journal.downloads()}
    assert void == {("emulator_lost", "late again", None, False)}
    assert [(d.attempt, d.reason, d.detail) for d in journal.superseded()] == [
        *[(1, "emulator_late", "late")] * 3,
        *[(3, "emulator_late", "late")] * 3,
    ]
    assert journal.void_attempts(0) == {1, 3}


def test_another_plan_or_file_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(UsageError, match="holds another plan"):
        opened(tmp_path, "other")
    (tmp_path / "x.sqlite").write_bytes(b"this is no database, and long enough to be sure of that" * 30)
    with pytest.raises(UsageError, match="not a valid journal"):
        Journal(tmp_path / "x.sqlite")


def test_a_folder_has_one_worker(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from core.files.disk import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])):\n print('locked', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "locked\n"
    with pytest.raises(PlaceError, match="another upshift run is working"), folder_lock(tmp_path):
        pass
    other.kill()
    other.communicate()
    with folder_lock(tmp_path):
        pass


KILLED = """
import importlib.util, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
spec = importlib.util.spec_from_file_location("journal_tests", sys.argv[1])
tests = importlib.util.module_from_spec(spec); sys.modules["journal_tests"] = tests; spec.loader.exec_module(tests)

def work(folder, when):
    journal = tests.opened(Path(folder))
    seen = 0
    def trace(statement):
        nonlocal seen
        seen += 1
        if seen == when:
            os.kill(os.getpid(), signal.SIGKILL)
    journal._db.set_trace_callback(trace)
    for number in journal.open_runs():
        run = tests.runs()[number]
        journal.accept(number, tests.make(journal, run))

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            work(*eval(line))
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forked:
    """One interpreter that forks a child for each piece of work: what is killed need not be imported anew."""

    def __init__(self, code: str = KILLED) -> None:
        command = [sys.executable, "-c", code, __file__, str(Path(__file__).resolve().parents[2])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=30)

    def work(self, folder: Path, when: int) -> int:
        """Exit code of a child that finishes the plan in `folder`, unless it is killed at the n-th SQL statement."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(repr((str(folder), when)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


NEVER = 10_000


def assert_whole(folder: Path) -> int:
    """Measurement runs are recorded whole and once; how many downloads are."""
    journal = opened(folder)
    recorded = [(d.domain, d.configuration) for d in journal.downloads()]
    assert len(recorded) == len(set(recorded)) and len(recorded) % len(NAMES) == 0
    assert len(recorded) == 9 - 3 * len(journal.open_runs())
    journal.close()
    return len(recorded)


@pytest.mark.thorough
def test_killed_at_every_statement(tmp_path: Path) -> None:
    """SIGKILL before the n-th SQL statement, for each n there is: in and between transactions."""
    kills = 0
    with Forked() as forked:
        for when in itertools.count(1):
            folder = tmp_path / str(when)
            code = forked.work(folder, when)
            if (path := folder / "journal.sqlite").exists():
                with contextlib.closing(JournalReader(path)) as journal:
                    described = journal.meta("campaign") is not None
                    assert described != journal.is_empty, "no plan without its description"
            assert_whole(folder)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
            assert forked.work(folder, NEVER) == 0
            assert assert_whole(folder) == 9
    assert kills > 30, "the plan takes more statements than that"


@pytest.mark.thorough
def test_killed_again_and_again(tmp_path: Path) -> None:
    """One folder, killed a little later each time until the plan is done."""
    with Forked() as forked:
        for when in itertools.count(1):
            code = forked.work(tmp_path, when)
            recorded = assert_whole(tmp_path)
            if code == 0:
                break
            assert code == -signal.SIGKILL
    assert recorded == 9


@pytest.mark.thorough
def test_killed_while_the_journal_is_made(tmp_path: Path) -> None:
    crash = "import downloader.execution.journal as j; j._TABLES += '; CRASH'\n    journal = tests.opened"
    with Forked(KILLED.replace("journal = tests.opened", crash)) as forked:
        assert forked.work(tmp_path, NEVER) == 1
    assert (tmp_path / "journal.sqlite").exists()
    assert opened(tmp_path).open_runs() == [0, 1, 2]


def test_the_journals_of_a_folder(tmp_path: Path) -> None:
    for name in ("B", "A"):
        journal = opened(tmp_path / "vantage" / name)
        journal.set_meta("environment", json.dumps({"kernel": name}))
        rows = make(journal, runs()[1])
        journal.accept(1, rows)
        journal.void(0, LATE, make(journal, runs()[0]))
        journal.close()
    with open_journals(tmp_path) as journals:
        assert list(journals) == ["A", "B"]
        assert [list(journal.downloads()) for journal in journals.values()] == [rows, rows]
        assert [journal.recorded_runs() for journal in journals.values()] == [1, 1]
        document = environment(journals)
        assert document["plan_sha256"] == "h"
        assert document["vantage_points"] == {"A": {"kernel": "A"}, "B": {"kernel": "B"}}
    with pytest.raises(UsageError, match="holds no campaign"), open_journals(tmp_path / "vantage"):
        pass
    with pytest.raises(UsageError, match="folder not found"), open_journals(tmp_path / "nowhere"):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_a_journal_that_was_never_filled_is_none(tmp_path: Path) -> None:
    """Neither its campaign nor its plan are others than those of the folder's vantage points."""
    folder = tmp_path / "vantage" / "B"
    folder.mkdir(parents=True)
    (folder / "journal.sqlite").touch()  # killed before the plan was in it
    with open_journals(tmp_path) as journals:
        assert not journals and environment(journals)["vantage_points"] == {}
    opened(tmp_path / "vantage" / "A").close()
    with open_journals(tmp_path) as journals:
        assert list(journals) == ["A"] and environment(journals)["plan_sha256"] == "h"
    with contextlib.closing(JournalReader(folder / "journal.sqlite")) as journal:
        assert journal.meta("plan_hash") is None and not journal.document("campaign")


def test_a_damaged_journal_is_one_sentence(tmp_path: Path) -> None:
    journal = opened(tmp_path / "vantage" / "A")
    journal.accept(0, make(journal, runs()[0]))
    journal.close()
    path = tmp_path / "vantage" / "A" / "journal.sqlite"
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"x" * (len(data) - 4096))
    with pytest.raises(UsageError, match="a journal cannot be read"), open_journals(tmp_path) as journals:
        list(journals["A"].downloads())


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "vantage" / "A"
    for version, remedy in ((1, "use the Upshift that wrote it"), (4, "update Upshift")):
        opened(folder).close()
        with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as database:
            database.execute(f"PRAGMA user_version = {version}")
        for read in (lambda: opened(folder), lambda: open_journals(tmp_path).__enter__()):
            with pytest.raises(UsageError, match=f"of version {version}, this Upshift reads 3") as refused:
                read()
            assert refused.value.remedy == remedy
        (folder / "journal.sqlite").unlink()


def test_what_an_older_upshift_wrote_is_read_and_resumed(tmp_path: Path) -> None:
    """A journal of version 2 and a table of version 3 have no failure codes."""
    folder, [first, second, *_] = tmp_path / "vantage" / "A", runs()
    journal = opened(folder)
    journal.accept(0, make(journal, first))
    journal.close()
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite", isolation_level=None)) as database:
        database.execute("UPDATE downloads SET record = json_remove(record, '$.failure_code', '$.failure_number')")
        database.execute("PRAGMA user_version = 2")
    with open_journals(tmp_path) as journals:
        assert [one.failure_code for one in journals["A"].downloads()] == [None] * len(NAMES)
    resumed = opened(folder)
    assert resumed.is_done(0) and not resumed.is_done(1)
    resumed.accept(1, make(resumed, second))
    written = list(resumed.downloads())
    resumed.close()
    assert len(written) == 2 * len(NAMES)
    schema = schemas.row_schema("downloads")
    older = pa.schema([field for field in schema if field.name not in ("failure_code", "failure_number")])
    metadata = {b"upshift.kind": b"downloads", b"upshift.schema_version": b"3"}
    arrays = [pa.array([getattr(one, field.name) for one in written], type=field.type) for field in older]
    pq.write_table(pa.Table.from_arrays(arrays, schema=older.with_metadata(metadata)), tmp_path / "downloads.parquet")
    assert store.read_rows(tmp_path / "downloads.parquet", "downloads", Download) == written
    [batch] = store.scan(tmp_path / "downloads.parquet", "downloads", ["failure", "failure_code"])
    assert batch.column("failure_code").null_count == len(written)


@pytest.mark.parametrize(("step_ms", "is_void"), [(0.0, False), (4.9, False), (-4.9, False), (5.1, True), (-9e5, True)])
def test_a_clock_that_was_set_voids_a_run(step_ms: float, is_void: bool) -> None:
    why = stepped_clock(1000.0, 1000.0 + step_ms / 1000)
    assert (why is not None) is is_void
    if why is not None:
        assert why.reason is VoidReason.CLOCK_STEPPED and f"set by {step_ms:+.1f} ms" in why.detail


def test_clocks_are_read_closely() -> None:
    """Where nobody sets the clock: a slewed one moves by 0.05 % at most."""
    offsets = [clock_offset_s() for _ in range(20)]
    assert max(offsets) - min(offsets) < 0.005


def test_same_object() -> None:
    run = runs()[0]
    same = [download(run, n) for n in range(3)]
    assert same_object(same) == same
    odd = same_object([same[0], download(run, 1, sha="b"), download(run, 2)])
    assert [d.failure for d in odd] == [None, Failure.CONTENT_CHANGED, None]
    assert odd[1].failure_detail == "the run's object: another hash"
    shorter = same_object([same[0], same[1], download(run, 2, sha="c", size=4)])
    assert shorter[2].outcome == Outcome.FAILED
    assert shorter[2].failure_detail == "the run's object: 4 bytes, others got 5"
    tie = same_object([same[0], download(run, 1, sha="b")])
    assert [d.failure for d in tie] == [None, Failure.CONTENT_CHANGED]


def test_what_is_known_at_the_end() -> None:
    run = runs()[0]
    flows = {
        ("tcp", 1001): FlowCount(sent=10, received=9, dropped=1, marked=2),
        ("quic", 1000): FlowCount(sent=1, received=1, dropped=0, marked=0),
    }
    verdict = Suitability(disturbed=None, lateness_p99_ms=0.4, flows=flows)
    first, second = complete([download(run, 0), download(run, 1)], capture="x.pcap", dropped=None, verdict=verdict)
    assert (first.lab_sent, first.lab_lateness_p99_ms, first.capture) == (None, 0.4, "x.pcap")
    assert (second.lab_sent, second.lab_received, second.lab_dropped, second.lab_marked) == (10, 9, 1, 2)


def test_two_downloads_with_one_client_port_void_their_run() -> None:
    """Captures and the lab's counters tell downloads apart by it; the kernel may hand it out again within seconds."""
    first, second, third = (download(runs()[0], position) for position in range(3))
    assert reused_port([first, second, third]) is None
    again = dataclasses.replace(third, local_port=first.local_port)
    disturbed = reused_port([first, second, again])
    assert disturbed is not None and disturbed.reason == VoidReason.PORT_REUSED
    assert f"{first.configuration} and {third.configuration} had the same client port, 1000" == disturbed.detail
    # The same number of the other transport, or towards another server, is another connection.
    assert reused_port([first, second, dataclasses.replace(again, transport=Transport.QUIC)]) is None
    assert reused_port([first, second, dataclasses.replace(again, server_ip="198.18.9.9")]) is None
    for none in (None, 0):  # 0: what the kernel says of a socket that found no route
        unknown = dataclasses.replace(first, local_port=none)
        assert reused_port([unknown, dataclasses.replace(unknown, configuration="B")]) is None


@pytest.mark.parametrize(("void", "of"), [(3, 4), (1, 20), (0, 4)])
def test_a_campaign_of_void_runs_does_not_end_well(tmp_path: Path, void: int, of: int) -> None:
    from downloader.execution.run import _summary
    from upshift.commands import run as command

    journal = Journal.open(tmp_path / "vantage" / "A", runs(of), plan_hash="h")
    for run in runs(of):
        journal.begin(run.number)
        rows = [download(run, position) for position in range(len(NAMES))]
        disturbed = LATE if run.number < void else None
        journal.accept(run.number, rows if disturbed is None else mark_void(rows, disturbed), void=disturbed)
    summary = _summary({"A": journal}, stopped=False, ended_by=None)
    journal.close()
    sentence = f"{void} of {of} measurement runs are not usable: emulator late" if void else ""
    assert (summary.not_usable, summary.complete, summary.ok) == (sentence, True, of * len(NAMES))
    inspection: Any = object()
    if void / of > 0.1:
        with pytest.raises(IncompleteError, match=sentence) as error:
            command.complete(summary, inspection, tmp_path)
        assert error.value.exit_code == 1
    else:
        assert command.complete(summary, inspection, tmp_path) is inspection
    nothing = dataclasses.replace(summary, ok=0, failed=of * len(NAMES), causes={"dns_error": of})
    with pytest.raises(IncompleteError, match=r"no download is ok .most often: dns_error"):
        command.complete(nothing, inspection, tmp_path)
