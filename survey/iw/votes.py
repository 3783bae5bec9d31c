"""Several probes with one MSS give one answer, and the answers at several MSS the unit of a server's initial window.

A probe can only see too little (its flight's last segment was lost), never too much. So the largest value counts, and
it has to be seen more than once. Source: the IW-in-the-wild paper, where each of ten probes votes.

Segments that we announce are sent as announced, so a window in segments has the same number at each MSS, and a window
in bytes the same number of bytes within one segment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from survey.iw.wire import Note, ProbeReply, ProbeVerdict

MOST_PROBES = 10
"""Most probes with one MSS."""

LATE_PROBES = 5
"""Probes that must all be late: a busy server may be in time the next time."""

SLOW_HANDSHAKE_S = 2.5
"""A longer handshake lost SYN-ACKs. After two time-outs Linux starts with a window of 1 (tcp_init_cwnd), so such a
probe does not vote."""


MERGED = "merged"
"""The verdict of a probe whose segments were merged on their way: nobody knows how many there were."""

UNDECIDED = "undecided"
"""The verdict of several probes that disagree; those of a single probe are `survey.iw.wire.ProbeVerdict`."""

BOUNDS = frozenset({ProbeVerdict.LOWER_BOUND, ProbeVerdict.WINDOW_BOUND})
"""Verdicts whose value is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of one probe."""

    verdict: str
    """One of `ProbeVerdict`, or `MERGED`."""
    segments: int = 0
    """Payload segments of the flight: those that arrived, and those that its holes have room for."""
    bytes: int = 0
    """Payload bytes of the flight."""
    payload_bytes: int = 0
    """Largest payload of a segment."""
    handshake_s: float = 0.0
    """Time from our SYN to the SYN-ACK."""

    @classmethod
    def of(cls, reply: ProbeReply) -> ProbeResult:
        """What a reply of the prober counts for."""
        return cls(
            verdict=MERGED if reply.notes & Note.MERGED else reply.verdict,
            segments=reply.flight_segments,
            bytes=reply.flight_bytes,
            payload_bytes=reply.largest_bytes,
            handshake_s=(reply.handshake_us or 0) / 1e6,
        )

    @property
    def is_vote(self) -> bool:
        return self.verdict == ProbeVerdict.LIMITED and self.handshake_s <= SLOW_HANDSHAKE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The answer for one MSS."""

    verdict: str
    """One of `ProbeVerdict`, `MERGED`, or `UNDECIDED`."""
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
    if len(agreeing) < 2 or 2 * len(agreeing) <= len(values):
        return Vote(verdict=UNDECIDED, agreeing=len(agreeing), probes=len(probes)) if is_last else None
    return Vote(
        verdict=largest.verdict,
        segments=largest.segments,
        bytes=max(p.bytes for p in agreeing),
        payload_bytes=max(p.payload_bytes for p in agreeing),
        agreeing=len(agreeing),
        probes=len(probes),
    )


def _without_number(probes: Sequence[ProbeResult], *, is_last: bool) -> Vote | None:
    counts = Counter(probe.verdict for probe in probes)
    if not counts:
        return None
    verdict, count = str(counts.most_common(1)[0][0]), counts.most_common(1)[0][1]
    if verdict == ProbeVerdict.LIMITED or verdict in BOUNDS:  # slow handshakes only: they do not vote
        verdict, count = UNDECIDED, 0
    if count < (LATE_PROBES if verdict == ProbeVerdict.LATE else 2) and not is_last:
        return None
    return Vote(verdict=verdict, agreeing=count, probes=len(probes))


def bounded(votes: Mapping[int, Vote]) -> dict[int, Vote]:
    """The answers at all MSS, in which what the server had written is no window but a lower bound.

    Where a part of a segment was all that came with a large MSS, the server had written no more (the head of its
    answer, and the body later) if as many bytes came in several segments with a smaller MSS. With a window of 1 the
    head may come alone, too, but then one segment comes with each MSS.
    """
    counted = {
        mss: vote
        for mss, vote in votes.items()
        if vote.verdict in (ProbeVerdict.LIMITED, ProbeVerdict.LOWER_BOUND) and vote.segments and vote.bytes
    }
    written: set[int] = set()
    for size in [vote.bytes or 0 for mss, vote in counted.items() if vote.segments == 1 and (vote.bytes or 0) < mss]:
        alike = {mss for mss, vote in counted.items() if vote.segments == math.ceil(size / mss)}
        if any(size > mss for mss in alike):
            written |= alike
    return {
        mss: replace(vote, verdict=ProbeVerdict.LOWER_BOUND)
        if mss in written and vote.verdict == ProbeVerdict.LIMITED
        else vote
        for mss, vote in votes.items()
    }


ETHERNET_MSS = 1460
"""MSS of IPv4 over Ethernet [bytes], for which windows are also given in bytes."""


