"""Flow-control windows: options that the QUIC clients share."""

from __future__ import annotations

from downloader.client import ClientOption

WINDOW_BYTES = 1 << 26
"""64 MiB: above rate x round-trip time of all intended paths (1 Gbit/s x 0.5 s), so that flow control is never the
limit, for either client."""

WINDOWS = (
    ClientOption(name="max_data", help="connection flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
    ClientOption(name="max_stream_data", help="stream flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
)
