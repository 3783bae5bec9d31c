"""Opt-outs of a running campaign, judged by the server's access log; and addresses that no campaign names.

The servers are Caddy in a network namespace with nothing but its loopback; files come at a steady pace, so that a
download takes seconds.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.domain import Failure, Target
from core.errors import UsageError
from core.reach import ANYWHERE
from core.terminal import show_progress
from downloader.campaign.campaign import from_document
from tests.campaigns import run_in
from tests.cells import cells
from tests.journaled import recorded
from tests.lab._fault_world import wait_until
from tests.lab.test_download_run import World, open_world

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

HERE = Path(__file__).parent
SIZE, CHUNK, INTERVAL_S = 200_000, 20_000, 0.12
"""A download takes more than a second."""

TCP_ONLY = [{"name": "BL", "client": "requests"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("opt-out")
    site = (
        f" log {{\n output file {folder}/access.json\n format json\n }}\n"
        " reverse_proxy https://127.0.0.1:4431 {\n flush_interval -1\n"
        " transport http {\n tls_insecure_skip_verify\n }\n }\n"
    )
    pace = [sys.executable, str(HERE / "_steady_server.py"), "127.0.0.1", "4431"]
    pace += [str(folder / "cert.pem"), str(folder / "key.pem"), str(SIZE), str(CHUNK), str(INTERVAL_S)]
    with open_world(folder, f"upoo{os.getpid()}", site=site, programs=[pace]) as made:
        yield made


def requests(world: World, since: float) -> list[tuple[str, float]]:
    """Host and time of each request that began since then, by the access log."""
    log = world.folder / "access.json"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written
    found = [(entry["request"]["host"].partition(":")[0], entry["ts"] - entry["duration"]) for entry in entries]
    return [(host, at) for host, at in found if at >= since]


def campaign(folder: Path, **changes: Any) -> Any:
    clients = [{"name": "BL", "client": "requests"}, {"name": "quiche", "client": "quiche"}]
    document = {"name": "t", "lab": "none", "targets": "lab", "budget": 30, "configurations": clients, "iterations": 2}
    return from_document({**document, "opt_out": "opt-out.txt", **changes}, folder / "t.toml")


def start(world: World, plan: Any, targets: list[Target], out: Path) -> threading.Thread:
    def run() -> None:
        with show_progress() as progress:
            run_in(plan, targets, {"A": world.place()}, out, progress=progress)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@cells(
    "entry, others",
    every=[("a.example", True), ("*.a.example", True), ("127.0.0.0/8", False), ("127.0.0.1", False)],
    quick=[("a.example", True), ("127.0.0.0/8", False)],
)
def test_an_opt_out_while_the_campaign_runs(world: World, tmp_path: Path, entry: str, others: bool) -> None:
    """The running download is stopped within seconds, nothing is sent afterwards, and all is recorded with the cause.

    Args:
        others: whether the other domain is still downloaded.
    """
    out, began = tmp_path / "out", time.time()
    thread = start(world, campaign(tmp_path), world.targets("a.example", "b.example"), out)
    # In the second download of a run of a.example.
    assert wait_until(lambda: any(host == "a.example" for host, _ in requests(world, began)), 60, pause_s=0.05)
    time.sleep(0.4)
    (tmp_path / "opt-out.txt").write_text(f"{entry}  # by mail\n")
    listed = time.time()
    thread.join()
    later = [(host, at - listed) for host, at in requests(world, listed)]
    print(f"requests after the opt-out: {later}")
    assert not [at for host, at in later if (host == "a.example" or not others) and at > 5.0], later
    rows = recorded(out)
    assert len(rows) == 2 * 2 * 4, "every planned download is recorded"
    theirs = [row for row in rows if row.domain == "a.example" or not others]
    stopped = [row for row in theirs if row.failure == Failure.OPTED_OUT]
    assert stopped and {row.failure for row in theirs} <= {None, Failure.OPTED_OUT}
    assert all(row.started_at < listed + 5.0 for row in theirs if row.outcome == "ok")
    assert {row.failure_detail for row in stopped} <= {
        f"{name} is in opt-out.txt" for name in ("a.example", "127.0.0.1")
    }
    asked = [row for row in stopped if row.dns_s is None]
    assert bool(asked) == (entry.endswith("example")), "a domain that opted out is not even looked up"
    if others:
        assert all(row.outcome == "ok" for row in rows if row.domain == "b.example")
        assert sum(host == "b.example" for host, _ in requests(world, began)) == 2 * 4


def test_a_block_list_counts_from_the_start(world: World, tmp_path: Path) -> None:
    (tmp_path / "blocks.txt").write_text("b.example\n")
    began = time.time()
    plan = campaign(tmp_path, block_lists=["blocks.txt"], opt_out=None, iterations=1, configurations=TCP_ONLY)
    start(world, plan, world.targets("a.example", "b.example"), tmp_path / "out").join()
    rows = recorded(tmp_path / "out")
    assert {(row.domain, row.failure, row.capture is None) for row in rows} == {
        ("a.example", None, False),
        ("b.example", "opted_out", True),
    }
    assert {host for host, _ in requests(world, began)} == {"a.example"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"block_lists": ["none.txt"]}, r"none.txt: file not found"),
        ({"opt_out": "bad.txt"}, r"bad.txt: line 1: 'a b' is neither a domain nor a prefix"),
    ],
)
def test_a_list_that_cannot_be_read_is_one_sentence(world: World, tmp_path: Path, fields: Any, said: str) -> None:
    (tmp_path / "bad.txt").write_text("a b\n")
    with pytest.raises(UsageError, match=said), show_progress() as progress:
        plan = campaign(tmp_path, **fields)
        run_in(plan, world.targets("a.example"), {"A": world.place()}, tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists(), "nothing was changed"


@pytest.mark.parametrize(("prefixes", "contacted"), [(["0.0.0.0/0", "::/0"], False), (["127.0.0.0/8"], True)])
def test_everything_does_not_name_a_special_address(
    world: World, tmp_path: Path, prefixes: list[str], contacted: bool
) -> None:
    """A name that leads to an address of no public server is not followed on the Internet, unless it is meant."""
    plan = campaign(
        tmp_path, lab=None, targets="t.csv", contact="me@uni.edu", vantage_points=["A"], iterations=1,
        allowed_prefixes=prefixes, configurations=TCP_ONLY,
    )  # fmt: skip
    place = world.place()
    place.allowed_prefixes = ANYWHERE if prefixes[0] == "0.0.0.0/0" else (ipaddress.ip_network(prefixes[0]),)
    began = time.time()
    with show_progress() as progress:
        run_in(plan, world.targets("a.example"), {"A": place}, tmp_path / "out", progress=progress)
    rows = recorded(tmp_path / "out")
    assert bool(requests(world, began)) == contacted
    assert {row.failure for row in rows} == ({None} if contacted else {Failure.ADDRESS_REFUSED})
    if not contacted:
        assert {row.failure_detail for row in rows} == {"127.0.0.1 is not a public address"}
