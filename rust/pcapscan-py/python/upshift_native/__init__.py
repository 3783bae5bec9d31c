"""The capture engine of Upshift: capture file in, one record per connection out (see docs/design/kpi-engine.md)."""

from ._native import CaptureError, PacketReader, ScanResult, __version__, scan, write_packets

__all__ = ["CaptureError", "PacketReader", "ScanResult", "__version__", "scan", "write_packets"]
