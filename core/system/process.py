"""The only module that starts processes.

Programs are argument lists, never shell strings. Every child gets a parent-death signal, so that `kill -9` of Upshift
leaves no child behind; the signal is set by util-linux `setpriv` inside the final program (after any `nsenter`, whose
change of credentials would clear it: kernel/cred.c, commit_creds). The signal is tied to the *thread* that starts the
child (prctl(2), PR_SET_PDEATHSIG), so start long-lived children from a thread that outlives them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, TypedDict, Unpack

from core.errors import PlaceError
from core.system import signals
from core.untrusted import last_line

PARENT_DEATH = ("setpriv", "--pdeathsig", "KILL", "--")
"""Prefix that makes the kernel kill a program when the thread that started it ends."""

STOP_GRACE_S = 5.0
"""Time between asking a program to stop and killing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def check(self, *, doing: str) -> Completed:
        """Returns itself, or raises PlaceError with the last line of standard error if the exit code is not 0."""
        if self.returncode != 0:
            reason = last_line(self.stderr or self.stdout) or f"exit code {self.returncode}"
            raise PlaceError(f"{self.argv[0]} failed while {doing}: {reason}")
        return self


def require(program: str, *, package: str) -> str:
    """Full path of a program. Raises PlaceError naming the Debian package that has it."""
    path = find_program(program)
    if path is None:
        raise PlaceError(
            f"the program {program} is missing",
            remedy=f"install it (Debian, Ubuntu: apt-get install {package}; or: make setup)",
        )
    return path


def find_program(name: str) -> str | None:
    """Full path of a program, searched beside this Python first, where our own binaries are; None if not found."""
    beside = Path(sys.executable).parent / name
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(name, path=_search_path())


