"""Throughput, sequence numbers and round-trip times over time of single downloads, from their captures.

For the report's page per target. Times count from the connection's first packet.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.captures.connection import Connection
from analysis.evidence.matching import match
from analysis.measures.dataset import Record
from analysis.measures.folders import Folder
from core.domain import Transport
from core.errors import UsageError
from core.files.journal import is_own

MAX_DOWNLOADS = 1_500
"""Most downloads with series in one page (about 4 kB each)."""

_BINS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_BINS = 60
_MOST_POINTS = 120
"""Points of a sequence plot or of round-trip times; of more, evenly spaced ones are kept."""
_MOST_RETRANSMISSIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """The server's packets with payload, and round-trip times."""

    time_s: npt.NDArray[np.float64]
    payload_bytes: npt.NDArray[np.int64]
    end_bytes: npt.NDArray[np.int64]
    """TCP: sequence number after the packet, from 0. QUIC: sum of the datagrams so far."""
    retransmitted: npt.NDArray[np.bool_]
    rtt: Sequence[tuple[float, float]]
    """Times [s] and round-trip times [ms]; TCP only."""


def documents(
    members: Mapping[Hashable, Sequence[Record]], folders: Sequence[Folder]
) -> tuple[dict[Hashable, dict[str, Any]], int]:
    """Measurement run -> its series as JSON for the page; and how many of these runs have none.

    The first runs are drawn, up to `MAX_DOWNLOADS`, if their captures are still there.

    Args:
        members: measurement run -> its downloads.
        folders: those of the dataset.
    """
    drawn: dict[Hashable, dict[str, Any]] = {}
    spent = 0
    for run, records in members.items():
        if spent + len(records) > MAX_DOWNLOADS:
            break
        ordered = sorted(records, key=lambda record: record.download.position)
        packets = of_run(ordered, folders[records[0].folder].path)
        if packets:
            spent += len(packets)
            drawn[run] = document(ordered, packets)
    return drawn, len(members) - len(drawn)


def of_run(records: Sequence[Record], folder: Path) -> dict[str, Packets]:
    """Configuration -> packets, of the downloads of one measurement run whose capture is there and readable.

    A path that leaves its vantage point's folder is not followed: the rows may be those of another host.
    """
    downloads = [record.download for record in records]
    names = {name for one in downloads if (name := one.capture) and is_own(name, one.vantage)}
    packets: dict[str, Packets] = {}
    for name in names:
        members = [record for record in records if record.download.capture == name]
        try:
            packets |= _of_capture(members, folder / name)
        except (UsageError, OSError):
            continue  # no longer there, or damaged: the page counts what it could not draw
    return packets


def _of_capture(records: Sequence[Record], path: Path) -> dict[str, Packets]:
    from analysis.captures import export, scan

    if not path.is_file():
        return {}
    connections = list(scan.CaptureReader(path, series=True))
    table = export.read_packets(path)
    connection = table.column("connection").to_numpy()
    kept = table.column("len").to_numpy() > 0
    kept &= np.asarray(table.column("direction").cast("string").combine_chunks()) == "s2c"
    packets = {}
    downloads = [record.download for record in records]
    for download, ours in zip(downloads, match(downloads, connections), strict=True):
        if ours is not None:
            rows = table.filter(kept & (connection == ours.number))
            packets[download.configuration] = _packets(rows, ours)
    return packets


def _packets(rows: Any, connection: Connection) -> Packets:
    payload = rows.column("len").to_numpy().astype(np.int64)
    if connection.protocol == Transport.QUIC:
        end = np.cumsum(payload)
    else:
        end = rows.column("seq").to_numpy().astype(np.int64) + payload
    classes = np.asarray(rows.column("true_class").cast("string").combine_chunks())
    rtt = (connection.series or {}).get("rtt", ())
    return Packets(
        time_s=(rows.column("time_ns").to_numpy() - connection.first_ns) / 1e9,
        payload_bytes=payload,
        end_bytes=end,
        retransmitted=classes == "retransmission",
        rtt=[((at - connection.first_ns) / 1e9, ns / 1e6) for at, from_client, ns in rtt if from_client],
    )


def document(records: Sequence[Record], packets: Mapping[str, Packets]) -> dict[str, Any]:
    """One run's series for the page: throughput per bin [Mbit/s], points of [s, MB] and [s, ms], handshake RTT [ms]."""
    bin_s = bin_width(list(packets.values()))
    downloads = [
        {
            "name": name,
            "rate": [round(float(rate), 2) for rate in throughput(packets[name], bin_s=bin_s)],
            "sequence": _sequence(packets[name], ~packets[name].retransmitted, _MOST_POINTS),
            "retransmitted": _sequence(packets[name], packets[name].retransmitted, _MOST_RETRANSMISSIONS),
            "rtt": [[round(at, 3), round(ms, 2)] for at, ms in _thinned(packets[name].rtt, _MOST_POINTS)],
            "handshake_rtt": record.number("handshake_rtt"),
        }
        for record in records
        if (name := record.download.configuration) in packets
    ]
    return {"bin_s": bin_s, "downloads": downloads}


def throughput(packets: Packets, *, bin_s: float) -> npt.NDArray[np.float64]:
    """Payload of TCP or UDP per bin [Mbit/s], from the first packet to the last data packet."""
    if not len(packets.time_s):
        return np.zeros(0)
    bins = np.floor(np.maximum(packets.time_s, 0.0) / bin_s).astype(np.int64)
    counted = np.bincount(bins, weights=packets.payload_bytes)
    widths = np.full(len(counted), bin_s)
    # The transfer ends within the last bin: its rate is that of the part before.
    widths[-1] = max(float(packets.time_s.max()) - bin_s * (len(counted) - 1), bin_s / 4)
    return np.asarray(counted * 8 / 1e6 / widths)


def bin_width(downloads: Sequence[Packets]) -> float:
    """One width of bins [s] for downloads that are shown side by side: at most 60 bins for the longest."""
    longest = max((float(packets.time_s.max()) for packets in downloads if len(packets.time_s)), default=0.0)
    return next((width for width in _BINS_S if longest / width <= _MOST_BINS), math.ceil(longest / _MOST_BINS))


def _sequence(packets: Packets, which: npt.NDArray[np.bool_], most: int) -> list[list[float]]:
    pairs = list(zip(packets.time_s[which].tolist(), (packets.end_bytes[which] / 1e6).tolist(), strict=True))
    return [[round(at, 3), round(end, 4)] for at, end in _thinned(pairs, most)]


def _thinned(pairs: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` of them, evenly spaced, with the first and the last."""
    if len(pairs) <= most:
        return list(pairs)
    return [pairs[index] for index in np.linspace(0, len(pairs) - 1, most).round().astype(int)]
