"""Bringing labs up and down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.errors import LabError
from core.files.disk import check_room, write_json
from core.system import process
from core.terminal import Progress
from vantage.lab.planner import make_plan
from vantage.lab.roles import check_quic_here
from vantage.lab.state import LabFolder, all_labs, lab_folder
from vantage.lab.topology import Topology
from vantage.lab.topology_file import find_topology, load_topology

DOWN_TIMEOUT_S = 15.0
TUN = Path("/dev/net/tun")
LAB_VARIABLE = "UPSHIFT_LAB"
"""Set for every program that is started in a lab: its folder. `down` finds the programs by it."""

NODE_VARIABLE = "UPSHIFT_LAB_NODE"
"""Set for every program that is started in a node of a lab: the node's name."""

NAMESPACE_REMEDY = (
    "run as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns); see upshift doctor"
)
TUN_REMEDY = "load the module (modprobe tun); as an ordinary user: use sudo, or sudo chmod 0666 /dev/net/tun"


def up(
    name: str | Path, *, attached: bool = False, let_cpus_sleep: bool = False, progress: Progress | None = None
) -> LabFolder:
    """Builds a lab and returns its folder when all servers answer.

    Args:
        attached: the lab ends when this process ends, however it ends.
        let_cpus_sleep: do not keep the host's CPUs awake; packets may then be late.

    Raises:
        LabError: a lab of that name is up already, or it could not be built; then nothing is left of it.
        PlaceError: a program or permission is missing, or the disk is full.
        UsageError: the topology is not valid, or asks for a QUIC server that this machine has only without QUIC.
    """
    path = find_topology(name)
    topology = load_topology(path)
    check_quic_here(topology, where=str(path))
    folder = lab_folder(topology.name)
    wait_abandoned(folder)
    with folder.locked() as lock:
        if lock is None:
            raise LabError(
                f"a lab named {topology.name} is already up or coming up",
                remedy=f"use it, or run: upshift lab down {topology.name}",
            )
        try:
            _remove_leftovers(folder)
            check_host()
            size = sum(file.size_bytes for server in topology.server for file in server.files)
            remedy = "free some space there or set UPSHIFT_STATE_DIR"
            check_room(folder.root, size, what="the lab's files", remedy=remedy)
            make_plan(topology, path.read_text(encoding="utf-8"), folder, let_cpus_sleep=let_cpus_sleep)
            own = {"pid": os.getpid(), "started_ticks": process.start_time_ticks(os.getpid()), "attached": attached}
            write_json(folder.owner, own)
            _start(folder, topology, lock, attached=attached, progress=progress)
        except BaseException:
            # The lock is ours or the ended holder's: no other process can be building here.
            _end_holder(folder)
            folder.remove()
            raise
    return folder


def wait_abandoned(folder: LabFolder) -> None:
    """Waits, for a bounded time, until a lab whose owner was killed has ended."""
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while folder.alive() and folder.abandoned() and time.monotonic() < deadline:
        time.sleep(0.02)


def _remove_leftovers(folder: LabFolder) -> None:
    """Removes the processes and files of a dead lab of that name. Call it with the lock held."""
    end_joined(folder)
    shutil.rmtree(folder.root, ignore_errors=True)


def check_host() -> None:
    """Raises LabError, with the remedy, if this host cannot run a lab. Server programs are checked by the planner."""
    for program, package in (
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
        ("mount", "mount"),
        ("ip", "iproute2"),
        ("sysctl", "procps"),
    ):
        process.require(program, package=package)
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise LabError(f"{TUN} cannot be used ({error.strerror}), so no lab can be built", remedy=TUN_REMEDY) from None
    tried = process.run([*_unshare(), "true"])
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LabError(f"no permission to create namespaces ({reason})", remedy=NAMESPACE_REMEDY)


def _unshare() -> list[str]:
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *own, "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private", "--"]


_started: list[process.Child] = []
"""Holders started by this process: dropping the reference to a running Popen would warn."""


