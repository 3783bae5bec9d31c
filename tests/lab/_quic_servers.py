"""Servers of the QUIC survey's tests, on loopback addresses of a namespace: aioquic's, honest and not, and impostors.

usage: _quic_servers.py CERT KEY LOG   (prints `ready`; appends one line for every request and every datagram of the
impostors: ADDRESS and what came)
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

V1, V2, DRAFT_29 = 0x00000001, 0x6B3343CF, 0xFF00001D
LOG = Path(sys.argv[3]).open("a", buffering=1) if len(sys.argv) > 3 else sys.stderr  # noqa: SIM115 - as long as we live


class Answering(QuicConnectionProtocol):
    """HTTP/3 by aioquic."""

    http: H3Connection | None = None
    address = ""

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for answer in self.http.handle_event(event):
            if isinstance(answer, HeadersReceived):
                headers = dict(answer.headers)
                print(self.address, headers[b":method"].decode(), headers[b":authority"].decode(), file=LOG)
                self.answer(answer.stream_id)
                self.transmit()

    def answer(self, stream: int) -> None:
        assert self.http is not None
        fields = [(b":status", b"103"), (b"link", b"</style>")]
        self.http.send_headers(stream, fields)
        fields = [(b":status", b"204"), (b"server", b"aioquic"), (b"alt-svc", b'h3=":443"; ma=60')]
        self.http.send_headers(stream, fields, end_stream=True)


class Stalling(Answering):
    def answer(self, stream: int) -> None:
        """Nothing comes."""


class Resetting(Answering):
    def answer(self, stream: int) -> None:
        self._quic.reset_stream(stream, 0x010B)  # H3_REQUEST_REJECTED


class Closing(Answering):
    def answer(self, stream: int) -> None:
        self._quic.close(error_code=0x2, frame_type=0x0, reason_phrase="go away")


class Bodiless(Answering):
    """A response that is none."""

    def answer(self, stream: int) -> None:
        assert self.http is not None
        self._quic.send_stream_data(stream, b"\x01\x02\x00\x00", end_stream=True)  # HEADERS without a field


class Impostor(asyncio.DatagramProtocol):
    """Answers each datagram by what `forge` makes of it."""

    def __init__(self, address: str, forge: Callable[[bytes], bytes | None]) -> None:
        self.address, self.forge = address, forge

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        print(self.address, "datagram", len(data), data[1:5].hex(), file=LOG)
        answer = self.forge(data)
        if answer is not None:
            self.transport.sendto(answer, peer)


def ids(data: bytes) -> tuple[bytes, bytes]:
    """Destination and source connection ID of a long header."""
    end = 6 + data[5]
    return data[6:end], data[end + 1 : end + 1 + data[end]]


def negotiation(versions: list[int], *, swap: bool = True, cut: int = 0) -> Callable[[bytes], bytes]:
    def forge(data: bytes) -> bytes:
        destination, source = ids(data)
        first, second = (source, destination) if swap else (destination, source)
        packet = b"\x80\0\0\0\0" + bytes([len(first)]) + first + bytes([len(second)]) + second
        packet += b"".join(v.to_bytes(4, "big") for v in versions)
        return packet[: len(packet) - cut]

    return forge


def echo(data: bytes) -> bytes:
    return negotiation([V1, int.from_bytes(data[1:5], "big")])(data)


IMPOSTORS: dict[str, Callable[[bytes], bytes | None]] = {
    "127.0.2.1": lambda data: None,  # silent
    "127.0.2.2": negotiation([0x1A2A3A4A, V1, V1, DRAFT_29]),
    "127.0.2.3": negotiation([DRAFT_29, 0xFF00001B]),
    "127.0.2.4": lambda data: os.urandom(60),
    "127.0.2.5": negotiation([V1], swap=False),
    "127.0.2.6": negotiation([V1], cut=2),
    "127.0.2.7": echo,
    "127.0.2.8": negotiation([0, 0x0A0A0A0A, 0x5A6A7A8A] * 300),
    "127.0.2.9": lambda data: None,  # nobody may send anything here
    "127.0.5.1": lambda data: None,  # nor here: it is on the block list
}


class Relay(asyncio.DatagramProtocol):
    """Passes all that a client says, and the first datagram only of what the server answers."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.upstream: dict[Any, Any] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        asyncio.get_running_loop().create_task(self._pass(data, peer))

    async def _pass(self, data: bytes, peer: Any) -> None:
        relay = self

        class Back(asyncio.DatagramProtocol):
            passed = 0

            def datagram_received(self, data: bytes, _: Any) -> None:
                self.passed += 1
                if self.passed == 1:
                    relay.transport.sendto(data, peer)

        if peer not in self.upstream:
            loop = asyncio.get_running_loop()
            self.upstream[peer], _ = await loop.create_datagram_endpoint(Back, remote_addr=self.server)
        self.upstream[peer].sendto(data)


async def main() -> None:
    certificate, key = sys.argv[1:3]

    async def aioquic(address: str, protocol: type[Answering], *, retry: bool = False, **how: Any) -> None:
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"], **how)
        configuration.load_cert_chain(certificate, key)
        made = type(protocol.__name__, (protocol,), {"address": address})
        await serve(address, 443, configuration=configuration, create_protocol=made, retry=retry)

    await aioquic("127.0.1.2", Answering)
    await aioquic("::1", Answering)
    await aioquic("127.0.1.4", Answering, retry=True)
    await aioquic("127.0.1.5", Answering, supported_versions=[V2], original_version=V2)
    await aioquic("127.0.1.6", Stalling)
    await aioquic("127.0.1.7", Resetting)
    await aioquic("127.0.1.8", Closing)
    await aioquic("127.0.1.9", Bodiless)
    loop = asyncio.get_running_loop()
    for address, forge in IMPOSTORS.items():
        await loop.create_datagram_endpoint(lambda a=address, f=forge: Impostor(a, f), local_addr=(address, 443))
    await loop.create_datagram_endpoint(lambda: Relay(("127.0.1.2", 443)), local_addr=("127.0.2.10", 443))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
