"""How many bytes a measurement run will take: on the path, and on the disk. Pure.

Bytes are IP bytes in both directions, as a capture counts them.
"""

from __future__ import annotations

from core.domain import Target
from downloader.campaign.campaign import Campaign

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
"""Of a capture besides, for each download: packets of handshakes, those of QUIC whole."""


def download_bytes(campaign: Campaign, target: Target) -> int:
    """What one download is expected to take. A target whose size is not known counts as `max_bytes`."""
    known = target.size_bytes is not None and not target.size_is_lower_bound
    body = min(target.size_bytes or 0, campaign.max_bytes) if known else campaign.max_bytes
    return with_overhead(body)


def worst_download_bytes(campaign: Campaign) -> int:
    """What one download may take at most, if the file has become larger."""
    return with_overhead(campaign.max_bytes) + IN_FLIGHT_BYTES


def with_overhead(body_bytes: int) -> int:
    """IP bytes of a download with a body of this length."""
    return round(body_bytes * (1 + OVERHEAD_SHARE)) + HANDSHAKE_BYTES


def downloads_per_run(campaign: Campaign) -> int:
    """Downloads of a measurement run, warm-ups included."""
    return len(campaign.every)


def run_bytes(campaign: Campaign, target: Target) -> int:
    """What a measurement run is expected to take, warm-ups included."""
    return downloads_per_run(campaign) * download_bytes(campaign, target)


def worst_run_bytes(campaign: Campaign) -> int:
    """What a measurement run may take at most."""
    return downloads_per_run(campaign) * worst_download_bytes(campaign)


def capture_bytes(campaign: Campaign, target: Target) -> int:
    """Size of a measurement run's capture before it is packed, at most, for the expected bytes."""
    share = run_bytes(campaign, target) * CAPTURE_SHARE
    return round(share) + downloads_per_run(campaign) * CAPTURE_BYTES
