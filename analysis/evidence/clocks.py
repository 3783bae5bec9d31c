"""Offset between the clients' clock of a measurement run and the capture's. Pure.

Both are the host's clock unless something is wrong. Two events appear in both, in a known order: a client
takes its start time before its SYN is sent, and learns of the SYN-ACK after it arrived. So the offset lies between
the latest `SYN-ACK - connected` and the earliest `SYN - started` of the run, and it does not matter how long before the
SYN a client takes its start time, or how late it learns of the SYN-ACK. Of QUIC the first Initial is known for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from analysis.captures.connection import Connection
from core.domain import Download

SLACK_S = 0.005
"""Clocks that differ by less are the same clock; client and capture may differ by as much (measuring rule 6)."""


def offset_s(downloads: Sequence[Download], connections: Sequence[Connection | None]) -> float:
    """The capture's time minus the clients' [s]: 0 if one clock explains both, as it nearly always does.

    Args:
        connections: of the downloads, in their order.
    """
    least, most, by_syn_ack = [], [], []
    for download, connection in zip(downloads, connections, strict=True):
        first_ns = None if connection is None else _first_ns(connection)
        if connection is None or first_ns is None:
            continue
        most.append(first_ns / 1e9 - download.started_at)
        if download.connect_s is None:
            continue
        if connection.protocol == "quic":
            least.append(most[-1] - download.connect_s)
        elif connection.syn_ack_ns is not None:
            by_syn_ack.append(connection.syn_ack_ns / 1e9 - download.started_at - download.connect_s)
    least += by_syn_ack
    if not least or (max(least) <= SLACK_S and min(most) >= -SLACK_S):
        return 0.0
    return statistics.median(by_syn_ack) if by_syn_ack else min(most)


def _first_ns(connection: Connection) -> int | None:
    """The SYN, or the first packet of QUIC."""
    return connection.first_ns if connection.protocol == "quic" else connection.syn_ns
