"""A campaign on a host that is killed, stopped or hung up: within 10 s the host is as before, and the journal is whole.

`upshift run` with isolation netns and host on the pretend host, in the middle of a download; real signals to real
processes, as a terminal, systemd or a person sends them.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.system.process import start_time_ticks
from tests.cells import Repeats, cells
from tests.lab._fault_world import wait_until
from tests.lab._host_campaign import Host, open_host
from tests.lab.noise import host_noise, skip_if_cut
from upshift.campaign import CLEAN_UP_S

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

WITHIN_S = 10.0


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with open_host(tmp_path_factory.mktemp("signals")) as host:
        yield host


@pytest.fixture
def host(opened: Host) -> Iterator[Host]:
    """Whatever a test does, the host is afterwards as it was, and no process of the campaign is left."""
    before = opened.world.fingerprint()
    yield opened
    opened.world.wait_for_guardians()
    shutil.rmtree(opened.out, ignore_errors=True)
    assert opened.world.changes(before) == {}


def owner(host: Host) -> int:
    """The process that `upshift run` is, by the plan of what to undo."""
    [plan] = (host.world.state / "host").glob("*.json")
    return int(json.loads(plan.read_text())["owner"][0])


def group_of(host: Host) -> list[int]:
    """All processes of the campaign, as they are in the control group of a unit: runner, clients, tcpdump, guardian."""
    [plan] = (host.world.state / "host").glob("*.json")
    mark = f"UPSHIFT_PLACE={plan.stem}".encode()
    found = [owner(host), *host.world.guardians()]
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def send(numbers: list[int], which: signal.Signals) -> None:
    for pid in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def as_systemd_stops(host: Host) -> None:
    """KillMode=control-group: SIGTERM to each process of the unit."""
    found = group_of(host)
    assert len(found) >= 5, "runner, guardian, tcpdump twice, a client"
    send(found, signal.SIGTERM)


HITS: dict[str, Callable[[Host], None]] = {
    "SIGTERM": lambda host: os.kill(owner(host), signal.SIGTERM),
    "SIGINT": lambda host: os.kill(owner(host), signal.SIGINT),
    "SIGHUP": lambda host: os.kill(owner(host), signal.SIGHUP),
    "SIGTERM to the unit": as_systemd_stops,
    "SIGTERM three times": lambda host: [os.kill(owner(host), signal.SIGTERM) for _ in range(3)] and None,
    "SIGKILL of the runner": lambda host: os.kill(owner(host), signal.SIGKILL),
    "SIGKILL of the guardian": lambda host: send(host.world.guardians(), signal.SIGKILL),
    "SIGKILL of both": lambda host: send([owner(host), *host.world.guardians()], signal.SIGKILL),
    "SIGSTOP": lambda host: os.kill(owner(host), signal.SIGSTOP),
}
ENDS = {
    "SIGKILL of the runner": -signal.SIGKILL,
    "SIGKILL of both": -signal.SIGKILL,
    "SIGKILL of the guardian": 75,
    "SIGSTOP": -signal.SIGKILL,
}
"""Exit codes; 130 of all others."""


@cells(
    "isolation, hit",
    every=itertools.product(["netns", "host"], HITS),
    quick=[
        ("netns", "SIGTERM to the unit"),
        ("netns", "SIGKILL of the guardian"),
        ("host", "SIGKILL of both"),
    ],
)
def test_the_host_is_as_before_within_10_s(host: Host, isolation: str, hit: str, repeats: Repeats) -> None:
    planned = host.campaign(isolation)
    before = host.world.fingerprint()
    child = host.run()
    try:
        assert wait_until(lambda: child.poll() is not None or host.downloading(), 60) and child.poll() is None, (
            child.communicate()
        )
        assert host.world.changes(before), "there is something to undo"
        programs = {pid: start_time_ticks(pid) for pid in group_of(host)}
        began = time.monotonic()
        with host_noise() as noise:
            HITS[hit](host)
            if hit == "SIGKILL of both":  # what ExecStopPost of a unit, or the next start, does
                restore = ("doctor", "--restore", "--quick")
                host.world.upshift(*restore).communicate(timeout=60)
            _, said = child.communicate(timeout=60)
            assert wait_until(lambda: not host.world.guardians() and not host.world.changes(before), 60, pause_s=0.1)
        took = time.monotonic() - began
    finally:
        send([child.pid], signal.SIGKILL)
        child.communicate()
    print(f"{isolation}, {hit}: {took:.1f} s, {noise[0]}")
    assert host.world.changes(before) == {}
    skip_if_cut(child.returncode, noise[0])
    assert took <= WITHIN_S * (1 if noise[0].quiet else 4), took
    assert child.returncode == ENDS.get(hit, 130), said
    assert "Traceback" not in said, said
    assert [pid for pid, started in programs.items() if started and start_time_ticks(pid) == started] == []
    recorded, interrupted, states = host.journal()
    if child.returncode == 130:
        assert said.splitlines()[-1].startswith("upshift: to resume: ")
        assert f"stopped ({hit.split()[0]}); for tables of what is recorded: upshift inspect {host.out}" in said
        assert (interrupted, "running" in states) == (1, False), "the run is journaled as interrupted"
        name = hit.split()[0]
        assert host.activity() == ("stopped", name)
        assert not list(host.out.rglob("*.part*"))
    elif child.returncode == 75:
        assert "the guardian that restores this host has ended" in said
        assert host.activity()[0] == "failed" and "guardian" in host.activity()[1]
    else:
        assert host.activity()[0] == "running", "it could not say anything more"
    assert recorded % 3 == 0 and recorded < planned
    for _ in range(repeats(quick=hit.endswith("unit"), soak=1)):
        done = host.run()
        said = done.communicate(timeout=120)[1]
        assert done.returncode == 0, said
        assert host.journal() == (planned, max(interrupted, 1), ["done", "done"])
        assert host.activity() == ("done", "")


def test_a_terminal_that_is_closed(host: Host) -> None:
    """The kernel sends SIGHUP, and nothing can be printed any more."""
    host.campaign("netns")
    before = host.world.fingerprint()
    terminal = host.run_in_terminal()
    try:
        assert wait_until(host.downloading, 60)
        runner = owner(host)
        started = start_time_ticks(runner)
        began = time.monotonic()
    finally:
        terminal.kill()
        terminal.wait()
    with host_noise() as noise:
        assert wait_until(lambda: start_time_ticks(runner) != started, 4 * WITHIN_S)
        lived_s = time.monotonic() - began
        assert wait_until(lambda: not host.world.guardians() and not host.world.changes(before), 30, pause_s=0.1)
    assert time.monotonic() - began <= WITHIN_S * (1 if noise[0].quiet else 4)
    if host.activity()[0] == "running" and lived_s > CLEAN_UP_S - 0.5:  # nobody knows its exit code
        skip_if_cut(-signal.SIGALRM, noise[0])
    assert host.activity() == ("stopped", "SIGHUP")
    assert host.journal()[1] == 1


@pytest.fixture
def manager() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """The service manager's socket, and the environment of a unit with Type=notify and WatchdogSec=6."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"{folder}/notify")
        server.setblocking(False)
        yield server, {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "6000000"}


