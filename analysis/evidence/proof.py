"""Did the packets have the requested options, do client and capture agree, was the handshake slow? Pure.

QUIC needs one round trip, TCP with TLS 1.3 two and with TLS 1.2 three (RFC 9000, section 7; RFC 8446, section 2; RFC
5246, section 7.3). A longer handshake waited for a retransmission, a HelloRetryRequest, a QUIC Retry, a server that did
not answer at once, or a client without a processor: then the server's or the host's state, not the transport, decides
which configuration is faster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.captures.connection import Connection
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis.rtt import rtt_min
from analysis.evidence.identity import headers_of
from analysis.evidence.matching import canonical
from core.domain import (
    Download,
    EcnDelivery,
    Handshake,
    HostDisturbance,
    Outcome,
    Proven,
    Refutation,
    Transport,
    TreatmentReason,
    Wire,
)
from core.errors import UsageError

CLIENT_SLACK_S = 0.005
CLIENT_SLACK_SHARE = 0.01
"""Client and capture may differ by the larger of the two."""

QUIC_V1 = "0x00000001"

_PROTOCOLS = {"1.1": (("1.1", "1.0"), "http/1.1"), "2": (("2",), "h2"), "3": (("3",), "h3")}
"""HTTP version of a client -> versions of responses that are of this kind, and its name in TLS (ALPN, RFC 7301)."""

HANDSHAKE_SLACK_SHARE = 1.3
HANDSHAKE_SLACK_S = 0.015
"""A handshake is slow if it took longer than its round trips times `HANDSHAKE_SLACK_SHARE` plus `HANDSHAKE_SLACK_S`."""

_TLS_ROUND_TRIPS = {"TLSv1.3": 1, "TLSv1.2": 2}


def handshake_of(connection: Connection) -> Handshake | None:
    """The options of SYN and SYN-ACK; None for QUIC, or if the SYN was not captured."""
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
        later_syn_without_ecn=bool(connection.ecn_fallback),
    )


class Treatment(NamedTuple):
    """The verdict on one download."""

    ok: bool | None
    """Whether the packets had the requested options; None if that cannot be determined."""
    reason: TreatmentReason | None = None
    """The first reason why it is not true."""
    detail: str | None = None
    """All reasons as a sentence."""


def judge_treatment(
    download: Download,
    connection: Connection | None,
    factors: Mapping[str, Proven],
    *,
    lost: str | None = None,
    clock_s: float = 0.0,
) -> Treatment:
    """Whether the packets had the requested options, and why not.

    For QUIC the client's data is used, as transport parameters are encrypted in the capture, which must agree on the
    time and the amount of data.

    Args:
        factors: name -> factor, of all that the download's levels name.
        lost: why the capture is incomplete, if it is.
        clock_s: by how much the capture's clock is ahead of the client's.

    Raises:
        UsageError: the levels name a factor that is not there.
    """
    if download.transport == Transport.QUIC:
        return _judge_quic(download, connection, clock_s)
    if connection is None:
        if download.capture is None:
            return _unproven("no capture")
        return _unproven(lost or "no connection of the capture has the addresses and ports of this download")
    wire = wire_of(download, connection)
    if wire is None:
        return _unproven("the SYN is not in the capture")
    if unknown := sorted(wire.levels.keys() - factors.keys()):
        raise UsageError(
            f"it has levels of factors that this Upshift does not know ({', '.join(unknown)})",
            where=f"the journal of {download.vantage}",
            remedy="use the Upshift that measured them",
        )
    refuted = [
        Refutation(reason=refutation.reason, detail=f"{name}={level}: {refutation.detail}")
        for name, level in wire.levels.items()
        if (refutation := factors[name].proof(level, wire)) is not None
    ]
    if (other := _other_http(download)) is not None:
        refuted.append(other)
    if download.outcome == Outcome.OK and (difference := contradiction(download, connection, clock_s=clock_s)):
        refuted.append(Refutation(reason=TreatmentReason.ACCOUNTS_DIFFER, detail=difference))
    return _verdict(refuted)


def _verdict(refuted: Sequence[Refutation]) -> Treatment:
    if not refuted:
        return Treatment(True)
    return Treatment(False, refuted[0].reason, "; ".join(one.detail for one in refuted))


def _other_http(download: Download) -> Refutation | None:
    """Whether another HTTP version than the client's was used; a server that answers 1.0 to 1.1 is not another one."""
    wanted = download.client_http or ("3" if download.transport == Transport.QUIC else "")
    if wanted not in _PROTOCOLS:
        return None
    versions, protocol = _PROTOCOLS[wanted]
    is_other = download.http_version is not None and download.http_version not in versions
    if not is_other and download.alpn in (protocol, None):
        return None
    used = f"HTTP/{download.http_version or '?'} ({download.alpn or 'no ALPN'})"
    return Refutation(reason=TreatmentReason.HTTP_VERSION, detail=f"{used}, HTTP/{wanted} was requested")


