"""`aioquic`: HTTP/3 in Python. One of the paper's two QUIC clients."""

from __future__ import annotations

from core.domain import Transport
from downloader.client import WINDOWS, Client

AIOQUIC = Client(
    name="aioquic",
    help="HTTP/3 over QUIC by aioquic (Python), whose CPU time limits it to 100 to 300 Mbit/s.",
    transport=Transport.QUIC,
    http="3",
    program="downloader.programs.aioquic_get",
    packages=("aioquic", "cryptography"),
    options=WINDOWS,
)
