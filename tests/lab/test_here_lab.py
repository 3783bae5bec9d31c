"""Three processes with `--here` in one lab make one campaign; and what refuses them, before anything is changed."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.domain import Download
from core.files.journal import JournalReader
from tests.collecting import Fleet
from tests.lab import _fault_world as faults
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

VANTAGES = ("U", "V", "W")
CONFIGURATIONS = '[[configurations]]\nname = "BL"\nclient = "requests"\n'
WORST_S = 2 * 1 + 15
"""Warm-up and BL, of 1 s each."""


@pytest.fixture(scope="module")
def world(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = faults.World(tmp_path_factory.mktemp("here"))
    names = ("a.one.com", "b.one.com", "two.com", "three.com", "four.com")
    servers = [server(f"s{n}", name, vantages=VANTAGES, size="10 kB") for n, name in enumerate(names)]
    lab = made.write("three.toml", topology("three", *servers, vantages=VANTAGES, seed=3))
    made.campaign(lab, more=f"budget = 1\nslot_s = {WORST_S + 10}", configurations=CONFIGURATIONS)
    yield made
    made.clean()


def journal(world: Any, name: str) -> tuple[str | None, list[Download]]:
    path = world.folder / name / "vantage" / name / "journal.sqlite"
    with closing(JournalReader(path)) as found:
        return found.meta("plan_hash"), list(found.downloads())


@pytest.mark.soak
def test_three_processes_make_one_campaign(world: Any) -> None:
    assert world.upshift("lab", "up", world.folder / "three.toml").returncode == 0
    running = [world.start("run", "c.toml", "--out", name, "--here", name) for name in VANTAGES]
    said = [child.communicate(timeout=240) for child in running]
    assert [child.returncode for child in running] == [0, 0, 0], said
    assert any("waiting for slot until" in stderr for _, stderr in said), said
    hashes, rows = zip(*(journal(world, name) for name in VANTAGES), strict=True)
    assert len(set(hashes)) == 1 and hashes[0]
    downloads = [row for own in rows for row in own]
    assert Counter((row.vantage, row.configuration) for row in downloads) == {
        (name, configuration): 5 for name in VANTAGES for configuration in ("warmup", "BL")
    }
    assert len({(row.vantage, row.domain, row.configuration) for row in downloads}) == len(downloads) == 30
    assert all(row.outcome == "ok" for row in downloads), [row.failure_detail for row in downloads]
    visits = sorted((row.domain.removeprefix("a.").removeprefix("b."), row.started_at, row) for row in downloads)
    for (group, _, one), (following, _, other) in itertools.pairwise(visits):
        if group == following and one.vantage != other.vantage:
            assert one.last_byte_s is not None and one.started_at + one.last_byte_s + 5 < other.started_at
    done = world.upshift("inspect", *VANTAGES, "--out", "all")
    assert done.returncode == 0 and "all: 30 downloads: treatment of 30 proven" in done.stdout, done
    again = world.upshift("run", "c.toml", "--out", "V", "--here", "V")
    assert again.returncode == 0, "a finished part does nothing again"
    assert_collected(world)


def assert_collected(world: Any) -> None:
    """Collect makes one campaign folder of the three, which tables and reports read as any other."""
    (world.folder / "fleet").mkdir()
    plan_sha256, _ = journal(world, VANTAGES[0])
    fleet = Fleet(world.folder / "fleet", plan_sha256=str(plan_sha256))
    for name in VANTAGES:
        fleet.add(name, world.folder / name)
    done = fleet.collect(collect_free=True)
    assert done.returncode == 0, done.stdout
    for own in ("campaign.json", "lab.json"):  # as the control machine has them
        shutil.copy(world.folder / VANTAGES[0] / own, fleet.collected / own)
    inspected = world.upshift("inspect", str(fleet.collected))
    assert inspected.returncode == 0 and "30 downloads: treatment of 30 proven" in inspected.stdout, inspected
    tables = world.upshift("tables", str(fleet.collected))
    assert tables.returncode == 0 and all(name in tables.stdout for name in VANTAGES), tables
    for name in VANTAGES:
        assert not list((world.folder / name).glob("vantage/*/captures/*.pcap*")), "removed on the host"
        own = world.upshift("inspect", name)
        assert own.returncode == 0 and "10 downloads: treatment of 10 proven" in own.stdout, "from the journal alone"


@pytest.mark.parametrize(
    ("file", "arguments", "said"),
    [
        ("c.toml", ("--here", "X"), "c.toml: the campaign has no vantage point 'X'; use one of: U, V, W"),
        (
            "short.toml",
            ("--here", "U"),
            f"short.toml: field slot_s: the longest measurement run (a.one.com) takes up to {WORST_S} s; it may "
            f"start 5 s after its slot of {WORST_S + 9} s does, and has to end 5 s before it; write at least "
            f'{WORST_S + 10}, or "auto"',
        ),
    ],
)
def test_wrong_input_is_one_sentence_before_anything_is_changed(
    world: Any, file: str, arguments: tuple[str, ...], said: str
) -> None:
    text = (world.folder / "c.toml").read_text()
    world.write("short.toml", text.replace(f"slot_s = {WORST_S + 10}", f"slot_s = {WORST_S + 9}"))
    done = world.upshift("run", file, "--out", "wrong", *arguments)
    assert (done.returncode, done.stderr.strip()) == (2, f"upshift: {said}")
    assert not (world.folder / "wrong").exists()


@pytest.mark.soak  # needs the folders of the three processes above
def test_another_plan_is_refused_before_anything_is_changed(world: Any) -> None:
    world.upshift("lab", "down")
    text = (world.folder / "c.toml").read_text()
    world.write("other.toml", text.replace("[[conf", "seed = 2\n[[conf", 1))
    done = world.upshift("run", "other.toml", "--out", "V", "--here", "V")
    assert done.returncode == 2 and "vantage/V: this folder holds another plan; changed since: " in done.stderr
    assert not world.processes(), "no lab was built"
