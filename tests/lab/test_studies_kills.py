"""A study of which a part is killed: each planned repetition is there once, and nothing of the lab is left."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import upshift.commands.study
import upshift.study.run
import upshift.study.schedule
from core.errors import AskedToStopError
from tests.cells import Repeats, cells
from upshift.commands.study import app
from vantage.lab.state import lab_folder

STUDY = """
schema = 1
name = "kills"
source = "a test"
repetitions = 2
quick_repetitions = 10
lanes = "rate_mbit"
[fixed]
objects = [28_960]
queue = "1 MB"
[levels.sack]
on = {}
off = { sysctls = { "net.ipv4.tcp_sack" = 0 } }
[[cells]]
rate_mbit = [10, 20]
rtt_ms = [20]
sack = ["on", "off"]
iw = [4]
[[expected]]
retransmissions = 0
"""
PLANNED = 4 * 10
WAIT_S = 60.0
PARTS = {"client": "downloader/programs/load.py", "sender": "programs/sender.py", "emulator": "pathem.json"}
"""Part -> a word of its command line."""


def recorded(out: Path) -> int:
    """Repetitions that are in the ledger."""
    try:
        with closing(sqlite3.connect(f"file:{out}/ledger.sqlite?mode=ro", uri=True)) as ledger:
            return int(ledger.execute("SELECT count(*) FROM domains WHERE outcome IS NOT NULL").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def processes(word: str) -> Iterator[int]:
    """Those of the lab with this word in their command line."""
    root = str(lab_folder("studies").root).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes()
                mine = root in argv or root in (entry / "environ").read_bytes()
            except OSError:
                continue
            if (
                mine
                and word.encode() in argv
                and b"python" in argv.split(b"\0")[0] + b"python" * (word == "pathem.json")
            ):
                yield int(entry.name)


@pytest.mark.lab
# A run that ended in the middle is resumed below, after a full disk.
@cells("part", every=["run", *PARTS], quick=["sender"])
def test_a_part_is_killed(part: str, repeats: Repeats, lab_host: Path, tmp_path: Path) -> None:
    file = tmp_path / "kills.toml"
    file.write_text(STUDY)
    for number in range(repeats(quick=1, soak=5)):
        out = tmp_path / str(number)
        argv = [sys.executable, "-m", "upshift", "study", "run", str(file), "--quick", "--out", str(out)]
        log = (tmp_path / f"{number}.log").open("wb")
        with log, subprocess.Popen(argv, stdout=log, stderr=log) as run:
            until = time.monotonic() + WAIT_S
            while recorded(out) < 10 + 6 * number and run.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            victims = [run.pid] if part == "run" else list(processes(PARTS[part]))
            assert victims and run.poll() is None, Path(log.name).read_text()
            os.kill(victims[number % len(victims)], signal.SIGKILL)
        if part == "run":
            kept = recorded(out)
            assert 10 <= kept < PLANNED
            again = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert again.returncode == 0, again.stderr
            assert f"{PLANNED - kept} flows to go" in again.stderr
        else:
            assert run.returncode == 0, Path(log.name).read_text()
        rows = pq.read_table(out / "flows.parquet").to_pylist()
        assert len({(row["rate_mbit"], row["sack"], row["repetition"]) for row in rows}) == len(rows) == PLANNED
        assert {row["outcome"] for row in rows} <= {"ok", "disturbed"}
        assert not lab_folder("studies").alive()


@pytest.mark.lab
def test_a_run_ends_at_its_time_and_is_resumed(lab_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the run, which is read before each repetition, jumps past its end when it has been read 30 times."""
    file, out = tmp_path / "kills.toml", tmp_path / "out"
    file.write_text(STUDY)
    end = "2100-01-01T00:00Z"
    times = itertools.chain(itertools.repeat(1e9, 30), itertools.repeat(1e11))
    clock = SimpleNamespace(time=lambda: next(times))
    for module in (upshift.commands.study, upshift.study.run, upshift.study.schedule):
        monkeypatch.setattr(module, "time", clock)
    stopped = CliRunner().invoke(app, ["run", str(file), "--quick", "--out", str(out), "--until", end])
    assert isinstance(stopped.exception, AskedToStopError), stopped.output
    before = pq.read_table(out / "flows.parquet").to_pylist()
    assert 0 < len(before) <= 30 < PLANNED
    assert f"stopped (--until) with {PLANNED - len(before)} flows to go; the same command" in str(stopped.exception)
    assert f"Still to be made: {PLANNED - len(before)} flows" in stopped.output
    assert not lab_folder("studies").alive()
    monkeypatch.undo()
    resumed = CliRunner().invoke(app, ["run", str(file), "--quick", "--out", str(out)])
    assert resumed.exit_code == 0, resumed.output
    assert "Still to be made" not in resumed.output
    after = pq.read_table(out / "flows.parquet").to_pylist()
    assert len(after) == PLANNED
    assert all(row in after for row in before), "what was made stays as it was"


@pytest.mark.lab
@pytest.mark.soak
def test_a_full_disk_ends_the_run_and_is_resumed(root: None, lab_host: Path, tmp_path: Path) -> None:
    file, disk = tmp_path / "kills.toml", tmp_path / "disk"
    file.write_text(STUDY)
    disk.mkdir()
    run = f"{shlex.quote(sys.executable)} -m upshift study run {file} --quick --out {disk}/out"
    script = (
        f"mount -t tmpfs -o size=144k none {disk}; {run} && exit 9 || echo first $?; mount -o remount,size=64m {disk}; "
        f"{run}; cp {disk}/out/flows.parquet {tmp_path}"
    )
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "first 75" in done.stdout
    # By the ledger or by the table of flows, whichever needs the room first.
    assert re.search("no space left|is full", done.stderr), done.stderr
    assert re.search("free some space( there)?, then run the same command again", done.stderr)
    assert pq.read_table(tmp_path / "flows.parquet").num_rows == PLANNED
