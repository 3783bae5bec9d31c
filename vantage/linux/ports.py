"""Which local ports are in use in a network namespace, by the kernel's tables of sockets (proc(5), /proc/PID/net)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal


def local_ports(protocol: Literal["tcp", "udp"], pid: int | str = "self", *, unconnected: bool = False) -> set[int]:
    """Local ports of the sockets of both families.

    Args:
        pid: a process in the network namespace, as /proc names it.
        unconnected: only of sockets without a peer: TCP sockets that listen, and UDP sockets of servers.
    """
    ports = set()
    for table in (protocol, f"{protocol}6"):
        with suppress(OSError):  # no IPv6, or the process has ended
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                local, peer = line.split()[1:3]
                if not unconnected or peer.strip("0") == ":":
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports
