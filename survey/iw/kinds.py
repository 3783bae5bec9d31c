"""What a server counts its initial window in, from its windows at several MSS.

Segments that we announce are sent as announced, so a window in segments has the same number at each MSS, and a window
in bytes the same number of bytes within one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from survey.iw.votes import Vote
from survey.iw.wire import Verdict

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
        votes: MSS -> answer; only the `limited` ones are fitted.
    """
    limited = {mss: vote for mss, vote in sorted(votes.items()) if vote.verdict == Verdict.LIMITED}
    if len(limited) < 2:
        return None
    if _fits(limited, rfc3390_bytes) and not _same_segments(limited):
        return Window(kind=WindowKind.RFC3390, bytes=rfc3390_bytes(ETHERNET_MSS))
    floor = _floor(limited)
    if floor is not None:
        return Window(kind=WindowKind.FLOOR, segments=floor, bytes=floor * ETHERNET_MSS)
    if _same_segments(limited):
        segments = next(iter(limited.values())).segments or 0
        return Window(kind=WindowKind.SEGMENTS, segments=segments, bytes=segments * ETHERNET_MSS)
    finest = next(iter(limited.values())).bytes or 0  # the smallest MSS has the smallest error
    if _fits(limited, lambda _: finest):
        return Window(kind=WindowKind.BYTES, bytes=finest)
    return Window(kind=WindowKind.MIXED)


def is_within_rfc6928(votes: Mapping[int, Vote]) -> bool | None:
    """Whether the window is at or below RFC 6928's at each MSS.

    A lower bound above it is enough for False; None without a decided MSS.
    """
    above = [
        (vote.bytes or 0) > rfc6928_bytes(mss)
        for mss, vote in votes.items()
        if vote.verdict in (Verdict.LIMITED, Verdict.LOWER_BOUND, Verdict.WINDOW_BOUND)
    ]
    if any(above):
        return False
    return True if any(vote.verdict == Verdict.LIMITED for vote in votes.values()) else None


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
    """Whether the bytes are as expected at each MSS, within one segment."""
    return all(
        abs((vote.bytes or 0) - expected(mss)) < max(mss, vote.payload_bytes or 0) for mss, vote in limited.items()
    )


def _floor(limited: Mapping[int, Vote]) -> int | None:
    """N of a window of N segments of at least F bytes, F among the MSS between the smallest and the largest."""
    if not any(_is_floored(mss, vote) for mss, vote in limited.items()) and _same_segments(limited):
        return None
    segments = limited[max(limited)].segments or 0
    for floor in sorted(limited)[1:-1]:
        if _fits(limited, lambda mss, least=floor: segments * max(mss, least)) and all(  # type: ignore[misc]
            vote.segments == segments for mss, vote in limited.items() if mss >= floor
        ):
            return segments
    return None


def _is_floored(mss: int, vote: Vote) -> bool:
    """Whether segments were larger than the announced MSS."""
    return (vote.payload_bytes or 0) > mss
