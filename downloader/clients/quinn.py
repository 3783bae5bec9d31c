"""`quinn`: HTTP/3 in Rust by another QUIC stack than quiche's, by our program quinnget (rust/quinnget)."""

from __future__ import annotations

from core.domain import Transport
from downloader.client import RECEIVE_BUFFER, WINDOWS, Client

QUINN = Client(
    name="quinn",
    help="HTTP/3 over QUIC by quinn, h3 and rustls (Rust, release build).",
    transport=Transport.QUIC,
    http="3",
    program="quinnget",
    packages=("upshift-quinnget",),
    options=(*WINDOWS, RECEIVE_BUFFER),
)
