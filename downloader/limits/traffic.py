"""IP bytes of a capture file, in both directions; also of one that a kill has cut.

It reads what tcpdump writes (pcap-savefile(5)) and nothing else, so that downloads are counted without the capture
engine.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_FILE_HEADER_BYTES, _RECORD_HEADER_BYTES = 24, 16

_ORDERS = {struct.pack(f"{order}I", magic): order for order in "<>" for magic in (0xA1B2C3D4, 0xA1B23C4D)}
"""First bytes of a capture, in microseconds or nanoseconds -> byte order."""

_LINK_HEADER_BYTES = {0: 4, 1: 14, 12: 0, 101: 0, 113: 16, 228: 0, 229: 0, 276: 20}
"""Link type (tcpdump.org/linktypes.html) -> bytes before the IP header."""


def ip_bytes(path: Path) -> int:
    """IP bytes of all whole packets in a capture; 0 for a file without any.

    IPv4 total length, IPv6 payload length + 40. A packet with a length of 0 there (larger than 64 KiB before the
    network card splits it) and one of another protocol count with their length on the link.
    """
    with path.open("rb") as handle:
        try:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return 0
        with data:
            return _sum(data)


def _sum(data: mmap.mmap) -> int:
    order = _ORDERS.get(data[:4])
    if order is None or len(data) < _FILE_HEADER_BYTES:
        return 0
    (link,) = struct.unpack_from(f"{order}I", data, 20)
    skip = _LINK_HEADER_BYTES.get(link & 0xFFFF, 0)
    record = struct.Struct(f"{order}II")
    length = struct.Struct(">H")
    found, at, end = 0, _FILE_HEADER_BYTES, len(data)
    while at + _RECORD_HEADER_BYTES <= end:
        kept, whole = record.unpack_from(data, at + 8)
        at += _RECORD_HEADER_BYTES
        if at + kept > end:
            break
        start, carried = at + skip, 0
        if kept >= skip + 6:
            version = data[start] >> 4
            if version == 4:
                (carried,) = length.unpack_from(data, start + 2)
            elif version == 6:
                (payload,) = length.unpack_from(data, start + 4)
                carried = payload and payload + 40
        found += carried or whole - skip
        at += kept
    return found
