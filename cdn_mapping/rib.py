"""RIB dumps, entry by entry: our own streaming MRT reader.

Reads TABLE_DUMP (RFC 6396, section 4.2) and TABLE_DUMP_V2 (section 4.3) with the ADD-PATH subtypes of RFC 8050, IPv4
and IPv6 unicast, plain or compressed. It filters nothing: default routes, AS_SETs and private numbers are returned as
they are; `cdn_mapping.votes` decides what to drop.

    reader = RibReader(Path("rib.20260101.0000.bz2"))
    for entry in reader:
        print(entry.prefix, entry.origin)
    if reader.truncated:
        print("the file is cut at byte", reader.truncated_at)
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop
from typing import NamedTuple

from cdn_mapping import as_path
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
    """

    def __init__(self, path: Path, *, on_read: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.truncated_at: int | None = None
        self._source = Inflated(path)
        self._on_read = on_read

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
            if self._on_read is not None and self._source.read_bytes < self._source.size_bytes:
                self._on_read(self._source.read_bytes, self._source.size_bytes)
        if self._on_read is not None:  # once, also if the last piece decompresses to nothing or is skipped
            self._on_read(self._source.size_bytes, self._source.size_bytes)
        if position < len(buffer) or self._source.cut or base + len(buffer) == 0:
            self.truncated_at = base + position

    def _not_mrt(self, offset: int, kind: int, length: int) -> UsageError:
        if kind not in _KNOWN_TYPES:
            what = f"at byte {offset} of the inflated data: record type {kind} does not exist in MRT"
        else:
            what = f"the record at byte {offset} of the inflated data claims {length} bytes"
        remedy = "fetch the file again" if offset else "give a RIB in MRT format (RouteViews rib.*, RIS bview.*)"
        return UsageError(what, where=str(self.path), remedy=remedy)


_PEER_INDEX_TABLE = 1
_UNICAST = {2: (4, False), 4: (6, False), 8: (4, True), 10: (6, True)}
"""TABLE_DUMP_V2 subtype -> (IP version, whether entries carry a path identifier)."""
_ADDRESS_BYTES = {4: 4, 6: 16}
_ENTRY = struct.Struct(">H4xH")  # the originated time is skipped
_ENTRY_ADD_PATH = struct.Struct(">H4xIH")

new = tuple.__new__  # the named tuple's constructor takes twice as long, and a RIB has millions of rows

CACHED_ATTRIBUTES = 200_000
"""Most cached attribute blobs: neighbouring prefixes of one origin share theirs. The cache is emptied when full."""

LONGEST_CACHED_BYTES = 512
"""Longest cached blob: longer ones are rare, except in a file made to exhaust the memory."""

MOST_STRAY_RECORDS = 1_000_000
"""Most records before the first that belongs to a RIB."""


class RibEntry(NamedTuple):
    """One route of one peer: one line of `bgpdump -m`."""

    prefix: str
    origin: int | None
    """The AS that announced it; None if the path is empty or ends in an AS_SET."""
    as_path: str
    """The path as bgpdump and BGPStream write it, nearest AS first: `701 6453 {64,65}`; AS_CONFED_* in ( ) and [ ]."""
    peer_asn: int
    peer_address: str
    path_id: int | None
    """ADD-PATH identifier (RFC 7911), None if the dump has none."""


class Peer(NamedTuple):
    asn: int
    address: str


class RibRecord(NamedTuple):
    """One prefix with the routes of all peers (TABLE_DUMP_V2), or of one peer (TABLE_DUMP), not yet decoded."""

    offset: int
    version: int
    """4 or 6."""
    network: bytes
    """Address in full length, host bits zero."""
    length: int
    as_bytes: int
    """2 or 4: length of the AS numbers in `attributes`."""
    peers: list[int]
    """Index into `RibReader.peers`, one per route."""
    path_ids: list[int] | None
    attributes: list[bytes]


class RibReader:
    """Reads one RIB file (MRT; plain, gz, bz2, zst); iterate over it once, as entries, or over `records()`.

    Args:
        on_read: called from time to time with (bytes read, file size).

    Raises:
        UsageError: the file is missing, not MRT, or damaged; with the byte offset. A truncated file is not an error:
            its complete entries are yielded, and `truncated` is True.

    Attributes:
        path: the file.
        peers: the peers read so far.
        skipped: kind of MRT record -> number (multicast, updates, generic families).
    """

    def __init__(self, path: Path, *, on_read: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self.skipped: Counter[str] = Counter()
        self._file = MrtFile(path, on_read=on_read)
        self._table_offset: int | None = None
        self._peer_numbers: dict[Peer, int] = {}

    @property
    def truncated(self) -> bool:
        """Whether the file is truncated. Known when the iteration is over."""
        return self._file.truncated_at is not None

    @property
    def truncated_at(self) -> int | None:
        """Offset in the inflated data where the incomplete part begins [byte]."""
        return self._file.truncated_at

    def fault(self, offset: int, what: str) -> UsageError:
        """An error about the record at this offset."""
        return UsageError(
            f"the RIB record at byte {offset} of the inflated data is malformed: {what}",
            where=str(self.path),
            remedy="fetch the file again, or take another RIB",
        )

    def records(self) -> Iterator[RibRecord]:
        """Every unicast RIB record. Raises UsageError with the offset of a malformed one."""
        unicast = _UNICAST.get
        decode = self._decode_v2
        offset = strays = 0
        try:
            for record in self._file:
                offset, kind, subtype, body = record
                if kind == TABLE_DUMP_V2 and (known := unicast(subtype)):
                    yield decode(offset, body, *known)
                elif kind == TABLE_DUMP and subtype in (1, 2):
                    yield self._decode_v1(offset, body, 4 if subtype == 1 else 6)
                elif kind == TABLE_DUMP_V2 and subtype == _PEER_INDEX_TABLE:
                    self._read_peers(body)
                    self._table_offset = offset
                else:
                    self.skipped[f"type {kind}, subtype {subtype}"] += 1
                    strays += 1
                    if strays > MOST_STRAY_RECORDS and self._table_offset is None and not self.peers:
                        raise UsageError(
                            f"none of the first {MOST_STRAY_RECORDS:,} records belongs to a RIB",
                            where=str(self.path),
                            remedy="give a RIB in MRT format (RouteViews rib.*, RIS bview.*)",
                        )
        except (struct.error, IndexError, ValueError) as error:
            raise self.fault(offset, str(error) or "it is too short") from None

    def __iter__(self) -> Iterator[RibEntry]:
        cache: dict[tuple[int, bytes], tuple[int | None, str]] = {}
        for record in self.records():
            prefix = f"{inet_ntop(AF_INET if record.version == 4 else AF_INET6, record.network)}/{record.length}"
            for index, attributes in enumerate(record.attributes):
                key = (record.as_bytes, attributes)
                decoded = cache.get(key)
                if decoded is None:
                    decoded = self._path(record, attributes)
                    if len(cache) >= CACHED_ATTRIBUTES:
                        cache.clear()
                    if len(attributes) <= LONGEST_CACHED_BYTES:
                        cache[key] = decoded
                peer = self.peers[record.peers[index]]
                path_id = record.path_ids[index] if record.path_ids is not None else None
                yield new(RibEntry, (prefix, *decoded, *peer, path_id))

    def _path(self, record: RibRecord, attributes: bytes) -> tuple[int | None, str]:
        try:
            path = as_path.segments(attributes, as_bytes=record.as_bytes)
        except as_path.PathError as error:
            raise self.fault(record.offset, str(error)) from None
        return as_path.origin(path), as_path.text(path)

    def _read_peers(self, body: bytes) -> None:
        """PEER_INDEX_TABLE (RFC 6396, section 4.3.1): indexes of the records after it mean these peers."""
        (name_length,) = struct.unpack_from(">H", body, 4)
        (count,) = struct.unpack_from(">H", body, 6 + name_length)
        position = 8 + name_length
        peers = []
        for _ in range(count):
            kind = body[position]
            size = 16 if kind & 1 else 4
            address = inet_ntop(AF_INET6 if kind & 1 else AF_INET, body[position + 5 : position + 5 + size])
            position += 5 + size
            (asn,) = struct.unpack_from(">I" if kind & 2 else ">H", body, position)
            position += 4 if kind & 2 else 2
            peers.append(Peer(asn, address))
        self.peers = peers
        self._peer_numbers = {}

    def _decode_v2(self, offset: int, body: bytes, version: int, add_path: bool) -> RibRecord:
        """RIB_IPV4_UNICAST and its siblings (RFC 6396, section 4.3.2; RFC 8050, section 4)."""
        if self._table_offset is None:
            raise ValueError("no PEER_INDEX_TABLE comes before it")
        length = body[4]
        network = _network(body, 5, length, version)
        position = 5 + (length + 7) // 8
        count = body[position] << 8 | body[position + 1]
        position += 2
        unpack = _ENTRY.unpack_from
        peers: list[int] = []
        blobs: list[bytes] = []
        path_ids: list[int] | None = None
        if add_path:
            path_ids = []
            for _ in range(count):
                peer, path_id, size = _ENTRY_ADD_PATH.unpack_from(body, position)
                position += 12
                peers.append(peer)
                path_ids.append(path_id)
                blobs.append(body[position : position + size])
                position += size
        else:
            for _ in range(count):
                peer, size = unpack(body, position)
                position += 8
                peers.append(peer)
                blobs.append(body[position : position + size])
                position += size
        if position != len(body):
            raise ValueError(f"its {count} routes take {position} bytes, it has {len(body)}")
        if peers and max(peers) >= len(self.peers):
            raise ValueError(f"it names peer {max(peers)}, the index table has {len(self.peers)} peers")
        return new(RibRecord, (offset, version, network, length, 4, peers, path_ids, blobs))

    def _decode_v1(self, offset: int, body: bytes, version: int) -> RibRecord:
        """TABLE_DUMP (RFC 6396, section 4.2): one route per record, AS numbers of 2 bytes."""
        size = _ADDRESS_BYTES[version]
        length = body[4 + size]
        network = _network(body, 4, length, version)
        position = 4 + size + 6
        address = inet_ntop(AF_INET if version == 4 else AF_INET6, body[position : position + size])
        asn, attribute_bytes = struct.unpack_from(">HH", body, position + size)
        position += size + 4
        if position + attribute_bytes != len(body):
            raise ValueError(f"its attributes end at byte {position + attribute_bytes}, it has {len(body)}")
        peer = Peer(asn, address)
        number = self._peer_numbers.get(peer)
        if number is None:
            number = self._peer_numbers[peer] = len(self.peers)
            self.peers.append(peer)
        return RibRecord(offset, version, network, length, 2, [number], None, [body[position:]])


def _network(body: bytes, position: int, length: int, version: int) -> bytes:
    """The network address in full length; bits after the prefix length are ignored (RFC 4271, section 4.3)."""
    size = _ADDRESS_BYTES[version]
    if length > size * 8:
        raise ValueError(f"it has a prefix length of {length} bits")
    used = (length + 7) // 8
    octets = body[position : position + used]
    if len(octets) != used:
        raise ValueError("its prefix is truncated")
    if length & 7:
        octets = octets[:-1] + bytes((octets[-1] & (0xFF00 >> (length & 7)) & 0xFF,))
    return octets.ljust(size, b"\0")
