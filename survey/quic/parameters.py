"""Transport parameters as a server sends them: RFC 9000, section 18; RFC 9221; RFC 9287; RFC 9368.

aioquic keeps only those that it knows. A survey needs all of them, also unknown and reserved ones, in the server's
order, which differs between implementations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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
        for key, value in self.entries:
            if key == identifier:
                try:
                    read, end = _varint(value, 0)
                except ValueError:
                    return None
                return read if end == len(value) else None
        return None

    def has(self, identifier: int) -> bool:
        return any(key == identifier for key, _ in self.entries)

    def as_json(self) -> str:
        """Name (or `0x..` for a number that is not in these RFCs) -> number, or bytes as hexadecimal; order is kept."""
        document: dict[str, int | str] = {}
        for identifier, value in self.entries:
            name = _NAMES.get(identifier, f"{identifier:#x}")
            read = self.number(identifier) if identifier in NUMBERS else None
            document[name] = read if read is not None else ("" if identifier in _SECRETS else value.hex())
        return json.dumps(document)


def read(data: bytes) -> Parameters:
    """The extension's content as parameters. Raises ValueError if it is cut."""
    entries, position = [], 0
    while position < len(data):
        identifier, position = _varint(data, position)
        length, position = _varint(data, position)
        if position + length > len(data):
            raise ValueError("a transport parameter is truncated")
        entries.append((identifier, data[position : position + length]))
        position += length
    return Parameters(tuple(entries))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A variable-length integer (RFC 9000, section 16) and where it ends. Raises ValueError if it is cut."""
    if position >= len(data):
        raise ValueError("a number is missing")
    size = 1 << (data[position] >> 6)
    raw = data[position : position + size]
    if len(raw) < size:
        raise ValueError("a number is truncated")
    return int.from_bytes(raw, "big") & ((1 << (8 * size - 2)) - 1), position + size
