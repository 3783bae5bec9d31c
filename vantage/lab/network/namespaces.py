"""Enters a network namespace in one thread of this process, for quick checks of a node."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from core.errors import LabError

NETNS = "/run/netns"
CLONE_NEWNET = 0x40000000
CONNECT_TIMEOUT_S = 2.0

Result = TypeVar("Result")


def in_node(node: str, work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread that is in the node's network namespace (setns(2) moves one thread, here a new one)."""
    outcome: list[Result] = []
    faults: list[Exception] = []

    def body() -> None:
        try:
            descriptor = os.open(f"{NETNS}/{node}", os.O_RDONLY | os.O_CLOEXEC)
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
