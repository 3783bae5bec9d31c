"""The limit of a campaign's folder, the reserve of its disk, and what a dropped capture leaves in the journal."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.evidence import inspect_campaign
from analysis.evidence.rows import downloads_schema
from analysis.evidence.sources import inspect_capture
from core.domain import Download, Outcome, TreatmentReason
from core.files import store
from core.files.journal import CaptureFindings, open_journals
from downloader.execution.capture import ip_bytes
from downloader.factors import ALL as FACTORS
from downloader.limits import captures
from downloader.limits.budget import Spent
from downloader.limits.captures import pack
from downloader.limits.disk import FolderDisk
from tests.campaigns import Silent, run_in
from tests.cells import Repeats
from tests.inspected import kpi_rows
from tests.journaled import recorded, superseded
from tests.lab.noise import TOO_NOISY, host_noise
from tests.lab.test_download_run import World, all_clients, campaign, world

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

__all__ = ["all_clients", "world"]

DOMAINS = [f"{name}.example" for name in "abcd"]

CLIENTS = [{"name": "BL", "client": "requests"}, {"name": "quiche", "client": "quiche"}]
DOWNLOADS = 4
"""Per measurement run, with both warm-ups."""

INSPECT = partial(inspect_capture, factors=FACTORS)


def run(world: World, out: Path, inspect: Any = INSPECT, **changes: Any) -> Any:
    plan = campaign(configurations=CLIENTS, **changes)
    targets = world.targets(*DOMAINS[:2])
    summary = run_in(plan, targets, {"A": world.place()}, out, progress=Silent(), inspect=inspect)
    assert summary.complete
    return inspect_campaign(out, factors=FACTORS, progress=Silent())


def kept(out: Path) -> list[Path]:
    return sorted(out.glob("vantage/*/captures/*"))


def tables(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("downloads.parquet", "superseded.parquet")}


def test_tables_from_dropped_captures_equal_those_from_kept_ones(world: World, tmp_path: Path) -> None:
    """Byte for byte; a KPI that is newer than the drop is empty, and said so."""
    copies, out = tmp_path / "copies", tmp_path / "out"
    copies.mkdir()

    def copying(path: Path, downloads: Sequence[Download]) -> CaptureFindings:
        (copies / path.name).write_bytes(path.read_bytes())
        return INSPECT(path, downloads)

    found = run(world, out, copying, disk={"captures": "none"})
    assert not kept(out) and len(list(copies.iterdir())) == 2
    assert (found.lost, found.kpis, found.unproven) == ((), 2 * DOWNLOADS, 0)
    dropped = tables(out)
    with closing(sqlite3.connect(out / "vantage" / "A" / "journal.sqlite")) as journal, journal:
        journal.execute("UPDATE captures SET dropped = 0")
    for copy in copies.iterdir():
        packed = pack(copy)
        packed.replace(out / "vantage" / "A" / "captures" / packed.name)
    assert inspect_campaign(out, factors=FACTORS, progress=Silent()).lost == () and len(kept(out)) == 2
    assert tables(out) == dropped


def test_a_kpi_that_is_newer_than_the_drop_is_empty(world: World, tmp_path: Path) -> None:
    newest = downloads_schema().names[-1]

    def older(path: Path, downloads: Sequence[Download]) -> CaptureFindings:
        found = INSPECT(path, downloads)
        rows = json.loads(found.text)
        for row in rows:
            del row["kpis"][newest]
        return CaptureFindings(text=json.dumps(rows), clean=found.clean)

    out = tmp_path / "out"
    found = run(world, out, older, disk={"captures": "none"})
    assert found.newer_kpis == (newest,)
    assert f"empty where captures were dropped before it was known: {newest}" in found.sentence()
    table = store.read_table(out / "downloads.parquet", "downloads")
    assert table.column(newest).null_count == len(table) == 2 * DOWNLOADS
    assert table.column("rtt_min").null_count == 0


@pytest.mark.parametrize("policy", ["all", "failures", "sample"])
def test_policies(world: World, tmp_path: Path, policy: str) -> None:
    """Of clean runs; a sample of all. What is kept is packed, and inspection reads it."""
    found = run(world, tmp_path / "out", disk={"captures": policy, "sample": 1.0})
    files = kept(tmp_path / "out")
    rows = store.read_rows(tmp_path / "out" / "downloads.parquet", "downloads", Download)
    assert all(row.outcome == Outcome.OK for row in rows)
    # A busy host may disturb a download, whose run is not clean then, or an attempt, which is made again.
    expected = {row.capture for row in rows if policy != "failures" or not row.accepted}
    names = {path.relative_to(tmp_path / "out").as_posix() for path in files}
    assert names & {row.capture for row in rows} == expected and all(name.endswith(".pcap.zst") for name in names)
    assert names - expected <= {attempt.capture for attempt in superseded(tmp_path / "out")}
    assert found.lost == () and found.kpis == 2 * DOWNLOADS


def test_an_attempt_that_a_full_disk_ended_counts_with_what_it_took(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with its worst case for the rest of the day, and it leaves no half file."""
    monkeypatch.setattr(FolderDisk, "is_short", True)
    took: list[int] = []

    def sync(handle: int) -> None:
        part = Path(f"/proc/self/fd/{handle}").readlink()
        if not took and part.suffix == ".zst":
            took.extend(ip_bytes(path) for path in part.parent.glob("*.pcap"))
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(captures.os, "fsync", sync)
    plan = campaign(configurations=[{"name": "BL", "client": "requests"}], max_bytes=100_000)
    run_in(plan, world.targets("a.example"), {"A": world.place()}, tmp_path, progress=Silent(), inspect=INSPECT)
    with open_journals(tmp_path) as journals:
        first, second = Spent(journals["A"].db).entries()
    assert first.settled and second.settled and [first.ip_bytes] == took
    assert [path.name for path in (tmp_path / "vantage/A/captures").iterdir()] == ["1-000-a.example-a2.pcap.zst"]


