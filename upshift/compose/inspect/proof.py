"""Did the wire carry what was asked, and do client and capture tell one story? Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from analysis.captures.connection import Connection
from downloader.factors import ALL as FACTORS
from upshift.domain import Download, Handshake, HostDisturbance, Outcome, Transport

STORY_SLACK_S = 0.005
STORY_SLACK_SHARE = 0.01
"""Client and capture may differ by the larger of the two."""

QUIC_V1 = "0x00000001"


def handshake_of(connection: Connection) -> Handshake | None:
    """What SYN and SYN-ACK carried, None for QUIC or where the SYN was not captured."""
    if connection.protocol != Transport.TCP or connection.syn_ns is None:
        return None
    answered = connection.syn_ack_ns is not None
    return Handshake(
        syn_ecn=bool(connection.ecn_requested),
        synack_ecn=connection.ecn_accepted if answered else None,
        syn_sack=bool(connection.client.sack_permitted),
        synack_sack=bool(connection.server.sack_permitted) if answered else None,
        syn_window_scale=connection.client.window_scale,
        synack_window_scale=connection.server.window_scale if answered else None,
        synack_seen=answered,
        syn_timestamps=bool(connection.client.timestamps),
        synack_timestamps=bool(connection.server.timestamps) if answered else None,
        syn_mss=connection.client.mss,
        synack_mss=connection.server.mss if answered else None,
        syn_window=connection.client.syn_window or 0,
        syn_count=connection.client.syn_packets,
        later_syn_without_ecn=bool(connection.ecn_fallback),
    )


def judge_treatment(
    download: Download, connection: Connection | None, *, lost: str | None = None, clock_s: float = 0.0
) -> tuple[bool | None, str | None]:
    """Whether the wire carried what was asked, and why not: (None, reason) where nothing can tell.

    For QUIC the client's own account counts, as transport parameters are encrypted in the capture.

    Args:
        lost: why the capture does not have everything, where it does not.
        clock_s: what the capture's clock is ahead of the client's.
    """
    if download.transport == Transport.QUIC:
        return _judge_quic(download)
    if connection is None:
        if download.capture is None:
            return None, "no capture"
        return None, lost or "no connection of the capture has the addresses and ports of this download"
    handshake = handshake_of(connection)
    if handshake is None:
        return None, "the SYN is not in the capture"
    levels: Mapping[str, str] = json.loads(download.levels)
    reasons = [
        f"{name}={level}: {reason}"
        for name, level in levels.items()
        if (reason := FACTORS[name].proof(level, handshake)) is not None
    ]
    if download.outcome == Outcome.OK and (told := story(download, connection, clock_s=clock_s)) is not None:
        reasons.append(told)
    return not reasons, "; ".join(reasons) or None


def _judge_quic(download: Download) -> tuple[bool | None, str | None]:
    if download.transport_detail is None or download.connect_s is None:
        return None, "the client gave no account of a connection"
    version = json.loads(download.transport_detail).get("version")
    if version != QUIC_V1 or download.alpn != "h3":
        return False, f"QUIC version {version} with {download.alpn or 'no ALPN'}, version 1 with h3 was asked"
    return True, None


def story(download: Download, connection: Connection, *, clock_s: float = 0.0) -> str | None:
    """Where client and capture contradict each other, None where they tell the same story.

    The last data byte reaches the kernel, and the capture, before the client can have read it: a client that is earlier
    by more than the slack is wrong. One that is later was held up (see `disturbance`).
    """
    if not _has_all(download, connection):
        return None
    if connection.response_last_ns is None:
        return "client and capture differ: the client has a body, the capture has no data from the server"
    late_s, slack_s = _late_s(download, connection, clock_s)
    if late_s < -slack_s:
        return (
            f"client and capture differ: last byte after {download.last_byte_s:.4f} s by the client, "
            f"{-late_s:.4f} s later by the capture"
        )
    if connection.server.payload_bytes < download.body_bytes:
        return (
            f"client and capture differ: a body of {download.body_bytes} bytes, "
            f"{connection.server.payload_bytes} bytes of payload in the capture"
        )
    return None


def disturbance(
    download: Download, connection: Connection | None, *, clock_s: float = 0.0
) -> tuple[HostDisturbance, str] | None:
    """What the host did to the download, and in words; None where nothing shows."""
    if connection is None or download.outcome != Outcome.OK or download.transport != Transport.TCP:
        return None
    if not _has_all(download, connection) or connection.response_last_ns is None:
        return None
    late_s, slack_s = _late_s(download, connection, clock_s)
    if late_s <= slack_s:
        return None
    return HostDisturbance.CLIENT_LATE, f"the client read the last byte {late_s * 1e3:.1f} ms after it had come"


def _has_all(download: Download, connection: Connection) -> bool:
    """Whether client and capture can be compared."""
    return not connection.truncated and not download.capture_dropped and download.last_byte_s is not None


def _late_s(download: Download, connection: Connection, clock_s: float) -> tuple[float, float]:
    """How much later the client has the last byte than the capture, and by how much they may differ [s]."""
    seen_s = (connection.response_last_ns or 0) / 1e9 - download.started_at - clock_s
    took_s = download.last_byte_s or 0.0
    return took_s - seen_s, max(STORY_SLACK_S, STORY_SLACK_SHARE * took_s)
