"""Servers that misbehave on purpose, over TLS/TCP (HTTP/1.1, HTTP/2) and QUIC (HTTP/3), on ports of 127.0.0.1.

Started as `python _fault_server.py CERT KEY`; prints a JSON object of its ports when it listens, and ends with its
standard input. Each port is the same for TCP and UDP. On `answers` the path says how; the other ports are faults of the
handshake and of QUIC's limits:

    silent   takes connections and datagrams, and says nothing
    closing  closes as soon as the client has spoken
    refusing (QUIC) the same, with CONNECTION_REFUSED
    notify   (TCP) ends TLS's stream in its handshake, by close_notify
    alert    refuses the handshake by a TLS alert
    no_alpn  (QUIC) agrees on no protocol of the application
    forged   (QUIC) signs its handshake with another key than its certificate's
    version  (QUIC) speaks a version of QUIC that nobody knows
    zero     (QUIC) answers like `answers`, but grants no stream and no byte
    credit   (QUIC) the same, until CREDIT_S after the first datagram
    closed   nobody listens
    full     (TCP) the queue of connections is full, so that the kernel drops SYNs
    plain    (TCP) answers a ClientHello by HTTP
    old      (TCP) speaks no version of TLS after 1.1

The ports `expired`, `not_yet_valid`, `wrong_name`, `unknown_ca` and `self_signed` are like `answers`, with the
certificate PORT.pem beside CERT.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import encode_quic_version_negotiation, pull_quic_header
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import ProtocolError

BODY = bytes(range(256)) * 400  # 102,400 bytes
BYTES = "/bytes/"
"""What follows in the path, in hexadecimal, is the answer: on the connection, or on HTTP/3's stream; then its end."""
LATER = "/later"
"""After those of HTTP/3: the end comes 0.2 s later, on its own."""
ECHO = "/echo/"
"""A path that begins so is the answer's etag."""
CREDIT_S = 0.3
LATE_S = 2.6
"""When /late sends its headers."""
NOT_TLS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
AGAIN_S = 1.0
"""How long after a refusal /refused-once answers."""
refused_at = [0.0]
HOLD_S = 20.0
"""How long a server holds a connection on which it has nothing more to say."""

Fields = tuple[tuple[str, str], ...]
OK = "200"
LENGTH: Fields = (("content-length", str(len(BODY))),)

ANSWERS: dict[str, tuple[str, Fields, bytes, bool]] = {
    # path: status, fields, body, whether the stream then ends
    "/ok": (OK, (*LENGTH, ("age", "7"), ("x-cache", "a"), ("x-cache", "b"), ("etag", '"e"')), BODY, True),
    "/no-length": (OK, (), BODY, True),
    "/empty": (OK, (("content-length", "0"),), b"", True),
    "/open-end": (OK, LENGTH, BODY, False),
    "/no-length-open": (OK, (), BODY[:5000], False),
    "/truncated": (OK, LENGTH, BODY[:5000], True),
    "/stall": (OK, LENGTH, BODY[:5000], False),
    "/long": (OK, (("content-length", "50000"),), BODY, True),
    "/negative-length": (OK, (("content-length", "-5"),), BODY, True),
    "/odd-length": (OK, (("content-length", "many"),), BODY, True),
    "/huge-length": (OK, (("content-length", str((1 << 64) - 1)),), BODY, True),
    "/two-lengths": (OK, (("content-length", "5"), ("content-length", "6")), BODY, True),
    "/no-content": ("204", (), b"", True),
    "/partial": ("206", (("content-length", "5"),), BODY[:5], True),
    "/redirect": ("302", (("content-length", "0"), ("location", "https://elsewhere.example/")), b"", True),
    "/redirect-open": ("302", (("location", "https://elsewhere.example/"),), BODY, False),
    "/challenge": ("403", (("content-length", "5"), ("cf-mitigated", "challenge")), b"robot", True),
    "/waf": ("202", (("content-length", "5"), ("x-amzn-waf-action", "challenge")), b"robot", True),
    "/block": ("403", (("content-length", "5"), ("server", "AkamaiGHost")), b"<html", True),
    "/limited": ("429", (("content-length", "5"), ("server", "cloudflare")), b"error", True),
    "/forbidden": (
        "403",
        (("content-length", "5"), ("server", "cloudflare"), ("cf-cache-status", "DYNAMIC")),
        b"no",
        True,
    ),
    "/fields-300": (OK, tuple((f"x{number}", "y") for number in range(300)), b"", True),
    "/fields-5001": (OK, tuple((f"x{number}", "y") for number in range(5001)), b"", True),
    "/long-field": (OK, (("x", "y" * 150_000),), b"", True),
    "/long-fields": (OK, tuple((f"x{number}", "y" * 70_000) for number in range(6)), b"", True),
    "/bad-status": ("abc", LENGTH, BODY, True),
    "/low-status": ("099", LENGTH, BODY, True),
    "/switching": ("101", (), b"", False),
}


