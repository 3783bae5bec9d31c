"""The list of opt-outs: nothing is lost when two add at once, a host obeys its own list, and waits after a boot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from core.errors import BlockedError, PlaceError, UsageError
from core.outreach import blocks, opt_out
from core.outreach.blocks import BlockLists, block_list_paths
from downloader.limits.opt_out import OptOuts
from downloader.schedule.schedule import State
from tests.cells import Repeats

ADDER = """
import sys
from pathlib import Path
from core.outreach import opt_out
path, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    opt_out.add(path, [f"{who}{number}.example"])
"""


@pytest.fixture
def host_list(tmp_path: Path) -> Iterator[Path]:
    """This host's list and note, in a folder of the test's, and a boot that the test ends."""
    found = tmp_path / "host" / "opt-out.txt"
    boot = tmp_path / "boot"
    with (
        mock.patch.object(blocks, "HOST_LIST", found),
        mock.patch.object(opt_out, "HOST_LIST", found),
        mock.patch.object(opt_out, "CONFIRMED", found.with_name("opt-out.json")),
        mock.patch.object(opt_out, "_BOOT", boot),
    ):
        yield found


def test_what_several_add_at_once_is_all_there(tmp_path: Path, repeats: Repeats) -> None:
    path, count, names = tmp_path / "opt-out.txt", repeats(quick=20, soak=200), "abc"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    adders = [subprocess.Popen([sys.executable, "-c", ADDER, str(path), name, str(count)], **pipes) for name in names]
    for adder in adders:
        assert adder.stdout and adder.stdout.readline() == "ready\n"
    for adder in adders:
        assert adder.stdin
        adder.stdin.write("\n")
        adder.stdin.flush()
    assert [adder.wait(timeout=60) for adder in adders] == [0, 0, 0]
    for adder in adders:
        adder.communicate()
    assert set(opt_out.listed(path)) == {f"{name}{number}.example" for name in names for number in range(count)}


def test_what_is_not_there_when_read_back_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "opt-out.txt"
    with mock.patch("core.outreach.opt_out._write", lambda path, text: path.touch()), pytest.raises(PlaceError):
        opt_out.add(path, ["www.a.example"])


def test_a_list_is_never_there_unreadable(tmp_path: Path) -> None:
    """A campaign that is not root looked between the rename and the change of rights."""
    modes, replace, before = list[int](), Path.replace, os.umask(0o077)

    def noting(part: Path, target: Path) -> Path:
        modes.append(part.stat().st_mode & 0o777)
        return replace(part, target)

    try:
        with mock.patch.object(Path, "replace", noting):
            opt_out.add(tmp_path / "opt-out.txt", ["www.a.example"])
    finally:
        os.umask(before)
    assert modes == [0o644]


def test_the_hosts_list_holds_for_everything_on_it(host_list: Path, tmp_path: Path) -> None:
    lists = BlockLists(block_list_paths(None, tmp_path / "own.txt"))
    lists.check("www.a.example", None)
    opt_out.add(host_list, ["a.example"])
    lists._looked = 0.0
    with pytest.raises(BlockedError, match=r"www\.a\.example is in opt-out\.txt"):
        lists.check("www.a.example", None)
    host_list.unlink()
    lists._looked = 0.0
    with pytest.raises(BlockedError):
        lists.check("www.a.example", None)
    host_list.write_text("not a domain!\n")
    with pytest.raises(UsageError, match="line 1"):
        BlockLists(block_list_paths(None, None))


def test_after_a_boot_nothing_starts_before_the_list_is_confirmed(host_list: Path, tmp_path: Path) -> None:
    def held() -> State | None:
        wait = OptOuts(BlockLists([])).holds(0.0)
        return None if wait is None else wait.state

    assert held() is None, "no control machine hands lists over here"
    opt_out.add(host_list, ["a.example"])
    opt_out.confirm(["a.example"], 5.0)
    assert held() is None
    assert opt_out.confirmed() == {"sha256": opt_out.digest(["a.example"]), "at": 5.0, "current": True}
    (tmp_path / "boot").unlink()  # /run is empty after a boot
    gate = OptOuts(BlockLists([]))
    assert gate.holds(0.0) is not None and held() is State.WAITING_FOR_OPT_OUTS
    opt_out.confirm(["a.example"], 6.0)
    assert gate.holds(1.0) is None and held() is None
    host_list.unlink()
    assert held() is State.WAITING_FOR_OPT_OUTS, "a list that is gone is not the newest"
    host_list.touch()
    opt_out.CONFIRMED.write_text("{")
    assert held() is State.WAITING_FOR_OPT_OUTS


def test_a_list_is_the_same_in_any_order_and_with_comments() -> None:
    one = opt_out.parts(["\ufeffb.example # by mail", "", "# all", "a.example", "b.example"])
    assert one == ["b.example", "a.example"]
    assert opt_out.digest(one) == opt_out.digest(["a.example", "b.example"]) != opt_out.digest(["a.example"])
