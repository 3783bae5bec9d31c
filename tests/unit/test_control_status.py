"""What a running campaign tells: its status, its metrics, and systemd's watchdog."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from core.domain import Failure, Outcome
from core.domain.download import Counts
from core.errors import PlaceError, UsageError
from core.files.disk import folder_lock, is_running
from core.system.signals import Notifier
from downloader.control import metrics, stop_pause
from downloader.control import status as control_status
from downloader.control.metrics import Endpoint, parse_endpoint
from downloader.control.page_server import serve
from downloader.control.reporter import PATIENCE_S, Reporter
from downloader.control.status import Activity, BudgetUse, DiskUse, Fault, Status, VantagePoint
from downloader.schedule.schedule import State
from tests.command import upshift
from tests.lab._fault_world import wait_until
from tests.unit.analysis_factory import make_download as download
from upshift import cli
from upshift.campaign import reported

HOSTILE = 'www.a"\\\n.example'


def status(**changes: object) -> Status:
    activity = Activity(state=State.RUNNING, reason="www.a.example", since=990.0)
    progress = Counts(planned=100, ok=40, failed=8, censored=2, causes={"dns_error": 8, "time": 2}, void_runs=3)
    found = Status(
        written_at=1_000.0,
        activity=activity,
        progress=progress,
        rate_per_s=0.5,
        eta_s=100.0,
        campaign=HOSTILE,
        plan_sha256="ab" * 32,
        started_at=900.0,
        pid=7,
        versions={"upshift": "1", "kernel": "6.18", "aioquic": None},
        vantage_points={"MUC": VantagePoint(activity=activity, progress=progress)},
        budgets=(BudgetUse(vantage="MUC", budget="as", whose="AS64496", used_bytes=5, limit_bytes=10),),
        disk=DiskUse(free_bytes=1, used_bytes=2, limit_bytes=3, reserve_bytes=4),
        last_error=Fault(at=995.0, what="www.b.example BL: dns_error: no address"),
    )
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def write(folder: Path, found: Status) -> None:
    (folder / control_status.FILE_NAME).write_text(json.dumps(found.document()))


@pytest.mark.parametrize("changes", [{}, {"disk": None, "last_error": None, "budgets": (), "eta_s": None}])
def test_a_status_is_read_as_it_was_written(tmp_path: Path, changes: dict[str, object]) -> None:
    write(tmp_path, status(**changes))
    assert control_status.read_status(tmp_path) == status(**changes)
    told = json.loads((tmp_path / "status.json").read_text())
    assert (told["progress"]["recorded"], told["activity"]["state"]) == (50, "running")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no campaign has run in this folder; name the --out"),
        ("", "not a status that this version"),
        ("[]", "not a status that this version"),
        ('{"schema": 2}', "not a status that this version"),
        ('{"schema": 1, "activity": {"state": "asleep"}}', "not a status that this version"),
    ],
)
def test_what_is_no_status_is_one_sentence(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        control_status.read_status(tmp_path)
    with pytest.raises(UsageError, match="folder not found"):
        control_status.read_status(tmp_path / "none")


@pytest.mark.parametrize("field", ["written_at", "started_at", "eta_s"])
@pytest.mark.parametrize("value", [1e300, 1e18, 1e12, float("nan"), -1e15])
def test_a_time_that_cannot_be_shown_is_no_status(tmp_path: Path, field: str, value: float) -> None:
    write(tmp_path, status(**{field: value}))
    answer = upshift("status", tmp_path)
    assert answer.returncode == 2 and "not a status that this version" in answer.stderr and not answer.stdout


def test_what_a_status_says_moves_no_cursor(tmp_path: Path) -> None:
    write(tmp_path, status(campaign="\x1b]0;title\x07\n", last_error=Fault(at=995.0, what="\x1b[2J")))
    shown = upshift("status", tmp_path).stdout
    assert all(line.isprintable() for line in shown.splitlines()) and len(shown.splitlines()) == len(
        control_status.lines(status(), time.time(), running=False)
    )


def test_silent_after_a_minute_unless_it_has_ended() -> None:
    assert status().silent_s(1_060.0) is None
    assert status().silent_s(1_061.0) == 61.0
    for state in control_status.ENDED:
        ended = status(activity=Activity(state=state, reason="", since=1_000.0))
        assert ended.silent_s(9_999.0) is None


@pytest.mark.parametrize(
    ("now", "running", "said"),
    [
        (1_003.0, True, "running (www.a.example)"),
        (1_003.0, False, "its process is gone; before: running"),
        (1_075.0, False, "silent for 1 min 15 s (its process is gone"),
        (1_075.0, True, "silent for 1 min 15 s (its process hangs or was stopped)"),
    ],
)
def test_the_first_line_says_what_is_wrong(now: float, running: bool, said: str) -> None:
    lines = control_status.lines(status(), now, running=running)
    assert said in lines[0]
    text = "\n".join(lines)
    for part in (
        "50 of 100 (50%): 40 ok, 8 failed, 2 censored",
        "3 void",
        "dns_error 8, time 2",
        "0.50/s",
        "1 min 40 s",
    ):
        assert part in text
    assert "AS64496: 5 B of 10 B today" in text and "2 B of 3 B used, 1 B free" in text
    assert "www.b.example BL: dns_error: no address" in text and "aioquic" not in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h"), (86_400 * 9, "9 d")],
)
def test_spans(seconds: float, said: str) -> None:
    assert control_status.span(seconds) == said


def test_the_page_of_metrics_parses() -> None:
    """By the parser of prometheus-client, which is not what wrote it line by line."""
    families = {family.name: family for family in text_string_to_metric_families(metrics.page(status()))}
    values = {
        (sample.name, *sorted(value for name, value in sample.labels.items() if name != "campaign")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["upshift_downloads_total", "MUC", "ok"] == 40
    assert values["upshift_downloads_not_ok_total", "MUC", "dns_error"] == 8
    assert values["upshift_runs_discarded_total", "MUC", "void"] == 3
    assert values["upshift_state", "MUC", "running"] == 1 and values["upshift_state", "MUC", "paused_for_disk"] == 0
    assert values["upshift_budget_used_bytes", "MUC", "as"] == 5
    assert [values[f"upshift_disk_{name}_bytes",] for name in ("free", "used", "limit", "reserve")] == [1, 2, 3, 4]
    assert values["upshift_status_timestamp_seconds",] == 1_000.0
    assert {sample.labels["campaign"] for family in families.values() for sample in family.samples} == {HOSTILE}
    assert all(family.documentation for family in families.values())


def test_the_pages_of_two_campaigns_have_no_series_in_common() -> None:
    pages = [metrics.page(dataclasses.replace(status(), campaign=name)) for name in ("week", "month")]
    names = [
        (sample.name, *sorted(sample.labels.items()))
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unix:/run/u.sock", Endpoint(path=Path("/run/u.sock"))),
        ("127.0.0.1:9100", Endpoint(address="127.0.0.1", port=9100)),
        ("localhost:9100", Endpoint(address="127.0.0.1", port=9100)),
        ("[::1]:9100", Endpoint(address="::1", port=9100)),
    ],
)
def test_endpoints(text: str, found: Endpoint) -> None:
    assert parse_endpoint(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.0.0.0:9100", "0.0.0.0 is not a loopback address, and metrics are served to this host only"),
        ("198.18.0.1:9100", "198.18.0.1 is not a loopback address"),
        ("[::]:9100", ":: is not a loopback address"),
        ("here:9100", "'here' is not an IP address"),
        ("127.0.0.1", "names no port"),
        ("127.0.0.1:0", "names no port"),
        ("unix:", "no path after unix:"),
    ],
)
def test_other_endpoints_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--metrics: ") as error:
        parse_endpoint(text)
    assert said in error.value.sentence()
    done = CliRunner().invoke(cli.app, ["run", "none.toml", "--out", str(tmp_path / "out"), "--metrics", text])
    assert isinstance(done.exception, UsageError) and "--metrics" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_metrics_are_served_on_loopback() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        endpoint = Endpoint(address="127.0.0.1", port=held.getsockname()[1])
        with pytest.raises(PlaceError, match="address already in use"), serve(endpoint, str):
            pass
    with (
        serve(endpoint, lambda: metrics.page(status())),
        urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=10) as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read().decode() == metrics.page(status())


def ask(path: Path, name: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(f"GET {name} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_metrics_are_served_on_a_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "u.sock"
    with socket.socket(socket.AF_UNIX) as stale:  # of a process that was killed
        stale.bind(str(path))
    endpoint = Endpoint(path=path)
    with serve(endpoint, lambda: metrics.page(status())):
        assert ask(path, "/metrics").partition(b"\r\n\r\n")[2].decode() == metrics.page(status())
        assert b" 404 " in ask(path, "/other")
        with pytest.raises(PlaceError, match="address already in use"), serve(endpoint, str):
            pass
        assert path.exists()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(PlaceError), serve(endpoint, str):
        pass
    assert path.read_text() == "precious"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.setblocking(False)
        yield server


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), "KEPT": "1", **more}


def test_what_systemd_hears(tmp_path: Path, manager: socket.socket) -> None:
    environ = environment(tmp_path, WATCHDOG_USEC="120000000", WATCHDOG_PID=str(os.getpid()))
    notifier = Notifier(environ)
    assert environ == {"KEPT": "1"}, "programs that are started must not speak for us"
    assert notifier.watchdog_s == 120.0
    notifier.ready()
    notifier.say("two\nlines")
    notifier.alive()
    notifier.stopping()
    assert heard(manager) == ["READY=1", "STATUS=two lines", "WATCHDOG=1", "STOPPING=1"]
    assert Notifier(environment(tmp_path, WATCHDOG_USEC="1", WATCHDOG_PID="1")).watchdog_s is None
    assert Notifier(environment(tmp_path)).watchdog_s is None
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "nobody")}, {"NOTIFY_SOCKET": "\0"}):
        Notifier(environ).alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0upshift-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@upshift-{os.getpid()}"}).ready()
        assert abstract.recv(100) == b"READY=1"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def fed(manager: socket.socket) -> bool:
    """Whether the watchdog is fed from now on."""
    heard(manager)
    return wait_until(lambda: "WATCHDOG=1" in heard(manager))


def test_a_hung_worker_does_not_feed_the_watchdog(tmp_path: Path, manager: socket.socket) -> None:
    clock = Clock()
    notifier = Notifier(environment(tmp_path, WATCHDOG_USEC="60000"))  # a round every 20 ms
    with Reporter(tmp_path, campaign="c", notifier=notifier, monotonic=clock) as reporter:
        reporter.begin(plan_sha256="x", versions={}, counts={"A": Counts(planned=8), "B": Counts(planned=8)})
        a, b = reporter.vantage_point("A"), reporter.vantage_point("B")
        b.finished()
        assert fed(manager)
        clock.now += PATIENCE_S - 1
        assert fed(manager)
        clock.now += 2
        assert wait_until(lambda: "hung" in control_status.read_status(tmp_path).vantage_points["A"].activity.reason)
        heard(manager)
        time.sleep(0.3)
        assert "WATCHDOG=1" not in heard(manager), "that B has ended is no excuse for A, which has said nothing"
        assert "no sign of life for 91 s" in control_status.read_status(tmp_path).activity.reason
        a.does(State.WAITING_FOR_SLOT, "the next slot", until=5_000.0)
        assert fed(manager), "it waits as it should"
        a.alive(1_000.0)
        clock.now += 1_000 + PATIENCE_S
        assert fed(manager), "it said that this would take long"
    heard(manager)
    time.sleep(0.3)
    assert not heard(manager)


def test_counts_rate_and_end(tmp_path: Path) -> None:
    clock, moment = Clock(), Clock()
    failed = download(outcome=Outcome.FAILED, failure=Failure.DNS_ERROR, failure_detail="\x1b[31mno address")
    with Reporter(tmp_path, campaign="c", monotonic=clock, clock=moment, notifier=Notifier({})) as reporter:
        before = Counts(planned=100, ok=10, failed=1, causes={"reset": 1}, void_runs=2)
        reporter.begin(plan_sha256="x", versions={"aioquic": "1"}, counts={"A": before}, limit_bytes=9)
        report = reporter.vantage_point("A")
        clock.now += 10
        report.does(State.RUNNING, "www.a.example")
        report.void_run("www.a.example", "the lab was late")
        report.interrupted_run()
        report.spends("as", "AS64496", 4, 10)
        report.spends("as", "AS64497", 5, 10)
        reporter.takes(7)
        report.recorded_run([download(), download(), failed], void=True)
        found = reporter.status()
        assert found.progress == Counts(
            planned=100,
            ok=12,
            failed=2,
            causes={"reset": 1, str(Failure.DNS_ERROR): 1},
            void_runs=4,
            interrupted_runs=1,
        )
        assert found.rate_per_s == 0.3, "only what this process recorded counts"
        assert found.eta_s == pytest.approx(86 / 0.3)
        report.does(State.WAITING_FOR_BUDGET, "nothing fits", found.written_at + 9_999)
        assert reporter.status().eta_s == 9_999, "not before the wait ends"
        assert found.last_error is not None and "no address" in found.last_error.what
        assert "\x1b" not in found.last_error.what
        assert found.budgets == (BudgetUse(vantage="A", budget="as", whose="AS64497", used_bytes=5, limit_bytes=10),)
        assert found.disk is not None and (found.disk.used_bytes, found.disk.limit_bytes) == (7, 9)
        assert found.versions["aioquic"] == "1" and found.disk is not None and found.disk.free_bytes > 0
        reporter.end(State.STOPPED, "SIGTERM")
    ended = control_status.read_status(tmp_path)
    assert (ended.activity.state, ended.activity.reason, ended.ended) == (State.STOPPED, "SIGTERM", True)
    page = (tmp_path / metrics.FILE_NAME).read_text()
    assert 'upshift_downloads_total{campaign="c",outcome="ok",vantage="A"} 12.0' in page
    assert 'upshift_state{campaign="c",state="stopped",vantage="A"} 1.0' in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["status.json", "upshift.prom"]


def test_no_time_is_left_for_what_early_stopping_spares(tmp_path: Path) -> None:
    """A vantage point whose intervals are narrow enough downloads nothing more; nor does one that makes tables."""
    now = [0.0]
    with Reporter(tmp_path, campaign="c", clock=lambda: now[0], monotonic=lambda: now[0]) as reporter:
        reporter.begin(plan_sha256="ab", versions={}, counts={name: Counts(planned=1_000) for name in "AB"})
        reporter.vantage_point("A").recorded_run([download()] * 100, void=False)
        reporter.vantage_point("B").recorded_run([download()] * 100, void=False)
        now[0] = 100.0
        assert reporter.status().eta_s == 1_800 / 2
        reporter.vantage_point("A").does(State.DONE, "")
        assert reporter.status().eta_s == 900 / 2
        reporter.vantage_point("B").does(State.DONE, "")
        reporter.does(State.RUNNING, "making the tables")
        assert reporter.status().eta_s == 0.0


def test_a_budget_is_told_of_its_day_only(tmp_path: Path) -> None:
    """A campaign that was paused over midnight, or has ended, showed the bytes of another day as today's."""
    moment, day_s = Clock(), 86_400.0
    moment.now = 20_000 * day_s - 3_600

    def told(found: Status, now: float) -> tuple[bool, bool]:
        lines = control_status.lines(found, now, running=True)
        return any("today" in line for line in lines), "upshift_budget_used_bytes{" in metrics.page(found)

    with Reporter(tmp_path, campaign="c", clock=moment, notifier=Notifier({})) as reporter:
        reporter.begin(plan_sha256="x", versions={}, counts={"A": Counts(planned=100)})
        report = reporter.vantage_point("A")
        report.spends("as", "AS64496", 4, 10)
        report.spends("domain", "a.example", 3, 10)
        evening = reporter.status()
        assert told(evening, moment.now) == (True, True) and len(evening.budgets) == 2
        assert told(evening, moment.now + 3_600)[0] is False, "it is silent, and it is tomorrow"
        moment.now += 10 * 3_600
        report.does(State.PAUSED, "upshift pause")
        assert reporter.status().budgets == () and told(reporter.status(), moment.now) == (False, False)
        report.spends("as", "AS64497", 1, 10)
        assert [use.whose for use in reporter.status().budgets] == ["AS64497"]
        reporter.end(State.STOPPED, "SIGTERM")
    ended = control_status.read_status(tmp_path)
    assert told(ended, moment.now) == (True, False), "the page stays as it is"
    assert told(ended, moment.now + 7 * day_s) == (False, False)


