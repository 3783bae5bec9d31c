"""The kernel's state of a connection: `struct tcp_info` (linux/include/uapi/linux/tcp.h; `getsockopt` TCP_INFO)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

SIZE = 104
"""Bytes up to and including `tcpi_total_retrans`; later kernels only append."""

TIMESTAMPS, SACK, WSCALE, ECN, ECN_SEEN = 1, 2, 4, 8, 16
"""TCPI_OPT_*: bits of `tcpi_options`. ECN is set where SYN and SYN-ACK negotiated it (RFC 3168, section 6.1.1)."""

# state, ca_state, retransmits, probes, backoff, options, wscales (sender's in the low 4 bits), flags; then 24 numbers:
# rto ato snd_mss rcv_mss | unacked sacked lost retrans fackets | four ages | pmtu rcv_ssthresh rtt rttvar snd_ssthresh
# snd_cwnd advmss reordering | rcv_rtt rcv_space | total_retrans
_LAYOUT = struct.Struct("=8B24I")
_SND_MSS, _RTT, _TOTAL_RETRANS = 10, 23, 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpInfo:
    """The fields that are known after a handshake."""

    state: int
    timestamps: bool
    sack: bool
    window_scaling: bool
    ecn: bool
    peer_window_scale: int | None
    """The server's shift count, None without the option."""
    own_window_scale: int | None
    snd_mss_bytes: int
    """Largest segment that we may send: the server's MSS minus our options, at most what our MTU allows."""
    rtt_s: float | None
    """Round-trip time of the handshake; None if the kernel took no sample (a retransmitted SYN without timestamps:
    RFC 6298, section 3)."""
    retransmissions: int
    """Retransmitted SYNs, if nothing but the handshake was sent (net/ipv4/tcp_output.c, `__tcp_retransmit_skb`)."""


def parse(data: bytes) -> TcpInfo:
    """Parses the result of `getsockopt(IPPROTO_TCP, TCP_INFO, SIZE)`. Raises ValueError if it is shorter than SIZE."""
    if len(data) < SIZE:
        raise ValueError(f"tcp_info of {len(data)} bytes, {SIZE} needed: the kernel is older than 2.6.10")
    fields = _LAYOUT.unpack_from(data)
    options, scales = fields[5], fields[6]
    scaled = bool(options & WSCALE)
    return TcpInfo(
        state=fields[0],
        timestamps=bool(options & TIMESTAMPS),
        sack=bool(options & SACK),
        window_scaling=scaled,
        ecn=bool(options & ECN),
        # C bit fields: the first one has the low bits on little-endian machines, the high ones on others.
        peer_window_scale=_low(scales) if scaled else None,
        own_window_scale=_high(scales) if scaled else None,
        snd_mss_bytes=fields[_SND_MSS],
        rtt_s=fields[_RTT] / 1e6 if fields[_RTT] else None,
        retransmissions=fields[_TOTAL_RETRANS],
    )


_LITTLE = struct.pack("=H", 1) == b"\x01\x00"


def _low(scales: int) -> int:
    return scales & 0xF if _LITTLE else scales >> 4


def _high(scales: int) -> int:
    return scales >> 4 if _LITTLE else scales & 0xF
