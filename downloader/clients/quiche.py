"""`quiche`: HTTP/3 in Rust, by our program h3get (rust/h3get). One of the paper's two QUIC clients."""

from __future__ import annotations

from core.domain import Transport
from downloader.client import POST_QUANTUM, RECEIVE_BUFFER, WINDOWS, Client

QUICHE = Client(
    name="quiche",
    help="HTTP/3 over QUIC by quiche (Rust, release build).",
    transport=Transport.QUIC,
    http="3",
    program="h3get",
    packages=("upshift-h3get",),
    options=(*WINDOWS, RECEIVE_BUFFER, POST_QUANTUM),
)