def test_of_several_vantage_points_the_one_that_works_tells(tmp_path: Path) -> None:
    with Reporter(tmp_path, campaign="c", notifier=Notifier({})) as reporter:
        reporter.begin(plan_sha256="x", versions={}, counts={"A": Counts(), "B": Counts()})
        a, b = reporter.vantage_point("A"), reporter.vantage_point("B")
        a.does(State.WAITING_FOR_BUDGET, "campaign: 5 GB", until=9e9)
        assert reporter.status().activity.state is State.RUNNING
        b.does(State.PAUSED, "upshift pause", until=8e9)
        assert reporter.status().activity.state is State.PAUSED, "it may go on first"
        reporter.end(State.DONE, "")


def test_a_start_that_fails_is_told_by_the_last_status(tmp_path: Path) -> None:
    def fail(campaign: str) -> None:
        with Reporter(tmp_path, campaign=campaign, notifier=Notifier({})) as reporter:
            reporter.end(State.FAILED, "eth0: no such interface")

    fail("c")
    assert not list(tmp_path.iterdir()), "nothing is written where no campaign was"
    write(tmp_path, status(campaign="c"))
    fail("other")
    with folder_lock(tmp_path):
        fail("c")
    assert control_status.read_status(tmp_path) == status(campaign="c")
    fail("c")
    found = control_status.read_status(tmp_path)
    assert (found.activity.state, found.activity.reason) == (State.FAILED, "eth0: no such interface")
    assert found.progress == status().progress


