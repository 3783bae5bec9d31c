"""A client's ClientHello (RFC 8446, section 4.1.2), read from its first packets as a server would read it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from aioquic.buffer import Buffer
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicFrameType,
    QuicTransportParameters,
    pull_quic_header,
    pull_quic_transport_parameters,
)
from aioquic.tls import ExtensionType, Group, pull_client_hello

_TLS_RECORD_HEADER = 5


@dataclass(frozen=True, slots=True)
class Hello:
    size: int
    """Of the message, without records, frames and packets around it [bytes]."""
    key_shares: list[int]
    groups: list[int]
    parameters: QuicTransportParameters | None
    """Of QUIC (RFC 9000, section 18.2)."""


def from_tcp(listener: socket.socket) -> Hello:
    """The hello of the next connection; it has to arrive in the first segment (RFC 8446, section 5.1: one record)."""
    connection, _ = listener.accept()
    with connection:
        segment = connection.recv(65535)
    assert segment[0] == 22, "a handshake record"
    length = int.from_bytes(segment[3:5])
    message = segment[_TLS_RECORD_HEADER:]
    assert len(message) == length, f"{len(message)} of {length} bytes in the first segment"
    return _read(message)


def from_quic(endpoint: socket.socket) -> Hello:
    """The hello in the next datagram, a client's first Initial packet (RFC 9001, section 5.2)."""
    datagram = endpoint.recv(65535)
    buffer = Buffer(data=datagram)
    header = pull_quic_header(buffer, host_cid_length=8)
    crypto = CryptoPair()
    crypto.setup_initial(header.destination_cid, is_client=False, version=header.version or 1)
    _, payload, _ = crypto.decrypt_packet(datagram[: header.packet_length], buffer.tell(), 0)
    return _read(_crypto_data(payload))


def _crypto_data(payload: bytes) -> bytes:
    """The bytes of the CRYPTO frames from offset 0 on; whole, or the packet holds only a part."""
    buffer, parts = Buffer(data=payload), {}
    while not buffer.eof():
        match buffer.pull_uint_var():
            case QuicFrameType.PADDING | QuicFrameType.PING:
                continue
            case QuicFrameType.CRYPTO:
                offset = buffer.pull_uint_var()
                parts[offset] = buffer.pull_bytes(buffer.pull_uint_var())
            case other:
                raise AssertionError(f"frame {other:#x} in a first Initial")
    data = b""
    for offset in sorted(parts):
        assert offset == len(data), "a part of the hello is in another packet"
        data += parts[offset]
    return data


def _read(message: bytes) -> Hello:
    assert len(message) == 4 + int.from_bytes(message[1:4]), f"{len(message)} bytes are a part of the hello"
    hello = pull_client_hello(Buffer(data=message))
    assert Group.GREASE not in (hello.supported_groups or [])
    quic = dict(hello.other_extensions or []).get(ExtensionType.QUIC_TRANSPORT_PARAMETERS)
    return Hello(
        size=len(message),
        key_shares=[int(group) for group, _ in hello.key_share or []],
        groups=list(hello.supported_groups or []),
        parameters=None if quic is None else pull_quic_transport_parameters(Buffer(data=quic)),
    )
