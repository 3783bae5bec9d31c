"""What is asked of a running campaign by files, and the signals that end a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from core.domain import Target
from core.errors import UsageError
from core.files.disk import folder_lock
from downloader.campaign.campaign import from_document
from downloader.campaign.plan import PlannedRun
from downloader.control import stop_pause
from downloader.control.stop_pause import Pause, StopGate
from downloader.schedule.schedule import State, Wait
from tests import command

RUN = PlannedRun(number=0, iteration=1, target=Target(domain="a", url="https://a/"), configurations=("BL",))
CAMPAIGN = from_document({"name": "c", "lab": "small", "targets": "lab", "budget": 2.0}, Path("c.toml"))
WORST_S = 15 + 2 * (len(CAMPAIGN.warmups) + len(CAMPAIGN.configurations))
NEW_YEAR = 1_798_761_600.0
"""2027-01-01T00:00Z."""
NONE_RUNS = "no campaign is running here: run the same `upshift run` again"


def gate(folder: Path, until: float | None = None) -> StopGate:
    return StopGate(CAMPAIGN, folder, until=until)


def test_nothing_is_asked(tmp_path: Path) -> None:
    assert gate(tmp_path).holds(100.0) is None and gate(tmp_path).admits(RUN, 100.0) is None


def test_stop_comes_before_pause_and_is_for_one_process(tmp_path: Path) -> None:
    stop_pause.request_pause(tmp_path, 100.0, None)
    stop_pause.request_stop(tmp_path, 100.0)
    assert gate(tmp_path).holds(101.0) == Wait(State.STOPPING, "upshift stop")
    stop_pause.clear_stop(tmp_path)
    found = gate(tmp_path).holds(101.0)
    assert found is not None and found.state is State.PAUSED, "the pause is for the next process, too"


def test_a_pause_ends_by_itself_or_by_resume(tmp_path: Path) -> None:
    stop_pause.request_pause(tmp_path, NEW_YEAR, NEW_YEAR + 60)
    assert stop_pause.pause_requested(tmp_path, NEW_YEAR + 59) == Pause(NEW_YEAR, NEW_YEAR + 60)
    assert gate(tmp_path).holds(NEW_YEAR + 59) == Wait(
        State.PAUSED, "upshift pause at 2027-01-01 00:00:00Z", NEW_YEAR + 60
    )
    assert gate(tmp_path).holds(NEW_YEAR + 60) is None
    stop_pause.request_pause(tmp_path, NEW_YEAR, None)
    assert gate(tmp_path).holds(9e9) is not None
    assert stop_pause.resume(tmp_path) and not stop_pause.resume(tmp_path)
    assert gate(tmp_path).holds(NEW_YEAR) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes in the folders of others")
@pytest.mark.parametrize("caller", [None, "65533"])
def test_what_root_asks_the_campaign_of_another_user_can_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str | None
) -> None:
    """`upshift stop DIR` by root made the folder of a fleet's service one in which it could not start any more."""
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False) if caller is None else monkeypatch.setenv(name, caller)
    results, ours = tmp_path / "results", tmp_path / "ours"
    for folder in (results, ours):
        folder.mkdir()
    os.chown(results, 65_534, 65_534)
    stop_pause.request_stop(results, 1.0)
    stop_pause.request_pause(results, 1.0, None)
    stop_pause.resume(results)
    assert {path.stat().st_uid for path in (results / "asked", *(results / "asked").iterdir())} == {65_534}
    assert (os.geteuid(), os.getegid()) == (0, 0)
    with stop_pause._as_owner(results) as there:
        stop_pause.clear_stop(there)
    (results / "asked").rmdir()
    (results / "asked").symlink_to(ours)
    for ask in (stop_pause.request_stop, lambda folder, now: stop_pause.request_pause(folder, now, None)):
        with pytest.raises(UsageError, match=rf"{results}: its owner may not write in it; give it and .*asked to"):
            ask(results, 1.0)
    assert not list(ours.iterdir()), "nothing of root's by a link of theirs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"at": "x", "until": 1}',
        "[1]",
        '{"at": 1e300, "until": null}',
        '{"at": 1, "until": 9e14}',
        '{"at": 1, "until": ""}',
    ],
)
def test_a_broken_pause_is_a_pause(tmp_path: Path, text: str) -> None:
    stop_pause.request_pause(tmp_path, 1.0, 2.0)
    (tmp_path / "asked" / "pause.json").write_text(text)
    assert stop_pause.pause_requested(tmp_path, 100.0) == Pause(None, None)
    assert gate(tmp_path).holds(100.0) == gate(tmp_path).holds(101.0) == Wait(State.PAUSED, "upshift pause")


