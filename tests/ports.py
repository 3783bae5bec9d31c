"""Ports of loopback for programs that a test starts."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = (20_000, 32_000)
"""Linux gives these to nobody who has not asked for them (ip_local_port_range, ip-sysctl)."""


def free_port() -> int:
    """A port that is free for TCP and UDP on 127.0.0.1."""
    draw = random.SystemRandom()
    for _ in range(50):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            port = draw.randrange(*BELOW_EPHEMERAL)
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
