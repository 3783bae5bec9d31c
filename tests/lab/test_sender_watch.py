"""`upshift sender watch` on a server of the lab: one client is behind a queue of four packets, the other is not."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.files import store
from core.system.process import Child
from tests.cells import Repeats
from tests.lab.noise import TOO_NOISY
from tests.topologies import topology
from vantage.host.fallback import SenderPrefix
from vantage.lab.lab import Lab, open_lab
from vantage.lab.topology import PathSpec

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]

GOOD = "rtt_ms = 20, rate_mbit = 100"
BAD = "rtt_ms = 20, rate_mbit = 10, queue = 6000"
"""Four packets: the six of an answer do not fit at once, three and then three do."""
SERVER = f"""
[[server]]
name = "srv"
organisation = "o"
domains = ["www.s.example"]
plain_http = true
quic = false
files = [{{ path = "/a.bin", size = 8000 }}]
paths = {{ good = {{ {GOOD} }}, bad = {{ {BAD} }} }}
"""
GET = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 80), timeout=30) as to:
        to.sendall(b"GET /a.bin HTTP/1.1\\r\\nHost: www.s.example\\r\\nConnection: close\\r\\n\\r\\n")
        while to.recv(65536):
            pass
"""
WATCH = [sys.executable, "-c", "from upshift.cli import main; main()", "sender", "watch", "--prefix-routes", "tun0"]


@dataclass(frozen=True)
class Bench:
    lab: Lab
    state: Path

    def routes(self) -> str:
        run = self.lab.place("srv").run
        return run(["ip", "route"]).stdout + run(["ip", "-6", "route"]).stdout

    def fetch(self, vantage: str, count: int) -> Child:
        """This many downloads, one after the other."""
        address = self.lab.plan.addresses["srv"].ipv4
        return self.lab.place(vantage).start([sys.executable, "-c", GET, address, str(count)])

    def watch(self, *more: str) -> Child:
        return self.lab.place("srv").start([*WATCH, *more], stdout=True, stderr=self.state / "watch.log")

    def mend(self, queue: int) -> None:
        path = PathSpec(rtt_ms=20, rate_mbit=10, queue=queue)
        self.lab.set_path("bad", "srv", path, uplink_mbit=100)