def test_failures_keeps_what_is_not_clean(world: World, tmp_path: Path) -> None:
    clients = [{"name": "BL", "client": "requests"}, {"name": "cut", "client": "quiche"}]
    plan = campaign(configurations=clients, max_bytes=100_000, disk={"captures": "failures"})
    run_in(plan, world.targets("a.example"), {"A": world.place()}, tmp_path, progress=Silent(), inspect=INSPECT)
    assert len(kept(tmp_path)) == 1, "its downloads are censored"


@dataclass(frozen=True)
class Tmpfs:
    """A disk of 64 MB in a mount namespace of its own."""

    keeper: int
    path: Path

    @property
    def seen(self) -> Path:
        """The same folder, from outside."""
        return Path(f"/proc/{self.keeper}/root{self.path}")

    def copy(self, folder: Path) -> Path:
        """A copy of the campaign's folder, which outlives the disk."""
        return Path(shutil.copytree(self.seen / "out", folder))

    def used(self) -> int:
        """Bytes of all files in `out`, by their blocks."""
        found = 0
        for folder, _, names in os.walk(self.seen / "out"):
            for name in names:
                try:
                    found += Path(folder, name).lstat().st_blocks * 512
                except FileNotFoundError:
                    continue
        return found


@pytest.fixture
def tmpfs(world: World, tmp_path: Path) -> Iterator[Tmpfs]:
    disk = tmp_path / "disk"
    disk.mkdir()
    make = f"mount -t tmpfs -o size=64m none {disk} && echo ready && exec sleep 3600"
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", make]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None and keeper.stdout.readline() == "ready\n"
    yield Tmpfs(keeper.pid, disk)
    keeper.kill()
    keeper.communicate()


