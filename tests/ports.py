"""Ports of loopback for programs that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free for TCP and UDP on 127.0.0.1 at this moment."""
    for _ in range(50):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port: int = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
