"""Snapshots of a campaign's folder: whole journals while another writes, finished captures, what may be removed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.domain import Download
from core.errors import PlaceError, UsageError
from core.files.journal import JournalReader, RecordedFindings
from downloader.campaign.plan import PlannedRun
from downloader.execution import snapshot
from downloader.execution.journal import Journal
from downloader.limits.captures import CaptureStore, Settled
from tests.command import upshift
from tests.unit.test_budget import campaign
from tests.unit.test_downloader_journal import LATE, download, runs

PLAN = "0123456789abcdef"


def capture_of(run: PlannedRun, attempt: int = 1) -> str:
    return f"vantage/A/captures/{run.iteration}-{run.number:03d}-a{attempt}.pcap.zst"


def rows(folder: Path, run: PlannedRun, attempt: int = 1) -> list[Download]:
    """The downloads of a run, after its capture was written."""
    path = folder / capture_of(run, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"packets of {run.number}, {attempt}".encode() * 50)
    return [
        dataclasses.replace(download(run, position, attempt=attempt), capture=capture_of(run, attempt))
        for position in range(len(run.configurations))
    ]


def settled(folder: Path, run: PlannedRun, findings: str | None = "{}", attempt: int = 1) -> Settled:
    name = capture_of(run, attempt)
    size = (folder / name).stat().st_size
    return Settled(path=name, size_bytes=size, clean=True, dropped=False, findings=findings)


def work(folder: Path, journal: Journal, run: PlannedRun) -> None:
    journal.begin(run.number)
    journal.accept(run.number, rows(folder, run), capture=settled(folder, run))


def sums_hold(base: Path, sums: Path) -> bool:
    """By the program that reads such files everywhere."""
    if not sums.read_text():
        return True
    argv = ["sha256sum", "--check", "--strict", "--quiet", str(sums)]
    return subprocess.run(argv, cwd=base, check=False, capture_output=True).returncode == 0


@pytest.mark.thorough
def test_a_journal_that_is_being_written(tmp_path: Path) -> None:
    """Every copy is whole: valid SQLite, whole runs, and every capture to which it refers is listed with its hash."""
    plan, seen = runs(150), []
    ready, done = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with closing(Journal.open(tmp_path / "vantage" / "A", plan, plan_hash=PLAN)) as journal:
                ready.set()
                for run in plan:
                    work(tmp_path, journal, run)
                    part = (tmp_path / capture_of(run)).with_name(".next.part.pcap")
                    part.write_bytes(b"unfinished")
                    if run.number in (40, 80, 120):  # a snapshot that began after it, however fast this writes
                        wanted, until = len(seen) + 2, time.monotonic() + 60
                        while len(seen) < wanted and time.monotonic() < until:
                            time.sleep(0.005)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert ready.wait(20)
    while not done.is_set() or len(seen) < 3:
        taken = snapshot.take(tmp_path)
        copy = tmp_path / "snapshot" / "vantage" / "A" / "journal.sqlite"
        with closing(sqlite3.connect(copy)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            count = db.execute("SELECT count(*) FROM downloads").fetchone()[0]
        assert count % len(plan[0].configurations) == 0
        assert [file.path for file in taken.captures] == [capture_of(run) for run in plan[: count // 3]]
        assert sums_hold(tmp_path / "snapshot", tmp_path / "snapshot" / "snapshot.sha256")
        assert sums_hold(tmp_path, tmp_path / "snapshot" / "captures.sha256")
        assert not list(copy.parent.glob("journal.sqlite-*"))
        seen.append(count)
    writer.join()
    assert snapshot.take(tmp_path).plan_sha256 == PLAN
    assert len(snapshot.take(tmp_path).captures) == 150
    assert len(set(seen)) > 2, "the journal was written meanwhile"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign of three runs; the first was void once, the third is not recorded, though its capture is finished."""
    plan = runs(3)
    with closing(Journal.open(tmp_path / "vantage" / "A", plan, plan_hash=PLAN)) as journal:
        journal.begin(0)
        downloads = rows(tmp_path, plan[0], attempt=2)
        journal.void(0, LATE, downloads, capture=settled(tmp_path, plan[0], findings=None, attempt=2))
        work(tmp_path, journal, plan[0])
        work(tmp_path, journal, plan[1])
        rows(tmp_path, plan[2])
    (tmp_path / "campaign.json").write_text("{}")
    (tmp_path / "status.json").write_text('{"state": "running"}')
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "windows.json").write_text("{}")
    return tmp_path


