"""The lab's own clock: CPUs that are kept awake, programs that go first, and round trips that are right to 0.1 ms.

Round trips from 1 to 200 ms are measured as the host is, beside two busy loops, and with `/dev/cpu_dma_latency` hidden,
so that idle-priority processes have to do. Something else in its place hides it: its mode does not stop root.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from core.system import process
from tests import command
from tests.campaigns import Silent
from tests.cells import cells
from tests.lab.noise import has_device, measured
from tests.topologies import MINI, server, topology
from upshift.campaign import run_file
from upshift.run_options import RunOptions
from vantage.doctor.gather import private_namespace
from vantage.lab import calibrate, control
from vantage.lab.calibrate import Calibration, Check
from vantage.lab.lab import Lab, open_lab
from vantage.linux import cpu
from vantage.linux.cpu import Method

pytestmark = pytest.mark.lab

UPSHIFT = str(Path(sys.executable).with_name("upshift"))
ROUND_TRIPS_MS = (1, 2, 5, 10, 20, 50, 100, 200)
SERVERS = [server(f"ms{ms}", f"www.ms{ms}.example", path=f"rtt_ms = {ms}, rate_mbit = 100") for ms in ROUND_TRIPS_MS]
PATHS = topology("clock", *SERVERS)
ECHOES = cells(
    "quick", every=[True, False], quick=[True], ids=lambda quick: "15 echoes a path" if quick else "41 echoes a path"
)


@pytest.fixture
def paths(lab_host: Path, tmp_path: Path) -> Path:
    path = tmp_path / "clock.toml"
    path.write_text(PATHS)
    return path


@pytest.fixture
def mini(lab_host: Path, tmp_path: Path) -> Path:
    path = tmp_path / "mini.toml"
    path.write_text(MINI)
    return path


@contextmanager
def hidden_lab(path: Path) -> Iterator[Lab]:
    """A lab that was brought up where something else stands in the device's place."""
    hide = f"mount --bind /dev/null {cpu.LATENCY_DEVICE} && " if cpu.LATENCY_DEVICE.exists() else ""
    unshare = [*(word for word in private_namespace() if word not in ("--net", "--")), "--mount", "--"]
    process.run([*unshare, "sh", "-c", f'{hide}exec "$@"', "sh", UPSHIFT, "lab", "up", str(path)]).check(doing="up")
    with open_lab(path) as lab:
        try:
            yield lab
        finally:
            control.down(lab.folder)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Programs of normal priority that never rest, each in a session of its own."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(process.start(["sh", "-c", "while :; do :; done"], prefix=["setsid"]))
        yield


def round_trips(lab: Lab, *, quick: bool) -> list[Check]:
    with closing(Calibration(lab, own=False, quick=quick)) as calibration:
        found = [calibration.round_trip("V", server) for server in lab.topology.server]
    print("; ".join(f"{check.programmed} {check.measured}" for check in found))
    return found


def require_right_round_trips(lab: Lab, *, quick: bool) -> None:
    def wrong(found: Sequence[Check]) -> list[str]:
        return [f"{check.programmed} came out as {check.measured}" for check in found if not check.good]

    def excuse(found: Sequence[Check]) -> str | None:
        reasons = [check.noise for check in found if not check.good]
        return "; ".join(map(str, reasons)) if all(reasons) else None

    assert calibrate.RTT_TOLERANCE_MS == 0.1
    found = measured(lambda: round_trips(lab, quick=quick), wrong, excuse=excuse)
    assert [check.programmed for check in found] == [f"{ms:.2f} ms" for ms in ROUND_TRIPS_MS]


