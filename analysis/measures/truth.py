"""Expected against measured: a download-time model for paths whose delay and rate are known. Pure; seconds and bytes.

The model is a per-round-trip one of TCP + TLS 1.3 + HTTP on a clean path (no loss, a queue of at least one
bandwidth-delay product), where only the initial window, the receive window and the bottleneck limit the rate:

    time = 3 RTT + start of the last round + serialisation of that round's segments at the bottleneck

The three round trips before the body: SYN to SYN-ACK; ClientHello to the server's Finished (TLS 1.3, RFC 8446: one
round trip); request to the first byte of the response. Sources: slow start RFC 5681, initial window RFC 6928, the
65,535-byte limit of an unscaled window RFC 9293 and RFC 7323. On ten paths of 3 to 200 ms a lab with Caddy measured
1.005 to 1.07 times the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.measures.columns import Floats, numbered, rows_by_code
from analysis.measures.dataset import Dataset
from analysis.measures.selection import DEFAULT, Selection
from core.domain import Outcome, Transport
from core.errors import UsageError
from core.files import config

UNSCALED_WINDOW = 65_535
"""Largest window without the scaling option [bytes]."""

TOLERANCE = 0.10
"""Largest difference of measured and expected download time on a clean path."""

DELIVERY_RANGE = (0.85, 1.02)
"""An unscaled window's delivery rate over min(rate, 65,535 B per RTT), for files of 2 MB or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Overhead of a transport with its encryption, in round trips and bytes."""

    round_trips: int
    """From the start of connecting to the first byte of the response."""
    packet_overhead: int
    """Bytes of a full packet that are not application data."""
    record_bytes: int
    """Application data is encrypted in records of this size; 0: no records."""
    record_overhead: int


TCP = Stack(round_trips=3, packet_overhead=52, record_bytes=16_384, record_overhead=22)
"""IPv4 (20) + TCP (20) + timestamps option (12). TLS records: header 5, inner content type 1, AEAD tag 16 (RFC 8446
section 5.2)."""

TCP_IPV6 = replace(TCP, packet_overhead=72)
"""IPv6 (40) in place of IPv4."""

QUIC = Stack(round_trips=2, packet_overhead=28 + 27 + 9, record_bytes=0, record_overhead=0)
"""IPv4 (20) + UDP (8); short header with a connection ID of 8 and a packet number of 2 bytes, AEAD tag 16 (RFC 9000
section 17.3, RFC 9001 section 5.3); header of a STREAM frame about 9. One round trip is the handshake."""

