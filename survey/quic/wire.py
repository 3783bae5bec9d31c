"""QUIC as bytes: forced version negotiation (one datagram out, one list of versions back), and transport parameters.

Sources: RFC 8999 (invariants of all QUIC versions), RFC 9000 sections 5.2.2, 6, 14.1, 15 and 17.2.1; for transport
parameters RFC 9000 section 18, RFC 9221, RFC 9287, RFC 9368. aioquic keeps only the parameters that it knows. A survey
needs all of them, also unknown and reserved ones, in the server's order, which differs between implementations.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from enum import StrEnum

from aioquic._buffer import Buffer, BufferReadError

PADDED_BYTES = 1_200
"""RFC 9000, section 14.1: smallest datagram that may begin a connection [bytes]."""

CONNECTION_ID_BYTES = 8
"""RFC 9000, section 7.2: a client's first destination connection ID has at least 8 bytes. We use 8 for both."""

MOST_VERSIONS = 64
"""Most versions of a list that are kept."""

VERSION_1, VERSION_2 = 0x00000001, 0x6B3343CF
"""RFC 9000, RFC 9369."""


class Flaw(StrEnum):
    """Why an answer is not a valid Version Negotiation packet for our probe."""

    NOT_LONG = "not_long"
    """Short header: its first bit is 0."""
    NOT_NEGOTIATION = "not_negotiation"
    """Long header of some version, not of version 0."""
    TRUNCATED = "truncated"
    """It is truncated within its connection IDs, or within a version."""
    EMPTY = "empty"
    """It lists no version."""
    WRONG_CONNECTION_ID = "wrong_connection_id"
    """It does not echo ours (RFC 9000, section 17.2.1)."""
    ECHOED_VERSION = "echoed_version"
    """It lists the version of our probe (RFC 9000, section 6.2: to be discarded)."""
    NO_VERSION = "no_version"
    """It lists only reserved versions and 0."""


class FlawedError(ValueError):
    """An invalid answer."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.value)
        self.flaw = flaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probe's version and connection IDs; an answer must echo the IDs."""

    version: int
    destination_id: bytes
    source_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOffer:
    """The versions that a server lists."""

    versions: tuple[int, ...]
    """Versions in the server's order, without duplicates, reserved ones and 0; at most `MOST_VERSIONS`."""
    greased: bool
    """The list has a reserved version (RFC 9000, section 6.3)."""
    duplicates: bool
    """The list has a duplicate."""


def is_reserved(version: int) -> bool:
    """Whether a version is one that exercises negotiation: 0x?a?a?a?a (RFC 9000, section 15)."""
    return version & 0x0F0F0F0F == 0x0A0A0A0A


def new_probe() -> Probe:
    """A probe with a random reserved version and random connection IDs."""
    version = random.getrandbits(32) & 0xF0F0F0F0 | 0x0A0A0A0A
    return Probe(
        version=version, destination_id=os.urandom(CONNECTION_ID_BYTES), source_id=os.urandom(CONNECTION_ID_BYTES)
    )


def datagram(probe: Probe, size_bytes: int = PADDED_BYTES) -> bytes:
    """The probe's bytes: a long header with both upper bits set, as in an Initial, then zeros.

    What follows the connection IDs belongs to a version that does not exist, so it is not interpreted.

    Args:
        probe: its version and connection IDs.
        size_bytes: size of the UDP payload; at least that of the header.
    """
    header = b"\xc0" + probe.version.to_bytes(4, "big")
    for connection_id in (probe.destination_id, probe.source_id):
        header += bytes([len(connection_id)]) + connection_id
    return header.ljust(size_bytes, b"\0")