def spinners_of(lab: Lab) -> list[int]:
    """The processes that spin for a lab's emulator."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and str(lab.folder.root / "pathem.json") in words_of(entry):
            children = (entry / "task" / entry.name / "children").read_text(encoding="ascii").split()
            return [int(child) for child in children if "--spin-on" in words_of(Path("/proc", child))]
    raise AssertionError("the lab has no emulator")


def words_of(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []


@pytest.mark.measures
@ECHOES
def test_round_trips_are_right_to_a_tenth_of_a_millisecond(paths: Path, quick: bool) -> None:
    with open_lab(paths) as lab:
        assert lab.cpus_awake().method is (Method.CPU_DMA_LATENCY if has_device() else Method.SPINNERS)
        require_right_round_trips(lab, quick=quick)


@pytest.mark.measures
@ECHOES
@pytest.mark.soak
def test_they_are_right_beside_busy_loops(paths: Path, quick: bool) -> None:
    with open_lab(paths) as lab, busy_loops(2):
        require_right_round_trips(lab, quick=quick)


@pytest.mark.measures
@ECHOES
@pytest.mark.soak
def test_they_are_right_where_idle_priority_processes_keep_the_cpus_awake(paths: Path, quick: bool) -> None:
    with hidden_lab(paths) as lab:
        assert lab.cpus_awake().method is Method.SPINNERS
        require_right_round_trips(lab, quick=quick)


def test_what_spins_lets_everything_else_go_first_and_ends_with_the_emulator(mini: Path) -> None:
    with hidden_lab(mini) as lab:
        spinners = spinners_of(lab)
        assert [os.sched_getscheduler(pid) for pid in spinners] == [os.SCHED_IDLE] * len(os.sched_getaffinity(0))
        assert sorted(cpu for pid in spinners for cpu in os.sched_getaffinity(pid)) == sorted(os.sched_getaffinity(0))
        started = {pid: process.start_time_ticks(pid) for pid in spinners}
        emulator = int(Path(f"/proc/{spinners[0]}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        os.kill(emulator, signal.SIGKILL)
        deadline = time.monotonic() + 60  # they end in their own turns, which are rare on a busy host
        while spinning := [pid for pid, at in started.items() if process.start_time_ticks(pid) == at]:
            assert time.monotonic() < deadline, spinning
            time.sleep(0.01)


def test_the_lab_goes_first_and_tells_how_it_keeps_time(mini: Path) -> None:
    """Its programs, and those that join it, have one nice value; without the right to a lower one it is ours."""
    with open_lab(mini) as lab:
        place = lab.place("V")
        nice = int(place.run(["nice"]).stdout)
        assert nice == lab.state["nice"] == (-10 if os.geteuid() == 0 else os.getpriority(os.PRIO_PROCESS, 0))
        servers = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(lab.folder.root / "servers") in " ".join(words_of(entry))
        ]
        assert len(servers) == 2, "one for TCP, one for QUIC"
        assert {os.getpriority(os.PRIO_PROCESS, server) for server in servers} == {nice}
        timing = lab.timing()
        assert lab.truth()["timing"] == place.environment()["timing"] == timing
        assert timing["nice"] == nice and timing["cpus_awake"] == {
            "method": "cpu_dma_latency" if has_device() else "spinners",
            "reason": None if has_device() else lab.cpus_awake().reason,
        }


def test_a_campaign_records_it_and_the_report_shows_it(mini: Path) -> None:
    campaign, out = mini.with_name("campaign.toml"), mini.with_name("out")
    campaign.write_text(
        f'name = "c"\nlab = "{mini}"\ntargets = "lab"\niterations = 1\n'
        '[[configurations]]\nname = "BL"\nclient = "requests"\n'
    )
    run_file(campaign, out, RunOptions(let_cpus_sleep=True), progress=Silent())
    asleep = {"method": "none", "reason": "as requested"}
    environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
    assert environment["vantage_points"]["V"]["timing"]["cpus_awake"] == asleep
    assert json.loads((out / "lab.json").read_text(encoding="utf-8"))["timing"]["cpus_awake"] == asleep
    reported = command.upshift("report", out)
    assert reported.returncode == 0, reported.stderr
    page = (out / "report" / "index.html").read_text(encoding="utf-8")
    assert "timing" in page and "as requested" in page


def test_cpus_may_sleep(mini: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_lab(mini, let_cpus_sleep=True) as lab:
        assert lab.cpus_awake().method is Method.NONE and not spinners_of(lab)
        with open_lab(mini, let_cpus_sleep=True):
            assert capsys.readouterr().err == ""
    done = process.run([UPSHIFT, "lab", "up", str(mini)]).check(doing="up")
    assert "The host's CPUs are kept awake by " in done.stdout
    with open_lab(mini, let_cpus_sleep=True) as lab:
        assert "is up already, so --let-cpus-sleep has no effect on it" in capsys.readouterr().err
        assert lab.cpus_awake().method is not Method.NONE
        control.down(lab.folder)
