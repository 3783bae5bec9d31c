"""What the lab's own servers in Python share: a thread per connection, IPv4 and IPv6 on one socket."""

from __future__ import annotations

import contextlib
import socket
import socketserver
from pathlib import Path


class DualStackServer(socketserver.ThreadingTCPServer):
    """Listens on all addresses: IPv4, and IPv6 if the host has it."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if Path("/proc/net/if_inet6").exists() else socket.AF_INET
        super().__init__(("::" if self.address_family == socket.AF_INET6 else "0.0.0.0", port), handler)  # noqa: S104

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect early."""

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            super().shutdown_request(request)
