"""A server that misbehaves on purpose, over TLS/TCP (HTTP/1.1) and QUIC (HTTP/3) on one port of 127.0.0.1.

The path says how: /ok, /missing, /truncated, /stall, /stall-early, /trickle, /reset, /challenge, /garbage, /long,
/odd-length, /redirect. Started as `python _fault_server.py CERT KEY`; prints its port when it listens, and ends with
its standard input.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
import time

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

BODY = bytes(range(256)) * 400  # 102,400 bytes
CHALLENGE = ("cf-mitigated", "challenge")


def http1(path: str, sock: ssl.SSLSocket) -> None:
    def head(status: str, length: int | None, *more: tuple[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in more)]
        if length is not None:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "", ""]).encode()

    match path:
        case "/ok":
            sock.sendall(head("200 OK", len(BODY), ("age", "7")) + BODY)
        case "/truncated":
            sock.sendall(head("200 OK", len(BODY)) + BODY[:5000])
        case "/stall":
            sock.sendall(head("200 OK", len(BODY)) + BODY[:5000])
            time.sleep(20)
        case "/stall-early":
            time.sleep(20)
        case "/trickle":
            sock.sendall(head("200 OK", len(BODY)))
            for byte in BODY:
                sock.sendall(bytes([byte]))
                time.sleep(0.05)
        case "/reset":
            sock.sendall(head("200 OK", len(BODY)) + BODY[:5000])
            time.sleep(0.2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        case "/challenge":
            sock.sendall(head("403 Forbidden", 5, CHALLENGE) + b"robot")
        case "/garbage":
            sock.sendall(b"\x00\x01\x02 this is no HTTP\r\n\r\n")
        case "/long":
            sock.sendall(head("200 OK", 50_000) + BODY)
        case "/redirect":
            sock.sendall(head("302 Found", 0, ("location", "https://elsewhere.example/")))
        case _:
            sock.sendall(head("404 Not Found", 0))


def tcp(listener: socket.socket, context: ssl.SSLContext) -> None:
    def one(raw: socket.socket) -> None:
        try:
            with context.wrap_socket(raw, server_side=True) as sock:
                data = b""
                while b"\r\n\r\n" not in data:
                    more = sock.recv(4096)
                    if not more:
                        return
                    data += more
                http1(data.split()[1].decode(), sock)
        except OSError:
            pass  # the client may go away at any time

    while True:
        raw, _ = listener.accept()
        threading.Thread(target=one, args=(raw,), daemon=True).start()


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

        def head(status: int, length: int | None, *more: tuple[str, str]) -> None:
            fields = [(b":status", str(status).encode()), *((k.encode(), v.encode()) for k, v in more)]
            if length is not None:
                fields.append((b"content-length", str(length).encode()))
            http.send_headers(stream, fields, end_stream=False)

        match path:
            case "/ok":
                head(200, len(BODY), ("age", "7"))
                http.send_data(stream, BODY, end_stream=True)
            case "/truncated":
                head(200, len(BODY))
                http.send_data(stream, BODY[:5000], end_stream=True)
            case "/stall":
                head(200, len(BODY))
                http.send_data(stream, BODY[:5000], end_stream=False)
            case "/stall-early":
                return
            case "/trickle":
                head(200, len(BODY))
                for byte in BODY:
                    http.send_data(stream, bytes([byte]), end_stream=False)
                    self.transmit()
                    await asyncio.sleep(0.05)
            case "/reset":
                head(200, len(BODY))
                http.send_data(stream, BODY[:5000], end_stream=False)
                self.transmit()
                await asyncio.sleep(0.2)
                self._quic.close(error_code=0x102, reason_phrase="internal\x1b[31m error")
            case "/challenge":
                head(403, 5, CHALLENGE)
                http.send_data(stream, b"robot", end_stream=True)
            case "/garbage":
                # A DATA frame before any HEADERS (RFC 9114, section 4.1: H3_FRAME_UNEXPECTED).
                self._quic.send_stream_data(stream, b"\x00\x05hello", end_stream=True)
            case "/long":
                head(200, 50_000)
                http.send_data(stream, BODY, end_stream=True)
            case "/redirect":
                head(302, 0, ("location", "https://elsewhere.example/"))
                http.send_data(stream, b"", end_stream=True)
            case _:
                head(404, 0)
                http.send_data(stream, b"", end_stream=True)
        self.transmit()


async def main(certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False)
    configuration.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await serve("127.0.0.1", port, configuration=configuration, create_protocol=Http3)
    threading.Thread(target=tcp, args=(listener, context), daemon=True).start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