_MODELLED_FACTORS = frozenset({"ecn", "sack", "window_scaling", "timestamps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPath:
    """One path of `lab.json` (docs/design/house.md); rate, queue and loss are those towards the vantage point."""

    vantage: str
    domain: str
    server: str
    provider: str
    rtt_ms: float
    rate_mbit: float
    queue_bytes: int | None
    loss: float
    ecn_threshold_bytes: int | None
    initcwnd: int | None
    """None: the server has a TCP of its own, or a window that is not in segments."""
    congestion_control: str | None
    mtu: int
    edge: bool
    clean: bool
    quic: bool = True
    quic_server: str = "caddy"
    """This and the next three: defaults for a `lab.json` without them (Caddy 2.6.2 with quic-go 0.29)."""
    quic_congestion_control: str = "reno"
    quic_initial_window_packets: int = 32
    quic_packet_bytes: int = 1280
    quic_stream_buffer_bytes: int | None = None
    """The most that it sends of an answer per round trip; None: no such limit."""
    quic_server_version: str | None = None
    """As the program prints it; None: unknown."""
    note: str = ""

    @property
    def quic_note(self) -> str:
        """The QUIC server's properties, in words."""
        version = f" ({self.quic_server_version})" if self.quic_server_version else ""
        held = self.quic_stream_buffer_bytes
        return (
            f"the QUIC server {self.quic_server}{version} uses {self.quic_congestion_control}, "
            f"{self.quic_initial_window_packets} packets at first, {self.quic_packet_bytes}-byte packets"
            + (f", at most {held} B of an answer per round trip" if held else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """One path and configuration: expected and measured times."""

    path: LabPath
    configuration: str
    warmup: bool
    transport: str
    n: int
    """Downloads that are ok with proven treatment."""
    size_bytes: int | None
    """Median body size."""
    measured_s: float | None
    """Median download time."""
    expected_s: float | None
    ratio: float | None
    """Measured over expected."""
    within: bool | None
    """Whether the ratio is within `TOLERANCE`; None if the model does not apply: then it is only informative."""
    delivery_ratio: float | None
    """Unscaled windows: rate from first to last body byte over min(rate, 65,535 B per RTT)."""
    note: str


def download_time(
    *,
    size_bytes: int,
    rtt_s: float,
    rate_mbit: float,
    initial_window: int,
    window_bytes: int | None,
    mtu: int = 1500,
    stack: Stack = TCP,
) -> float:
    """Expected time [s] from the start of connecting to the last body byte.

    Args:
        size_bytes: body length.
        rtt_s: round-trip time without queueing.
        rate_mbit: bottleneck rate towards the client, counted in IP packets.
        initial_window: segments that the server sends at first.
        window_bytes: the largest window that the client may offer; None for no limit.
        mtu: bytes of a full packet.

    A round's first segment is sent when the previous round's first one is acknowledged, one serialisation time and one
    RTT later. A window that takes longer than this to serialise keeps the bottleneck busy from then on.
    """
    payload = mtu - stack.packet_overhead
    serialisation_s = mtu * 8 / (rate_mbit * 1e6)
    records = math.ceil(size_bytes / stack.record_bytes) if stack.record_bytes else 0
    left = max(1, math.ceil((size_bytes + records * stack.record_overhead) / payload))
    limit = math.inf if window_bytes is None else max(1, window_bytes // payload)
    window = min(float(initial_window), limit)
    started_s = stack.round_trips * rtt_s
    while left > window and window * serialisation_s < rtt_s + serialisation_s:
        started_s += rtt_s + serialisation_s
        left -= int(window)
        window = min(window * 2, limit)
    return started_s + left * serialisation_s


def window_limit(levels: Mapping[str, str]) -> int | None:
    """The largest window [bytes] that the level of `window_scaling` allows (RFC 7323: 65,535 << shift)."""
    level = str(levels.get("window_scaling", "off")).lower()
    if level.isdigit():
        return UNSCALED_WINDOW << min(int(level), 14)
    return UNSCALED_WINDOW if level == "off" else None


def paths(document: Mapping[str, Any], *, where: str = "lab.json") -> list[LabPath]:
    """The paths of a `lab.json` document. Raises UsageError for a wrong field."""
    entries = document.get("paths")
    if not isinstance(entries, list):
        raise UsageError("field paths: missing, or not a list", where=where, remedy="run the campaign again")
    return [config.build(entry, LabPath, where=f"{where}: path {index}") for index, entry in enumerate(entries)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempts:
    """The downloads of one configuration over one path."""

    is_warmup: bool
    """This and the next three are those of the first."""
    transport: str
    levels: Mapping[str, str]
    ipv6: bool
    body_bytes: Floats
    """Of those that are ok with proven treatment, like the times [s]."""
    first_byte_s: Floats
    last_byte_s: Floats


def compare(
    lab_document: Mapping[str, Any],
    data: Dataset,
    *,
    folder: int = 0,
    where: str = "lab.json",
    selection: Selection = DEFAULT,
) -> list[TruthRow]:
    """Expected against measured for each path of the lab and each configuration that was downloaded over it.

    Args:
        folder: which folder's downloads; `lab_document` is its `lab.json`.
        selection: which downloads count, unproven ones and those near a client's ceiling.
    """
    by_path = _by_path(data, folder, selection)
    rows = []
    for path in paths(lab_document, where=where):
        configurations = by_path.get((path.vantage, path.domain), {})
        # In the warm-up, every factor that the model does not know has its default level.
        defaults = next((attempts.levels for attempts in configurations.values() if attempts.is_warmup), {})
        rows += [_row(path, name, attempts, defaults) for name, attempts in configurations.items()]
    return rows


def _by_path(data: Dataset, folder: int, selection: Selection) -> dict[tuple[str, str], dict[str, Attempts]]:
    """(vantage point, domain) -> configuration -> its downloads, in their order."""
    d = data.downloads
    chosen = d.runs.folder[d.run] == folder
    if selection.unlimited_only:
        chosen &= d.near_ceiling != 1
    rows = np.flatnonzero(chosen)
    vantage, domain, name = d.runs.vantage[d.run[rows]], d.runs.domain[d.run[rows]], d.configuration[rows]
    groups = numbered([texts.codes for texts in (vantage, domain, name)])
    good = d.outcome.are(Outcome.OK) & d.usable(unproven=selection.unproven)
    good &= d.last_byte_s > 0
    levels, server_ip = data.texts("levels"), data.texts("server_ip")
    body_bytes, first_byte_s = data.kpi("body_bytes"), data.kpi("first_byte_s")
    attempts: dict[tuple[str, str], dict[str, Attempts]] = {}
    members = rows_by_code(groups, int(groups.max(initial=-1)) + 1)
    for at in sorted(members, key=lambda at: int(at[0])):
        first, used = rows[at[0]], rows[at][good[rows[at]]]
        side = (vantage.names[vantage.codes[at[0]]], domain.names[domain.codes[at[0]]])
        attempts.setdefault(side, {})[name.names[name.codes[at[0]]]] = Attempts(
            is_warmup=bool(d.is_warmup[first]),
            transport=d.transport.names[d.transport.codes[first]],
            levels=_levels(levels.names[levels.codes[first]]),
            ipv6=any(":" in server_ip.names[code] for code in server_ip.codes[used[:1]]),
            body_bytes=body_bytes[used],
            first_byte_s=first_byte_s[used],
            last_byte_s=d.last_byte_s[used],
        )
    return attempts


def _row(path: LabPath, name: str, attempts: Attempts, defaults: Mapping[str, str]) -> TruthRow:
    n = len(attempts.last_byte_s)
    cold = path.edge and attempts.is_warmup
    others = _others(attempts.levels, defaults)
    is_tcp = attempts.transport == Transport.TCP
    size = round(float(np.median(attempts.body_bytes))) if n else None
    measured = float(np.median(attempts.last_byte_s)) if n else None
    caveats = _caveats(path, cold, others) if is_tcp else [f"no prediction: {path.quic_note}"]
    # A first download through an edge waits for the far origin, and another factor may limit the window.
    predicts = is_tcp and size is not None and not cold and not others
    limit = window_limit(attempts.levels)
    expected = (
        download_time(
            size_bytes=size,
            rtt_s=path.rtt_ms / 1e3,
            rate_mbit=path.rate_mbit,
            initial_window=path.initcwnd,
            window_bytes=limit,
            mtu=path.mtu,
            stack=TCP_IPV6 if attempts.ipv6 else TCP,
        )
        if predicts and size is not None and path.initcwnd is not None
        else None
    )
    ratio = measured / expected if measured is not None and expected else None
    return TruthRow(
        path=path,
        configuration=name,
        warmup=attempts.is_warmup,
        transport=attempts.transport,
        n=n,
        size_bytes=size,
        measured_s=measured,
        expected_s=expected,
        ratio=ratio,
        within=None if ratio is None or caveats else abs(ratio - 1) <= TOLERANCE,
        delivery_ratio=_delivery_ratio(path, attempts) if is_tcp and limit == UNSCALED_WINDOW else None,
        note="; ".join([*caveats, *([path.note] if path.note else [])]),
    )


def _caveats(path: LabPath, cold: bool, others: Sequence[str]) -> list[str]:
    """Why the model does not apply here; empty if it does."""
    caveats = []
    if path.loss:
        caveats.append(f"loss {path.loss:.2%}: not modelled")
    elif path.queue_bytes is not None and path.queue_bytes < round(path.rate_mbit * path.rtt_ms * 125):
        caveats.append("queue under one bandwidth-delay product: overflow is not modelled")
    elif not path.clean and path.ecn_threshold_bytes is None:
        caveats.append("drops, few packets per round trip, or a slow application: not modelled")
    if path.ecn_threshold_bytes is not None:
        caveats.append(f"marks or drops above {path.ecn_threshold_bytes} B: not modelled")
    if cold:
        caveats.append("fetched through the edge from a far origin: no prediction")
    if path.initcwnd is None:
        caveats.append("no prediction: the server has a TCP of its own")
    if others:
        caveats.append(f"no prediction: {', '.join(others)} is not modelled")
    return caveats


def _others(levels: Mapping[str, str], defaults: Mapping[str, str]) -> list[str]:
    """Factors that the model does not know and whose level is not the default."""
    names = sorted(set(levels) & set(defaults) - _MODELLED_FACTORS)
    return [f"{name}={levels[name]}" for name in names if levels[name] != defaults[name]]


def _delivery_ratio(path: LabPath, used: Attempts) -> float | None:
    """Median of body bits from the first to the last body byte over min(rate, 65,535 B per RTT)."""
    known = used.last_byte_s > used.first_byte_s
    if not known.any():
        return None
    rates = used.body_bytes[known] * 8 / (used.last_byte_s[known] - used.first_byte_s[known])
    return float(np.median(rates)) / min(path.rate_mbit * 1e6, UNSCALED_WINDOW * 8 / (path.rtt_ms / 1e3))


def _levels(text: str) -> dict[str, str]:
    try:
        levels = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in levels.items()} if isinstance(levels, dict) else {}
