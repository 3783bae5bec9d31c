"""quiche's client is a debug build, which decrypts and parses slowly, and it copies what it gets for a dump.

`make debug-client` builds it: our h3get without the compiler's optimisation, as h3get-debug beside h3get.
"""

from __future__ import annotations

import dataclasses

from downloader.client import Client, DownloadRequest
from downloader.quirks import TrafficQuirk

IDLE_TIMEOUT_S = 10


def _client(client: Client) -> Client:
    if client.name != "quiche":
        return client
    plain = client.arguments

    def arguments(request: DownloadRequest) -> list[str]:
        logs = [] if request.logs is None else ["--dump", str(request.logs / "dump.json")]
        return [*plain(request), "--idle-timeout-s", str(IDLE_TIMEOUT_S), *logs]

    return dataclasses.replace(
        client, program="h3get-debug", debug_build=True, installed_by="make debug-client", arguments=arguments
    )


DEBUG_CLIENT = TrafficQuirk(
    name="debug-client",
    help="quiche is a debug build, dumps request and response as JSON, and gives up after 10 s without a packet.",
    source="downloading/lib/quic_module/quic_download.py: target/debug/quiche-client --dump-json --idle-timeout 10000",
    client=_client,
)
