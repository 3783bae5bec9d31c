"""A web server that misbehaves in a given way: TLS, HTTP/1.1, standard library only.

    fault_server.py KIND --root DIR --certificate FILE --key FILE

KIND, for every download: status_404; in the middle of the body reset, stall, or truncate (closes before Content-Length
is reached); challenge (a bot check), block (a CDN's refusal) or html_page (with status 200) instead of the file.

The other kinds are an edge with a cache whose header fields are those of a CDN: the first download of a file is a miss,
later ones are hits with an Age that grows. Every third answer differs: swapped (other bytes), resized (fewer bytes),
other_edge, other_age (of a copy that another machine has), other_etag; always_miss is never a hit.

`paced` answers correctly, but hands out `--chunk-bytes` of a body at once, and then every `--every-s`: its application
is slower than the path.

The start page (`/`) is served correctly, so that crawlers can visit.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from vantage.programs.dual_stack import DualStackServer

STALL_S = 3600.0
HANDSHAKE_TIMEOUT_S = 30.0

HALFWAY = ("reset", "stall", "truncate")
PAGES = {
    # A Cloudflare challenge, and a block by one of Akamai's edges, as they document them.
    "challenge": (403, {"Server": "cloudflare", "cf-mitigated": "challenge", "CF-RAY": "230b030023ae2822-LAB"}),
    "block": (403, {"Server": "AkamaiGHost"}),
    "html_page": (200, {}),
}
PAGE = b"<!doctype html>\n<title>Please wait</title>\n<p>Checking your browser.</p>\n"
EDGES = ("swapped", "resized", "other_edge", "other_age", "other_etag", "always_miss")
DIFFERENT = 3
"""Every so many answers of an edge one differs."""
OTHER_AGE_S = 1000
"""How much older the copy of the edge's other machine is."""


class FaultHandler(BaseHTTPRequestHandler):
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
        kind = "" if name == "index.html" else self.server.kind
        if not good or kind == "status_404":
            self.send_error(404)
            return
        body = file.read_bytes()
        status, fields = 200, dict[str, str]()
        if kind in PAGES:
            (status, fields), body = PAGES[kind], PAGE
        elif kind in EDGES and with_body:
            body, fields = self._of_edge(kind, body)
        is_html = name.endswith(".html") or kind in PAGES
        self._head(
            status, {"Content-Type": "text/html" if is_html else "application/octet-stream", **fields}, len(body)
        )
        if not with_body:
            return
        if kind in HALFWAY:
            self._half(kind, body)
        elif kind == "paced":
            self._piece_by_piece(body)
        else:
            self.wfile.write(body)

    def _head(self, status: int, fields: dict[str, str], length: int) -> None:
        self.send_response_only(status)
        for field, value in {"Server": self.server_version, **fields, "Content-Length": str(length)}.items():
            self.send_header(field, value)
        self.end_headers()

    def _of_edge(self, kind: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        """Body and header fields of the edge's next answer."""
        number, age_s = self.server.visit(self.path)
        missed = number == 0 or kind == "always_miss"
        differs = kind if number % DIFFERENT == DIFFERENT - 1 else ""
        if differs == "swapped":
            body = body[::-1]
        elif differs == "resized":
            body = body[:-1]
        elif differs == "other_age":
            age_s += OTHER_AGE_S
        fields = {
            "X-Cache": "Miss from cloudfront" if missed else "Hit from cloudfront",
            "X-Amz-Cf-Pop": "FRA56-P1" if differs == "other_edge" else "MUC50-P2",
            "ETag": '"second"' if differs == "other_etag" else '"first"',
        }
        return body, fields if missed else fields | {"Age": str(age_s)}

    def _piece_by_piece(self, body: bytes) -> None:
        size, begun = self.server.chunk_bytes, time.monotonic()
        for number, start in enumerate(range(0, len(body), size)):
            time.sleep(max(begun + number * self.server.every_s - time.monotonic(), 0.0))
            self.wfile.write(body[start : start + size])

    def _half(self, kind: str, body: bytes) -> None:
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True
        if kind == "stall":
            time.sleep(STALL_S)
        elif kind == "reset":
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


class FaultServer(DualStackServer):
    """Answers with one kind of fault."""

    request_queue_size = 64

    def __init__(
        self, kind: str, root: Path, context: ssl.SSLContext, *, chunk_bytes: int = 1, every_s: float = 0.0
    ) -> None:
        self.kind = kind
        self.chunk_bytes = chunk_bytes
        self.every_s = every_s
        self.root = root.resolve()
        self.context = context
        self._lock = threading.Lock()
        self._visits: dict[str, tuple[int, float]] = {}
        super().__init__(443, FaultHandler)

    def visit(self, path: str) -> tuple[int, int]:
        """How many answers with this path came before, and how long ago the first of them was [s]."""
        now = time.monotonic()
        with self._lock:
            number, stored = self._visits.get(path, (0, now))
            self._visits[path] = (number + 1, stored)
        return number, int(now - stored)


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kind", choices=["status_404", "paced", *HALFWAY, *PAGES, *EDGES])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--chunk-bytes", type=int, default=1, help="paced: bytes of a piece")
    parser.add_argument("--every-s", type=float, default=0.0, help="paced: time between two pieces [s]")
    options = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    context.set_alpn_protocols(["http/1.1"])
    server = FaultServer(options.kind, options.root, context, chunk_bytes=options.chunk_bytes, every_s=options.every_s)
    with server:
        server.serve_forever()


if __name__ == "__main__":
    main()