def test_until_starts_no_run_that_could_last_longer(tmp_path: Path) -> None:
    here = gate(tmp_path, NEW_YEAR)
    assert here.holds(NEW_YEAR - WORST_S - 1) is None and here.admits(RUN, NEW_YEAR - WORST_S - 1) is None
    late = here.admits(RUN, NEW_YEAR - WORST_S + 1)
    assert late is not None and (late.state, late.until) == (State.STOPPING, NEW_YEAR)
    assert here.holds(NEW_YEAR) == Wait(State.STOPPING, "--until 2027-01-01 00:00:00Z")


@pytest.mark.parametrize(
    "text", ["2027-01-01T00:00Z", "2027-01-01T00:00:00+00:00", "2027-01-01T01:00+01:00", "2027-01-01 00:00Z"]
)
def test_times(text: str) -> None:
    assert stop_pause.parse_time(text, where="--until", now=NEW_YEAR - 1) == NEW_YEAR
    assert stop_pause.utc(NEW_YEAR) == "2027-01-01 00:00:00Z"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2027-01-01T00:00", "has no time zone"),
        ("2027-01-01", "has no time zone"),
        ("soon", "is neither a date and time nor a dur"),
    ],
)
def test_other_times_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--until: '{text}' {said}.*; write it as 2027-01-05T06:00Z"):
        stop_pause.parse_time(text, where="--until", now=NEW_YEAR)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("6h", 21_600), ("1.5 h", 5_400), ("20 min", 1_200), ("2d", 172_800)]
)
def test_durations_count_from_now(text: str, seconds: float) -> None:
    assert stop_pause.parse_time(text, where="--until", now=NEW_YEAR) == NEW_YEAR + seconds


@pytest.mark.parametrize("text", ["9999999d", "9" * 400 + "h", "9999-12-31T23:59-12:00"])
def test_a_time_that_cannot_be_shown_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--until: '9.*' is after the year 9999; "):
        stop_pause.parse_time(text, where="--until", now=NEW_YEAR)


