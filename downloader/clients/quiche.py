"""`quiche`: HTTP/3 in Rust, by our program h3get (rust/h3get). One of the paper's two QUIC clients."""

from __future__ import annotations

from core.domain import Transport
from downloader.client import Client, ClientOption
from downloader.clients._windows import WINDOWS

QUICHE = Client(
    name="quiche",
    help="HTTP/3 over QUIC by quiche (Rust, release build).",
    transport=Transport.QUIC,
    http="3",
    program="h3get",
    packages=("upshift-h3get",),
    options=(
        *WINDOWS,
        ClientOption(
            name="receive_buffer",
            help="receive buffer of the socket to request [bytes]; the kernel grants at most net.core.rmem_max",
            default=1 << 24,
            least=1,
            most=(1 << 31) - 1,
        ),
        ClientOption(
            name="post_quantum",
            help="1: also offer X25519MLKEM768, in a ClientHello of two datagrams",
            default=0,
            least=0,
            most=1,
        ),
    ),
)
