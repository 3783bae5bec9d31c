"""`upshift survey iw` on a host: in a namespace of its own behind masquerading, and on the host itself."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from survey.iw.probers import find_iwprobe
from survey.iw.record import votes_of
from tests.cells import Repeats, cells
from tests.lab._host_world import World, open_world
from tests.lab._iw_survey import CONTACT, records
from tests.lab.test_host_place import SERVER

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]

WINDOWS = (1, 4, 10, 32, 100)


def address(window: int) -> str:
    return f"198.18.1.{100 + window}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("state")) as world:
        # A wire has packets of one segment each; veth would hand over what the sender's kernel leaves to its device.
        world.sh("server", "ethtool -K eth0 tso off gso off; ip route add local 198.19.1.0/24 dev lo")
        for window in WINDOWS:
            world.sh(
                "server",
                f"ip address add {address(window)}/32 dev lo; ip rule add from {address(window)} table {1000 + window};"
                f"ip route add 198.18.0.0/24 dev eth0 table {1000 + window} initcwnd {window}",
            )
        with world.start("server", SERVER) as running:
            assert running.stdout and running.stdout.readline() == "ready\n"
            try:
                yield world
            finally:
                running.kill()


def arguments(isolation: str, source: Path, out: Path) -> list[str | Path]:
    more = ["--isolation", isolation, "--nameserver", "198.18.1.1", "--mss", "64", "--mss", "536", "--json"]
    return ["survey", "iw", source, "-o", out, *CONTACT, *more]


def listed(path: Path, hosts: list[str]) -> Path:
    lines = (f"h{number}.example,http://{host}:8080/file" for number, host in enumerate(hosts))
    path.write_text("domain,url\n" + "".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("isolation", ["netns", "host"])
def test_windows_are_exact_and_nothing_is_left(world: World, tmp_path: Path, isolation: str) -> None:
    before, out = world.fingerprint(), tmp_path / "iw.parquet"
    source = listed(tmp_path / "targets.csv", [address(window) for window in WINDOWS])
    running = world.upshift(*arguments(isolation, source, out))
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 0, complaint
    found = {record.server_ip: record for record in records(out)}
    assert set(found) == {address(window) for window in WINDOWS}
    for window in WINDOWS:
        record = found[address(window)]
        assert (record.verdict, record.iw_kind, record.iw_segments) == ("limited", "segments", window), record
        # The answer's head is a piece of its own, and so not a full segment.
        assert [vote.segments for vote in votes_of(record).values()] == [window, window], record
    world.wait_for_guardians()
    assert world.changes(before) == {}


def test_merged_segments_give_no_number(world: World, tmp_path: Path) -> None:
    """Ten segments of 64 bytes that a device merged are below the MTU, and look like one."""
    out, source = tmp_path / "iw.parquet", listed(tmp_path / "targets.csv", [address(10)])
    world.sh("server", "ethtool -K eth0 tso on gso on")
    try:
        running = world.upshift(*arguments("host", source, out))
        _, complaint = running.communicate(timeout=120)
    finally:
        world.sh("server", "ethtool -K eth0 tso off gso off")
    assert running.returncode == 0, complaint
    [record] = records(out)
    assert (record.verdict, record.failure, record.iw_segments, record.iw_kind) == ("merged", "merged", None, None)


@cells("isolation", every=["netns", "host"], quick=["netns"])
def test_after_kills_the_same_command_goes_on_and_nothing_is_left(
    world: World, tmp_path: Path, isolation: str, repeats: Repeats
) -> None:
    before, out = world.fingerprint(), tmp_path / "iw.parquet"
    many = repeats(quick=30, soak=60)  # they have the kernel's window of 10
    source = listed(tmp_path / "targets.csv", [f"198.19.1.{number}" for number in range(1, many + 1)])
    command = [*arguments(isolation, source, out), "--rate", "20"]
    chance, kills = random.Random(isolation), repeats(quick=2, soak=20)
    for _ in range(kills):
        running = world.upshift(*command)
        time.sleep(chance.uniform(0.5, 2.5))  # many kills should meet a survey that still runs
        os.kill(running.pid, signal.SIGKILL)
        running.communicate(timeout=30)
        world.wait_for_guardians()
        assert world.changes(before) == {}
    running = world.upshift(*command)
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 0, complaint
    found = records(out)
    assert len(found) == len({record.domain for record in found}) == many
    assert {(record.verdict, record.iw_segments) for record in found} == {("limited", 10)}
    world.wait_for_guardians()
    assert world.changes(before) == {}
    assert not probers(), "a prober runs on"


def probers() -> list[int]:
    """Processes of the prober whose parent is gone."""
    own = find_iwprobe().encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words, status = (entry / "cmdline").read_bytes().split(b"\0"), (entry / "stat").read_text()
            except OSError:
                continue
            if words[0] == own and status.rpartition(")")[2].split()[1] == "1":
                found.append(int(entry.name))
    return found
