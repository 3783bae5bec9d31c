"""From several probes with one MSS to one answer: the largest value, if enough probes agree on it.

A probe can only see too little (its flight's last segment was lost), never too much. So the largest value counts, and
it has to be seen more than once. Source: the IW-in-the-wild paper, where each of ten probes votes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_PROBES = 10
"""Most probes with one MSS."""

SLOW_HANDSHAKE_S = 2.5
"""A longer handshake lost SYN-ACKs. After two time-outs Linux starts with a window of 1 (tcp_init_cwnd), so such a
probe does not vote."""


class Verdict(StrEnum):
    """How one probe, or all with one MSS, ended. The vocabulary is closed."""

    LIMITED = "limited"
    """The flight ended with a retransmission, and new data followed our ACK: the window was the limit."""
    LOWER_BOUND = "lower_bound"
    """All data fitted into the window (FIN in the flight, or nothing new after the ACK)."""
    WINDOW_BOUND = "window_bound"
    """The flight reached our own receive window."""
    LATE = "late"
    """TLS: the server's timer ran out before its answer began. No number."""
    NO_DATA = "no_data"
    """The server sent nothing after the request."""
    RESET = "reset"
    """The server reset the connection."""
    UNDECIDED = "undecided"
    """Probes disagree; only of several probes."""


BOUNDS = frozenset({Verdict.LOWER_BOUND, Verdict.WINDOW_BOUND})
"""Verdicts whose value is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The result of one probe."""

    verdict: Verdict
    segments: int = 0
    """Payload segments of the flight, lost ones included: its span over its largest payload, rounded up."""
    bytes: int = 0
    """Payload bytes of the flight."""
    payload_bytes: int = 0
    """Largest payload of a segment."""
    handshake_s: float = 0.0
    """From our SYN to the SYN-ACK."""

    @property
    def is_vote(self) -> bool:
        return self.verdict == Verdict.LIMITED and self.handshake_s <= SLOW_HANDSHAKE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The answer for one MSS."""

    verdict: Verdict
    segments: int | None = None
    """None without a number; a lower bound if the verdict is one of `BOUNDS`."""
    bytes: int | None = None
    payload_bytes: int | None = None
    agreeing: int = 0
    """Probes with exactly this value."""
    probes: int = 0
    """Probes in all."""


def decide(probes: Sequence[Probe], *, published: bool = False) -> Vote | None:
    """The answer of these probes with one MSS, None if another probe is needed.

    As soon as at least two probes, and more than half of those with a number, agree on the largest value, it is the
    answer. Without any number, the second probe with the same verdict decides.

    Args:
        probes: in their order.
        published: always ask `MOST_PROBES` probes, as in the paper.
    """
    is_last = len(probes) >= MOST_PROBES
    if published and not is_last:
        return None
    values = [p for p in probes if p.is_vote or (p.verdict in BOUNDS and p.handshake_s <= SLOW_HANDSHAKE_S)]
    if not values:
        return _without_number(probes, is_last=is_last)
    largest = max(values, key=lambda p: (p.segments, p.is_vote, p.bytes))
    agreeing = [p for p in values if p.segments == largest.segments and p.verdict == largest.verdict]
    is_decided = len(agreeing) >= 2 and 2 * len(agreeing) > len(values)
    if not is_decided and not is_last:
        return None
    return Vote(
        verdict=largest.verdict if is_decided else Verdict.UNDECIDED,
        segments=largest.segments if is_decided else None,
        bytes=max(p.bytes for p in agreeing) if is_decided else None,
        payload_bytes=max(p.payload_bytes for p in agreeing) if is_decided else None,
        agreeing=len(agreeing),
        probes=len(probes),
    )


def _without_number(probes: Sequence[Probe], *, is_last: bool) -> Vote | None:
    counts = Counter(probe.verdict for probe in probes)
    if not counts:
        return None
    verdict, count = counts.most_common(1)[0]
    if verdict == Verdict.LIMITED:  # slow handshakes only: they do not vote
        verdict, count = Verdict.UNDECIDED, 0
    if count < 2 and not is_last:
        return None
    return Vote(verdict=verdict, agreeing=count, probes=len(probes))