def _unproven(detail: str) -> Treatment:
    return Treatment(None, TreatmentReason.NO_EVIDENCE, detail)


def wire_of(download: Download, connection: Connection) -> Wire | None:
    """What is known of the connection at both ends; None for QUIC, or if the SYN was not captured."""
    client = handshake_of(connection)
    if client is None:
        return None
    at_server: Mapping[str, Any] = json.loads(download.server_end) if download.server_end else {}
    ecn = None
    if not connection.truncated and not download.capture_dropped:
        ecn = EcnDelivery(
            data=connection.server.data_packets,
            marked=connection.server.ecn_data_packets,
            ce=connection.server.ce_packets,
            sent_marked=at_server.get("ecn_sent"),
            ce_set=at_server.get("ce_set"),
        )
    return Wire(
        client=client,
        server=handshake_at_server(at_server),
        ecn=ecn,
        levels=json.loads(download.levels),
        kpi=lambda name: KPIS[name].compute(connection),
    )


def handshake_at_server(record: Mapping[str, Any]) -> Handshake | None:
    """The handshake as seen at the server's end; None if no SYN arrived there."""
    syn, synack = record.get("syn"), record.get("synack")
    if syn is None:
        return None
    answer: Mapping[str, Any] = synack or {}
    return Handshake(
        syn_ecn=syn["ecn"],
        synack_ecn=answer.get("ecn"),
        syn_sack=syn["sack"],
        synack_sack=answer.get("sack"),
        syn_window_scale=syn["window_scale"],
        synack_window_scale=answer.get("window_scale"),
        synack_seen=synack is not None,
        syn_timestamps=syn["timestamps"],
        synack_timestamps=answer.get("timestamps"),
        syn_mss=syn["mss"],
        synack_mss=answer.get("mss"),
        syn_window=syn["window"],
        later_syn_without_ecn=False,
    )


def _judge_quic(download: Download, connection: Connection | None, clock_s: float) -> Treatment:
    if download.transport_detail is None or download.connect_s is None:
        return _unproven("the client reported no connection")
    version = json.loads(download.transport_detail).get("version")
    if version is None and connection is not None and connection.quic_version is not None:
        version = f"{connection.quic_version:#010x}"  # of its long headers, where the client does not report it
    if version is None:
        return _unproven("neither the client nor the capture has the version of QUIC")
    if version != QUIC_V1:
        detail = f"QUIC version {version}, version 1 was requested"
        return Treatment(False, TreatmentReason.QUIC_VERSION, detail)
    if (other := _other_http(download)) is not None:
        return _verdict([other])
    if connection is not None and download.outcome == Outcome.OK:
        difference = contradiction(download, connection, clock_s=clock_s)
        if difference is not None:
            return Treatment(False, TreatmentReason.ACCOUNTS_DIFFER, difference)
    return Treatment(True)


def contradiction(download: Download, connection: Connection, *, clock_s: float = 0.0) -> str | None:
    """How client and capture contradict each other; None if they agree.

    The last data byte reaches the kernel, and the capture, before the client can have read it: a client that is earlier
    by more than the tolerance is wrong. One that is later was delayed (see `disturbance`). A QUIC server may send for a
    round trip after the client has everything: data whose acknowledgements were on their way. A body of QUIC below
    about 1,000 bytes has no times in the capture, which cannot tell it from tickets: then only bytes are compared.
    """
    if not _has_all(download, connection):
        return None
    if not connection.server.payload_bytes:
        return "client and capture differ: the client has a body, the capture has no data from the server"
    if connection.response_last_ns is not None:
        late_s, slack_s = _late_s(download, connection.response_last_ns, clock_s)
        if download.transport == Transport.QUIC:
            slack_s += download.connect_s or 0.0  # at least a round trip
        if late_s < -slack_s:
            return (
                f"client and capture differ: last byte after {download.last_byte_s:.4f} s by the client, "
                f"{-late_s:.4f} s later by the capture"
            )
    if connection.server.payload_bytes < download.body_bytes and not _is_packed(download):
        return (
            f"client and capture differ: a body of {download.body_bytes} bytes, "
            f"{connection.server.payload_bytes} bytes of payload in the capture"
        )
    return None


