"""Joins downloads with the connections of their captures: KPIs, proof of treatment, and whether both tell one story.

It stands in `compose` because it needs `downloader` (each factor reads its own proof) and `analysis` (connections).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from analysis.captures import scan_capture
from analysis.connection import Connection
from analysis.kpi import Value
from analysis.kpis import ALL as KPIS
from downloader.factors import ALL as FACTORS
from upshift import store
from upshift.domain import Download, Handshake, Outcome, Transport
from upshift.errors import UsageError
from upshift.progress import Progress

CLOCK_SLACK_S = 1.0
"""Client and tcpdump read one clock, but a client may take its start time well before its first packet leaves."""

STORY_SLACK_S = 0.005
STORY_SLACK_SHARE = 0.01
"""Client and capture may differ by the larger of the two (design, measuring rule 6)."""

QUIC_V1 = "0x00000001"


def inspect_campaign(out: Path, *, progress: Progress) -> None:
    """Reads the captures of a campaign folder, completes `downloads.parquet` and writes `kpis.parquet`."""
    downloads = store.read_rows(out / "downloads.parquet", "downloads", Download)
    captures = sorted({d.capture for d in downloads if d.capture is not None})
    scans: dict[str, tuple[Connection, ...]] = {}
    unreadable: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda name: _scan(out / name), captures)
        for done, (name, result) in enumerate(zip(captures, results, strict=True), start=1):
            if isinstance(result, str):
                unreadable[name] = result
            else:
                scans[name] = result
            progress.update("captures", done=done, total=len(captures), failed=len(unreadable))
    judged: list[Download] = []
    rows: list[dict[str, Value]] = []
    for download in downloads:
        connection = find_connection(download, scans.get(download.capture or "", ()))
        ok, detail = judge_treatment(download, connection)
        if connection is None and download.capture in unreadable:
            detail = unreadable[download.capture]
        judged.append(replace(download, treatment_ok=ok, treatment_detail=detail))
        if connection is not None:
            rows.append(kpi_row(download, connection))
    store.write_rows(out / "downloads.parquet", "downloads", judged)
    write_kpis(out / "kpis.parquet", rows)


def _scan(path: Path) -> tuple[Connection, ...] | str:
    """The connections of a capture, or why there are none."""
    if not path.exists():
        return "the capture is gone"
    try:
        return tuple(scan_capture(path).connections)
    except UsageError as error:
        return error.sentence()


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


def handshake_of(connection: Connection) -> Handshake | None:
    """What SYN and SYN-ACK carried, None for QUIC or where the SYN was not captured."""
    if connection.protocol != Transport.TCP or connection.syn_ns is None:
        return None
    answered = connection.syn_ack_ns is not None
    return Handshake(
        syn_ecn=bool(connection.ecn_requested),
        synack_ecn=connection.ecn_accepted if answered else None,
        syn_sack=bool(connection.client_sack_permitted),
        synack_sack=bool(connection.server_sack_permitted) if answered else None,
        syn_window_scale=connection.client_window_scale,
        synack_window_scale=connection.server_window_scale if answered else None,
        synack_seen=answered,
        syn_timestamps=bool(connection.client_timestamps),
        synack_timestamps=bool(connection.server_timestamps) if answered else None,
        syn_mss=connection.client_mss,
        synack_mss=connection.server_mss if answered else None,
        syn_window=connection.client_syn_window or 0,
        syn_count=connection.client_syn_packets,
        later_syn_without_ecn=bool(connection.ecn_fallback),
    )


def judge_treatment(download: Download, connection: Connection | None) -> tuple[bool | None, str | None]:
    """Whether the wire carried what was asked, and why not: (None, reason) where nothing can tell.

    For QUIC the client's own account counts, as transport parameters are encrypted in the capture.
    """
    if download.treatment_ok is False:
        return False, download.treatment_detail
    if download.transport == Transport.QUIC:
        return _judge_quic(download)
    if connection is None:
        return None, "no connection of the capture fits this download" if download.capture else "there is no capture"
    handshake = handshake_of(connection)
    if handshake is None:
        return None, "the SYN is not in the capture"
    levels: Mapping[str, str] = json.loads(download.levels)
    reasons = [
        f"{name}={level}: {reason}"
        for name, level in levels.items()
        if (reason := FACTORS[name].proof(level, handshake)) is not None
    ]
    if download.outcome == Outcome.OK and (told := story(download, connection)) is not None:
        reasons.append(told)
    return not reasons, "; ".join(reasons) or None


def _judge_quic(download: Download) -> tuple[bool | None, str | None]:
    if download.transport_detail is None or download.connect_s is None:
        return None, "the client gave no account of a connection"
    version = json.loads(download.transport_detail).get("version")
    if version != QUIC_V1 or download.alpn != "h3":
        return False, f"QUIC version {version} with {download.alpn or 'no ALPN'}, version 1 with h3 was asked"
    return True, None


def story(download: Download, connection: Connection) -> str | None:
    """Where client and capture contradict each other, None where they tell the same story.

    The last data byte reaches the kernel, and the capture, before the client can have read it; so only a client that is
    earlier, or later by more than the slack, is wrong.
    """
    if connection.truncated or (download.capture_dropped or 0) > 0 or download.last_byte_s is None:
        return None
    if connection.response_last_ns is None:
        return "client and capture differ: the client has a body, the capture has no data from the server"
    seen_s = connection.response_last_ns / 1e9 - download.started_at
    slack_s = max(STORY_SLACK_S, STORY_SLACK_SHARE * download.last_byte_s)
    if abs(seen_s - download.last_byte_s) > slack_s:
        return (
            f"client and capture differ: last byte after {download.last_byte_s:.4f} s by the client, "
            f"{seen_s:.4f} s by the capture"
        )
    if connection.server_payload_bytes < download.body_bytes:
        return (
            f"client and capture differ: a body of {download.body_bytes} bytes, "
            f"{connection.server_payload_bytes} bytes of payload in the capture"
        )
    return None


def kpi_row(download: Download, connection: Connection) -> dict[str, Value]:
    """A row of `kpis`: the download's key, then every KPI."""
    row: dict[str, Value] = {name: getattr(download, name) for name in store.DOWNLOAD_KEY}
    if download.transport == Transport.QUIC:
        # Retransmissions of QUIC are invisible in a capture: its goodput needs the client's account of the body.
        connection = replace(connection, body_bytes=download.body_bytes)
    return row | {name: kpi.compute(connection) for name, kpi in KPIS.items()}


def write_kpis(path: Path, rows: Sequence[Mapping[str, Value]]) -> None:
    """Writes `kpis.parquet`: key columns, then one column per KPI with its unit in the column's metadata."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    keys = store.row_schema("downloads")
    fields = [keys.field(name) for name in store.DOWNLOAD_KEY]
    fields += [pa.field(name, arrow[kpi.kind], metadata={"unit": kpi.unit}) for name, kpi in KPIS.items()]
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in fields]
    store.write_table(path, "kpis", pa.Table.from_arrays(columns, schema=pa.schema(fields)))
