"""`curl-h1`, `curl-h2`, `curl-h3`: one program, libcurl, over three versions of HTTP, and so over TCP and QUIC."""

from __future__ import annotations

from core.domain import Failure, Transport
from downloader.client import POST_QUANTUM, RECEIVE_BUFFER, Client


def _curl(http: str, help: str, **more: object) -> Client:
    return Client(
        name=f"curl-h{http[0]}",
        help=help,
        transport=Transport.QUIC if http == "3" else Transport.TCP,
        http=http,
        family="curl",
        program="downloader.programs.curl_get",
        variant=("--http", http),
        packages=("pycurl",),
        **more,  # type: ignore[arg-type]
    )


H1 = _curl(
    "1.1",
    "HTTP/1.1 over TCP by libcurl.",
    options=(POST_QUANTUM,),
    hides={Failure.LENGTH_MISMATCH: None},
)
H2 = _curl(
    "2",
    "HTTP/2 over TCP by libcurl.",
    options=(POST_QUANTUM,),
    hides={Failure.LENGTH_MISMATCH: Failure.PROTOCOL_ERROR, Failure.TRUNCATED_BODY: Failure.PROTOCOL_ERROR},
)
H3 = _curl(
    "3",
    "HTTP/3 over QUIC by libcurl with ngtcp2.",
    options=(RECEIVE_BUFFER, POST_QUANTUM),
    # Of the stream; it comes with the request, after one of 32 KiB in the ClientHello. The connection's is 1,000 MiB.
    window_bytes=10 << 20,
    hides={
        Failure.LENGTH_MISMATCH: Failure.PROTOCOL_ERROR,
        Failure.TRUNCATED_BODY: Failure.PROTOCOL_ERROR,
        Failure.TLS_ERROR: Failure.CONNECTION_RESET,
        Failure.PROTOCOL_ERROR: Failure.CONNECTION_RESET,  # an unknown version of QUIC
        Failure.STALLED: Failure.PROTOCOL_ERROR,  # no stream for HTTP/3's control streams at first
    },
)
