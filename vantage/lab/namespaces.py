"""Namespaces of a lab, as its holder uses them: the private mount namespace, and a node entered by one thread.

The mount namespace has its own /run/netns and /etc/resolv.conf, everything else is as on the host.
"""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from core.errors import LabError
from core.system import process

RUN = Path("/run")
NETNS = RUN / "netns"


def private_netns_folder() -> None:
    """Covers /run/netns, where iproute2 keeps namespaces, with an empty file system that is private to the lab."""
    try:
        NETNS.mkdir(mode=0o755, exist_ok=True)
    except PermissionError:
        _private_run()
        NETNS.mkdir(mode=0o755, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-lab", str(NETNS))


def _private_run() -> None:
    """Covers /run with a folder that has the same entries, since only root can create /run/netns.

    Everything stays reachable at its path (this lab's own folder may be below /run/user).
    """
    staging = Path(tempfile.mkdtemp(prefix="upshift-run-"))
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-run", str(staging))
    for entry in RUN.iterdir():
        copy = staging / entry.name
        try:
            if entry.is_symlink():
                copy.symlink_to(entry.readlink())
            elif entry.is_dir():
                copy.mkdir()
                _mount("--rbind", str(entry), str(copy))
            else:
                copy.touch()
                _mount("--bind", str(entry), str(copy))
        except (OSError, LabError):
            continue  # if it cannot be bound, we may not use it either
    _mount("--move", str(staging), str(RUN))
    staging.rmdir()


def cover_resolv_conf(replacement: Path) -> None:
    """Makes programs in the lab use the lab's DNS server."""
    target = Path("/etc/resolv.conf")
    if target.exists():
        _mount("--bind", str(replacement), str(target.resolve()))


def _mount(*arguments: str) -> None:
    done = process.run(["mount", *arguments])
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LabError(f"mounting in the lab's own mount namespace failed ({reason})", remedy="see: upshift doctor")


CLONE_NEWNET = 0x40000000
CONNECT_TIMEOUT_S = 2.0

Result = TypeVar("Result")


def in_node(node: str, work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread that is in the node's network namespace (setns(2) moves one thread, here a new one)."""
    outcome: list[Result] = []
    faults: list[Exception] = []

    def body() -> None:
        try:
            descriptor = os.open(NETNS / node, os.O_RDONLY | os.O_CLOEXEC)
            try:
                library = ctypes.CDLL(None, use_errno=True)
                if library.setns(descriptor, CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(descriptor)
            outcome.append(work())
        except Exception as error:  # handed to the caller below
            faults.append(error)

    thread = threading.Thread(target=body, name=f"in {node}")
    thread.start()
    thread.join()
    if faults:
        if isinstance(faults[0], OSError):
            raise LabError(f"node {node} cannot be entered ({faults[0].strerror})") from None
        raise faults[0]
    return outcome[0]


def answers(node: str, address: str, port: int) -> bool:
    """Whether something in the node accepts connections there."""

    def connect() -> bool:
        try:
            with socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False

    return in_node(node, connect)


def udp_bound(node: str, port: int) -> bool:
    """Whether a UDP socket of the node is bound to the port (proc(5), /proc/net/udp)."""

    def look() -> bool:
        for table in ("udp", "udp6"):
            path = Path("/proc/thread-self/net", table)
            lines = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
            if any(int(line.split()[1].rpartition(":")[2], 16) == port for line in lines):
                return True
        return False

    return in_node(node, look)
