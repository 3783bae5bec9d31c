"""Collecting a host's results: what counts as verified, and what its disk's other files have to do with it: nothing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from core.errors import IncompleteError, PlaceError
from core.files import disk
from core.system import process
from downloader.execution import snapshot
from downloader.execution.journal import Journal
from tests.unit.test_downloader_journal import runs
from tests.unit.test_fleet_offer import NEEDS
from tests.unit.test_snapshot import PLAN, work
from vantage.fleet import collecting
from vantage.fleet.collecting import Job, collect, is_database, is_same
from vantage.fleet.offer import JOURNAL, File, Needs

pytestmark = pytest.mark.thorough  # they start rsync

CONTENT = b"packets"
FILE = File(path="captures/x.pcap", bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
ENDLESS = "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n"


def test_only_a_regular_file_with_its_size_and_hash_is_verified(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(CONTENT)
    assert is_same(good, FILE)
    makers: list[Callable[[Path], object]] = [
        lambda path: None,
        lambda path: path.symlink_to(good),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(CONTENT + b"x"),
        lambda path: path.write_bytes(b"Packets"),
    ]
    for number, make in enumerate(makers):
        make(tmp_path / str(number))
        assert not is_same(tmp_path / str(number), FILE)


@pytest.mark.parametrize(
    ("statement", "sound"),
    [
        ("CREATE TABLE t (x)", True),
        (ENDLESS, False),
        ("CREATE VIRTUAL TABLE t USING fts5(x)", False),
        ("CREATE TABLE t (x, y as/**/(zeroblob(x)))", False),
        ("CREATE TABLE t (x, asn, basis, y CHECK (x IN ('a', 'b')))", True),
    ],
)
def test_a_journal_is_a_database_of_tables(tmp_path: Path, statement: str, sound: bool) -> None:
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    assert is_database(path) == sound
    path.write_bytes(b"x" * 5000)
    assert not is_database(path)


@pytest.mark.parametrize("lost", [1, 5000, 8192, 9000])
def test_a_journal_whose_end_is_lost_is_found(tmp_path: Path, lost: int) -> None:
    """SQLite reads what is missing of a page as zeros: with the pages of a journal quick_check finds half of these."""
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 8192")
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 50)
    assert is_database(path)
    path.write_bytes(path.read_bytes()[:-lost])
    assert not is_database(path)


@pytest.mark.parametrize(
    "disguise",
    [
        "sql = 'CREATE/**/VIRTUAL TABLE t USING fts5(x)'",
        "sql = 'create virtual table t using fts5(x)', rootpage = 2",
        "sql = 'CREATE  VIRTUAL TABLE t USING fts5(x)', rootpage = 2",
        "sql = '/**/CREATE TABLE t (x)', rootpage = 2",
    ],
)
def test_a_virtual_table_in_disguise_is_found(tmp_path: Path, disguise: str) -> None:
    """A hostile host writes the schema's text and numbers as it likes."""
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
        db.execute("PRAGMA writable_schema = ON")
        db.execute(f"UPDATE sqlite_master SET {disguise} WHERE name = 't'")
    assert not is_database(path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Results of a host A."""
    plan, folder = runs(3), tmp_path / "results"
    with contextlib.closing(Journal.open(folder / "vantage" / "A", plan, plan_hash=PLAN)) as journal:
        for run in plan[:2]:
            work(folder, journal, run)
    snapshot.take(folder)
    return folder


def job(home: Path, **changes: object) -> tuple[Job, Needs]:
    needs = Needs(**{**asdict(NEEDS), "plan_sha256": PLAN, "iterations": 9, "captures": 9, **changes})
    return Job(host="A", folder=str(home.parent / "collected"), source=str(home)), needs


def test_what_is_there_is_not_copied_again_and_what_is_damaged_is(home: Path) -> None:
    first = collect(*job(home))
    assert first.changed == 3 and not first.again
    assert first.sha256 == hashlib.sha256((home / "snapshot" / "snapshot.json").read_bytes()).hexdigest()
    assert collect(*job(home)).changed == 0
    capture = max((home.parent / "collected/vantage/A/captures").iterdir())
    whole = capture.read_bytes()
    capture.write_bytes(b"x" + whole[1:])
    assert collect(*job(home)).changed == 1 and capture.read_bytes() == whole


def test_what_is_removed_there_stays_here(home: Path) -> None:
    """However often the host is asked to remove what has arrived."""
    here, there = home.parent / "collected/vantage/A/captures", home / "vantage/A/captures"
    collect(*job(home))
    arrived = {path.name: path.read_bytes() for path in here.iterdir()}
    for removed in (2, 0):
        assert snapshot.free(home, home / "snapshot" / "snapshot.json").captures == removed
        snapshot.take(home)
        collect(*job(home))
        assert {path.name: path.read_bytes() for path in here.iterdir()} == arrived
    assert len(arrived) == 2 and not list(there.iterdir())


@pytest.mark.parametrize("made", [(2,), (0, 1, 2)])
def test_a_journal_that_lacks_runs_of_the_one_here_does_not_take_its_place(home: Path, made: tuple[int, ...]) -> None:
    """Of a host that began anew, or came back from a backup: also once it has made as many as are here, and more."""
    collect(*job(home))
    here = home.parent / "collected/vantage/A"
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    shutil.rmtree(home)
    plan = runs(3)
    with contextlib.closing(Journal.open(home / "vantage" / "A", plan, plan_hash=PLAN)) as journal:
        for number in made:
            work(home, journal, plan[number])
        journal.db.execute("UPDATE downloads SET record = json_set(record, '$.started_at', 1e9 + plan)")
        time.sleep(1.1)  # rsync takes a file of the same size and second for the one that it has
        snapshot.take(home)
        with pytest.raises(IncompleteError, match=r"A: its journal lacks \d+ downloads that the one here has; "):
            collect(*job(home))
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_captures_are_on_disk_before_the_host_may_remove_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their content by rsync, their names before the journal that refers to them."""
    here, synced, commands = home.parent / "collected/vantage/A", [], []
    fsync, start = os.fsync, process.start

    def sync(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), (here / JOURNAL).exists()))
        fsync(handle)

    def note(argv: list[str], **more: Any) -> process.Child:
        commands.append(argv)
        return start(argv, **more)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(process, "start", note)
    collect(*job(home))
    assert (here / "captures", False) in synced and synced[-1] == (here, True)
    assert commands and all("--fsync" in argv for argv in commands)


