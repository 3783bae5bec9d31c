"""How long a measurement run takes: at most, and as expected. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from core.domain import Configuration, Target, Transport
from downloader import clients
from downloader.campaign.apply import pauses_s, recorded
from downloader.campaign.campaign import Campaign

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
    downloads = len(campaign.every)
    return downloads * campaign.budget_for(target) + _all_pauses_s(campaign) + AROUND_S


def expected_s(campaign: Campaign, target: Target, path: PathGuess = USUAL) -> float:
    """Expected time of a measurement run of this target [s]."""
    budget_s = campaign.budget_for(target)
    size = min(target.size_bytes or campaign.max_bytes, campaign.max_bytes)
    times = (min(_download_s(configuration, size, path), budget_s) for configuration in campaign.every)
    return _RUN_S + path.rtt_s + sum(times) + _all_pauses_s(campaign)


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


def _all_pauses_s(campaign: Campaign) -> float:
    """Sum of the pauses in a measurement run [s] (quirk `pauses`)."""
    if not campaign.published_quirks:
        return 0.0
    named = (configuration.client for configuration in campaign.every)
    return sum(sum(pauses_s(campaign.published_quirks, clients.ALL[name].transport)) for name in named)
