"""The guardian: a process that undoes a campaign's changes to this host, however the campaign ends.

It is started *before* the first change, in its own session, and waits for its owner to end: the other end of its
standard input closes, or a pidfd (pidfd_open(2)) of the owner turns readable; the second also works when a forked
child of the owner kept the pipe. An owner that is suspended (SIGSTOP) for 5 s is killed. Then it undoes the plan in
the state file and removes the file (`vantage.host.undo`).

Before it undoes anything, it makes sure that no program of the owner can still change settings. A program that the
owner has just started does not yet have its parent-death signal. So, once the owner is dead, any process that still
has the pipe open (a fork of the owner) is killed, then every program with the place's mark in its environment, and
every program in the place's network namespace.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from core.system.process import kill_and_wait, start_time_ticks
from vantage.host.undo import locked, plan_path, read_plan, remove_partial_files, undo

MARK = "UPSHIFT_PLACE"
"""Environment variable that every program of a place carries, with the place's ident."""

SUSPENDED_S = 5.0
"""How long the owner may be suspended (SIGSTOP, SIGTSTP) before the guardian kills it: meanwhile nobody could undo its
changes, and its clients go on."""

_LOOK_S = 1.0
"""Interval at which the guardian looks whether the owner is suspended."""

UNDECIDED_S = 1.0
"""How long the guardian rechecks processes that it can neither kill nor rule out."""


def stop_programs(ident: str, namespaces: Iterable[int]) -> None:
    """Kills every program of the place, until none is found twice in a row: by its mark, and by its network namespace.

    The descriptors keep the namespaces' inode numbers from being used again while we look.
    """
    mark = f"{MARK}={ident}".encode()
    inodes = {f"net:[{os.fstat(descriptor).st_ino}]" for descriptor in namespaces}

    def is_ours(entry: Path) -> bool | None:
        if str((entry / "ns" / "net").readlink()) in inodes:
            return True
        environment = (entry / "environ").read_bytes()
        if environment:
            return mark in environment.split(b"\0")
        # During exec it is still empty (fs/proc/base.c, environ_read). A kernel thread has no program.
        (entry / "exe").readlink()
        return None

    _stop_all(is_ours)


def stop_holders() -> None:
    """Kills every process that has our standard input's other end: forks of our owner, who is dead."""
    pipe = f"pipe:[{os.fstat(0).st_ino}]"

    def is_fork(entry: Path) -> bool:
        return any(_link(descriptor) == pipe for descriptor in (entry / "fd").iterdir())

    _stop_all(is_fork)


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def _stop_all(wanted: Callable[[Path], bool | None]) -> None:
    """Kills every process whose /proc folder is wanted (None: check again), until two passes in a row find none."""
    clean = 0
    deadline = time.monotonic() + UNDECIDED_S
    while clean < 2:
        clean += 1
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):  # it has ended, or belongs to another user
                started = start_time_ticks(int(entry.name))
                verdict = wanted(entry) if started is not None else False
                if started is not None and verdict:
                    kill_and_wait(int(entry.name), started, number=signal.SIGKILL)
                if verdict or (verdict is None and time.monotonic() < deadline):
                    clean = 0


def _serve(pid: int, owner: int, hold: list[int]) -> None:
    """Waits for the owner's end, or its line `end`. A line `hold PATH` makes us open that namespace."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(owner, select.POLLIN)
    pending = b""
    suspended_since: float | None = None
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(_LOOK_S * 1000)}
        now = time.monotonic()
        suspended_since = (suspended_since or now) if is_suspended(pid) else None
        if suspended_since is not None and now - suspended_since >= SUSPENDED_S:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(owner, signal.SIGKILL)
        if not ready:
            continue
        if owner in ready:
            stop_holders()
            return
        received = os.read(0, 4096)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            if line == b"end":
                return
            if line.startswith(b"hold "):
                hold.append(os.open(os.fsdecode(line[5:]), os.O_RDONLY | os.O_CLOEXEC))
                _say("held")


def is_suspended(pid: int) -> bool:
    """Whether a process was suspended by a signal (state T of proc(5)); one that a debugger stopped is not."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] == "T"
    return False


def _say(word: str) -> None:
    with suppress(BrokenPipeError):
        os.write(1, word.encode() + b"\n")


def main(arguments: list[str]) -> int:
    """The guardian's program: `python -m vantage.host.guardian STATE IDENT OWNER-PID OWNER-TICKS`."""
    state, ident = Path(arguments[0]), arguments[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # a signal that stops the campaign must not stop the guardian
    hold: list[int] = []
    with suppress(ProcessLookupError):
        owner = os.pidfd_open(int(arguments[2]))
        if start_time_ticks(int(arguments[2])) == int(arguments[3]):
            os.chdir("/")
            _say("ready")
            _serve(int(arguments[2]), owner, hold)
    stop_programs(ident, hold)
    with locked(state):
        remove_partial_files(state, ident)  # the owner may have been killed before its first plan was whole
        plan = read_plan(plan_path(state, ident))
        faults = undo(state, plan) if plan is not None else ()
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
