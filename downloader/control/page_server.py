"""Serves the page of metrics over HTTP, to this host only."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from core.errors import PlaceError
from downloader.control.metrics import Endpoint


@contextlib.contextmanager
def serve(endpoint: Endpoint, page: Callable[[], str | None]) -> Iterator[None]:
    """Serves the page in a thread during the block; `page` gives None while there is none yet.

    Raises:
        PlaceError: the port or the file is in use, or cannot be made.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing must not hold the thread

        def do_GET(self) -> None:
            text = page() if self.path.partition("?")[0] in ("/", "/metrics") else None
            body = (text or "nothing here\n").encode()
            self.send_response(200 if text is not None else 404)
            kind = "text/plain; version=0.0.4; charset=utf-8" if text is not None else "text/plain; charset=utf-8"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "local"  # a Unix socket's client has no address

        def log_message(self, *_: object) -> None:
            pass

    server = _server(endpoint, Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        if endpoint.path is not None:
            endpoint.path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is not our concern."""


class _UnixServer(_Server):
    address_family = socket.AF_UNIX
    allow_reuse_address = False


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server(endpoint: Endpoint, handler: type[http.server.BaseHTTPRequestHandler]) -> socketserver.BaseServer:
    where = str(endpoint.path) if endpoint.path is not None else f"{endpoint.address} port {endpoint.port}"
    try:
        if endpoint.path is None:
            kind = _Server6 if ":" in endpoint.address else _Server
            return kind((endpoint.address, endpoint.port), handler)
        _remove_stale(endpoint.path)
        return _UnixServer(str(endpoint.path), handler)  # type: ignore[arg-type]
    except OSError as error:
        raise PlaceError(
            f"metrics cannot be served here ({(error.strerror or str(error)).lower()})",
            where=where,
            remedy="use another --metrics",
        ) from None


def _remove_stale(path: Path) -> None:
    """Removes the socket file of a process that was killed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink()
