"""The record of one connection from the Rust engine; every KPI is a pure function of it.

Times `*_ns` are ns, absolute ones since 1970-01-01 UTC by the capture's clock; sizes are bytes. None means "not in
the capture" or "does not apply".
See `docs/design/kpi-engine.md` for the definitions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side of a connection sent."""

    # The engine's fields, from rust/pcapscan/src/record/side.rs
    packets: int
    ip_bytes: int
    """IPv4 total length, IPv6 payload length + 40."""
    payload_bytes: int
    """TCP or UDP payload, retransmissions included; without copies (`true_class` is `duplicate`)."""
    data_packets: int
    """Packets with payload."""
    largest_payload: int
    first_data_ns: int | None
    last_data_ns: int | None
    ect0_packets: int
    """Packets with ECT(0) in the IP header."""
    ect1_packets: int
    """Packets with ECT(1) in the IP header."""
    ce_packets: int
    """Packets with Congestion Experienced in the IP header."""
    ecn_data_packets: int
    """Packets with payload and ECT(0), ECT(1) or Congestion Experienced in the IP header."""
    ece_packets: int
    """Segments with ECE, without SYNs; not a congestion signal if accurate ECN is negotiated."""
    cwr_packets: int
    """Segments with CWR, without SYNs; likewise."""
    ae_packets: int
    """Segments with AE, without SYNs."""
    acc_ecn_option: bool
    """A segment had an AccECN option (RFC 9768, section 3.2.3)."""
    syn_packets: int
    """Without copies."""
    fin_packets: int
    rst_packets: int
    mss: int | None
    """MSS option of the first SYN."""
    window_scale: int | None
    """Window scale shift of the first SYN, 0 to 14."""
    syn_window: int | None
    """Window of the first SYN, which is never scaled."""
    sack_permitted: bool | None
    """SACK permitted in the first SYN; None where the capture ends before it."""
    timestamps: bool | None
    """Timestamps in the first SYN; likewise."""
    largest_window: int
    """Largest window that this side announced, scaled if both SYNs have the option."""
    first_data_window: int | None
    """Window of this side's first segment with data, SYNs apart, scaled likewise; None without such data."""
    sack_segments: int
    """Segments with SACK blocks, without those that have only a D-SACK block."""
    sack_blocks: int
    """SACK blocks, without D-SACK blocks."""
    dsack_blocks: int
    """D-SACK blocks (RFC 2883)."""
    ws_retransmission: int
    """Segments by Wireshark's class, each in the most specific one (see `ws_class`)."""
    ws_fast_retransmission: int
    ws_spurious_retransmission: int
    ws_out_of_order: int
    ws_keep_alive: int
    ws_keep_alive_ack: int
    ws_dup_ack: int
    ws_zero_window_probe: int
    ws_zero_window_probe_ack: int
    ws_zero_window: int
    """Segments with `tcp.analysis.zero_window`: a count, not a class; so are the four below."""
    ws_window_full: int
    ws_window_update: int
    ws_lost_segment: int
    ws_acked_unseen: int
    true_new: int
    """Segments by what actually happened (see `true_class`)."""
    true_retransmission: int
    true_reordered: int
    true_duplicate: int
    true_keep_alive: int
    true_out_of_window: int
    retransmitted_bytes: int
    """Retransmitted payload."""
    retransmitted_ip_bytes: int
    """IP bytes of packets with only retransmitted payload, and the retransmitted payload of others."""
    missing_bytes: int
    """Gaps that were not filled before the capture ended."""
    truth_by_ip_id: int
    """Classified out-of-order segments by evidence: IP-ID order, TSval order, bytes seen before, time."""
    truth_by_tsval: int
    truth_by_seen: int
    truth_by_time: int
    rtt_ts_count: int
    """Round trips from this side: its ACK of data with a new TSval, to the first data that echoes it."""
    rtt_ts_min_ns: int | None
    rtt_ts_mean_ns: float | None
    rtt_ts_p50_ns: float | None
    """Percentiles are within 0.5 %."""
    rtt_ts_p95_ns: float | None
    rtt_ts_p99_ns: float | None
    rtt_ts_max_ns: int | None
    rtt_ack_count: int
    """Times from this side's segments to the ACKs that end at them; without retransmitted segments, or behind a gap."""
    rtt_ack_min_ns: int | None
    rtt_ack_mean_ns: float | None
    rtt_ack_p50_ns: float | None
    rtt_ack_max_ns: int | None
    flight_count: int
    """Data packets of this side whose TSecr bounds what it had in flight."""
    flight_lower_max: int | None
    flight_upper_max: int | None
    flight_lower_mean: float | None
    flight_upper_mean: float | None
    window_limited_share: float | None
    """Those of them whose upper bound was within two of the largest segments of the window."""
    # End of the engine's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP or QUIC connection of a capture."""

    # The engine's fields, from rust/pcapscan/src/record/connection.rs
    number: int
    """Index in the capture, from 0, in order of first packets."""
    protocol: str
    """`tcp` or `quic`."""
    ip_version: int
    client_ip: str
    """The client sent the SYN (for QUIC: the first Initial)."""
    client_port: int
    server_ip: str
    server_port: int
    client_known: bool
    """Whether the handshake identified the client; else it was guessed from the port numbers."""
    first_ns: int
    """Earliest packet."""
    last_ns: int
    """Latest packet."""
    backwards_packets: int
    """Packets with a time before that of their predecessor: the capture's clock went backwards."""
    truncated: bool
    """The capture file is truncated or damaged: the connection may have had more packets."""
    gro: bool
    """Some packets are larger than on the wire: the host merged them (GRO, LRO) or had not yet split them (TSO)."""
    syn_ns: int | None
    """First SYN."""
    last_syn_ns: int | None
    """Last SYN before the first SYN-ACK."""
    syn_ack_ns: int | None
    handshake_ack_ns: int | None
    """First segment of the client after the SYN-ACK."""
    syn_ack_answers_first_syn: bool | None
    """Whether the SYN-ACK echoes the TSval of the first SYN."""
    initial_rtt_ns: int | None
    """Wireshark's iRTT: first segment with ACK and without SYN, minus the last SYN."""
    ecn_requested: bool | None
    """The *first* SYN had ECE and CWR (RFC 3168, section 6.1.1)."""
    ecn_accepted: bool | None
    """The SYN-ACK accepted ECN, classic or accurate, and the SYN that it answers had requested it. None, as for
    accurate ECN, unless both are in the capture."""
    acc_ecn_requested: bool | None
    """The first SYN had AE, ECE and CWR (RFC 9768, section 3.1.1)."""
    acc_ecn_accepted: bool | None
    """The SYN-ACK accepted accurate ECN: from then on ECE, CWR and AE form a counter."""
    ecn_fallback: bool | None
    """The first SYN requested ECN and a later one before the SYN-ACK did not."""
    sack_accepted: bool | None
    """Both SYNs permit SACK. None, as for the two below, without the SYNs, or where the capture ends inside one."""
    window_scale_accepted: bool | None
    """Both SYNs have the window scale option."""
    timestamps_accepted: bool | None
    """Both SYNs have the timestamps option."""
    quic_version: int | None
    """Version of the last long header."""
    quic_original_dcid: str | None
    """Destination connection ID of the client's first Initial, hexadecimal."""
    quic_client_cid: str | None
    quic_server_cid: str | None
    quic_retries: int | None
    quic_version_negotiations: int | None
    quic_zero_rtt_packets: int | None
    quic_client_initials: int | None
    """Initials of the client before the server's first."""
    quic_client_initial_ns: int | None
    """First Initial of the client."""
    quic_last_client_initial_ns: int | None
    """Last Initial of the client before the server's first."""
    quic_server_initial_ns: int | None
    quic_client_short_ns: int | None
    """First 1-RTT packet of the client: it has the keys, so its handshake is complete."""
    quic_server_short_ns: int | None
    quic_spin_rtt_count: int | None
    """Samples of the spin bit in the server's packets; 0 if it does not spin (RFC 9000, section 17.4)."""
    quic_spin_rtt_min_ns: int | None
    quic_spin_rtt_mean_ns: float | None
    quic_spin_rtt_p50_ns: float | None
    client_hello_bytes: int | None
    """Payload that the client sent before the server's first answer (TCP's handshake apart), without retransmissions of
    TCP; None without an answer, and without TCP's handshake."""
    client_hello_packets: int | None
    """Segments or datagrams of it."""
    response_request_ns: int | None
    """Last data of the client before the server's largest answer."""
    response_first_ns: int | None
    """First packet of the answer with the most bytes that has 1,000 bytes of payload or more; of TCP its first one, if
    none of its first 8 KiB is as long. QUIC: the server's first such 1-RTT datagram after the client's first 1-RTT
    packet, and after probes of a larger MTU."""
    response_last_ns: int | None
    """Its last one. What the client had already does not count, nor segments as long as a TLS `close_notify` (23, 24,
    31, 53, 57, 69 or 85 bytes); of QUIC neither datagrams of fewer than 100 bytes, which carry acknowledgements, nor
    what came after the client's last datagram."""
    response_ip_bytes: int | None
    """IP bytes of the server from the connection's first packet to that one, without copies (`true_class` is
    `duplicate`)."""
    response_bytes: int
    """Its payload, of TCP without retransmissions; includes TLS records or QUIC packet headers, and HTTP headers."""
    response_first_bytes: int
    """Payload up to and with that packet; of QUIC of that packet alone."""
    round_ns: int | None
    """Length of a round of that answer: the initial round-trip time (of TCP that of ACKs, if the SYN was slow), or a
    multiple of it by a power of two, so that there are at most 64 rounds. None without an answer."""
    dispersion_ps_per_byte: float | None
    """Time per byte of payload within four full packets in a row; a quarter took less [ps/B]."""
    round_bytes: Sequence[int]
    """New payload by round; the last round ends with the answer. So do the others below."""
    round_packets: Sequence[int]
    round_window_limited: Sequence[int]
    """Data packets as in `Side.window_limited_share`; 0 for QUIC."""
    round_losses: Sequence[int]
    """Retransmissions, and packets with Congestion Experienced."""
    round_silent_ns: Sequence[int]
    """Time in which nothing came for more than 1.5 initial round trips; it counts in the round in which it ends."""
    round_rtt_ns: Sequence[int]
    """Mean round-trip time by timestamps; 0: no sample."""
    client: Side
    """What the client sent."""
    server: Side
    """What the server sent."""
    series: Mapping[str, Any] | None
    """Time series, if requested (see `docs/design/kpi-engine.md`)."""
    # End of the engine's fields

    body_bytes: int | None = None
    """Bytes of the body as reported by the client: not from the engine, but added when a download is joined."""
    client_start_ns: int | None = None
    """When the client began, on the capture's clock; likewise."""
    quic_client_lost: int | None = None
    """Packets that the client sent and declared lost, as reported by the client; likewise."""
    quic_data_blocked: int | None = None
    """DATA_BLOCKED and STREAM_DATA_BLOCKED frames of the server, as reported by the client; likewise."""
    quic_loss_episodes: int | None = None
    """How often packets of the body were lost, as reported by the client; likewise."""
    quic_window: int | None = None
    """The smallest one of the client's initial windows, of connection and stream, or its fixed one; likewise."""
    socket_drops: int | None = None
    """Packets that the kernel dropped because the client read its UDP socket too late; likewise."""
    client_cpu_share: float | None = None
    """Share of a core that the client used from the first packet to the last body byte; likewise."""
    client_run_delay_share: float | None = None
    """Share of that time in which it waited for a CPU; likewise."""
    client_late_share: float | None = None
    """Share of that time between the capture's last data packet and the client's reading it; likewise."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Connection:
        """The connection of a record of `upshift_native`. Raises TypeError if its fields differ from this class's."""
        sides = {name: _filled(Side, record[name], {}) for name in ("client", "server") if name in record}
        made: Connection = _filled(cls, {**record, **sides}, _JOINED)
        return made

    @property
    def opened_ns(self) -> int | None:
        """When the client began it: the first SYN, or the first Initial of QUIC. None if the capture begins later: with
        QUIC, if a server's Initial precedes all of the client's."""
        if self.protocol == "quic":
            return None if self.quic_last_client_initial_ns is None else self.quic_client_initial_ns
        return self.syn_ns

    @property
    def duration_s(self) -> float:
        """First to last packet, s."""
        return (self.last_ns - self.first_ns) / 1e9


_JOINED = {entry.name: None for entry in fields(Connection) if entry.default is None}
"""Fields that the engine does not set."""


def _filled(kind: Any, record: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """As `kind(**record)`, but `__init__` of a frozen class takes each field through `object.__setattr__`: a third of
    the time of a small capture.
    """
    setters = _setters(kind)
    made = object.__new__(kind)
    absent = len(setters) - len(record)
    for name, value in defaults.items():
        if name not in record:
            setters[name](made, value)
            absent -= 1
    try:
        for name, value in record.items():
            setters[name](made, value)
    except KeyError as error:
        raise TypeError(f"a record has the unknown field {error}") from None
    if absent:
        raise TypeError(f"a record has {len(record)} fields, not all that a {kind.__name__.lower()} has")
    return made


@functools.cache
def _setters(kind: Any) -> dict[str, Callable[[Any, Any], None]]:
    """The setter of each slot."""
    return {name: vars(kind)[name].__set__ for name in kind.__slots__}
