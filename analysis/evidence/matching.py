"""Matches downloads with the connections of a capture, by addresses and ports, and their clocks. Pure.

Each measurement run has its own capture, so addresses and ports are nearly always enough. Only if several connections
share them (a reused port), time decides, and without trusting the client's clock: both sides are taken in order, and
the clock's offset comes from the downloads of the same run that are already matched.

Both clocks are the host's unless something is wrong. Two events appear in both, in a known order: a client
takes its start time before its SYN is sent, and learns of the SYN-ACK after it arrived. So the offset lies between
the latest `SYN-ACK - connected` and the earliest `SYN - started` of the run, and it does not matter how long before the
SYN a client takes its start time, or how late it learns of the SYN-ACK. Of QUIC the first Initial is known for both.
"""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from analysis.captures.connection import Connection
from core.domain import Download

CLOCK_SLACK_S = 0.005
"""Clocks that differ by less are the same clock; client and capture may differ by as much (measuring rule 6)."""


class _Ends(NamedTuple):
    transport: str
    server_ip: str
    server_port: int
    local_port: int


def match(downloads: Sequence[Download], connections: Sequence[Connection]) -> list[Connection | None]:
    """The connection of each download of a measurement run in the capture of that run, None if there is none."""
    matched: list[Connection | None] = [None] * len(downloads)
    groups = _groups(downloads, connections)
    certain = [
        _first_s(candidates[0]) - downloads[members[0]].started_at
        for members, candidates in groups
        if len(members) == len(candidates) == 1
    ]
    offset_s = statistics.median(certain) if certain else None
    for members, candidates in groups:
        members.sort(key=lambda index: downloads[index].started_at)
        candidates.sort(key=lambda connection: connection.first_ns)
        starts = [downloads[index].started_at for index in members]
        for member, candidate in align(starts, [_first_s(c) for c in candidates], offset_s):
            matched[members[member]] = candidates[candidate]
    return matched


def _first_s(connection: Connection) -> float:
    return connection.first_ns / 1e9


def _groups(
    downloads: Sequence[Download], connections: Sequence[Connection]
) -> list[tuple[list[int], list[Connection]]]:
    """Downloads (by index) with the candidate connections: those with the same addresses and ports."""
    by_ends: dict[_Ends, list[int]] = {}
    for number, c in enumerate(connections):
        ends = _Ends(c.protocol, canonical(c.server_ip), c.server_port, c.client_port)
        by_ends.setdefault(ends, []).append(number)
    members: dict[tuple[int, ...], list[int]] = {}
    for index, d in enumerate(downloads):
        if d.server_ip is None or d.server_port is None or d.local_port is None:
            continue
        candidates = by_ends.get(_Ends(d.transport, canonical(d.server_ip), d.server_port, d.local_port), [])
        # Behind an address translation the capture has another local address than the client.
        local = None if d.local_ip is None else canonical(d.local_ip)
        candidates = [n for n in candidates if canonical(connections[n].client_ip) == local] or candidates
        if candidates:
            members.setdefault(tuple(candidates), []).append(index)
    return [(indices, [connections[n] for n in candidates]) for candidates, indices in members.items()]


def canonical(text: str) -> str:
    """Canonical form of an address: an IPv6 socket may have `::ffff:198.18.0.1`, or an interface name after `%`."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def align(starts: Sequence[float], firsts: Sequence[float], offset: float | None) -> list[tuple[int, int]]:
    """Pairs of indices, in order on both sides, as many as the shorter side has.

    Args:
        starts, firsts: times [s] in ascending order, each side by its own clock.
        offset: `firsts` minus `starts`, if known; None: the one with the best fit.
    """
    if len(starts) > len(firsts):
        return [(i, j) for j, i in align(firsts, starts, None if offset is None else -offset)]
    if len(starts) == len(firsts):
        return [(i, i) for i in range(len(starts))]
    if offset is not None:
        return _nearest(starts, firsts, offset)[1]
    # The first of the shorter side has some partner, so the offset is among these.
    offsets = sorted((first - starts[0] for first in firsts), key=abs)
    return min((_nearest(starts, firsts, each) for each in offsets), key=lambda fit: fit[0])[1]


def _nearest(starts: Sequence[float], firsts: Sequence[float], offset: float) -> tuple[float, list[tuple[int, int]]]:
    """Pairs all of `starts` with some of `firsts`, in order, with the least sum of distances [s]."""
    costs = [[0.0] * (len(firsts) + 1)]  # costs[i][j]: of the first i starts among the first j firsts
    for i, start in enumerate(starts):
        row = [float("inf")] * (len(firsts) + 1)
        for j in range(i, len(firsts)):
            row[j + 1] = min(row[j], costs[i][j] + abs(firsts[j] - start - offset))
        costs.append(row)
    pairs = []
    i, j = len(starts), len(firsts)
    while i:
        if costs[i][j] == costs[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return costs[-1][-1], pairs[::-1]


def clock_offset_s(downloads: Sequence[Download], connections: Sequence[Connection | None]) -> float:
    """The capture's time minus the clients' [s]: 0 if one clock explains both, as it nearly always does.

    Args:
        connections: of the downloads, in their order.
    """
    least, most, by_syn_ack = [], [], []
    for download, connection in zip(downloads, connections, strict=True):
        first_ns = None if connection is None else _start_ns(connection)
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
    if not least or (max(least) <= CLOCK_SLACK_S and min(most) >= -CLOCK_SLACK_S):
        return 0.0
    return statistics.median(by_syn_ack) if by_syn_ack else min(most)


def _start_ns(connection: Connection) -> int | None:
    """The SYN, or the first packet of QUIC."""
    return connection.first_ns if connection.protocol == "quic" else connection.syn_ns