def test_what_is_in_it(folder: Path) -> None:
    taken = snapshot.take(folder)
    names = ["vantage/A/journal.sqlite", "campaign.json", "targets/windows.json", "vantage/A/status.json"]
    captures = [capture_of(runs()[0]), capture_of(runs()[0], 2), capture_of(runs()[1])]
    assert [file.path for file in taken.files] == [f"snapshot/{name}" for name in names] + captures
    for file in taken.files:
        content = (folder / file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert json.loads((folder / "snapshot" / "snapshot.json").read_text())["plan_sha256"] == PLAN
    assert (folder / "snapshot" / "captures.list").read_text().splitlines() == captures


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sha256", "00"], "--sha256: it needs --free FILE"),
        (["--here", "A"], "--here: it needs --restore JOURNAL"),
        (["--plan", "00"], "--plan: it needs --restore JOURNAL"),
        (["--free", "f", "--restore", "j", "--here", "A"], "--restore: --free cannot be given with it"),
    ],
)
def test_options_that_would_not_count_are_refused(folder: Path, arguments: list[str], said: str) -> None:
    answer = upshift("snapshot", folder, *arguments)
    assert answer.returncode == 2 and said in answer.stderr and not answer.stdout
    assert not (folder / "snapshot").exists()


def test_what_has_not_changed_keeps_its_time(folder: Path) -> None:
    first = snapshot.take(folder)
    (folder / "status.json").write_text('{"state": "done"}')
    second = snapshot.take(folder)
    assert [new.path for old, new in zip(first.files, second.files, strict=True) if old != new] == [
        "snapshot/vantage/A/status.json"
    ]


def test_a_capture_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = snapshot.take(folder)
    read: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: read.append(file.name) or digest(file, name))
    assert snapshot.take(folder).captures == first.captures
    assert not [name for name in read if "captures" in name]
    (folder / capture_of(runs()[1])).write_bytes(b"changed")
    snapshot.take(folder)
    assert [name for name in read if "captures" in name] == [str(folder / capture_of(runs()[1]))]


def test_verified_captures_are_removed_and_their_findings_stay(folder: Path) -> None:
    with closing(Journal.open(folder / "vantage" / "A", runs(3), plan_hash=PLAN)) as journal:
        journal.begin(2)
        journal.void(2, LATE, rows(folder, runs()[2], attempt=3))
    snapshot.take(folder)
    verified = folder / "verified.json"
    (folder / "snapshot" / "snapshot.json").rename(verified)
    changed = folder / capture_of(runs()[1])
    changed.write_bytes(b"another content")
    assert snapshot.free(folder, verified).captures == 2
    assert not (folder / capture_of(runs()[0])).exists()
    assert not (folder / capture_of(runs()[0], 2)).exists(), "that of the void attempt is verified, too"
    assert (folder / capture_of(runs()[2], 3)).exists(), "the journal has not entered it"
    assert (folder / capture_of(runs()[2])).exists(), "it was not in the snapshot"
    assert changed.exists(), "it is not what was verified"
    with closing(JournalReader(folder / "vantage" / "A" / "journal.sqlite")) as journal:
        assert journal.findings(capture_of(runs()[0])) == RecordedFindings(text="{}", dropped=True)
    assert snapshot.free(folder, verified).captures == 0
    assert [file.path for file in snapshot.take(folder).captures] == [
        capture_of(runs()[1]),
        capture_of(runs()[2], 3),
    ]


def test_a_foreign_file_removes_nothing(folder: Path) -> None:
    outside = folder / "precious"
    outside.write_text("precious")
    made = {"path": "precious", "bytes": 8, "sha256": hashlib.sha256(b"precious").hexdigest()}
    made["modified_ns"] = outside.stat().st_mtime_ns
    (folder / "listed.json").write_text(json.dumps({"schema": 1, "plan_sha256": PLAN, "files": [made]}))
    assert snapshot.free(folder, folder / "listed.json").captures == 0
    assert outside.exists()
    (folder / "listed.json").write_text('{"files": 3}')
    with pytest.raises(UsageError, match="not a snapshot"):
        snapshot.free(folder, folder / "listed.json")


def test_the_list_of_a_long_campaign_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 32 MiB, about 141,000 captures, all were hashed again each time, and none was ever freed."""
    taken = snapshot.take(folder)
    path = folder / "snapshot" / "snapshot.json"
    with path.open("a") as handle:
        handle.write(" " * (33 << 20))
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert snapshot._earlier(folder) == list(taken.files)
    assert snapshot.free(folder, path).captures > 0


def test_the_files_of_a_list_are_told_apart_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file was looked for among all captures, so the time of a list grew with its square."""

    def copied(path: str) -> snapshot.Copied:
        return snapshot.Copied(path=path, bytes=1, sha256="ab" * 32, modified_ns=1)

    files = copied("snapshot/vantage/A/journal.sqlite"), *(copied(f"vantage/A/captures/{n}.pcap") for n in range(200))
    told: list[int] = []
    monkeypatch.setattr(snapshot.Snapshot, "captures", property(lambda one: told.append(1) or one.files[1:]))
    snapshot._write(tmp_path, snapshot.Snapshot(schema=1, plan_sha256=None, files=files))
    assert len(told) == 1
    assert (tmp_path / "snapshot.sha256").read_text() == f"{'ab' * 32}  vantage/A/journal.sqlite\n"
    assert len((tmp_path / "captures.list").read_text().splitlines()) == 200


