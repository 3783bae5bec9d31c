"""Studies on real kernels: a few cells of each that is shipped, and whole studies in `make studies`.

A flow that the host disturbed is void, so what is left has to be right; where most of them are void, a test is skipped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analysis.study.claims import ClaimVerdict
from analysis.study.claims import judge as judge_claims
from analysis.study.expected import compare
from analysis.study.flows import read
from core.errors import LabError
from core.files.study import Cell, Ending, Study
from core.files.study_file import load
from core.files.study_terms import text
from tests.campaigns import Silent
from tests.cells import cells
from tests.lab.noise import TOO_NOISY
from upshift.study.lane import CLIENT
from upshift.study.run import TOPOLOGY, run_study
from vantage.lab.lab import Lab, open_lab
from vantage.lab.topology import PathSpec

SHIPPED = Path(__file__).resolve().parents[2] / "upshift" / "studies"
EXAMPLE = SHIPPED.parents[1] / "examples" / "studies" / "lost-segment.toml"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))
LANES = 12
"""Servers of the topology."""
Row = dict[str, Any]
Chosen = dict[str, list[Any]]

QUICK: dict[str, list[Chosen]] = {
    "byte-counting": [{"iw": [16], "pipelined": [True]}],
    "drops-by-queue": [{"rate_mbit": [26], "queue": ["16 packets", "32 packets"], "iw": [50]}],
    "fct-competing": [
        {"rate_mbit": [26], "rtt_ms": [30], "queue": ["bdp x 0.5"], "iw": [32], "sender": ["paced-40", "bbr"]}
    ],
    "fct-empty": [{"rate_mbit": [26, 100], "rtt_ms": [30], "iw": [10, 50]}],
    "iw3-iw10": [{"cells": ["segments"], "objects": [5792]}],
    "neighbours": [{"rate_mbit": [4], "queue": ["bdp x 1"], "iw": [10], "beside": ["elephant", "voice", "rival 10"]}],
    "page-windows": [{"rate_mbit": [200], "loss_percent": [0], "connections": [1, 6], "iw": [300]}],
    "rfc6928": [
        {"client": ["fetch"], "objects": [36_500], "iw": [3]},
        {"case": ["SYN-ACK lost 1 times", "idle 1.5 timeouts"], "iw": [10]},
        {"client": ["kernel"], "recovery": ["off"], "lost_segment": ["second"], "iw": [3]},
    ],
    "slow-links": [{"rate_mbit": [0.512], "queue": ["40 packets"], "flows": ["one"], "sack": ["off"]}],
}
"""Study -> the cells that `make test` makes, by their values."""


@pytest.fixture(scope="module")
def lab(lab_host: Path) -> Iterator[Lab]:
    """The lab of all studies here: a run uses one that its process has up."""
    with open_lab(TOPOLOGY) as lab:
        yield lab


def made(study: Study, out: Path) -> list[Row]:
    """The rows of all repetitions of a study."""
    run_study(study, out, lanes=LANES, progress=Silent(), say=print)
    rows: list[Row] = pq.read_table(out / "flows.parquet").to_pylist()
    return rows


def some(study: Study, chosen: list[Chosen]) -> Study:
    """The study with these cells alone, once each."""

    def wanted(cell: Cell) -> bool:
        return any(all(cell.values[name] in values for name, values in one.items()) for one in chosen)

    few = tuple(cell for cell in study.cells if wanted(cell))
    assert few
    return dataclasses.replace(study.form(quick=True), cells=few, repetitions=1)


def judge(study: Study, out: Path, rows: list[Row]) -> None:
    """Fails for what is wrong; skips where the host let too little through."""
    planned = len(study.cells) * study.repetitions
    assert (
        len({(*(text(row[name]) for name in study.columns), row["repetition"]) for row in rows}) == planned == len(rows)
    )
    compared = compare(read(study, out))
    assert not (wrong := [row for row in compared if row.verdict == "outside"]), wrong
    disturbed = [row["reason"] for row in rows if row["outcome"] == Ending.DISTURBED]
    if len(disturbed) > planned / 2:
        pytest.skip(f"{TOO_NOISY}: {len(disturbed)} of {planned} flows are void ({disturbed[0]})")


@pytest.mark.measures
@cells(
    "name, how",
    every=[(name, how) for name in NAMES for how in ("few", "quick")],
    quick=[(name, "few") for name in NAMES],
)
def test_each_study(name: str, how: str, lab: Lab, tmp_path: Path) -> None:
    study = load(SHIPPED / f"{name}.toml")
    check_study(some(study, QUICK[name]) if how == "few" else study.form(quick=True), tmp_path)


@pytest.mark.measures
@pytest.mark.soak
@pytest.mark.timeout(5 * 3600)  # fct-competing takes 2.5 hours, page-windows one
@pytest.mark.parametrize("name", sorted(NAMES, key=lambda name: name != "fct-competing"))
def test_each_study_whole(name: str, lab_host: Path, soak_folder: Path) -> None:
    """What a killed run has made of it is resumed; what is wrong is made again. `make studies`, not `make soak`."""
    try:
        check_study(load(SHIPPED / f"{name}.toml"), soak_folder / name)
    except Exception:
        shutil.rmtree(soak_folder / name)
        raise


def check_study(study: Study, out: Path) -> None:
    """Runs it; all that is expected holds, and what each repetition has makes sense."""
    rows = made(study, out)
    judge(study, out, rows)
    for row in (row for row in rows if row["outcome"] == Ending.OK):
        if row.get("beside") == "voice":
            assert row["voice_p99_ms"] >= row["voice_p50_ms"] >= 50, "half of the round trip"
            assert row["voice_lost"] >= 0
        if study.name == "fct-competing" or row.get("beside") not in (None, "voice"):
            assert 0 < row["neighbour_mbit"] < 1.05 * row["rate_mbit"], "no more than the path has"
            assert row["time_ms"] > 2 * row.get("rtt_ms", 100)


WATCHED = """
import json, os, sys, time
from downloader.programs.kernel import tcp_info_field
from downloader.programs.neighbours import Elephant, Sockets

