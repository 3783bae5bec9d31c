"""aioquic writes its qlog and its secrets while the download is timed."""

from __future__ import annotations

import dataclasses

from downloader.client import Client, DownloadRequest
from downloader.quirks import TrafficQuirk


def _client(client: Client) -> Client:
    if client.name != "aioquic":
        return client
    plain = client.arguments

    def arguments(request: DownloadRequest) -> list[str]:
        return [*plain(request), "--logs", str(request.logs)]

    return dataclasses.replace(client, arguments=arguments)


AIOQUIC_LOGS = TrafficQuirk(
    name="aioquic-logs",
    help="aioquic keeps a qlog of every packet and frame, and logs its secrets.",
    source="downloading/lib/quic_module/quic_download.py: --quic-log, --secrets-log",
    client=_client,
)
