"""Files larger than `max_bytes`, and targets of a block list: what a campaign makes of them, from plan to pairs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from core.domain import Failure, Outcome
from tests.lab import _fault_world as faults
from tests.plain_captures import plain
from tests.topologies import server, topology

pytestmark = [pytest.mark.lab]

MOST_BYTES = 400_000
FAR = "rtt_ms = 60, rate_mbit = 40"
"""Four windows without scaling: it helps, and by a multiple."""
DOMAINS = {"small.example": "300 kB", "large.example": "2 MB", "blocked.example": "300 kB"}
CONFIGURATIONS = """
[[configurations]]
name = "BL"
client = "requests"
levels = { window_scaling = "off" }
[[configurations]]
name = "WS"
client = "requests"
levels = { window_scaling = 14 }
"""


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    servers = [server(name.partition(".")[0], name, size=size, path=FAR) for name, size in DOMAINS.items()]
    made.write("far.toml", topology("far", *servers, seed=3))
    yield made
    made.clean()


def test_pairs_are_compared_at_the_same_byte_and_block_lists_are_kept(world: Any, tmp_path: Path) -> None:
    world.write("blocks.txt", "# who asked\nblocked.example\n")
    more = f'max_bytes = {MOST_BYTES}\nblock_lists = ["blocks.txt"]\n'
    world.campaign(tmp_path / "far.toml", more=more, configurations=CONFIGURATIONS)
    planned = world.upshift("plan", "c.toml")
    assert "Left alone: 1 target of a block list." in planned.stdout, (planned.stdout, planned.stderr)
    done = world.upshift("run", "c.toml", "--out", "out")
    assert done.returncode in (0, 1), done.stderr
    rows = pq.read_table(tmp_path / "out" / "downloads.parquet").to_pylist()
    left = {row["domain"] for row in rows if row["failure"] == Failure.OPTED_OUT}
    assert left == {"blocked.example"}, "what the plan leaves alone, and nothing else"
    cut = {(row["domain"], row["body_bytes"]) for row in rows if row["failure"] == Failure.BYTE_BUDGET}
    assert cut == {("large.example", MOST_BYTES)}
    assert {row["domain"] for row in rows if row["outcome"] == Outcome.OK} == {"small.example"}
    assert world.upshift("tables", "out").returncode == 0
    pairs = pq.read_table(tmp_path / "out" / "tables" / "pairs.parquet").to_pylist()
    (large,) = [pair for pair in pairs if pair["comparison"] == "WS vs BL" and pair["domain"] == "large.example"]
    assert large["speedup"] == pytest.approx(large["vs_last_byte_s"] / large["config_last_byte_s"])
    assert large["speedup_low"] == large["speedup"] == large["speedup_high"], "both times to that byte are known"


QUEUE_S = 0.5


def test_what_was_on_its_way_to_a_cut_download_does_not_delay_the_next_one(world: Any, tmp_path: Path) -> None:
    """A queue of half a second is nearly full where the byte budget cuts. The next SYN's answer stood at its end."""
    path = f"rtt_ms = 20, rate_mbit = 20, queue = {round(20e6 / 8 * QUEUE_S)}"
    world.write("far.toml", topology("far", server("deep", "deep.example", size="8 MB", path=path), seed=3))
    world.campaign(tmp_path / "far.toml", more="max_bytes = 2_000_000")
    done = world.upshift("run", "c.toml", "--out", "out")
    rows = pq.read_table(tmp_path / "out" / "downloads.parquet").to_pylist()
    assert {row["failure"] for row in rows} == {Failure.BYTE_BUDGET}, done.stderr
    (capture,) = {row["capture"] for row in rows}
    lines = subprocess.run(
        ["tcpdump", "-ttnn", "-r", plain(tmp_path / "out" / capture)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    began = sorted((row["started_at"], row["local_port"]) for row in rows)
    late = [
        (port, float(line.split()[0]) - after)
        for (_, port), (after, _) in pairwise(began)
        for line in lines
        if ".443 > " in line and f".{port}:" in line and float(line.split()[0]) > after
    ]
    assert not late, f"{len(late)} packets, the last {late[-1][1]:.3f} s after the next download began"
    assert all(row["connect_s"] < QUEUE_S / 2 for row in rows)
