"""Several probes with one MSS give one answer: the largest value, if enough probes agree on it.

A probe can only see too little (its flight's last segment was lost), never too much. So the largest value counts, and
it has to be seen more than once. Source: the IW-in-the-wild paper, where each of ten probes votes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from survey.iw.wire import Note, Reply, Verdict

MOST_PROBES = 10
"""Most probes with one MSS."""

LATE_PROBES = 5
"""Probes that must all be late: a busy server may be in time the next time."""

SLOW_HANDSHAKE_S = 2.5
"""A longer handshake lost SYN-ACKs. After two time-outs Linux starts with a window of 1 (tcp_init_cwnd), so such a
probe does not vote."""


UNDECIDED = "undecided"
"""The verdict of several probes that disagree; those of a single probe are `survey.iw.wire.Verdict`."""

BOUNDS = frozenset({Verdict.LOWER_BOUND, Verdict.WINDOW_BOUND})
"""Verdicts whose value is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of one probe."""

    verdict: Verdict
    segments: int = 0
    """Payload segments of the flight, lost ones included: its span over its largest payload, rounded up."""
    bytes: int = 0
    """Payload bytes of the flight."""
    payload_bytes: int = 0
    """Largest payload of a segment."""
    handshake_s: float = 0.0
    """Time from our SYN to the SYN-ACK."""

    @classmethod
    def of(cls, reply: Reply) -> ProbeResult:
        """What a reply of the prober counts for."""
        # Where segments were merged on their way, nobody knows how many there were.
        is_merged = bool(reply.notes & Note.MERGED)
        return cls(
            verdict=Verdict.NO_DATA if is_merged else reply.verdict,
            segments=reply.flight_segments,
            bytes=reply.flight_bytes,
            payload_bytes=reply.largest_bytes,
            handshake_s=(reply.handshake_us or 0) / 1e6,
        )

    @property
    def is_vote(self) -> bool:
        return self.verdict == Verdict.LIMITED and self.handshake_s <= SLOW_HANDSHAKE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The answer for one MSS."""

    verdict: str
    """One of `Verdict`, or `UNDECIDED`."""
    segments: int | None = None
    """None without a number; a lower bound if the verdict is one of `BOUNDS`."""
    bytes: int | None = None
    payload_bytes: int | None = None
    agreeing: int = 0
    """Probes with exactly this value."""
    probes: int = 0
    """Probes in all."""


def decide(probes: Sequence[ProbeResult], *, published: bool = False) -> Vote | None:
    """The answer of these probes with one MSS, None if another probe is needed.

    As soon as at least two probes, and more than half of those with a number, agree on the largest value, it is the
    answer. Without any number, the second probe with the same verdict decides; for `late`, the fifth.

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
        verdict=largest.verdict if is_decided else UNDECIDED,
        segments=largest.segments if is_decided else None,
        bytes=max(p.bytes for p in agreeing) if is_decided else None,
        payload_bytes=max(p.payload_bytes for p in agreeing) if is_decided else None,
        agreeing=len(agreeing),
        probes=len(probes),
    )


def _without_number(probes: Sequence[ProbeResult], *, is_last: bool) -> Vote | None:
    counts = Counter(probe.verdict for probe in probes)
    if not counts:
        return None
    verdict, count = str(counts.most_common(1)[0][0]), counts.most_common(1)[0][1]
    if verdict == Verdict.LIMITED or verdict in BOUNDS:  # slow handshakes only: they do not vote
        verdict, count = UNDECIDED, 0
    if count < (LATE_PROBES if verdict == Verdict.LATE else 2) and not is_last:
        return None
    return Vote(verdict=verdict, agreeing=count, probes=len(probes))
