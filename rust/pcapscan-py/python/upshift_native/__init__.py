"""The capture engine of Upshift: capture file in, one record per connection out (see docs/design/kpi-engine.md)."""

from ._native import (
    FIELDS,
    MOST_CONNECTIONS,
    SOURCE,
    CaptureError,
    ConnectionReader,
    PacketReader,
    __version__,
    write_packets,
)

__all__ = [
    "FIELDS",
    "MOST_CONNECTIONS",
    "SOURCE",
    "CaptureError",
    "ConnectionReader",
    "PacketReader",
    "__version__",
    "write_packets",
]
