"""Options that clients share."""

from __future__ import annotations

from downloader.client import ClientOption

WINDOW_BYTES = 1 << 26
"""64 MiB: above rate x round-trip time of all intended paths (1 Gbit/s x 0.5 s), so that flow control is never the
limit, for either client."""

WINDOWS = (
    ClientOption(name="max_data", help="connection flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
    ClientOption(name="max_stream_data", help="stream flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
)

RECEIVE_BUFFER = ClientOption(
    name="receive_buffer",
    help="receive buffer of the socket to request [bytes]; the kernel grants at most net.core.rmem_max",
    default=1 << 24,
    most=(1 << 31) - 1,
)
POST_QUANTUM = ClientOption(
    name="post_quantum",
    help="1: also offer X25519MLKEM768, in a ClientHello of two packets",
    default=0,
    least=0,
    most=1,
)
