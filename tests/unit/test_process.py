"""Processes: death signals, stops, sentences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.errors import PlaceError
from core.system import process


def gone(pid: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.start_time_ticks(pid) is None:
            return True
        time.sleep(0.01)
    return False


def test_output_and_exit_code() -> None:
    done = process.run([sys.executable, "-c", "import sys; print(input()); sys.exit(3)"], stdin="word\n")
    assert (done.returncode, done.stdout) == (3, "word\n")
    with pytest.raises(PlaceError, match="while testing"):
        done.check(doing="testing")


def test_a_missing_program_is_one_sentence() -> None:
    with pytest.raises(PlaceError, match="no-such-program"):
        process.run(["no-such-program"])
    with pytest.raises(PlaceError, match="apt-get install somepackage"):
        process.require("no-such-program", package="somepackage")


def test_a_time_limit_kills() -> None:
    with pytest.raises(PlaceError, match="did not end"):
        process.run(["sleep", "60"], timeout_s=0.2)


def test_stop_asks_then_kills() -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = process.start([sys.executable, "-c", stubborn], stdout=True)
    assert child.stdout is not None
    child.stdout.readline()
    assert child.stop(grace_s=0.2) == -signal.SIGKILL


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import sys, time; from core.system import process\n"
        "child = process.start(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    pid = int(note.read_text())
    wait_for_program(pid, "sleep")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def wait_for_program(pid: int, name: str) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} did not become {name}")


def test_kill_and_wait_needs_the_right_start_time() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        started = process.start_time_ticks(child.pid)
        assert started is not None
        assert not process.kill_and_wait(child.pid, started + 1)
        assert child.poll() is None
        assert process.kill_and_wait(child.pid, started)
    finally:
        child.kill()
        child.wait()
    assert process.start_time_ticks(os.getpid()) is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_that_is_followed(number: signal.Signals) -> None:
    """Only Ctrl-C reaches it by itself; whoever waits for it must not wait for its own end."""
    program = (
        "from core.system import process, signals\nsignals.install()\nprint('ready', flush=True)\n"
        "try:\n    process.follow(['sleep', '60'])\nexcept KeyboardInterrupt:\n    print('stopped', flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None and popen.stdout.readline() == "ready\n"
        children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children")
        until = time.monotonic() + 20
        while not children.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.3)
        popen.send_signal(number)
        assert popen.communicate(timeout=20)[0] == "stopped\n"