class Http1:
    """Answers one request over HTTP/1.1."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock

    def path(self) -> str | None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.sock.recv(4096)
            if not more:
                return None
            data += more
        return data.split()[1].decode()

    def head(self, status: str, fields: Fields) -> None:
        lines = [f"HTTP/1.1 {status} x", *(f"{k}: {v}" for k, v in fields), "", ""]
        self.sock.sendall("\r\n".join(lines).encode())

    def data(self, body: bytes, *, ends: bool = False) -> None:
        self.sock.sendall(body)

    def garbage(self) -> None:
        self.sock.sendall(b"\x00\x01\x02 this is no HTTP\r\n\r\n")

    def reset_stream(self) -> None:
        reset(self.sock)


class Http2:
    """Answers one request over HTTP/2."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock, self.stream, self.asked = sock, 0, ""
        lax = H2Configuration(client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = H2Connection(lax)
        self.h2.initiate_connection()

    def path(self) -> str | None:
        while not self.asked:
            if not self.take():
                return None
        return self.asked

    def take(self) -> bool:
        self.sock.sendall(self.h2.data_to_send())
        data = self.sock.recv(65535)
        for event in self.h2.receive_data(data) if data else ():
            if isinstance(event, RequestReceived):
                self.stream, self.asked = event.stream_id, dict(event.headers)[b":path"].decode()
        return bool(data)

    def head(self, status: str, fields: Fields) -> None:
        self.h2.send_headers(self.stream, [(":status", status), *fields])
        self.sock.sendall(self.h2.data_to_send())

    def data(self, body: bytes, *, ends: bool = False) -> None:
        while body:
            room = min(self.h2.local_flow_control_window(self.stream), self.h2.max_outbound_frame_size)
            if not room and not self.take():
                return
            self.h2.send_data(self.stream, body[:room])
            body = body[room:]
            self.sock.sendall(self.h2.data_to_send())
        if ends:
            self.h2.end_stream(self.stream)
            self.until_it_goes()

    def garbage(self) -> None:
        # DATA before any HEADERS (RFC 9113, section 8.1: malformed).
        self.sock.sendall(b"\x00\x00\x05\x00\x01" + self.stream.to_bytes(4) + b"hello")
        self.until_it_goes()

    def reset_stream(self, code: int = 0x2) -> None:
        self.h2.reset_stream(self.stream, code)
        self.until_it_goes()

    def until_it_goes(self) -> None:
        while self.take():
            pass


def over_tcp(path: str, to: Http1 | Http2) -> None:
    if path in ANSWERS:
        status, fields, body, ends = ANSWERS[path]
        to.head(status, fields)
        to.data(body, ends=ends)
        if not ends:
            time.sleep(HOLD_S)
        return
    if path.startswith(BYTES):
        to.sock.sendall(bytes.fromhex(path.removeprefix(BYTES)))
        if isinstance(to, Http2):  # its client says more, and a close would then be a reset
            to.sock.shutdown(socket.SHUT_WR)
            while to.sock.recv(65535):
                pass
        return
    match path:
        case _ if path.startswith(ECHO):
            to.head(OK, (("content-length", "0"), ("etag", path)))
            to.data(b"", ends=True)
        case "/interim":
            to.head("103", (("link", "</x>; rel=preload"),))
            to.head("102", ())
            to.head("100", ())
            to.head(OK, LENGTH)
            to.data(BODY, ends=True)
        case "/interim-for-ever":
            while True:
                to.head("103", ())
                time.sleep(0.05)
        case "/no-response":
            return
        case "/silence":
            time.sleep(HOLD_S)
        case "/late":
            time.sleep(LATE_S)
            to.head(OK, LENGTH)
            time.sleep(HOLD_S)
        case "/trickle":
            to.head(OK, LENGTH)
            for byte in BODY:
                to.data(bytes([byte]))
                time.sleep(0.05)
        case "/reset" | "/reset-stream":
            to.head(OK, LENGTH)
            to.data(BODY[:5000])
            time.sleep(0.2)
            if path == "/reset":
                reset(to.sock)
            else:
                to.reset_stream()
        case "/reset-no-error" if isinstance(to, Http2):
            to.head(OK, ())
            to.data(BODY[:5000])
            time.sleep(0.2)
            to.reset_stream(0)
        case "/not-tls":
            to.head(OK, LENGTH)
            to.data(BODY[:5000])
            time.sleep(0.2)
            with socket.socket(fileno=os.dup(to.sock.fileno())) as under:
                under.sendall(NOT_TLS)
                time.sleep(1)  # a close would be a reset, as we have not read the client's alert
        case "/garbage":
            to.garbage()
        case "/refused-once" if isinstance(to, Http2) and time.monotonic() - refused_at[-1] > AGAIN_S:
            refused_at.append(time.monotonic())
            to.reset_stream(0x7)  # REFUSED_STREAM: it may be asked for again (RFC 9113, section 8.7)
        case "/refused-once":
            to.head(OK, LENGTH)
            to.data(BODY, ends=True)
        case _:
            to.head("404", (("content-length", "0"),))
            to.data(b"", ends=True)


def reset(sock: socket.socket) -> None:
    """Closes with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def each(listener: socket.socket, serve_one: Callable[[socket.socket], None]) -> None:
    """A thread that serves the listener's connections, each in a thread of its own."""

    def one(raw: socket.socket) -> None:
        with contextlib.suppress(OSError, ProtocolError):  # the client may go away, or reset its stream, at any time
            serve_one(raw)

    def accept() -> None:
        while True:
            raw, _ = listener.accept()
            threading.Thread(target=one, args=(raw,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def tls(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    def answer(raw: socket.socket) -> None:
        with context.wrap_socket(raw, server_side=True) as sock:
            to = Http2(sock) if sock.selected_alpn_protocol() == "h2" else Http1(sock)
            if (path := to.path()) is not None:
                over_tcp(path, to)

    return answer


def hold(raw: socket.socket) -> None:
    with raw:
        time.sleep(HOLD_S)


def close(raw: socket.socket) -> None:
    with raw:
        raw.recv(65535)


def alert(raw: socket.socket) -> None:
    with raw:
        raw.recv(65535)
        raw.sendall(bytes([21, 3, 3, 0, 2, 2, 40]))  # fatal, handshake_failure (RFC 8446, section 6)
        raw.recv(65535)


def close_politely(raw: socket.socket) -> None:
    with raw:
        raw.recv(65535)
        raw.sendall(bytes([21, 3, 3, 0, 2, 1, 0]))  # warning, close_notify
        raw.recv(65535)


def answer_plainly(raw: socket.socket) -> None:
    with raw:
        raw.recv(65535)
        raw.sendall(NOT_TLS)
        raw.recv(65535)


class Http3(QuicConnectionProtocol):
    http: H3Connection | None = None

    def quic_event_received(self, event):
        if self.http is None:
            self.http = H3Connection(self._quic)
        for answer in self.http.handle_event(event):
            if isinstance(answer, HeadersReceived):
                path = dict(answer.headers)[b":path"].decode()
                asyncio.get_running_loop().create_task(self.answer(answer.stream_id, path))

    async def answer(self, stream: int, path: str) -> None:
        http = self.http
        assert http is not None

        def head(status: str, fields: Fields) -> None:
            http.send_headers(stream, [(k.encode(), v.encode()) for k, v in ((":status", status), *fields)])

        if path in ANSWERS:
            status, fields, body, ends = ANSWERS[path]
            head(status, fields)
            if body or ends:
                http.send_data(stream, body, end_stream=ends)
            self.transmit()
            return
        if path.startswith(BYTES):
            answer, later = bytes.fromhex(path.removeprefix(BYTES).removesuffix(LATER)), path.endswith(LATER)
            self._quic.send_stream_data(stream, answer, end_stream=not later)
            self.transmit()
            if later:
                await asyncio.sleep(0.2)
                self._quic.send_stream_data(stream, b"", end_stream=True)
                self.transmit()
            return
        match path:
            case _ if path.startswith(ECHO):
                head(OK, (("content-length", "0"), ("etag", path)))
                http.send_data(stream, b"", end_stream=True)
            case "/interim":
                head("103", (("link", "</x>; rel=preload"),))
                head("102", ())
                head("100", ())
                head(OK, LENGTH)
                http.send_data(stream, BODY, end_stream=True)
            case "/interim-for-ever":
                while True:
                    head("103", ())
                    self.transmit()
                    await asyncio.sleep(0.05)
            case "/no-response":
                self._quic.close(error_code=0x102, reason_phrase="no")
            case "/silence":
                return
            case "/stream-limit":  # data on a stream that no client allows (RFC 9000, section 4.6)
                self._quic._remote_max_streams_uni = 1 << 40
                self._quic.send_stream_data((1 << 32) + 3, b"x")
            case "/window":  # what the client lets us send at once
                head(OK, (("content-length", "0"), ("etag", str(self._quic._streams[stream].max_stream_data_remote))))
                http.send_data(stream, b"", end_stream=True)
            case "/late":
                await asyncio.sleep(LATE_S)
                head(OK, LENGTH)
            case "/trickle":
                head(OK, LENGTH)
                for byte in BODY:
                    http.send_data(stream, bytes([byte]), end_stream=False)
                    self.transmit()
                    await asyncio.sleep(0.05)
            case "/reset-no-error":
                head(OK, ())
                http.send_data(stream, BODY[:5000], end_stream=False)
                self.transmit()
                await asyncio.sleep(0.2)
                self._quic.reset_stream(stream, 0x100)
            case "/reset" | "/reset-stream":
                head(OK, LENGTH)
                http.send_data(stream, BODY[:5000], end_stream=False)
                self.transmit()
                await asyncio.sleep(0.2)
                if path == "/reset":
                    self._quic.close(error_code=0x102, reason_phrase="internal\x1b[31m error")
                else:
                    self._quic.reset_stream(stream, 0x102)
            case "/stateless-reset":  # as a server that was started anew: it knows the connection no more
                head(OK, LENGTH)
                http.send_data(stream, BODY[:5000], end_stream=False)
                self.transmit()
                await asyncio.sleep(0.2)
                token = self._quic._host_cids[0].stateless_reset_token
                self._transport.sendto(b"\x40" + bytes(40) + token, self._quic._network_paths[0].addr)
                return
            case "/garbage":
                # A DATA frame before any HEADERS (RFC 9114, section 4.1: H3_FRAME_UNEXPECTED).
                self._quic.send_stream_data(stream, b"\x00\x05hello", end_stream=True)
            case _:
                head("404", (("content-length", "0"),))
                http.send_data(stream, b"", end_stream=True)
        self.transmit()


class Closing(QuicConnectionProtocol):
    """Closes with an error of QUIC, INTERNAL_ERROR, instead of a handshake, and repeats it (RFC 9000, 10.2.1)."""

    error = 0x1
    farewell: tuple[bytes, ...] = ()

    def datagram_received(self, data, addr):
        if not self.farewell:
            now = asyncio.get_running_loop().time()
            self._quic.receive_datagram(data, addr, now=now)
            self._quic.close(error_code=self.error, frame_type=0, reason_phrase="not today")
            self.farewell = tuple(packet for packet, _ in self._quic.datagrams_to_send(now))
        for packet in self.farewell:
            self._transport.sendto(packet, addr)


class Refusing(Closing):
    """The same with CONNECTION_REFUSED."""

    error = 0x2


class Zero(Http3):
    """Grants no stream and no byte: limits that RFC 9000, section 18.2 allows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for limit in self.limits():
            limit.value = limit.sent = 0

    def limits(self):
        return (self._quic._local_max_data, self._quic._local_max_streams_bidi, self._quic._local_max_streams_uni)


class Credit(Zero):
    """Grants both a little later."""

    granted = False

    def datagram_received(self, data, addr):
        super().datagram_received(data, addr)
        if not self.granted:
            self.granted = True
            asyncio.get_running_loop().call_later(CREDIT_S, self.grant)

    def grant(self) -> None:
        for limit in self.limits():
            limit.value = 1 << 20
        self._quic.send_ping(1)  # aioquic writes limits when it has something to send
        self.transmit()


class Silent(asyncio.DatagramProtocol):
    pass


class OtherVersion(asyncio.DatagramProtocol):
    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data, addr) -> None:
        header = pull_quic_header(Buffer(data=data), host_cid_length=8)
        known = [0x1A2A3A4A]  # reserved to exercise version negotiation (RFC 9000, section 15)
        packet = encode_quic_version_negotiation(
            source_cid=header.destination_cid, destination_cid=header.source_cid, supported_versions=known
        )
        self.transport.sendto(packet, addr)


def pair() -> tuple[socket.socket, int]:
    """A TCP listener, and its port, which is free for UDP too."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                listener.close()
                continue
        return listener, port


def full() -> tuple[socket.socket, list[socket.socket]]:
    """A listener whose queue is full, and what fills it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = [socket.socket() for _ in range(3)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    return listener, waiting


async def main(certificate: str, key: str) -> None:
    def context(certificate: str = certificate, key: str = key) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(certificate, key)
        made.set_alpn_protocols(["h2", "http/1.1"])
        return made

    old = context()
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1

    async def quic(
        port: int,
        protocol: type[QuicConnectionProtocol],
        alpn: list[str] | None = H3_ALPN,
        chain: str = certificate,
        key: str = key,
    ) -> None:
        configuration = QuicConfiguration(alpn_protocols=alpn, is_client=False)
        configuration.load_cert_chain(chain, key)
        await serve("127.0.0.1", port, configuration=configuration, create_protocol=protocol)

    async def datagrams(port: int, protocol: type[asyncio.DatagramProtocol]) -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(protocol, local_addr=("127.0.0.1", port))

    ports = {}
    for name in ("expired", "not_yet_valid", "wrong_name", "unknown_ca", "self_signed"):
        chain = str(Path(certificate).with_name(f"{name}.pem"))  # with its key
        listener, ports[name] = pair()
        each(listener, tls(context(chain, chain)))
        await quic(ports[name], Http3, chain=chain, key=chain)
    closed, ports["closed"] = socket.socket(), 0
    closed.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it
    ports["closed"] = closed.getsockname()[1]
    queue = full()
    ports["full"] = queue[0].getsockname()[1]
    for name, of_tcp, of_quic in (
        ("plain", answer_plainly, lambda port: datagrams(port, Silent)),
        ("old", tls(old), lambda port: datagrams(port, Silent)),
        ("answers", tls(context()), lambda port: quic(port, Http3)),
        ("silent", hold, lambda port: datagrams(port, Silent)),
        ("notify", close_politely, lambda port: datagrams(port, Silent)),
        ("closing", close, lambda port: quic(port, Closing)),
        ("refusing", hold, lambda port: quic(port, Refusing)),
        ("alert", alert, lambda port: quic(port, Http3, ["another"])),
        ("no_alpn", hold, lambda port: quic(port, Http3, None)),
        ("forged", hold, lambda port: quic(port, Http3, key=str(Path(certificate).with_name("wrong_name.pem")))),
        ("version", hold, lambda port: datagrams(port, OtherVersion)),
        ("zero", hold, lambda port: quic(port, Zero)),
        ("credit", hold, lambda port: quic(port, Credit)),
    ):
        listener, ports[name] = pair()
        each(listener, of_tcp)
        await of_quic(ports[name])
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