class WindowKind(StrEnum):
    """What the window is counted in. The vocabulary is closed."""

    SEGMENTS = "segments"
    """The same number of segments at each MSS."""
    BYTES = "bytes"
    """The same number of bytes at each MSS, within one segment."""
    RFC3390 = "rfc3390"
    """min(4 MSS, max(2 MSS, 4380)) bytes (RFC 3390)."""
    FLOOR = "floor"
    """A number of segments, but of a least size: below it, the window stays the same number of bytes."""
    MIXED = "mixed"
    """None of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A server's initial window."""

    kind: WindowKind
    segments: int | None = None
    """Number of segments, for `segments` and `floor`."""
    bytes: int | None = None
    """Size with segments of `ETHERNET_MSS`; None if mixed."""


def rfc3390_bytes(mss: int) -> int:
    """RFC 3390, section 1 [bytes]."""
    return min(4 * mss, max(2 * mss, 4380))


def rfc6928_bytes(mss: int) -> int:
    """RFC 6928, section 2 [bytes]."""
    return min(10 * mss, max(2 * mss, 14_600))


def fit(votes: Mapping[int, Vote]) -> Window | None:
    """The window that explains the answers at all MSS; None if fewer than two MSS were decided.

    Args:
        votes: MSS -> answer; the `limited` ones are fitted, and a lower bound may refute what they say.
    """
    limited = {mss: vote for mss, vote in sorted(votes.items()) if vote.verdict == ProbeVerdict.LIMITED}
    if len(limited) < 2:
        return None
    finest = next(iter(limited.values()))  # the smallest MSS has the smallest error
    if _fits(limited, rfc3390_bytes) and not _same_segments(limited):
        return Window(kind=WindowKind.RFC3390, bytes=rfc3390_bytes(ETHERNET_MSS))
    floor = _floor(limited)
    if floor is not None:
        return Window(kind=WindowKind.FLOOR, segments=floor, bytes=floor * ETHERNET_MSS)
    if _same_segments(limited):
        segments = finest.segments or 0
        if _exceeded(votes, lambda full: segments * full):
            return Window(kind=WindowKind.MIXED)
        return Window(kind=WindowKind.SEGMENTS, segments=segments, bytes=segments * ETHERNET_MSS)
    if _fits(limited, lambda _: finest.bytes or 0):
        return Window(kind=WindowKind.BYTES, bytes=finest.bytes)
    return Window(kind=WindowKind.MIXED)


def is_within_rfc6928(votes: Mapping[int, Vote]) -> bool | None:
    """Whether the window is at or below RFC 6928's at each MSS. None without a decided MSS."""
    if _exceeded(votes, rfc6928_bytes):
        return False
    return True if any(vote.verdict == ProbeVerdict.LIMITED for vote in votes.values()) else None


def _exceeded(votes: Mapping[int, Vote], most: Callable[[int], int]) -> bool:
    """Whether the window is larger than this at some MSS: that of the server's segments, if they are larger than ours.

    A lower bound has to be more than a segment larger: the last one, if it has the FIN, waits for no window of Linux
    before 6.10 (net/ipv4/tcp_output.c, tcp_cwnd_test).
    """
    for mss, vote in votes.items():
        full = max(mss, vote.payload_bytes or 0)
        free = full if vote.verdict == ProbeVerdict.LOWER_BOUND else 0
        if vote.verdict in {ProbeVerdict.LIMITED, *BOUNDS} and (vote.bytes or 0) > most(full) + free:
            return True
    return False


def _same_segments(limited: Mapping[int, Vote]) -> bool:
    """The same number of segments, and not merely because bytes that are no multiple of the MSS were rounded up."""
    if len({vote.segments for vote in limited.values()}) > 1:
        return False
    # A window by a formula in bytes ends with a short segment at some MSS, exactly as the formula says.
    return not (
        all(vote.bytes == rfc3390_bytes(mss) for mss, vote in limited.items())
        and any(vote.bytes != (vote.segments or 0) * mss for mss, vote in limited.items())
    )


def _fits(limited: Mapping[int, Vote], expected: Callable[[int], int]) -> bool:
    """Whether the window is as expected at each MSS, within one segment: in bytes, or in segments, of which some may be
    short (the end of a head, or of TLS's handshake)."""
    for mss, vote in limited.items():
        full = max(mss, vote.payload_bytes or 0)
        if not (vote.bytes or 0) - full < expected(mss) < (vote.segments or 0) * full + full:
            return False
    return True


def _floor(limited: Mapping[int, Vote]) -> int | None:
    """N of a window of N segments of at least F bytes, F among the MSS between the smallest and the largest."""
    has_larger = any((vote.payload_bytes or 0) > mss for mss, vote in limited.items())  # than the announced MSS
    if _same_segments(limited) and not has_larger:
        return None
    segments = limited[max(limited)].segments or 0
    for floor in sorted(limited)[1:-1]:
        if _fits(limited, lambda mss, least=floor: segments * max(mss, least)) and all(  # type: ignore[misc]
            vote.segments == segments for mss, vote in limited.items() if mss >= floor
        ):
            return segments
    return None
