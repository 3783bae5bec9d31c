"""AS paths from the path attributes of a BGP route.

Sources: RFC 4271, sections 4.3 (attribute format) and 5.1.2 (AS_PATH); RFC 5065 (confederation segments); RFC 6793,
section 4.2.3 (AS4_PATH beside a path of 2-byte numbers); RFC 6396, section 4.3.4 (in TABLE_DUMP_V2 all AS numbers of
a path have 4 bytes). Notation of a path as bgpdump and BGPStream write it: `701 6453 {64,65}`.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

AS_SET, AS_SEQUENCE, AS_CONFED_SEQUENCE, AS_CONFED_SET = 1, 2, 3, 4

_AS_PATH, _AS4_PATH = 2, 17
_EXTENDED_LENGTH = 0x10

_NOTATION = {
    AS_SET: ("{", ",", "}"),
    AS_SEQUENCE: ("", " ", ""),
    AS_CONFED_SEQUENCE: ("(", " ", ")"),
    AS_CONFED_SET: ("[", ",", "]"),
}

_CONFEDERATION = re.compile(r"\([^)]*\)|\[[^\]]*\]")

NO_ORIGIN = 0
"""Origin of a path that is empty, ends in AS 0, or holds reserved numbers only."""
SET_ORIGIN = -1
"""Origin of a path that ends in an AS_SET or in AS_TRANS: it has one, unknown which."""
AS_TRANS = 23456
"""Stands for a number of 4 bytes that a router of 2-byte numbers could not pass on (RFC 6793, section 4.2.2)."""


class Segment(NamedTuple):
    kind: int
    asns: tuple[int, ...]


class PathError(ValueError):
    """The attributes are malformed; the message says how."""


def is_reserved(asn: int) -> bool:
    """Whether no organisation can hold this number: RFC 6996 (private), 7607 (0), 6793 (23456), 5398, 7300; IANA's
    registry (65552 to 131071)."""
    if asn < 64496:
        return asn in (0, AS_TRANS)
    return asn <= 131071 or asn >= 4_200_000_000


def _origin_at(asn: int) -> int | None:
    """The origin by a number at the tail; None for one that leaked. AS 0 withdraws a route (RFC 7607, section 2)."""
    if asn == AS_TRANS:
        return SET_ORIGIN
    return None if asn and is_reserved(asn) else asn


def segments(attributes: bytes, *, as_bytes: int) -> tuple[Segment, ...]:
    """The AS path, with 2-byte numbers corrected by AS4_PATH where present. Raises PathError."""
    path: tuple[Segment, ...] = ()
    newer: tuple[Segment, ...] | None = None
    position = 0
    end = len(attributes)
    while position < end:
        if position + 3 > end:
            raise PathError("a path attribute is truncated")
        flags, kind = attributes[position], attributes[position + 1]
        if flags & _EXTENDED_LENGTH:
            length = int.from_bytes(attributes[position + 2 : position + 4], "big")
            position += 4
        else:
            length = attributes[position + 2]
            position += 3
        if position + length > end:
            raise PathError(f"path attribute {kind} claims {length} bytes, {max(end - position, 0)} are left")
        if kind == _AS_PATH:
            path = _parse(attributes[position : position + length], as_bytes)
        elif kind == _AS4_PATH and as_bytes == 2:
            newer = _parse(attributes[position : position + length], 4)
        position += length
    return path if newer is None else _merge(path, newer)


def _parse(data: bytes, as_bytes: int) -> tuple[Segment, ...]:
    segments = []
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise PathError("an AS path segment is truncated")
        kind, count = data[position], data[position + 1]
        stop = position + 2 + count * as_bytes
        if kind not in _NOTATION or stop > len(data):
            raise PathError(f"an AS path has a segment of type {kind} and {count} numbers that does not fit")
        code = f">{count}{'H' if as_bytes == 2 else 'I'}"
        segments.append(Segment(kind, struct.unpack_from(code, data, position + 2)))
        position = stop
    return tuple(segments)


def _hops(path: tuple[Segment, ...]) -> int:
    """Path length as RFC 4271, section 9.1.2.2 and RFC 5065, section 5.3 count: a set is one, confederations none."""
    return sum(1 if s.kind == AS_SET else len(s.asns) if s.kind == AS_SEQUENCE else 0 for s in path)


def _merge(path: tuple[Segment, ...], newer: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """RFC 6793, section 4.2.3: the leading part of AS_PATH that AS4_PATH lacks, then AS4_PATH."""
    surplus = _hops(path) - _hops(newer)
    if surplus < 0:
        return path
    merged: list[Segment] = []
    for segment in path:
        if segment.kind in (AS_CONFED_SEQUENCE, AS_CONFED_SET):
            merged.append(segment)
            continue
        if surplus <= 0:
            break
        if segment.kind == AS_SET:
            merged.append(segment)
            surplus -= 1
            continue
        merged.append(Segment(AS_SEQUENCE, segment.asns[:surplus]))
        surplus -= len(merged[-1].asns)
    for segment in newer:
        if segment.kind == AS_SEQUENCE and merged and merged[-1].kind == AS_SEQUENCE:
            merged[-1] = Segment(AS_SEQUENCE, merged[-1].asns + segment.asns)
        else:
            merged.append(segment)
    return tuple(merged)


def text(path: tuple[Segment, ...]) -> str:
    """The path as bgpdump writes it."""
    parts = []
    for segment in path:
        opening, separator, closing = _NOTATION[segment.kind]
        parts.append(opening + separator.join(map(str, segment.asns)) + closing)
    return " ".join(parts)


def origin(path: tuple[Segment, ...]) -> int | None:
    """The AS that announced the route: the last number; None for an AS_SET, an empty path, a confederation only."""
    for segment in reversed(path):
        if segment.kind == AS_SET:
            return None
        if segment.kind == AS_SEQUENCE and segment.asns:
            return segment.asns[-1]
    return None


def public_origin(path: tuple[Segment, ...]) -> int:
    """The last AS that an organisation can hold: private and reserved tails are skipped.

    A customer without its own AS number often uses a private one towards its provider, and that number leaks; the
    provider is then the AS that announces the address. Returns `SET_ORIGIN` if an AS_SET or AS_TRANS comes first,
    `NO_ORIGIN` if AS 0 does, or no such AS is left.
    """
    for segment in reversed(path):
        if segment.kind == AS_SET:
            return SET_ORIGIN
        if segment.kind == AS_SEQUENCE:
            for asn in reversed(segment.asns):
                if (found := _origin_at(asn)) is not None:
                    return found
    return NO_ORIGIN


def quick_public_origin(attributes: bytes) -> int:
    """`public_origin` of attributes with 4-byte numbers, with a fast path for nearly all routes.

    Nearly every route begins with ORIGIN (40 01 01 xx), then AS_PATH with a single AS_SEQUENCE; its last number can be
    read directly. Anything else is parsed completely. Raises PathError.
    """
    if attributes[:3] == b"\x40\x01\x01" and attributes[5:6] == b"\x02":
        flags = attributes[4]
        start = 8 if flags & _EXTENDED_LENGTH else 7
        length = int.from_bytes(attributes[6:8], "big") if flags & _EXTENDED_LENGTH else attributes[6]
        end = start + length
        if (
            end <= len(attributes)
            and length > 2
            and attributes[start] == AS_SEQUENCE
            and length == 2 + 4 * attributes[start + 1]
        ):
            found = _origin_at(int.from_bytes(attributes[end - 4 : end], "big"))
            if found is not None:
                return found
    return public_origin(segments(attributes, as_bytes=4))


def origin_of_text(path: str) -> int | None:
    """`origin` of a path in the notation of `text`."""
    parts = path.split() if "(" not in path and "[" not in path else _CONFEDERATION.sub(" ", path).split()
    return int(parts[-1]) if parts and not parts[-1].startswith("{") else None


def public_origin_of_text(path: str) -> int:
    """`public_origin` of a path in the notation of `text`. Raises PathError."""
    for part in reversed(_CONFEDERATION.sub(" ", path).split()):
        if part.startswith("{"):
            return SET_ORIGIN
        try:
            found = _origin_at(int(part))
        except ValueError:
            raise PathError(f"{part!r} is not a valid AS number") from None
        if found is not None:
            return found
    return NO_ORIGIN