@pytest.fixture(scope="module")
def bench(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("sender") / "sender.toml"
    path.write_text(topology("sender", SERVER, vantages=("good", "bad")))
    with open_lab(path) as lab:
        yield Bench(lab, lab_host)


@pytest.fixture
def lossy(bench: Bench) -> Iterator[None]:
    """After a test that mends the path, it loses packets again."""
    yield
    bench.mend(6_000)


def said(child: Child) -> dict[str, Any]:
    """The next line."""
    assert child.stdout is not None and select.select([child.stdout], [], [], 120)[0], "nothing was said"
    line: dict[str, Any] = json.loads(child.stdout.readline())
    return line


def counts(line: str) -> tuple[int, int]:
    """How many of how many sent again."""
    found = re.search(r"(\d+) of the last (\d+)", line)
    assert found is not None, line
    return int(found[1]), int(found[2])


def started(bench: Bench, child: Child, before: str) -> None:
    """Waits until the watch has its guardian, after which it follows events."""
    deadline = time.monotonic() + 60
    while not list((bench.state / "host").glob("*.json")) and time.monotonic() < deadline:
        assert child.returncode is None, (bench.state / "watch.log").read_text()
        time.sleep(0.02)
    time.sleep(0.3)
    assert bench.routes() == before


@pytest.mark.usefixtures("lossy")
def test_a_prefix_that_loses_packets_falls_back_and_rises_again(bench: Bench, tmp_path: Path, repeats: Repeats) -> None:
    n = repeats(quick=25, soak=200)
    before, out, retry_s = bench.routes(), tmp_path / "p.parquet", repeats(quick=6, soak=60)
    metrics = tmp_path / "m"
    more = ["--json", "-o", str(out), "--retry-after", str(retry_s), "--metrics", f"unix:{metrics}"]
    with bench.watch(*more) as child:
        started(bench, child, before)
        with bench.fetch("bad", n) as bad, bench.fetch("good", n) as good:
            line = said(child)["line"]
            fell = time.monotonic()
            assert line.startswith("198.18.2.0/24: ") and line.endswith("initial window 3 (was 10)")
            again, known = counts(line)
            assert 20 <= known <= 50 and again > 0.1 * known
            [route] = [part for part in bench.routes().splitlines() if part not in before]
            assert route.startswith("198.18.2.0/24 dev tun0 proto 213") and "initcwnd 3" in route
            assert "congctl cubic" in route  # what the host's route has, it has, too
            assert (bad.wait(120), good.wait(120)) == (0, 0)
        curl, page = ["curl", "-s", "--unix-socket", str(metrics), "http://x/metrics"], ""
        while "window_segments{" not in page and time.monotonic() < fell + retry_s - 1:  # it is made once a second
            page = subprocess.run(curl, capture_output=True, text=True, check=True).stdout
        with bench.fetch("bad", 20) as bad:
            bad.wait(60)
        bench.mend(1_000_000)
        if time.monotonic() > fell + retry_s - 0.5:
            pytest.skip(f"{TOO_NOISY}: {n} downloads took longer than the time of the smaller window")
        line = said(child)["line"]
        assert line.startswith("198.18.2.0/24: initial window 10 again after")
        after, of = counts(line)
        assert of >= 20 and after / of <= again / known / 2, (line, again, known)
        assert bench.routes() == before
        with bench.fetch("bad", n) as bad, bench.fetch("good", n) as good:
            assert (bad.wait(120), good.wait(120)) == (0, 0)
        time.sleep(0.5)
        child.send(signal.SIGTERM)
        assert child.stdout is not None
        [last] = child.stdout.read().splitlines()
        assert child.wait(30) == 130
    assert bench.routes() == before
    rows = {row.prefix: row for row in store.read_rows(out, "sender_prefixes", SenderPrefix)}
    bad_row, good_row = rows["198.18.2.0/24"], rows["198.18.1.0/24"]
    assert (bad_row.connections, bad_row.window, bad_row.changes) == (2 * n + 20, 10, 2)
    assert (good_row.connections, good_row.window, good_row.changes) == (2 * n, 10, 0)
    assert good_row.sent_again <= 0.1 * good_row.connections
    assert json.loads(last)["lost_events"] == 0
    families = {family.name: family for family in text_string_to_metric_families(page)}
    [sample] = families["upshift_sender_window_segments"].samples
    assert sample.labels == {"prefix": "198.18.2.0/24"} and sample.value == 3


def test_dry_run_and_foreign_routes_change_nothing(bench: Bench) -> None:
    place = bench.lab.place("srv")
    foreign = ["198.18.2.0/24", "dev", "tun0", "initcwnd", "7"]
    place.run(["ip", "route", "add", *foreign]).check(doing="adding a route")
    try:
        before = bench.routes()
        child = bench.watch("--json", "--known", "3")
        with child:
            started(bench, child, before)
            with bench.fetch("bad", 12) as bad:
                assert said(child)["line"] == "198.18.2.0/24 is left alone: it has a route that somebody else set"
                bad.wait(60)
            child.send(signal.SIGTERM)
            assert child.stdout is not None and len(child.stdout.read().splitlines()) == 1  # said once
        assert bench.routes() == before
    finally:
        place.run(["ip", "route", "del", *foreign])
    before = bench.routes()
    dry = ("--known", "3", "--dry-run")
    with bench.watch(*dry) as child, bench.watch(*dry, "--prefix-routes", "lo") as elsewhere:
        with bench.fetch("bad", 1_000) as bad:
            assert child.stdout is not None and elsewhere.stdout is not None
            assert "(dry run) 198.18.2.0/24: " in child.stdout.readline()
            assert "198.18.2.0/24 is left alone: there is no route to it over lo" in elsewhere.stdout.readline()
            bad.stop()
        assert bench.routes() == before
        child.send(signal.SIGINT)
        assert child.wait(30) == 130
    done = place.run([*WATCH, "--until", "1s", "--prefix4", "40"])
    assert done.returncode == 2
    # Its code may be readable by root only, so root stays its user and loses every capability.
    done = place.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *WATCH])
    assert (done.returncode, done.stderr) == (75, "upshift: only root may change routes; use sudo, or --dry-run\n")


def test_the_table_has_the_larger_window_where_the_kernel_removed_the_route(bench: Bench, tmp_path: Path) -> None:
    """As it does with all routes of an interface that goes down; here with ours alone, as clients need the others."""
    before, out = bench.routes(), tmp_path / "p.parquet"
    with bench.watch("--json", "-o", str(out), "--known", "3", "--share", "0") as child:
        started(bench, child, before)
        with bench.fetch("bad", 30) as bad:
            assert said(child)["line"].endswith("initial window 3 (was 10)")
            bad.stop()
        bench.lab.place("srv").run(["ip", "route", "flush", "dev", "tun0", "proto", "213"]).check(doing="flushing")
        assert said(child)["line"].startswith("198.18.2.0/24: initial window 10 again after")
        child.send(signal.SIGTERM)
        assert child.wait(30) == 130
    [row] = [one for one in store.read_rows(out, "sender_prefixes", SenderPrefix) if one.prefix == "198.18.2.0/24"]
    assert (row.window, row.changes) == (10, 2) and bench.routes() == before