def test_one_at_a_time_and_no_campaign(folder: Path, tmp_path: Path) -> None:
    with snapshot._only_one(folder), pytest.raises(PlaceError, match="another snapshot"):
        snapshot.take(folder)
    with pytest.raises(UsageError, match="no campaign"):
        (tmp_path / "empty").mkdir()
        snapshot.take(tmp_path / "empty")


def test_a_host_in_the_place_of_another_goes_on_from_what_was_collected(tmp_path: Path) -> None:
    planned = runs(3)
    lost, new, collected = tmp_path / "lost", tmp_path / "new", tmp_path / "collected.sqlite"
    with closing(Journal.open(lost / "vantage/A", planned, plan_hash=PLAN)) as journal:
        work(lost, journal, planned[0])
        journal.begin(planned[1].number)  # it ran when it was collected
        journal.copy(collected)
        work(lost, journal, planned[2])  # lost with the host
    before = collected.read_bytes()
    with pytest.raises(UsageError, match="another plan"):
        snapshot.restore(new, collected, "A", plan_sha256="f" * 16)
    assert not list(new.glob("vantage/A/*"))
    assert snapshot.restore(new, collected, "A", plan_sha256=PLAN)
    assert collected.read_bytes() == before
    with closing(Journal.open(new / "vantage/A", planned, plan_hash=PLAN)) as journal:
        assert journal.open_runs() == [planned[1].number, planned[2].number]
        assert journal.findings(capture_of(planned[0])) == RecordedFindings(text="{}", dropped=True)
        work(new, journal, planned[2])
    taken = snapshot.take(new)
    assert [file.path for file in taken.captures] == [capture_of(planned[2])]
    assert not snapshot.restore(new, collected, "A"), "what the host has stays"
    with closing(JournalReader(new / "vantage/A/journal.sqlite")) as reader:
        assert len({one.domain for one in reader.downloads()}) == 2
    assert not list((new / "vantage/A").glob(".*")), "no temporary file stays"


def test_a_journal_without_a_plan(tmp_path: Path) -> None:
    """A kill while the journals of two vantage points were made: the second is none, and no other plan's."""
    with closing(Journal.open(tmp_path / "vantage" / "A", runs(), plan_hash=PLAN)):
        pass
    empty = tmp_path / "vantage" / "B" / "journal.sqlite"
    empty.parent.mkdir()
    empty.touch()
    taken = snapshot.take(tmp_path)
    assert taken.plan_sha256 == PLAN and [file.path for file in taken.files] == ["snapshot/vantage/A/journal.sqlite"]
    assert snapshot.free(tmp_path, tmp_path / "snapshot" / "snapshot.json").captures == 0
    (tmp_path / "vantage" / "A" / "journal.sqlite").unlink()
    with pytest.raises(UsageError, match=rf"{tmp_path}: its journals have no plan yet; run `upshift run`"):
        snapshot.take(tmp_path)


def test_a_journal_without_a_plan_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "collected.sqlite").touch()
    answer = upshift("snapshot", tmp_path / "out", "--restore", tmp_path / "collected.sqlite", "--here", "A")
    assert answer.returncode == 2 and "collected.sqlite: this journal has no plan; collect it again" in answer.stderr
    assert not (tmp_path / "out" / "vantage" / "A" / "journal.sqlite").exists()


def test_what_a_campaign_drops_meanwhile_is_left_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot.take(folder)
    gone, real = folder / capture_of(runs()[0]), snapshot._described

    def described(home: Path, path: Path, known: Mapping[str, snapshot.Copied]) -> snapshot.Copied:
        if path == gone:
            path.unlink()
        return real(home, path, known)

    monkeypatch.setattr(snapshot, "_described", described)
    assert snapshot.free(folder, folder / "snapshot" / "snapshot.json").captures == 2
    assert not (folder / capture_of(runs()[1])).exists()


def test_a_start_beside_it_tidies_what_is_left(folder: Path) -> None:
    """A campaign removes files of dropped captures at its start; each may just have been removed here."""

    def is_dropped(name: str) -> bool:
        (folder / name).unlink()
        return True

    table: Any = SimpleNamespace(is_dropped=is_dropped)
    CaptureStore(campaign(), "A", folder, inspect=None).tidy_all(table, lambda: None)
    assert not list((folder / "vantage" / "A" / "captures").iterdir())