if priority := int(sys.argv[2]):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
sockets, rows, until = Sockets(), [], time.monotonic() + 8
elephant = Elephant(sockets, sys.argv[1])
while time.monotonic() < until:
    sockets.turn(time.monotonic() + 0.005)
    rows.append((time.monotonic(), elephant.received, tcp_info_field(elephant.sock, "Q", 128)))  # tcpi_bytes_received
print(json.dumps(rows))
"""


@pytest.mark.measures
def test_a_lost_segment_changes_nothing_of_what_an_elephant_got(lab: Lab) -> None:
    """What has arrived in order stands still until it is sent again, and then jumps by a round trip's bytes."""
    lab.set_path(CLIENT, "sender-1", PathSpec(rtt_ms=100, rate_mbit=4, queue="bdp x 8", drop=[1000]), uplink_mbit=4)
    priority = str(lab.plan.fifo_priority or 0)
    argv = [sys.executable, "-c", WATCHED, lab.plan.addresses["sender-1"].ipv4, priority]
    rows = json.loads(lab.place(CLIENT).run(argv).check(doing="watching an elephant").stdout)
    bdp, byte_s = 50_000, 4e6 / 8

    def ahead(column: int) -> float:
        """The most that a count grew between two looks beyond what the path lets through meanwhile [bytes]."""
        steps = itertools.pairwise((row[0], row[column]) for row in rows)
        return max(bytes_ - before - byte_s * (now - then) for (then, before), (now, bytes_) in steps)

    if max(later - earlier for (earlier, *_), (later, *_) in itertools.pairwise(rows)) > 0.03:
        pytest.skip(f"{TOO_NOISY}: the client waited for a processor")
    assert ahead(2) > bdp / 2, "no segment was lost"
    assert 0 < ahead(1) < bdp / 4


@pytest.mark.measures
def test_the_tutorials_study_needs_no_code(lab: Lab, tmp_path: Path) -> None:
    study = dataclasses.replace(load(EXAMPLE).form(quick=True), repetitions=1)
    rows = made(study, tmp_path)
    judge(study, tmp_path, rows)
    for row in (row for row in rows if row["outcome"] == Ending.OK):
        assert row["drops"] == (row["segment"] != "none")
        assert row["retransmissions"] >= row["drops"]


def test_a_lab_of_another_process_is_left_alone(lab: Lab, tmp_path: Path) -> None:
    own = lab.folder.owner.read_text()
    lab.folder.owner.write_text('{"pid": 1, "started_ticks": 1, "attached": false}')
    try:
        with pytest.raises(
            LabError, match="is up already, and its paths are not changed; run: upshift lab down studies"
        ):
            lab.set_path(CLIENT, "sender-1", PathSpec(rtt_ms=10, rate_mbit=10), uplink_mbit=10)
        with pytest.raises(
            LabError, match="a lab named studies is up, and a run builds its own; wait for the other run"
        ):
            made(load(EXAMPLE), tmp_path)
    finally:
        lab.folder.owner.write_text(own)


def _same_senders(quick: bool) -> str:
    """A study with two senders that are the same, and 20 claims that they differ by 0.1 % at most.

    Quick, with three flows of each, by a factor of two: one study in twenty calls a smaller difference sure by chance.
    """
    ratio = [0.5, 2.0] if quick else [0.999, 1.001]
    cells = 'rate_mbit = [4, 7, 26, 100]\nrtt_ms = [30]\nqueue = ["bdp x 1"]\niw = [4, 10, 16, 32, 50]\n'
    claims = "".join(
        f'[[claim]]\nid = "{rate}-{iw}"\ntext = "the same"\nwhere = {{ rate_mbit = {rate}, iw = {iw} }}\n'
        'a = { sender = "one" }\nb = { sender = "other" }\n'
        f"ratio = {ratio}\n"
        for rate in (4, 7, 26, 100)
        for iw in (4, 10, 16, 32, 50)
    )
    return (
        'schema = 1\nname = "same"\nsource = "a test"\nrepetitions = 30\nlanes = "rate_mbit"\n'
        '[fixed]\nobjects = [73848]\nbeside = "elephant"\n[levels.sender]\none = {}\nother = {}\n'
        f'[[cells]]\n{cells}sender = ["one", "other"]\nquick = {{ rate_mbit = [26], iw = [10] }}\n{claims}'
    )


@pytest.mark.measures
@cells("quick", every=[True, False], quick=[True])
def test_equal_senders_are_not_told_apart(quick: bool, lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "same.toml"
    file.write_text(_same_senders(quick))
    study = load(file).form(quick=quick)
    rows = made(study, tmp_path / "out")
    judge(study, tmp_path / "out", rows)
    judged = judge_claims(read(study, tmp_path / "out"))
    assert not [one for one in judged if one.verdict == ClaimVerdict.FAILS]