def _start(folder: LabFolder, topology: Topology, lock: int, *, attached: bool, progress: Progress | None) -> None:
    owner = os.pidfd_open(os.getpid())
    # A duplicate, which `locked` does not close; the holder's copy keeps the lock.
    held = os.dup(lock)
    argv = [*_unshare(), sys.executable, "-P", "-m", "vantage.lab.holder", str(folder.root), "--owner-fd", str(owner)]
    try:
        child = process.start(
            argv + (["--attached"] if attached else []),
            stdout=True,
            stderr=folder.logs / "holder.log",
            env={**process.module_environment(), LAB_VARIABLE: str(folder.root)},
            cwd=Path("/"),
            pass_fds=[held, owner],
            outlive=True,
        )
    finally:
        os.close(owner)
        os.close(held)
    _started.append(child)
    _follow(child, folder, topology, progress)


def _follow(child: process.Child, folder: LabFolder, topology: Topology, progress: Progress | None) -> None:
    """Reads the holder's reports until it is ready. Raises LabError with its error message."""
    reports = child.stdout
    if reports is None:
        raise LabError("the lab's holder has no output")
    for line in reports:
        with suppress(json.JSONDecodeError):
            report: Mapping[str, Any] = json.loads(line)
            if report.get("ready"):
                reports.close()
                return
            if "failed" in report:
                raise LabError(report["failed"], remedy=report.get("remedy"))
            if progress and "step" in report:
                note = report["step"]
                progress.update(f"lab {topology.name}", done=report["done"], total=report["total"], note=note)
    log = folder.logs / "holder.log"
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
    raise LabError(f"the lab's holder ended while it built the lab ({tail[0] if tail else 'no error message'})")


def down(folder: LabFolder) -> bool:
    """Ends a lab and removes everything that belongs to it, even after a crash; False if there was nothing to remove.

    Raises LabError if it does not end.
    """
    there = folder.root.exists() or folder.lock.exists()
    if not there:
        return False
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while True:
        _end_holder(folder)
        end_joined(folder)
        with folder.locked() as lock:
            if lock is not None:
                folder.remove()
                return True
        if time.monotonic() > deadline:
            raise LabError(f"the lab {folder.name} does not end", where=str(folder.root), remedy="wait and try again")
        time.sleep(0.02)


def down_all(*, spare: Collection[str] = ()) -> list[str]:
    """Ends every lab of this state folder but those named; returns the names of those that it ended."""
    return [folder.name for folder in all_labs() if folder.name not in spare and down(folder)]


def _end_holder(folder: LabFolder) -> None:
    """Kills the holder; the kernel ends the rest of the lab with it. Also works before state.json exists."""
    state = folder.read_state()
    if state is not None and isinstance(state.get("started_ticks"), int):
        process.kill_and_wait(int(state["pid"]), int(state["started_ticks"]))
    for child in list(_started):
        if str(folder.root) in child.argv:
            child.stop(signal.SIGKILL)
            _started.remove(child)


def end_joined(folder: LabFolder) -> None:
    """Ends programs that `exec` or a campaign started in the lab and that are still running.

    Only those with this lab's mark in their environment *and* in a mount namespace other than ours.
    """
    mark = f"{LAB_VARIABLE}={folder.root}".encode()
    own = Path("/proc/self/ns/mnt").stat().st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            inside = (entry / "ns" / "mnt").stat().st_ino != own
            if inside and mark in (entry / "environ").read_bytes().split(b"\0"):
                pid = int(entry.name)
                started = process.start_time_ticks(pid)
                if started is not None:
                    process.kill_and_wait(pid, started, grace_s=1.0)


def choose(name: str | None) -> LabFolder:
    """The lab of that name that is up; without a name, the only one. Raises LabError."""
    alive = [folder for folder in all_labs() if folder.alive()]
    names = ", ".join(folder.name for folder in alive)
    if name is None:
        if len(alive) == 1:
            return alive[0]
        what = f"several labs are up ({names})" if alive else "no lab is up"
        raise LabError(what, remedy="choose one with --lab" if alive else "run: upshift lab up small")
    for folder in alive:
        if folder.name == name:
            return folder
    raise LabError(
        f"no lab named {name} is up", remedy=f"labs that are up: {names}" if alive else f"run: upshift lab up {name}"
    )


def lab_of(name: str | Path) -> LabFolder:
    """Folder of the lab that this topology makes, whether it is up or not."""
    return lab_folder(load_topology(name).name)


def usable(folder: LabFolder) -> bool:
    """Whether the lab is up, ready and healthy."""
    state = folder.read_state()
    return folder.alive() and not folder.abandoned() and state is not None and state.get("status") == "ready"
