"""Which connection of a capture is a download's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.connection import Connection
from upshift.domain import Download

CLOCK_SLACK_S = 1.0
"""Client and tcpdump read one clock, but a client may take its start time well before its first packet leaves."""


def find_connection(download: Download, connections: Iterable[Connection]) -> Connection | None:
    """The connection of a download: same transport, addresses and ports, and the nearest in time within a second."""
    if download.local_port is None:
        return None
    wanted = (download.transport, download.server_ip, download.server_port, download.local_port)
    candidates = [
        (abs(c.first_ns / 1e9 - download.started_at), c)
        for c in connections
        if (c.protocol, c.server_ip, c.server_port, c.client_port) == wanted
    ]
    candidates = [entry for entry in candidates if entry[0] <= CLOCK_SLACK_S]
    return min(candidates, key=lambda entry: entry[0])[1] if candidates else None