def test_a_host_that_lists_other_captures_each_time_does_not_fill_the_disk(home: Path) -> None:
    collect(*job(home, captures=2))
    captures = home / "vantage" / "A" / "captures"
    listed = home / "snapshot" / "snapshot.json"
    text = listed.read_text()
    for path in list(captures.iterdir()):
        path.rename(path.with_name(path.name.replace("-a1", "-a7")))
    listed.write_text(text.replace("-a1", "-a7"))
    with pytest.raises(IncompleteError, match="with those that are here, are more than the plan's 2"):
        collect(*job(home, captures=2))


def test_a_list_of_values_without_end_is_not_parsed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its bytes it would become 24 times as many in memory."""
    (home / "snapshot" / "snapshot.json").write_text(f'{{"files": [{"{}," * 1000}{{}}]}}')
    monkeypatch.setattr(collecting, "parse_json", None)
    with pytest.raises(IncompleteError, match=r"A: its snapshot\.json lists more than the plan's 9 captures; look at"):
        collect(*job(home))


def test_an_old_rsync_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = process.Completed(argv=(), returncode=0, stdout="rsync  version 3.2.3  protocol version 31", stderr="")
    monkeypatch.setattr(process, "run", lambda *_, **__: old)
    with pytest.raises(PlaceError, match=r"older than 3\.2\.5; install rsync"):
        collect(*job(home))


def test_the_program_says_one_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question, needs = job(home)
    assert collecting.main(json.dumps(asdict(question))) == 2, "no plan of this machine"
    assert "upshift fleet collect" in capsys.readouterr().err
    disk.write_json(Path(question.folder) / collecting.PLAN, asdict(needs))
    assert collecting.main(json.dumps({**asdict(question), "disk_limit": "20 GB"})) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == 3
    assert collecting.main(json.dumps({**asdict(question), "disk_limit": 20_000_000_000})) == 0, "YAML has numbers"
    assert json.loads(capsys.readouterr().out)["changed"] == 0
    (home / "snapshot" / "snapshot.json").unlink()
    assert collecting.main(json.dumps(asdict(question))) == 1
    assert capsys.readouterr().err.startswith("upshift: A: it has no snapshot.json that is a file of at most ")
    full = OSError(errno.ENOSPC, "No space left on device")  # as write(2) says it, without a file
    with mock.patch.object(collecting, "collect", side_effect=full):
        assert collecting.main(json.dumps(asdict(question))) == 75
    assert capsys.readouterr().err == "upshift: A: No space left on device; collect again\n"
    done = process.run([sys.executable, "-P", "-m", "vantage.fleet.collecting", json.dumps(asdict(question))])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
