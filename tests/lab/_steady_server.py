"""One file at one pace over HTTP/1.1 on TLS and over HTTP/3 (aioquic): the application is the limit, not the transport.

usage: _steady_server.py ADDRESS PORT CERT KEY BYTES CHUNK INTERVAL_S   (TCP and UDP; prints `ready`)
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

ADDRESS, PORT, CERT, KEY, BYTES, CHUNK, INTERVAL_S = sys.argv[1:8]


async def write_steadily(write: Callable[[bytes, bool], None]) -> None:
    """Calls `write(data, is_last)` for each chunk when its time has come; late chunks do not delay later ones."""
    loop = asyncio.get_running_loop()
    start, left, number = loop.time(), int(BYTES), 0
    while left:
        await asyncio.sleep(max(start + number * float(INTERVAL_S) - loop.time(), 0))
        data = bytes(min(left, int(CHUNK)))
        left, number = left - len(data), number + 1
        write(data, not left)


class Answering(QuicConnectionProtocol):
    """One client's connection over HTTP/3."""

    http: H3Connection | None = None

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if (http := self.http) is None:
            return
        for request in http.handle_event(event):
            if isinstance(request, HeadersReceived):
                stream = request.stream_id
                http.send_headers(stream, [(b":status", b"200"), (b"content-length", BYTES.encode())])

                def write(data: bytes, is_last: bool, stream: int = stream) -> None:
                    http.send_data(stream, data, end_stream=is_last)
                    self.transmit()

                self.task = asyncio.create_task(write_steadily(write))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client's connection over HTTP/1.1; the head goes with the first chunk, as over HTTP/3."""
    await reader.readuntil(b"\r\n\r\n")
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n".encode()

    def write(data: bytes, _: bool) -> None:
        nonlocal head
        writer.write(head + data)
        head = b""

    await write_steadily(write)
    await writer.drain()
    writer.close()


async def main() -> None:
    quic = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    quic.load_cert_chain(CERT, KEY)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CERT, KEY)
    tls.set_alpn_protocols(["http/1.1"])
    await serve(ADDRESS, int(PORT), configuration=quic, create_protocol=Answering)
    await asyncio.start_server(answer, ADDRESS, int(PORT), ssl=tls)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