def peek(answer: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Version, destination and source connection ID, and the rest of a long-header packet (RFC 8999, section 5.1).

    Connection IDs may have up to 255 bytes: their length depends on the version. Raises FlawedError.
    """
    if not answer or not answer[0] & 0x80:
        raise FlawedError(Flaw.NOT_LONG)
    if len(answer) < 6:
        raise FlawedError(Flaw.TRUNCATED)
    destination_end = 6 + answer[5]
    if len(answer) <= destination_end:
        raise FlawedError(Flaw.TRUNCATED)
    source_end = destination_end + 1 + answer[destination_end]
    if len(answer) < source_end:
        raise FlawedError(Flaw.TRUNCATED)
    version = int.from_bytes(answer[1:5], "big")
    return version, answer[6:destination_end], answer[destination_end + 1 : source_end], answer[source_end:]


def read_offer(answer: bytes, probe: Probe) -> VersionOffer:
    """The versions that an answer to this probe lists. Raises FlawedError."""
    version, destination_id, source_id, body = peek(answer)
    if version != 0:
        raise FlawedError(Flaw.NOT_NEGOTIATION)
    if destination_id != probe.source_id or source_id != probe.destination_id:
        raise FlawedError(Flaw.WRONG_CONNECTION_ID)
    if not body:
        raise FlawedError(Flaw.EMPTY)
    if len(body) % 4:
        raise FlawedError(Flaw.TRUNCATED)
    listed = [int.from_bytes(body[start : start + 4], "big") for start in range(0, len(body), 4)]
    if probe.version in listed:
        raise FlawedError(Flaw.ECHOED_VERSION)
    versions = tuple(dict.fromkeys(v for v in listed if v and not is_reserved(v)))
    if not versions:
        raise FlawedError(Flaw.NO_VERSION)
    return VersionOffer(
        versions=versions[:MOST_VERSIONS],
        greased=any(map(is_reserved, listed)),
        duplicates=len(set(listed)) < len(listed),
    )


NUMBERS: dict[int, str] = {
    0x01: "max_idle_timeout_ms",
    0x03: "max_udp_payload_size_bytes",
    0x04: "initial_max_data_bytes",
    0x05: "initial_max_stream_data_bidi_local_bytes",
    0x06: "initial_max_stream_data_bidi_remote_bytes",
    0x07: "initial_max_stream_data_uni_bytes",
    0x08: "initial_max_streams_bidi",
    0x09: "initial_max_streams_uni",
    0x0A: "ack_delay_exponent",
    0x0B: "max_ack_delay_ms",
    0x0E: "active_connection_id_limit",
    0x20: "max_datagram_frame_size_bytes",
}
"""Parameters that are one number -> our name, with its unit."""

DISABLE_ACTIVE_MIGRATION = 0x0C
"""A flag: present or not."""

_NAMES = {
    **NUMBERS,
    0x00: "original_destination_connection_id",
    0x02: "stateless_reset_token",
    0x0C: "disable_active_migration",
    0x0D: "preferred_address",
    0x0F: "initial_source_connection_id",
    0x10: "retry_source_connection_id",
    0x11: "version_information",
    0x2AB2: "grease_quic_bit",
}

_SECRETS = frozenset({0x02})
"""A stateless reset token can end connections, so it must not be published."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters of one side, in its order: (number, value)."""

    entries: tuple[tuple[int, bytes], ...]

    def number(self, identifier: int) -> int | None:
        """A parameter that is one number; None if it is absent or not a number."""
        buffer = Buffer(data=next((value for key, value in self.entries if key == identifier), b""))
        try:
            number = buffer.pull_uint_var()
        except BufferReadError:
            return None
        return number if buffer.eof() else None

    def has(self, identifier: int) -> bool:
        return any(key == identifier for key, _ in self.entries)

    def as_json(self) -> str:
        """Name (or `0x..` for a number that is not in these RFCs) -> number, or bytes as hexadecimal; order is kept."""
        document: dict[str, int | str] = {}
        for identifier, value in self.entries:
            name = _NAMES.get(identifier, f"{identifier:#x}")
            number = self.number(identifier) if identifier in NUMBERS else None
            document[name] = number if number is not None else ("" if identifier in _SECRETS else value.hex())
        return json.dumps(document)


def read_parameters(data: bytes) -> Parameters:
    """The extension's content as parameters. Raises ValueError if it is cut."""
    entries, buffer = [], Buffer(data=data)
    while not buffer.eof():
        identifier = buffer.pull_uint_var()
        entries.append((identifier, buffer.pull_bytes(buffer.pull_uint_var())))
    return Parameters(tuple(entries))