LOSE = """
import select, socket, sys, time
from vantage.linux import closed_connections
closed_connections.BUFFER = 1 << 14
with closed_connections.ClosedConnections() as events, socket.create_server(("198.18.0.1", 80)) as server:
    for number in range(int(sys.argv[1])):
        with socket.create_connection(("198.18.0.1", 80)) as one, server.accept()[0] as other:
            other.sendall(bytes(100))
            one.recv(100)
    time.sleep(0.5)
    read = 0
    while select.select([events], [], [], 0.3)[0]:
        read += len(events.read())
    assert events.lost > 0 and read > 0, (read, events.lost)
    print(read + events.lost)
"""


def test_events_that_are_lost_are_counted(bench: Bench) -> None:
    """A receive buffer of a few events, and nobody reads: each of 300 connections has two ends."""
    words = 'ip addr add 198.18.0.1/32 dev lo; ip link set lo up; exec "$0" -c "$1" 300'
    argv = ["unshare", "-rn", "sh", "-c", words, sys.executable, LOSE]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.stdout, done.stderr) == ("600\n", "")


@pytest.mark.soak
def test_routes_are_as_before_after_kills(bench: Bench, repeats: Repeats) -> None:
    """The window of the prefix changes several times a second while the watch is killed."""
    chance, before = random.Random(27), bench.routes()
    hit = 0
    for _ in range(repeats(quick=3, soak=20)):
        with bench.fetch("bad", 10_000) as clients:
            more = ["--json", "--known", "1", "--share", "0", "--retry-after", "0.5"]
            with bench.watch(*more) as child:
                assert child.stdout is not None
                child.stdout.readline()  # the first route
                time.sleep(chance.random() * 2)
                hit += "proto 213" in bench.routes()
                child.stop(signal.SIGKILL)
            deadline = time.monotonic() + 30
            while list((bench.state / "host").glob("*.json")) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not list((bench.state / "host").glob("*.json"))
            assert bench.routes() == before
            clients.stop()
    print(f"{hit} kills found a route")
    assert hit


@pytest.mark.soak
@pytest.mark.measures
def test_5000_connections_a_second(bench: Bench, tmp_path: Path, repeats: Repeats) -> None:
    rate, seconds = 5_000, repeats(quick=5, soak=60)
    program = tmp_path / "connections"
    subprocess.run(["cc", "-O2", "-o", str(program), Path(__file__).with_name("_connections.c")], check=True)
    with ExitStack() as programs:

        def start(*words: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
            child = subprocess.Popen([*prefix, *words], stdout=subprocess.PIPE)
            programs.enter_context(child)
            programs.callback(child.kill)
            return child

        holders = [start("unshare", "-n", "sh", "-c", "echo; exec sleep 1000") for _ in range(2)]
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline()
        server, client = (["nsenter", f"--net=/proc/{holder.pid}/ns/net"] for holder in holders)
        for words in (
            [*server, *f"ip link add veth0 type veth peer name veth1 netns {holders[1].pid}".split()],
            [*server, *["ip", "addr", "add", "198.18.0.1/16", "dev", "veth0"]],
            [*server, *["ip", "link", "set", "veth0", "up"]],
            [*client, *["ip", "addr", "add", "198.18.0.2/16", "dev", "veth1"]],
            [*client, *["ip", "link", "set", "veth1", "up"]],
            [*client, "sysctl", "-qw", "net.ipv4.ip_local_port_range=1025 65000"],
        ):
            subprocess.run(words, check=True)
        served = start(str(program), "serve", "198.18.0.1", "80", prefix=server)
        assert served.stdout is not None and served.stdout.readline() == b"ready\n"
        watching = start(*WATCH[:-1], "veth0", "--json", prefix=server)
        time.sleep(3)
        began = cpu_s(watching.pid)
        words = [*client, str(program), "connect", "198.18.0.1", "80", str(rate), str(seconds)]
        answered = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
        time.sleep(2)
        used = (cpu_s(watching.pid) - began) / seconds
        watching.send_signal(signal.SIGTERM)
        text, _ = watching.communicate(timeout=60)
    last = json.loads(text.splitlines()[-1])
    [row] = last["prefixes"]
    load = os.getloadavg()[0]
    print(f"{answered / seconds:.0f}/s, {used:.1%} of a core, {last['lost_events']} events lost, load {load:.1f}")
    assert row["connections"] + last["lost_events"] >= answered
    assert used < 0.10
    if answered < 0.9 * rate * seconds:
        pytest.skip(f"{TOO_NOISY}: only {answered / seconds:.0f} connections a second")


def cpu_s(pid: int) -> float:
    """Processor time of a process [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
