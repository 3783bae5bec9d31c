"""HTTP/3 by aioquic, which spins (RFC 9000, section 17.4): any path gives the same number of zero bytes, or one file.

usage: _h3_server.py ADDRESS CERT KEY BYTES|FILE   (UDP port 443; prints `ready`)
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated


class Answering(QuicConnectionProtocol):
    """One client's connection."""

    http: H3Connection | None = None
    body = b""

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for request in self.http.handle_event(event):
            if isinstance(request, HeadersReceived):
                fields = [(b":status", b"200"), (b"content-length", str(len(self.body)).encode())]
                self.http.send_headers(request.stream_id, fields)
                self.http.send_data(request.stream_id, self.body, end_stream=True)
                self.transmit()


async def main() -> None:
    address, certificate, key, served = sys.argv[1:5]
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(certificate, key)
    Answering.body = bytes(int(served)) if served.isdecimal() else Path(served).read_bytes()
    await serve(address, 443, configuration=configuration, create_protocol=Answering)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
