"""GNU Wget2 downloads over TCP, in place of requests: with its own look-ups, redirects, HTTP/2 and compression."""

from __future__ import annotations

import dataclasses

from downloader.client import Client, DownloadRequest, common_arguments
from downloader.quirks import TrafficQuirk


def _arguments(request: DownloadRequest) -> list[str]:
    return [*common_arguments(request), *(word for one in request.nameservers for word in ("--nameserver", one))]


def _client(client: Client) -> Client:
    if client.name != "requests":
        return client
    return dataclasses.replace(
        client,
        http=None,
        family="wget2",
        times_connect=False,
        program="downloader.programs.wget2_get",
        packages=(),
        system_programs={"wget2": "apt-get install wget2"},
        arguments=_arguments,
    )


WGET2 = TrafficQuirk(
    name="wget2",
    help="wget2 downloads over TCP: it looks names up itself, follows redirects, offers HTTP/2 and compression.",
    source="downloading/lib/dl_file.py: wget2 --https-enforce=hard --no-cache",
    client=_client,
    contacts_others=True,
)