def start(world: World, tmpfs: Tmpfs, folder: Path, fields: str) -> subprocess.Popen[str]:
    text = f'name = "disk"\nlab = "none"\ntargets = "lab"\nbudget = 10\n{fields}\n'
    for client in CLIENTS:
        text += f'[[configurations]]\nname = "{client["name"]}"\nclient = "{client["client"]}"\n'
    (folder / "c.toml").write_text(text)
    words = [folder / "c.toml", world.namespace, world.ca, tmpfs.path / "out", *DOMAINS]
    command = [
        "nsenter",
        f"--mount=/proc/{tmpfs.keeper}/ns/mnt",
        "--",
        sys.executable,
        "-m",
        "tests.lab._disk_campaign",
    ]
    return subprocess.Popen([*command, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def every(seconds: float, look: Callable[[], None]) -> Callable[[], None]:
    """Calls `look` again and again in a thread; returns how to end that."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(seconds):
            look()

    thread = threading.Thread(target=loop)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


def test_the_limit_is_never_exceeded(world: World, tmpfs: Tmpfs, tmp_path: Path, repeats: Repeats) -> None:
    """Captures of clean runs go, and all KPIs are there in the end."""
    limit_mb, iterations = repeats(quick=4, soak=32), repeats(quick=5, soak=110)
    samples: list[int] = []
    end = every(0.2, lambda: samples.append(tmpfs.used()))
    fields = f'iterations = {iterations}\ndisk = {{ limit = "{limit_mb} MB", reserve = "1 MB" }}'
    child = start(world, tmpfs, tmp_path, fields)
    try:
        with host_noise() as noise:
            stdout, stderr = child.communicate(timeout=120 if limit_mb < 32 else 2000)
    finally:
        end()
        child.kill()
        child.communicate()
    assert child.returncode == 0 and stdout == "done\n", (stdout, stderr)
    print(f"{len(samples)} samples, at most {max(samples) / 1e6:.2f} MB of {limit_mb} MB")
    assert len(samples) > 20 and 0.3 * limit_mb * 1e6 < max(samples) <= limit_mb * 1e6
    out = tmpfs.copy(tmp_path / "copy")
    runs = iterations * len(DOMAINS)
    assert kpi_rows(out) == runs * DOWNLOADS
    rows = store.read_rows(out / "downloads.parquet", "downloads", Download)
    # On a busy host a client may wake up late, and a QUIC server sends again: that is no matter of the disk.
    assert len(rows) == runs * DOWNLOADS
    assert all(row.treatment_ok or row.treatment_reason == TreatmentReason.ACCOUNTS_DIFFER for row in rows)
    if sum(not row.treatment_ok for row in rows) > max(2, 0.01 * len(rows)):
        (pytest.fail if noise[0].quiet else pytest.skip)(f"{TOO_NOISY}: clients woke up late; {noise[0]}")
    with closing(sqlite3.connect(out / "vantage" / "A" / "journal.sqlite")) as journal:
        captures = journal.execute("SELECT clean, dropped FROM captures ORDER BY rowid").fetchall()
        unclean = {path for (path,) in journal.execute("SELECT path FROM captures WHERE NOT clean")}
    assert unclean == {row.capture for row in rows if row.outcome != Outcome.OK or not row.accepted}
    dropped = [is_dropped for is_clean, is_dropped in captures if is_clean]
    print(f"{sum(dropped)} of {len(captures)} captures were dropped, {len(captures) - len(dropped)} are not clean")
    assert dropped == sorted(dropped, reverse=True) and len(captures) == runs, "the oldest go first"
    assert not any(is_dropped for is_clean, is_dropped in captures if not is_clean)
    if len(dropped) < runs / 2:
        pytest.skip(f"{TOO_NOISY}: most captures are not clean")
    assert 0 < len(kept(out)) == runs - sum(dropped) < runs


@pytest.mark.soak
def test_a_disk_that_something_else_fills(world: World, tmpfs: Tmpfs, tmp_path: Path) -> None:
    """The campaign pauses with a sentence, and resumes by itself; nothing is lost."""
    child = start(world, tmpfs, tmp_path, 'iterations = 2\ndisk = { reserve = "16 MB" }')
    try:
        out, filler = tmpfs.seen / "out", tmpfs.seen / "filler"
        until = time.monotonic() + 60
        while not kept(out):
            assert time.monotonic() < until and child.poll() is None, child.communicate()
            time.sleep(0.05)
        with filler.open("wb") as handle:
            try:
                while True:  # to the last byte, in the middle of a run
                    handle.write(bytes(1 << 16))
                    handle.flush()
            except OSError:
                pass
        assert child.stdout is not None
        said = child.stdout.readline()
        assert said.startswith("paused for disk until 20") and "are free on the disk" in said, said
        assert "16 MB stay free" in said
        before = kept(out)
        time.sleep(2)
        assert kept(out) == before
        filler.unlink()
        assert child.stdout.readline() == "goes on\n"
        stdout, stderr = child.communicate(timeout=300)
        assert child.returncode == 0 and stdout == "done\n", (stdout, stderr)
    finally:
        child.kill()
        child.communicate()
    out = tmpfs.copy(tmp_path / "copy")
    rows = recorded(out)
    assert len(rows) == 2 * len(DOMAINS) * DOWNLOADS and all(row.outcome == "ok" for row in rows)
    assert kpi_rows(out) == len(rows)