@pytest.mark.parametrize("text", ["2026-12-31T23:59Z", "2027-01-01T00:00Z", "0001-01-01T00:00+14:00"])
def test_the_past_is_refused_before_a_lab_is_built(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--until: '.*' is in the past; "):
        stop_pause.parse_time(text, where="--until", now=NEW_YEAR)
    (tmp_path / "c.toml").write_text('name = "c"\nlab = "small"\ntargets = "lab"\n')
    code, output = upshift("run", tmp_path / "c.toml", "--out", tmp_path / "out", "--until", "2020-01-01T00:00Z")
    assert code == 2 and "--until: '2020-01-01T00:00Z' is in the past" in output
    assert not (tmp_path / "out").exists()


def upshift(*arguments: str | Path) -> tuple[int, str]:
    done = command.upshift(*arguments)
    return done.returncode, (done.stdout or done.stderr).strip()


def test_the_commands(tmp_path: Path) -> None:
    for word in ("stop", "pause", "resume", "status"):
        code, said = upshift(word, tmp_path)
        assert code == 2 and "no campaign has run in this folder" in said
    assert not list(tmp_path.iterdir())
    (tmp_path / "vantage" / "A").mkdir(parents=True)
    (tmp_path / "vantage" / "A" / "journal.sqlite").touch()
    assert upshift("stop", tmp_path) == (0, f"{tmp_path}: no campaign is running here")
    assert not stop_pause.stop_requested(tmp_path), "or the next process would find it"
    said = f"{tmp_path}: paused until 2099-01-01 00:00:00Z; no campaign is running here now"
    assert upshift("pause", tmp_path, "--until", "2099-01-01T00:00Z") == (0, said)
    code, said = upshift("pause", tmp_path, "--until", "2020-01-01T00:00Z")
    assert code == 2 and "--until: '2020-01-01T00:00Z' is in the past" in said
    assert stop_pause.pause_requested(tmp_path, time.time()) is not None
    assert upshift("resume", tmp_path) == (0, f"{tmp_path}: no longer paused; {NONE_RUNS}")
    assert upshift("resume", tmp_path) == (0, f"{tmp_path}: was not paused")
    with folder_lock(tmp_path):
        stop_pause.request_pause(tmp_path, 1.0, None)
        assert upshift("resume", tmp_path) == (0, f"{tmp_path}: goes on")
        code, said = upshift("stop", tmp_path, "--wait", "0.5")
        assert code == 1 and "still running after 0.5 s" in said and stop_pause.stop_requested(tmp_path)
        assert upshift("stop", tmp_path) == (0, f"{tmp_path}: asked to stop after the present measurement run")


PROGRAM = """
import signal, sys, time
from core.system import signals
signals.install()
{before}
try:
    print("ready", flush=True)
    for _ in range(600):  # a signal just before a sleep is looked at after it
        time.sleep(0.05)
except KeyboardInterrupt:
    print(signals.reason(), flush=True)
    try:
        time.sleep({cleaning})
    except KeyboardInterrupt:
        print("again", flush=True)
    print("clean", flush=True)
"""


def start(*, before: str = "", cleaning: float = 0.5, wrap: str = "") -> subprocess.Popen[str]:
    program = PROGRAM.format(before=textwrap.dedent(before), cleaning=cleaning)
    argv = [sys.executable, "-c", program]
    if wrap:
        argv = ["sh", "-c", f'{wrap}; exec "$@"', "sh", *argv]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_stops_once_and_cleaning_up_is_not_interrupted(number: signal.Signals) -> None:
    child = start()
    for _ in range(3):
        child.send_signal(number)
        time.sleep(0.1)
    said, errors = child.communicate(timeout=30)
    assert (said.split(), errors, child.returncode) == ([number.name, "clean"], "", 0)


def test_later_the_same_signal_kills() -> None:
    child = start(before="signals.PATIENCE_S = 0.2", cleaning=30)
    child.send_signal(signal.SIGTERM)
    assert child.stdout is not None and child.stdout.readline() == "SIGTERM\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=10)[0] == ""
    assert child.returncode == -signal.SIGTERM


def test_who_does_not_end_in_time_is_killed_by_the_kernel() -> None:
    child = start(before="(block := signals.clean_up_within(0.5)).__enter__()", cleaning=30)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=10)[0] == "SIGTERM\n"
    assert child.returncode == -signal.SIGALRM
    child = start(before="with signals.clean_up_within(0.2): pass", cleaning=1)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=10)[0] == "SIGTERM\nclean\n", "the limit is for its block"


def test_an_ignored_signal_stays_ignored() -> None:
    """As by nohup(1)."""
    child = start(wrap="trap '' HUP")
    child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=10)[0] == "SIGTERM\nclean\n"


def test_others_may_handle_the_signals() -> None:
    child = start(before="(block := signals.handled_by(signal.SIG_DFL)).__enter__()")
    child.send_signal(signal.SIGHUP)
    child.communicate(timeout=10)
    assert child.returncode == -signal.SIGHUP
    child = start(before="with signals.handled_by(signal.SIG_DFL): pass")
    child.send_signal(signal.SIGHUP)
    assert child.communicate(timeout=10)[0] == "SIGHUP\nclean\n"
