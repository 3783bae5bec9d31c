"""MRT files as a stream of records (RFC 6396, section 2: common header of timestamp, type, subtype, length)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from cdn_mapping.inflate import Inflated
from core.errors import UsageError

HEADER = struct.Struct(">4xHHI")  # the timestamp is skipped: a RIB is one moment
HEADER_BYTES = HEADER.size

MAX_RECORD_BYTES = 1 << 24
"""Far above any RIB record: 65,535 entries of a hundred bytes are 6.5 MB. A longer one is not MRT, or is damaged."""


TABLE_DUMP, TABLE_DUMP_V2 = 12, 13
"""The types that hold RIBs (RFC 6396, section 4). Plain numbers: an IntEnum costs a tenth of the total time."""

_KNOWN_TYPES = frozenset(range(14)) | {16, 17, 32, 33, 48, 49}
"""IANA's registry of MRT types, the deprecated ones (0-10) included."""


Record = tuple[int, int, int, bytes]
"""One MRT record: offset of its header in the plain (inflated) data [byte], type, subtype, body.

A plain tuple, as a RIB has a million records: a named tuple takes six times as long to make.
"""


class MrtFile:
    """Iterates over the records of a file once, in bounded memory.

    Attributes:
        path: the file.
        truncated_at: offset in the inflated data of the record that is incomplete, or of the end of a compressed
            stream that was cut between two records; None if the file appears complete. A plain file that was cut
            exactly between two records cannot be detected.
        size_bytes, read_bytes: size on disk and how much of it has been read, for progress.
    """

    def __init__(self, path: Path, *, on_read: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.truncated_at: int | None = None
        self._source = Inflated(path)
        self._on_read = on_read

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    @property
    def read_bytes(self) -> int:
        return self._source.read_bytes

    def __iter__(self) -> Iterator[Record]:
        unpack = HEADER.unpack_from
        buffer = b""
        base = 0  # offset of buffer[0] in the inflated data
        position = 0
        for chunk in self._source:
            buffer = buffer[position:] + chunk if position < len(buffer) else chunk
            base += position
            position = 0
            end = len(buffer)
            while end - position >= HEADER_BYTES:
                kind, subtype, length = unpack(buffer, position)
                if kind not in _KNOWN_TYPES or length > MAX_RECORD_BYTES:
                    raise self._not_mrt(base + position, kind, length)
                stop = position + HEADER_BYTES + length
                if stop > end:
                    break
                yield base + position, kind, subtype, buffer[position + HEADER_BYTES : stop]
                position = stop
            if self._on_read is not None and self.read_bytes < self.size_bytes:
                self._on_read(self.read_bytes, self.size_bytes)
        if self._on_read is not None:  # once, also if the last piece decompresses to nothing or is skipped
            self._on_read(self.size_bytes, self.size_bytes)
        if position < len(buffer) or self._source.cut or base + len(buffer) == 0:
            self.truncated_at = base + position

    def _not_mrt(self, offset: int, kind: int, length: int) -> UsageError:
        if kind not in _KNOWN_TYPES:
            what = f"at byte {offset} of the inflated data: record type {kind} does not exist in MRT"
        else:
            what = f"the record at byte {offset} of the inflated data claims {length} bytes"
        remedy = "fetch the file again" if offset else "give a RIB in MRT format (RouteViews rib.*, RIS bview.*)"
        return UsageError(what, where=str(self.path), remedy=remedy)