def _search_path() -> str:
    """PATH with the sbin folders, which ordinary users often lack (tcpdump, knotd and nginx live there)."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(parts + [d for d in ("/usr/local/sbin", "/usr/sbin", "/sbin") if d not in parts])


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PATH": _search_path(), **(extra or {})}


def module_environment() -> dict[str, str]:
    """Environment in which `python -m` finds our packages in any working directory: they may be a checkout's."""
    paths = (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _missing(error: FileNotFoundError) -> PlaceError:
    return PlaceError(f"the program {error.filename} is missing", remedy="upshift doctor says how to fix it")


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Runs a program to its end.

    Raises:
        PlaceError: the program is missing, or did not end within `timeout_s` (it is killed then).
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=_environment(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise _missing(error) from None
    except subprocess.TimeoutExpired:
        raise PlaceError(f"{argv[0]} did not end within {timeout_s:g} s") from None
    return Completed(argv=tuple(argv), returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def follow(argv: Sequence[str]) -> int:
    """Runs a program to its end on our own terminal, and returns its exit code.

    Ctrl-C reaches the program as well as us, other signals are passed on; KeyboardInterrupt comes once it has ended.

    Raises:
        PlaceError: the program is missing.
    """
    try:
        popen = subprocess.Popen([*PARENT_DEATH, *argv], stdin=subprocess.DEVNULL, env=_environment(None))
    except FileNotFoundError as error:
        raise _missing(error) from None
    try:
        return popen.wait()
    except KeyboardInterrupt:
        if signals.received() not in (None, signal.SIGINT):
            popen.terminate()
        popen.wait()
        raise


class Child:
    """A running program. Use it as a context manager, or call `stop`.

    Attributes:
        argv: what was started, without the parent-death prefix.
        stdin, stdout, stderr: pipes (text, or bytes where started with `binary`) or None.
    """

    def __init__(self, popen: subprocess.Popen[Any], argv: Sequence[str]) -> None:
        self._popen = popen
        self.argv = tuple(argv)
        self.stdin: IO[Any] | None = popen.stdin
        self.stdout: IO[Any] | None = popen.stdout
        self.stderr: IO[Any] | None = popen.stderr

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, None while it runs."""
        return self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; a program that has ended is left alone."""
        if self._popen.poll() is None:
            self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Exit code. Raises PlaceError if the program still runs after `timeout_s`."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise PlaceError(f"{self.argv[0]} did not end within {timeout_s:g} s") from None

    def stop(self, number: signal.Signals = signal.SIGTERM, *, grace_s: float = STOP_GRACE_S) -> int:
        """Asks the program to stop, kills it after `grace_s`, closes the pipes; returns the exit code."""
        self.send(number)
        try:
            self._popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # the program ended without reading the rest of its input
                    pipe.close()
        return self._popen.returncode

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Pipes(TypedDict, total=False):
    """How a background program is connected: True for a pipe, a path to append to a file, False for /dev/null."""

    stdin: bool
    stdout: bool | Path
    stderr: bool | Path
    binary: bool
    """Pipes carry bytes instead of text."""


def start(
    argv: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    outlive: bool = False,
    **pipes: Unpack[Pipes],
) -> Child:
    """Starts a program in the background.

    Args:
        argv: program and arguments.
        prefix: how to enter a place first (`nsenter ...`); the parent-death signal is set after it.
        outlive: the program keeps running when we end (the lab's holder); it gets its own session and no death signal.

    Raises:
        PlaceError: the program is missing.
    """
    files: list[IO[bytes]] = []

    def target(name: Literal["stdin", "stdout", "stderr"]) -> int | IO[bytes]:
        choice = pipes.get(name, False)
        if isinstance(choice, Path):
            files.append(choice.open("ab"))
            return files[-1]
        return subprocess.PIPE if choice else subprocess.DEVNULL

    command = [*prefix, *(() if outlive else PARENT_DEATH), *argv]
    binary = pipes.get("binary", False)
    try:
        popen = subprocess.Popen(
            command,
            stdin=target("stdin"),
            stdout=target("stdout"),
            stderr=target("stderr"),
            text=not binary,
            errors=None if binary else "replace",
            bufsize=-1 if binary else 1,
            env=_environment(env),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            start_new_session=outlive,
        )
    except FileNotFoundError as error:
        raise _missing(error) from None
    finally:
        for handle in files:
            handle.close()
    return Child(popen, argv)


def start_time_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22 of /proc/PID/stat), None if it has ended.

    Together with the PID it identifies a process uniquely: PIDs are reused, pairs are not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def kill_and_wait(
    pid: int, started: int, *, number: signal.Signals = signal.SIGTERM, grace_s: float = STOP_GRACE_S
) -> bool:
    """Stops the process that has this PID *and* start time, even if it is not our child; True if it was running.

    Sends the signal `number`, then SIGKILL after `grace_s`, and waits for its end (pidfd_open(2): no race with reuse).
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_time_ticks(pid) != started:
            return False
        signal.pidfd_send_signal(handle, number)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if start_time_ticks(pid) != started:
                return True
            time.sleep(0.01)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        while start_time_ticks(pid) == started:
            time.sleep(0.01)
        return True
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


DEBUG_MARK = "debug build"
"""Printed by our Rust programs with `--version` if debug assertions are compiled in."""


def require_ours(program: str, title: str, error: type[PlaceError] = PlaceError) -> str:
    """Full path of a binary of ours: `$UPSHIFT_PROGRAM`, or as `find_program` has it.

    Args:
        title: names it in a sentence.
        error: is raised if it is missing, or a debug build.
    """
    path = os.environ.get(f"UPSHIFT_{program.upper()}") or find_program(program)
    if path is None:
        raise error(f"{title} is not installed", remedy="run: make setup")
    if (fault := refuse_debug_build(title, path)) is not None:
        what, _, remedy = fault.rpartition("; ")
        raise error(what, remedy=remedy)
    return path


def refuse_debug_build(name: str, path: str) -> str | None:
    """Why the program cannot be used, as `what; remedy`; None for a release build, or another program."""
    if not is_debug_build(path):
        return None
    return f"{name} is a debug build, too slow to measure with ({path}); run: make setup"


def is_debug_build(path: str) -> bool:
    """Whether the program is a debug build of ours; False if it is missing."""
    try:
        return _is_debug_build(path, Path(path).stat().st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=32)
def _is_debug_build(path: str, changed_ns: int) -> bool:  # noqa: ARG001 - a rebuilt program is checked again
    try:
        return DEBUG_MARK in run((path, "--version"), timeout_s=10).stdout
    except (PlaceError, OSError):
        return False
