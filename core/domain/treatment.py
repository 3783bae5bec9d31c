"""What was on the wire, and whether a download had the options that were requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class TreatmentReason(StrEnum):
    """Why a treatment is disproved or unproven. The vocabulary is closed, like `Failure`.

    At the client alone, a server that refuses and a path that strips cannot be distinguished. That needs data from the
    server's end (`Download.server_end`), which the lab records.
    """

    WRONG_OFFER = "wrong_offer"
    """The client's first SYN did not have the requested options."""
    NO_SYN_ACK = "no_syn_ack"
    """The client requested the option, and no SYN-ACK was captured."""
    FELL_BACK = "fell_back"
    """The client's kernel retransmitted its SYN without ECN (tcp_ecn_fallback)."""
    REFUSED_OR_STRIPPED = "refused_or_stripped"
    """The SYN-ACK lacks the option: the server refused it, or the path removed it; it is unknown which."""
    SERVER_REFUSED = "server_refused"
    """The server received the request and did not accept it; or it accepted ECN and sent no packets with ECT."""
    STRIPPED = "stripped"
    """The path removed the option from the SYN or from the SYN-ACK."""
    REWRITTEN = "rewritten"
    """The path changed the handshake in both directions: as requested for the client, but not for the server."""
    BLEACHED = "bleached"
    """ECN was negotiated, and under 10 % of 50 or more data packets arrived with ECT or CE."""
    CE_CLEARED = "ce_cleared"
    """The path marked packets CE, and under 10 % of these marks arrived."""
    QUIC_VERSION = "quic_version"
    """The QUIC version or the protocol (ALPN) was not the requested one."""
    ACCOUNTS_DIFFER = "accounts_differ"
    """Client and capture contradict each other."""
    NO_EVIDENCE = "no_evidence"
    """There is no capture, no SYN in it, or no report by the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """Why a download did not have what was requested."""

    reason: TreatmentReason
    detail: str
    """One clause of text, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What the first SYN and its SYN-ACK carried, at the client or at the server: the proof of treatment for TCP.

    `None` in a `synack_*` field means that no SYN-ACK was captured. Sources: RFC 9293 (flags, MSS), RFC 7323 (window
    scale, timestamps), RFC 2018 (SACK permitted), RFC 3168 section 6.1.1 (ECN-setup SYN has ECE and CWR, ECN-setup
    SYN-ACK has ECE only).
    """

    syn_ecn: bool
    synack_ecn: bool | None
    syn_sack: bool
    synack_sack: bool | None
    syn_window_scale: int | None
    """The shift count, None if the option is absent."""
    synack_window_scale: int | None
    synack_seen: bool
    syn_timestamps: bool
    synack_timestamps: bool | None
    syn_mss: int | None
    synack_mss: int | None
    syn_window: int
    """Unscaled window of the SYN [bytes]."""
    syn_count: int
    """SYNs of this connection, retransmitted ones included."""
    later_syn_without_ecn: bool
    """The first SYN requested ECN and a retransmitted one did not (the kernel's `tcp_ecn_fallback`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EcnDelivery:
    """Delivery of the ECN field (RFC 3168, section 5) of the server's packets. All counts are packets."""

    data: int
    """Data packets of the server that arrived."""
    marked: int
    """Data packets that arrived with ECT(0), ECT(1) or CE."""
    ce: int
    """Packets of the server that arrived with CE."""
    sent_marked: int | None = None
    """Packets that left the server with ECT or CE; None without data from the server's end."""
    ce_set: int | None = None
    """Packets that the path marked CE; likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The data of a TCP connection that factors check."""

    client: Handshake
    """The handshake as the client sent and received it."""
    server: Handshake | None = None
    """The handshake as the server received and sent it; None without data from the server's end."""
    ecn: EcnDelivery | None = None
    """None if the capture is incomplete."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """The requested levels: factor -> level."""
    kpi: Callable[[str], bool | int | float | str | None] = lambda _: None
    """(name of a KPI) -> its value for the connection, as in the tables; None if it has none."""


class Proven(Protocol):
    """A factor as inspection sees it: an option that the packets of a connection can prove."""

    @property
    def name(self) -> str: ...

    def proof(self, level: str, wire: Wire, /) -> Refutation | None:
        """None if the packets had the option at this level, else the reason."""
        ...