def disturbance(
    download: Download, connection: Connection | None, *, clock_s: float = 0.0
) -> tuple[HostDisturbance, str] | None:
    """How the host disturbed the download, and a description; None if it did not.

    Only TCP is judged: the kernel acknowledges for a client that is late, and the server goes on. A QUIC client that is
    late acknowledges late, which is its own speed (see the flags for CPU and run-queue delay).
    """
    if connection is None or download.outcome != Outcome.OK or download.transport != Transport.TCP:
        return None
    if not _has_all(download, connection) or not has_answer(download, connection, clock_s=clock_s):
        return None
    if connection.response_last_ns is None:
        return None
    late_s, slack_s = _late_s(download, connection.response_last_ns, clock_s)
    if late_s <= slack_s:
        return None
    return HostDisturbance.CLIENT_LATE, f"the client read the last byte {late_s * 1e3:.1f} ms after it arrived"


def has_answer(download: Download, connection: Connection, *, clock_s: float = 0.0) -> bool:
    """Whether what the capture takes for the largest answer can be that of the download. Of TCP it has as many bytes as
    the body at least, or else a segment of the client was taken for another request. What was lost on the way and came
    later counts as a retransmission; gaps in the capture apart. And it comes after the client's TLS handshake: before
    that, a body smaller than the certificates is not the server's largest answer. QUIC hides what is data."""
    if download.transport != Transport.TCP:
        return True
    first_ns, tls_s, server = connection.response_first_ns, download.tls_s, connection.server
    if first_ns is not None and tls_s is not None and by_client_s(download, first_ns, clock_s) < tls_s:
        return False
    seen = connection.response_bytes + server.retransmitted_bytes + server.missing_bytes
    return seen >= download.body_bytes or _is_packed(download)


_UNPACKED = frozenset(("gzip", "x-gzip", "deflate", "br", "zstd", "xz", "lzma", "bzip2", "lzip"))
"""Codings that wget2 offers (its --compression)."""


def _is_packed(download: Download) -> bool:
    """Whether its client has unpacked the body, so that the capture has less: wget2, which then tells no length of it.

    All other clients count what came, whatever its coding.
    """
    coding = headers_of(download).get("content-encoding", "").strip().lower()
    return download.content_length is None and coding in _UNPACKED


def _has_all(download: Download, connection: Connection) -> bool:
    """Whether client and capture can be compared."""
    return not connection.truncated and not download.capture_dropped and download.last_byte_s is not None


def by_client_s(download: Download, time_ns: int, clock_s: float) -> float:
    """A time of the capture, from the client's start by the client's clock [s]."""
    return time_ns / 1e9 - download.started_at - clock_s


def _late_s(download: Download, last_ns: int, clock_s: float) -> tuple[float, float]:
    """How much later the client has the last byte than the capture, and the tolerance [s]."""
    took_s = download.last_byte_s or 0.0
    return took_s - by_client_s(download, last_ns, clock_s), max(CLIENT_SLACK_S, CLIENT_SLACK_SHARE * took_s)


def smallest_rtts_s(downloads: Sequence[Download], connections: Sequence[Connection | None]) -> list[float | None]:
    """For each download of a measurement run the smallest round-trip time to its server [s]; None if unknown.

    In the published order each may have another server. That of the slow handshake itself would not do: what delays a
    server's first packet of QUIC is in it. So a download over QUIC has none where no other one has one to its server.

    Args:
        connections: of the downloads, in their order.
    """
    known: dict[str, list[tuple[Connection, float]]] = {}
    for connection in connections:
        if connection is not None and isinstance(rtt_ms := rtt_min.compute(connection), int | float):
            known.setdefault(canonical(connection.server_ip), []).append((connection, rtt_ms / 1e3))
    rtts_s: list[float | None] = []
    for download, own in zip(downloads, connections, strict=True):
        of_server = known.get(canonical(download.server_ip or ""), [])
        is_known = download.transport != Transport.QUIC or any(connection is not own for connection, _ in of_server)
        rtts_s.append(min((rtt_s for _, rtt_s in of_server), default=None) if is_known else None)
    return rtts_s


def slow_handshake(download: Download, rtt_s: float | None, *, began_s: float = 0.0) -> bool | None:
    """Whether the handshake took longer than its round trips; None if it did not complete, or the RTT is unknown.

    It counts from `began_s`, the connection's own start: a redirect to another host comes before.
    """
    tls = _TLS_ROUND_TRIPS.get(download.tls_version or "")
    took_s = download.connect_s if download.transport == Transport.QUIC else download.tls_s
    if tls is None or took_s is None or rtt_s is None:
        return None
    round_trips = tls if download.transport == Transport.QUIC else 1 + tls
    return took_s - began_s > round_trips * HANDSHAKE_SLACK_SHARE * rtt_s + HANDSHAKE_SLACK_S
