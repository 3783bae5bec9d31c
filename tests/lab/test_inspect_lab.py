"""A campaign of the lab is inspected again: elsewhere, and after its captures are gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inspected import contents, inspect_elsewhere, kpi_rows
from tests.lab import _fault_world as faults
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

TABLES = ("downloads.parquet", "superseded.parquet")
PLANNED = 2 * 2 * 4  # iterations, targets, two configurations and a warm-up per transport


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    servers = [server("s1", "www.one.example"), server("s2", "t.example")]
    made.write("inspect.toml", topology("inspect", *servers, seed=3))
    made.campaign(tmp_path / "inspect.toml", more="iterations = 2")
    yield made
    made.clean()


def recorded_captures(out: Path) -> list[Path]:
    """Those that rows of `downloads` name. Attempts that a busy host made void have captures too, and no such row."""
    return sorted({out / row.capture for row in faults.rows(out) if row.capture})


def test_a_finished_campaign(world: Any) -> None:
    out = world.folder / "out"
    first = world.upshift("run", "c.toml", "--out", "out", "--json")
    skip_if_void(first.returncode, first.stderr)
    assert first.returncode == 0, first.stderr
    found = faults.summary(first)["inspection"]
    assert (found["downloads"], found["kpis"], found["lost"]) == (PLANNED, PLANNED, [])
    assert found["proven"] + found["refuted"] == PLANNED, "every download is judged"
    before = contents(out, TABLES)

    copy = world.folder / "copy"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("*.parquet", "*.json"))
    done = inspect_elsewhere(copy)
    assert done.returncode == 0, done.stderr
    assert contents(copy, TABLES) == before

    # As reported: the same command, once the captures had gone, took the KPIs away and ended with 0.
    first_capture, *gone = recorded_captures(out)
    for path in gone:
        path.unlink()
    # What was found in them right after the runs is in the journal; the captures themselves are missing.
    for command, code in (
        (("run", "c.toml", "--out", "out"), 0),
        (("inspect", "out"), 0),
        (("inspect", "--again", "out"), 1),
    ):
        again = world.within(*command)
        assert again.returncode == code and "Traceback" not in again.stderr, again.stderr
        assert all((f"{path.name}: the capture is missing" in again.stderr) == (code == 1) for path in gone)
        assert contents(out, TABLES) == before
    first_capture.write_bytes(b"")
    assert world.within("inspect", "--again", "out").returncode == 1
    assert contents(out, TABLES) == before
    assert kpi_rows(out) == PLANNED
