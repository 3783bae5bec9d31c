"""A web server for the sites that Caddy cannot serve: TLS, HTTP/1.1, standard library only.

    site_server.py SITES.json --certificates DIR --log FILE [--port 443]

SITES.json is host -> path -> answer, with the fields of `vantage.server_kind.SiteAnswer`; DIR has HOST.pem and
HOST.key. Each request leaves one JSON line in FILE, with the names that Caddy's access log uses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any, TextIO

IDLE_S = 30.0
HANG_S = 3600.0
PIECE = 16_384
SEND_BUFFER = 65_536
"""Small, so that most of what was sent has arrived: the log should show how far a client read."""

REASONS = {200: "OK", 301: "Moved Permanently", 302: "Found", 404: "Not Found", 405: "Method Not Allowed"}
TYPES = {"html": "text/html; charset=utf-8", "txt": "text/plain", "": "text/html; charset=utf-8"}
MISSING = {"status": 404, "text": "There is no such page.\n"}


class ConnectionEndedError(Exception):
    """The connection ends without an answer."""


class SiteRequest:
    """One request, and the values of its log line."""

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.host = self.headers.get("host", "").partition(":")[0]
        self.began = time.time()
        self.status = 0
        self.sent = 0

    def line(self, client: str) -> str:
        request = {
            "remote_ip": client,
            "method": self.method,
            "host": self.host,
            "uri": self.path,
            "headers": {"User-Agent": [self.headers.get("user-agent", "")]},
        }
        now = time.time()
        facts = {"ts": now, "duration": now - self.began, "status": self.status, "size": self.sent, "request": request}
        return json.dumps(facts) + "\n"


class SiteServer:
    """Answers connections from the table of sites."""

    def __init__(self, sites: dict[str, dict[str, Any]], log: TextIO) -> None:
        self._sites = sites
        self._log = log

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection, with any number of requests."""
        client = str(writer.get_extra_info("peername")[0]).removeprefix("::ffff:")
        writer.transport.set_write_buffer_limits(high=PIECE)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, ConnectionEndedError):
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
                request = SiteRequest(head)
                try:
                    await self._answer(request, reader, writer)
                finally:
                    self._log.write(request.line(client))
                    self._log.flush()
        writer.transport.abort()

    async def _answer(self, request: SiteRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = request.path.partition("?")[0]
        answer = self._sites.get(request.host, {}).get(path, MISSING)
        await asyncio.sleep(answer.get("delay_s", 0.0))
        if answer.get("fault"):
            await self._break(answer["fault"], writer)
        request.status = answer["status"] if request.method == "GET" or answer.get("head", True) else 405
        size = answer.get("size")
        length = len(answer["text"].encode()) if size is None else size
        chunked = request.status == 200 and not answer.get("length", True)
        kind = TYPES.get(path.rpartition(".")[2] if "." in path else "", "application/octet-stream")
        lines = [f"HTTP/1.1 {request.status} {REASONS.get(request.status, 'Status')}", f"Content-Type: {kind}"]
        lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}")
        if answer.get("location"):
            lines.append(f"Location: {answer['location']}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if request.method != "HEAD":
            body = answer["text"].encode() if size is None else None
            for start in range(0, length, PIECE):
                piece = bytes(min(PIECE, length - start)) if body is None else body[start : start + PIECE]
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await writer.drain()
                # Over TLS drain() does not let the event loop run when the socket is gone: asyncio would discard the
                # rest of the file, and the log would say that all of it was sent.
                await asyncio.sleep(0)
                if reader.at_eof():
                    raise ConnectionEndedError("the client has closed")
                request.sent += len(piece)
            if chunked:
                writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _break(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "hang":
            await asyncio.sleep(HANG_S)
        elif fault == "nonsense":
            writer.write(b"\x00\xff\x00 220 no web server here\r\n\r\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        else:
            # SO_LINGER of 0 s: close sends RST (tcp(7)).
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionEndedError(fault)


def context_for(hosts: list[str], certificates: Path) -> ssl.SSLContext:
    """Certificates by SNI; a context is created when its host is first requested."""
    made: dict[str, ssl.SSLContext] = {}

    def own(host: str) -> ssl.SSLContext:
        if host not in made:
            context = made[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / f"{host}.pem", certificates / f"{host}.key")
            context.set_alpn_protocols(["http/1.1"])
        return made[host]

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name in known:
            connection.context = own(name)

    known = set(hosts)
    first = own(hosts[0])
    first.sni_callback = choose
    return first


async def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sites", type=Path)
    parser.add_argument("--certificates", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=443)
    options = parser.parse_args()
    sites = json.loads(options.sites.read_text(encoding="utf-8"))
    with options.log.open("a", encoding="utf-8") as log:
        server = SiteServer(sites, log)
        context = context_for(list(sites), options.certificates)
        # Without a host it listens on all addresses, IPv4 and (where there is one) IPv6.
        listening = await asyncio.start_server(server.serve, None, options.port, ssl=context, backlog=256)
        for bound in listening.sockets:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