def heard(manager: socket.socket) -> list[str]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(manager.recv(4096).decode())
    return found


def scrape(path: Path) -> dict[tuple[str, ...], float]:
    """What a scrape of `--metrics unix:PATH` finds, by prometheus-client's own parser."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        head, _, page = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    return {
        (sample.name, *sorted(value for name, value in sample.labels.items() if name != "campaign")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@contextlib.contextmanager
def watching(host: Host) -> Iterator[subprocess.Popen[str]]:
    """`upshift status --watch` in a terminal."""
    command = shlex.join([sys.executable, "-m", "upshift", "status", str(host.out), "--watch"])
    watched = subprocess.Popen(
        ["script", "--quiet", "--return", "--command", command, "/dev/null"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        text=True,
    )
    try:
        yield watched
    finally:
        watched.kill()
        watched.communicate()


def test_pause_resume_stop_and_until(host: Host, manager: tuple[socket.socket, dict[str, str]]) -> None:
    """Asked from another session, outside the pretend host; each request lets the measurement run end first. What
    watches the status meanwhile ends with the campaign.
    """
    planned = host.campaign("netns", iterations=30)
    server, unit = manager
    socket_file = Path(unit["NOTIFY_SOCKET"]).with_name("metrics")
    child = host.run("--metrics", f"unix:{socket_file}", **unit)
    try:
        assert wait_until(host.downloading, 60)
        assert "READY=1" in heard(server)
        assert host.ask("pause", host.out).stdout == f"{host.out}: paused until upshift resume\n"
        assert wait_until(lambda: host.activity()[0] == "paused", 60)
        recorded, _, states = host.journal()
        assert recorded >= 3 and recorded % 3 == 0 and "running" not in states
        heard(server)
        stamp = host.status()["written_at"]
        assert wait_until(lambda: host.status()["written_at"] != stamp, 10), "it tells that it lives"
        assert wait_until(lambda: "WATCHDOG=1" in heard(server), 5), "waiting is no fault"
        assert host.journal()[0] == recorded
        disk = host.status()["disk"]
        assert isinstance(disk, dict) and 10_000 < disk["used_bytes"] < disk["limit_bytes"]
        found = scrape(socket_file)
        assert found["upshift_state", "MUC", "paused"] == 1 and found["upshift_state", "MUC", "running"] == 0
        assert found["upshift_downloads_total", "MUC", "ok"] == recorded
        assert found["upshift_downloads_planned", "MUC"] == planned
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        with host_noise() as noise:
            code = child.wait(4 * WITHIN_S)
        skip_if_cut(code, noise[0])
        assert code == 130
        assert time.monotonic() - began <= WITHIN_S * (1 if noise[0].quiet else 4)
        assert not socket_file.exists()
    finally:
        child.kill()
        child.communicate()
    child = host.run()
    try:
        assert wait_until(lambda: host.activity()[0] == "paused", 60), "a pause survives a restart"
        assert host.journal()[0] == recorded
        told = host.ask("status", host.out)
        assert "c: paused (upshift pause at " in told.stdout and f"{recorded} of {planned}" in told.stdout
        assert host.ask("resume", host.out).stdout == f"{host.out}: goes on\n"
        assert wait_until(lambda: host.journal()[0] > recorded, 60)
        with watching(host) as watched:
            time.sleep(4.5)  # it looks every two seconds
            stopped = host.ask("stop", host.out, "--wait", "60")
            assert (stopped.returncode, stopped.stdout) == (0, f"{host.out}: stopped\n")
            shown, _ = watched.communicate(timeout=120)
        assert watched.returncode == 0
        assert shown.count("c: running (") >= 2 and "\x1b[" in shown, "it is refreshed in place"
        assert "c: stopped (upshift stop)" in shown
        _, said = child.communicate(timeout=30)
        assert child.returncode == 130 and "stopped (upshift stop); " in said and "to resume: " in said
        assert f"for tables of what is recorded: upshift inspect {host.out}" in said
    finally:
        child.kill()
        child.communicate()
    recorded, interrupted, states = host.journal()
    assert (recorded % 3, interrupted, "running" in states) == (0, 0, False)
    assert host.activity() == ("stopped", "upshift stop")
    assert not (host.out / "downloads.parquet").exists(), "tables may take minutes"
    assert host.ask("inspect", host.out).returncode == 0
    assert (host.out / "downloads.parquet").exists()


@pytest.mark.soak
def test_until(host: Host) -> None:
    planned = host.campaign("netns", iterations=30)
    # A run takes at most 3 x 10 + 15 s, so the last one starts 45 s before the end.
    end = int(time.time()) + 65
    child = host.run("--until", datetime.datetime.fromtimestamp(end, datetime.UTC).isoformat())
    try:
        _, said = child.communicate(timeout=100)
        assert child.returncode == 130, said
        assert time.time() < end
        assert "stopped (--until " in said and "upshift run" in said and said.count("--until") == 1
    finally:
        child.kill()
        child.communicate()
    recorded, interrupted, _ = host.journal()
    assert 3 <= recorded < planned and recorded % 3 == 0
    assert interrupted == 0
