"""A web server whose downloads fail in a given way: TLS, HTTP/1.1, standard library only.

    fault_server.py KIND --root DIR --certificate FILE --key FILE [--port 443]

KIND: status_404; or in the middle of the body reset, stall, or truncate (closes before Content-Length is reached). The
start page (`/`) is served correctly, so that crawlers can visit.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import socketserver
import ssl
import struct
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

STALL_S = 3600.0
HANDSHAKE_TIMEOUT_S = 30.0


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server_version = "upshift-fault"
    sys_version = ""
    timeout = HANDSHAKE_TIMEOUT_S
    server: FaultServer

    def setup(self) -> None:
        # In the connection's own thread: a client that never finishes the handshake does not block others.
        self.request.settimeout(HANDSHAKE_TIMEOUT_S)
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = self.path.partition("?")[0].lstrip("/") or "index.html"
        file = (self.server.root / name).resolve()
        good = file.is_relative_to(self.server.root) and file.is_file()
        if not good or (self.server.kind == "status_404" and name != "index.html"):
            self.send_error(404)
            return
        body = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if name.endswith(".html") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        if name == "index.html":
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True
        if self.server.kind == "stall":
            time.sleep(STALL_S)
        elif self.server.kind == "reset":
            # SO_LINGER of 0 s: close sends RST (tcp(7)). Wait first: a reset also discards what is not yet sent.
            time.sleep(1.0)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            # With TLS close_notify, so that only the missing bytes show the fault.
            self.connection.settimeout(2.0)
            with contextlib.suppress(OSError):
                self.request.unwrap()

    def log_message(self, format: str, *args: object) -> None:
        pass


class FaultServer(socketserver.ThreadingTCPServer):
    """Listens on all addresses: IPv4, and IPv6 if the host has it."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, kind: str, root: Path, context: ssl.SSLContext, port: int) -> None:
        self.kind = kind
        self.root = root.resolve()
        self.context = context
        self.address_family = socket.AF_INET6 if Path("/proc/net/if_inet6").exists() else socket.AF_INET
        super().__init__(("::" if self.address_family == socket.AF_INET6 else "0.0.0.0", port), Handler)  # noqa: S104

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect early."""

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            super().shutdown_request(request)


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kind", choices=["status_404", "reset", "stall", "truncate"])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--port", type=int, default=443)
    options = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    context.set_alpn_protocols(["http/1.1"])
    with FaultServer(options.kind, options.root, context, options.port) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
