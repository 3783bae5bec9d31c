"""Servers with manners, one per port: python _iw_servers.py CERTIFICATE KEY. Prints a line when ready."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable

RESETS, SILENT, CLOSES, BYTE_BY_BYTE, THINKS, TLS_1_2, NAGLE, NOT_TLS, SIZED = range(9001, 9010)
SYN_ACK_LOST, SYN_ACK_LOST_TWICE = range(9010, 9012)
"""As SIZED; the test loses SYN-ACKs of these."""
PAUSES = 9012

BIG = b"x" * 500_000


def ask(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (part := connection.recv(4096)):
        data += part
    return data


def resets(connection: socket.socket) -> None:
    ask(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(connection: socket.socket) -> None:
    ask(connection)
    connection.recv(1)


def closes(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)


def byte_by_byte(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask(connection)
    for _ in range(40):
        connection.sendall(b"x")
        time.sleep(0.05)


def thinks(connection: socket.socket) -> None:
    with tls(ssl.TLSVersion.TLSv1_3).wrap_socket(connection, server_side=True) as secure:
        ask(secure)
        time.sleep(0.7)
        secure.sendall(BIG)


def nagle(connection: socket.socket) -> None:
    """Nagle's algorithm holds the end of its handshake back until the start is acknowledged (RFC 9293, 3.7.4)."""
    with tls(ssl.TLSVersion.TLSv1_2).wrap_socket(connection, server_side=True) as secure:
        ask(secure)
        secure.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + BIG)


def tls_1_2(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nagle(connection)


def not_tls(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(BIG)


def sized(connection: socket.socket) -> None:
    """As many bytes as the path says; the connection stays open."""
    connection.sendall(b"x" * int(ask(connection).split()[1][1:]))
    connection.recv(1)


def pauses(connection: socket.socket) -> None:
    """A head of as many bytes as the path says, and 60 ms later the body, in pieces."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"x" * int(ask(connection).split()[1][1:]))
    time.sleep(0.06)
    for _ in range(20):
        connection.sendall(BIG[:8_192])
    connection.recv(1)


def tls(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    context.minimum_version = context.maximum_version = version
    return context


MANNERS: dict[int, Callable[[socket.socket], None]] = {
    RESETS: resets,
    SILENT: silent,
    CLOSES: closes,
    BYTE_BY_BYTE: byte_by_byte,
    THINKS: thinks,
    TLS_1_2: tls_1_2,
    NAGLE: nagle,
    NOT_TLS: not_tls,
    SIZED: sized,
    SYN_ACK_LOST: sized,
    SYN_ACK_LOST_TWICE: sized,
    PAUSES: pauses,
}


def serve(connection: socket.socket, manner: Callable[[socket.socket], None]) -> None:
    with connection, contextlib.suppress(OSError):
        manner(connection)


def listen(listener: socket.socket, manner: Callable[[socket.socket], None]) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, manner), daemon=True).start()


def main() -> None:
    for port, manner in MANNERS.items():
        listener = socket.create_server(("", port), backlog=100)
        threading.Thread(target=listen, args=(listener, manner), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
