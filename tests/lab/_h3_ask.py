"""Asks a server over HTTP/3, by aioquic: one connection per request.

usage: _h3_ask.py CA ADDRESS < REQUESTS   JSON: [{"host", "method", "path", "headers"}], answered by
[{"status", "headers": [[name, value]], "size", "sha256", "error"}]
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio.client import connect
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset

TIMEOUT_S = 20.0


class _Http(H3Connection):
    """aioquic takes the Content-Length of an answer to HEAD for a promise of data."""

    def _check_content_length(self, stream: object) -> None:
        """Nothing to check."""


class Asking(QuicConnectionProtocol):
    """One request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.http = _Http(self._quic)
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answer: dict[str, Any] = {"headers": [], "size": 0}
        self.hash = hashlib.sha256()

    def ask(self, host: str, method: str, path: str, headers: dict[str, str]) -> None:
        stream = self._quic.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "https", ":authority": host, ":path": path, **headers}
        encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
        self.http.send_headers(stream, encoded, end_stream=True)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        for answer in self.http.handle_event(event):
            self._take(answer)
        if isinstance(event, StreamReset | ConnectionTerminated) and not self.done.done():
            self.done.set_result(type(event).__name__)

    def _take(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            self.answer["headers"] = [(name.decode(), value.decode()) for name, value in event.headers]
        elif isinstance(event, DataReceived):
            self.answer["size"] += len(event.data)
            self.hash.update(event.data)
        if isinstance(event, HeadersReceived | DataReceived) and event.stream_ended and not self.done.done():
            self.done.set_result("")


async def main() -> None:
    ca, address = sys.argv[1:3]
    answers = []
    for request in json.load(sys.stdin):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=request["host"])
        configuration.load_verify_locations(ca)
        try:
            async with connect(address, 443, configuration=configuration, create_protocol=Asking) as asking:
                assert isinstance(asking, Asking)
                asking.ask(request["host"], request["method"], request["path"], request["headers"])
                error = await asyncio.wait_for(asking.done, TIMEOUT_S)
                answer = {**asking.answer, "error": error, "sha256": asking.hash.hexdigest()}
        except ConnectionError as fault:
            answer = {"headers": [], "size": 0, "error": type(fault).__name__, "sha256": ""}
        pseudo = [value for name, value in answer["headers"] if name == ":status"]
        answer["status"] = int(pseudo[0]) if pseudo else 0
        answer["headers"] = [pair for pair in answer["headers"] if not pair[0].startswith(":")]
        answers.append(answer)
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main())