def test_a_full_disk_is_told_as_on_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, status(campaign="c"))
    with pytest.raises(OSError, match="No space"), reported(tmp_path, "c", None):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "DIR/campaign.json")
    said = "DIR/campaign.json: no space left on device; free some space there, then run the same command again"
    assert control_status.read_status(tmp_path).activity.reason == said


def test_whether_a_process_works_in_a_folder(tmp_path: Path) -> None:
    assert not is_running(tmp_path / "none") and not is_running(tmp_path)
    with folder_lock(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_a_folder_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS without its lock daemon: nothing can run there, and what lies there can be looked at."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    said = r"cannot be written here \(No locks available\); use another --out"
    with pytest.raises(UsageError, match=said), folder_lock(tmp_path):
        pytest.fail("it is not locked")
    assert not is_running(tmp_path)


def test_looking_does_not_keep_a_campaign_from_starting(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_running(tmp_path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            with folder_lock(tmp_path):
                pass
    finally:
        over.set()
        watcher.join()


def test_status_on_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, status(written_at=time.time() - 70))
    stop_pause.request_pause(tmp_path, time.time(), None)
    done = upshift("status", tmp_path)
    assert done.returncode == 0 and "silent for 1 min 1" in done.stdout and "\\" in done.stdout
    assert "pause      holds until upshift resume, also for" in done.stdout
    with folder_lock(tmp_path):
        assert "pause " not in upshift("status", tmp_path).stdout, "what it does tells it"
    told = json.loads(upshift("status", tmp_path, "--json").stdout)
    assert told["silent"] is True and told["process_runs"] is False and told["progress"]["recorded"] == 50
    write(tmp_path, status(activity=Activity(state=State.DONE, reason="", since=1.0)))
    watched = upshift("status", tmp_path, "--watch", "--json")
    assert watched.returncode == 0 and watched.stdout.count("\n") == 1
    assert upshift("status", tmp_path / "none").returncode == 2


def test_whoever_watches_through_a_pipe_hears_of_a_kill(tmp_path: Path) -> None:
    """The killed process writes no status any more."""
    write(tmp_path, status(written_at=time.time()))
    command = [sys.executable, "-m", "upshift", "status", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        with folder_lock(tmp_path):
            assert json.loads(watch.stdout.readline())["process_runs"] is True
        assert json.loads(watch.stdout.readline())["process_runs"] is False
        write(tmp_path, status(activity=Activity(state=State.DONE, reason="", since=1.0)))
        assert json.loads(watch.stdout.readline())["activity"]["state"] == "done"
        assert watch.wait(30) == 0


def test_a_start_imports_nothing_for_metrics() -> None:
    program = "import sys; import upshift.campaign; print(*{'prometheus_client', 'http.server'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
