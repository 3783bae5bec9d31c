"""How long a measurement run takes, and how many bytes on the path and on the disk: at most, and as expected. Pure.

Bytes are IP bytes in both directions, as a capture counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.domain import Configuration, Target, Transport
from downloader import clients
from downloader.campaign.campaign import Campaign
from downloader.campaign.configurations import pauses_s, recorded

AROUND_S = 15.0
"""What a run may take besides its downloads: look-up, start and end of the capture, packets in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGuess:
    """What is expected of the path to a target."""

    rtt_s: float = 0.05
    mbit: float = 20.0
    """Goodput of a download that no option slows down."""


USUAL = PathGuess()
"""Where nothing is known."""

_RUN_S = 0.6
"""Expected time of a run besides its downloads."""

_CLIENT_S = 0.1
"""Expected time of a client besides its connection: fork, certificates, report."""

_NO_SCALING_BYTES = 65_535
"""Largest window without window scaling (RFC 9293)."""

_INITIAL_BYTES = 14_600
"""Usual initial window of a server: ten segments (RFC 6928)."""


def worst_s(campaign: Campaign, target: Target) -> float:
    """Longest time of one attempt of a measurement run of this target [s]: all budgets, and what surrounds them."""
    own = campaign.of(target)
    return len(own) * campaign.budget_for(target) + _all_pauses_s(campaign, own) + AROUND_S


def expected_s(campaign: Campaign, target: Target, path: PathGuess = USUAL) -> float:
    """Expected time of a measurement run of this target [s]."""
    budget_s = campaign.budget_for(target)
    size = campaign.body_bytes(target)
    own = campaign.of(target)
    times = (min(_download_s(configuration, size, path), budget_s) for configuration in own)
    return _RUN_S + path.rtt_s + sum(times) + _all_pauses_s(campaign, own)


def _download_s(configuration: Configuration, size: int, path: PathGuess) -> float:
    """Client, handshakes (TCP and TLS 1.3, or QUIC) and request, slow start, then the path's rate or the window's."""
    complete = recorded(configuration)
    is_quic = complete.transport is Transport.QUIC
    round_trips = 2 if is_quic else 3
    rate = path.mbit * 1e6 / 8
    if not is_quic and complete.levels["window_scaling"] == "off":
        rate = min(rate, _NO_SCALING_BYTES / path.rtt_s)
    window, sent = min(_INITIAL_BYTES, rate * path.rtt_s), 0.0
    while window < rate * path.rtt_s and sent + window < size:
        sent, window, round_trips = sent + window, 2 * window, round_trips + 1
    return _CLIENT_S + round_trips * path.rtt_s + (size - sent) / rate


def _all_pauses_s(campaign: Campaign, configurations: Sequence[Configuration]) -> float:
    """Sum of the pauses in a measurement run [s] (quirk `pauses`)."""
    if not campaign.published_quirks:
        return 0.0
    named = (configuration.client for configuration in configurations)
    return sum(sum(pauses_s(campaign.published_quirks, clients.ALL[name].transport)) for name in named)


OVERHEAD_SHARE = 0.10
"""Headers, acknowledgements and some retransmissions, as a share of the body."""

HANDSHAKE_BYTES = 12_000
"""Handshakes with a long certificate chain, request, response header, end of the connection; a QUIC client and server
pad their Initials to 1,200 bytes (RFC 9000, section 14.1)."""

IN_FLIGHT_BYTES = 4_000_000
"""What a server may have had on its way when a client was killed: 1 Gbit/s for 32 ms."""

CAPTURE_SHARE = 0.25
"""Bytes of a capture per IP byte, at most: 176 for a packet of 1,200 or more, 120 for its acknowledgement."""

CAPTURE_BYTES = 32_000
"""What each download adds to a capture besides: packets of handshakes, those of QUIC whole."""


def download_bytes(campaign: Campaign, target: Target) -> int:
    """What one download is expected to take."""
    return with_overhead(campaign.body_bytes(target))


def with_overhead(body_bytes: int) -> int:
    """IP bytes of a download with a body of this length."""
    return round(body_bytes * (1 + OVERHEAD_SHARE)) + HANDSHAKE_BYTES


def downloads_per_run(campaign: Campaign, target: Target | None = None) -> int:
    """Downloads of a measurement run of a target, warm-ups included; None: of one that has HTTP/3."""
    return len(campaign.every if target is None else campaign.of(target))


def planned_downloads(campaign: Campaign, targets: Sequence[Target]) -> int:
    """Downloads of one vantage point's plan, warm-ups included."""
    return campaign.iterations * sum(downloads_per_run(campaign, target) for target in targets)


def run_bytes(campaign: Campaign, target: Target) -> int:
    """What a measurement run is expected to take, warm-ups included."""
    return downloads_per_run(campaign, target) * download_bytes(campaign, target)


def worst_run_bytes(campaign: Campaign) -> int:
    """What a measurement run may take at most, if the file has become larger."""
    return downloads_per_run(campaign) * (with_overhead(campaign.max_bytes) + IN_FLIGHT_BYTES)


def capture_bytes(campaign: Campaign, target: Target) -> int:
    """Size of a measurement run's capture before it is packed, at most, for the expected bytes."""
    share = run_bytes(campaign, target) * CAPTURE_SHARE
    return round(share) + downloads_per_run(campaign, target) * CAPTURE_BYTES
