"""From probes to a verdict: votes, what a window is counted in, pacing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from survey.iw.pacing import Flight, Pace, judge, slope
from survey.iw.votes import (
    MOST_PROBES,
    UNDECIDED,
    ProbeResult,
    Vote,
    WindowKind,
    bounded,
    decide,
    fit,
    is_within_rfc6928,
)
from survey.iw.wire import ProbeVerdict

MSS = (64, 128, 536, 1200)


def limited(segments: int, mss: int = 536, handshake_s: float = 0.01) -> ProbeResult:
    return ProbeResult(
        verdict=ProbeVerdict.LIMITED,
        segments=segments,
        bytes=segments * mss,
        payload_bytes=mss,
        handshake_s=handshake_s,
    )


def vote(segments: int, mss: int, *, size: int | None = None, payload: int | None = None) -> Vote:
    return Vote(
        verdict=ProbeVerdict.LIMITED,
        segments=segments,
        bytes=segments * mss if size is None else size,
        payload_bytes=payload or mss,
    )


def in_bytes(size: int) -> dict[int, Vote]:
    return {mss: vote(math.ceil(size / mss), mss, size=size) for mss in MSS}


def test_two_that_agree_decide_and_a_lost_last_segment_asks_for_a_third() -> None:
    assert decide([]) is None
    assert decide([limited(10)]) is None
    found = decide([limited(10), limited(10)])
    assert found is not None
    assert (found.verdict, found.segments, found.bytes, found.probes) == (ProbeVerdict.LIMITED, 10, 5360, 2)
    assert decide([limited(9), limited(10)]) is None
    found = decide([limited(9), limited(10), limited(10)])
    assert found is not None and (found.segments, found.agreeing, found.probes) == (10, 2, 3)
    # Two smaller values that agree do not outvote a larger one.
    assert decide([limited(10), limited(9), limited(9)]) is None


def test_ten_probes_that_disagree_are_a_result() -> None:
    found = decide([limited(n) for n in range(1, MOST_PROBES + 1)])
    assert found is not None and (found.verdict, found.segments, found.probes) == (UNDECIDED, None, 10)
    half = [limited(9)] * 5 + [limited(10)] * 5
    found = decide(half)
    assert found is not None and found.verdict == UNDECIDED  # not more than half
    found = decide([limited(9)] * 4 + [limited(10)] * 6, published=True)
    assert found is not None and (found.verdict, found.segments) == (ProbeVerdict.LIMITED, 10)


def test_published_votes_always_need_ten() -> None:
    assert decide([limited(10)] * 9, published=True) is None
    found = decide([limited(10)] * 10, published=True)
    assert found is not None and (found.segments, found.probes) == (10, 10)


def test_probes_that_do_not_vote() -> None:
    slow = limited(1, handshake_s=3.2)
    assert decide([slow, limited(10)]) is None
    found = decide([slow, limited(10), limited(10)])
    assert found is not None and found.segments == 10
    found = decide([slow] * MOST_PROBES)
    assert found is not None and (found.verdict, found.segments) == (UNDECIDED, None)
    nothing = ProbeResult(verdict=ProbeVerdict.NO_DATA)
    assert decide([nothing]) is None
    found = decide([nothing, nothing])
    assert found is not None and (found.verdict, found.segments) == (ProbeVerdict.NO_DATA, None)
    late = ProbeResult(verdict=ProbeVerdict.LATE)
    assert decide([late] * 4) is None
    found = decide([late] * 5)
    assert found is not None and (found.verdict, found.segments) == (ProbeVerdict.LATE, None)
    found = decide([late, limited(10), nothing, limited(10)])
    assert found is not None and (found.verdict, found.segments) == (ProbeVerdict.LIMITED, 10)


def test_bounds() -> None:
    bound = ProbeResult(verdict=ProbeVerdict.LOWER_BOUND, segments=7, bytes=3700, payload_bytes=536)
    found = decide([bound, bound])
    assert found is not None and (found.verdict, found.segments, found.bytes) == (ProbeVerdict.LOWER_BOUND, 7, 3700)
    # A bound above every measured value contradicts them.
    assert decide([limited(5), limited(5), bound]) is None
    found = decide([bound, limited(10), limited(10)])
    assert found is not None and (found.verdict, found.segments) == (ProbeVerdict.LIMITED, 10)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10), st.booleans())
def test_a_decision_is_always_the_largest_value_with_a_majority(values: list[int], published: bool) -> None:
    found = decide([limited(value) for value in values], published=published)
    if found is None:
        assert len(values) < MOST_PROBES
        return
    if found.verdict == ProbeVerdict.LIMITED:
        assert found.segments == max(values)
        assert values.count(max(values)) * 2 > len(values)
        assert values.count(max(values)) >= 2
    else:
        assert len(values) == MOST_PROBES


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 10, 16, 32, 100])
def test_windows_in_segments(segments: int) -> None:
    found = fit({mss: vote(segments, mss) for mss in MSS})
    assert found is not None
    assert (found.kind, found.segments, found.bytes) == (WindowKind.SEGMENTS, segments, segments * 1460)


@pytest.mark.parametrize("size", [2048, 4380, 14_600, 65_536, 105_000])
def test_windows_in_bytes(size: int) -> None:
    found = fit(in_bytes(size))
    assert found is not None and (found.kind, found.segments, found.bytes) == (WindowKind.BYTES, None, size)
    whole = {mss: vote(size // mss, mss) for mss in MSS}  # a sender of whole segments only
    found = fit(whole)
    assert found is not None and found.kind == WindowKind.BYTES
    assert found.bytes is not None and size - 64 < found.bytes <= size


def test_rfc3390_by_counts_and_by_exact_bytes() -> None:
    found = fit({64: vote(4, 64), 128: vote(4, 128), 536: vote(4, 536), 1200: vote(3, 1200)})
    assert found is not None and (found.kind, found.bytes) == (WindowKind.RFC3390, 4380)
    exact = {64: vote(4, 64), 128: vote(4, 128), 536: vote(4, 536), 1200: vote(4, 1200, size=4380)}
    found = fit(exact)
    assert found is not None and found.kind == WindowKind.RFC3390
    found = fit({mss: vote(4, mss) for mss in MSS})
    assert found is not None and found.kind == WindowKind.SEGMENTS


def test_rfc3390_with_a_head_in_a_segment_of_its_own() -> None:
    """Linux before 2.6.39: four segments, three of more than 1095 bytes; here with a head of 200 bytes."""
    sizes = {64: (4, 200), 128: (4, 456), 536: (4, 1_808), 1200: (3, 2_600)}
    found = fit({mss: vote(segments, mss, size=size) for mss, (segments, size) in sizes.items()})
    assert found is not None and (found.kind, found.bytes) == (WindowKind.RFC3390, 4380)


def test_floors_and_mixtures() -> None:
    floored = {mss: vote(10, max(mss, 536), payload=max(mss, 536)) for mss in MSS}
    found = fit(floored)  # a server that floors the MSS itself
    assert found is not None and (found.kind, found.segments) == (WindowKind.FLOOR, 10)
    small = {mss: vote(math.ceil(10 * max(mss, 536) / mss), mss, size=10 * max(mss, 536)) for mss in MSS}
    found = fit(small)  # one that floors it only where it computes the window
    assert found is not None and (found.kind, found.segments, found.bytes) == (WindowKind.FLOOR, 10, 14_600)
    found = fit({64: vote(4, 64), 128: vote(10, 128), 536: vote(20, 536), 1200: vote(7, 1200)})
    assert found is not None and (found.kind, found.bytes) == (WindowKind.MIXED, None)


def test_one_decided_mss_is_not_enough_for_a_kind() -> None:
    undecided = Vote(verdict=UNDECIDED)
    assert fit({64: vote(10, 64), 128: undecided}) is None
    bound = Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=8, bytes=9_600, payload_bytes=1200)
    found = fit({64: vote(10, 64), 128: vote(10, 128), 536: vote(10, 536), 1200: bound})
    assert found is not None and (found.kind, found.segments) == (WindowKind.SEGMENTS, 10)


def test_a_lower_bound_refutes_a_window_in_segments() -> None:
    """Two servers behind one address: it counted as IW 10, and as above RFC 6928."""
    ten = {mss: vote(10, mss) for mss in (64, 128, 536)}
    for size, kind in ((13_200, WindowKind.SEGMENTS), (13_201, WindowKind.MIXED)):  # a FIN leaves as the eleventh
        bound = Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=12, bytes=size, payload_bytes=1_200)
        found = fit({**ten, 1_200: bound})
        assert found is not None and found.kind == kind


def test_a_head_that_comes_before_its_body_is_no_window() -> None:
    """279 bytes with each MSS, as a real server's were that wrote its body 0.21 s later."""
    head = in_bytes(279)
    assert {one.verdict for one in bounded(head).values()} == {ProbeVerdict.LOWER_BOUND}
    late = {**head, 1200: Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=1, bytes=279, payload_bytes=279)}
    assert fit(bounded(late)) is None
    # A window of 1 with a head of its own; a page of one segment, and windows with a smaller MSS; small packets.
    one = {64: vote(1, 64), 128: vote(1, 128), 536: vote(1, 536, size=279), 1200: vote(1, 1200, size=279)}
    assert bounded(one) == one and fit(one) == fit({mss: vote(1, mss) for mss in MSS})
    page = {64: vote(4, 64), 536: Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=1, bytes=300, payload_bytes=300)}
    assert bounded(page) == page
    small = {64: vote(1, 64), 128: vote(1, 128), 536: vote(1, 536), 1200: vote(1, 1200, size=536, payload=536)}
    assert bounded(small) == small
    assert all(bounded(in_bytes(size)) == in_bytes(size) for size in (2048, 4380, 64_000))


def test_within_rfc6928() -> None:
    assert is_within_rfc6928({mss: vote(10, mss) for mss in MSS}) is True
    assert is_within_rfc6928({mss: vote(11, mss) for mss in MSS}) is False
    # Windows sends segments of 536 bytes at least, ten of them; others so many bytes in small segments.
    assert is_within_rfc6928({mss: vote(10, max(mss, 536), payload=max(mss, 536)) for mss in MSS}) is True
    assert is_within_rfc6928({64: vote(84, 64, size=5_360)}) is False
    assert is_within_rfc6928(in_bytes(14_600)) is False  # at MSS 64 it is 229 segments
    # With ten segments a FIN, and the end of the answer with it, leave as the eleventh.
    for size, within in ((576, None), (704, None), (705, False)):
        bound = Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=math.ceil(size / 64), bytes=size, payload_bytes=64)
        assert is_within_rfc6928({64: bound}) is within
    closed = Vote(verdict=ProbeVerdict.LOWER_BOUND, segments=11, bytes=12_500, payload_bytes=1_200)
    assert is_within_rfc6928({536: vote(10, 536), 1200: closed}) is True
    assert is_within_rfc6928({}) is None


def linux_flight(
    segments: int, delay_s: float, *, rtt_s: float = 0.1, ratio: float = 2.0, slot_s: float = 0.0
) -> Flight:
    """Ten at once, then trains of two at `ratio` windows a round trip; a bottleneck of one segment each `slot_s`."""
    interval = (rtt_s + delay_s) / ratio / segments if ratio else 0.0
    sent = [0.0] * min(10, segments) + [interval * (2 + 2 * (n // 2)) for n in range(segments - 10)]
    arrivals: list[float] = []
    for at in sent:
        arrivals.append(max(at, arrivals[-1] + slot_s) if arrivals else at)
    return Flight(delay_s=delay_s, rtt_s=rtt_s, arrivals_s=arrivals)


def flights(segments: int, **how: float) -> list[Flight]:
    return [linux_flight(segments, delay, **how) for delay in (0.0, 0.05, 0.1) for _ in range(2)]


@pytest.mark.parametrize("segments", [12, 14, 16, 20, 32, 50, 100])
@pytest.mark.parametrize("ratio", [0.4, 2.0, 2.86])
@pytest.mark.parametrize("rtt_s", [0.02, 0.06, 0.1])
def test_paced_windows_and_their_ratio(segments: int, ratio: float, rtt_s: float) -> None:
    found = judge(segments, flights(segments, ratio=ratio, rtt_s=rtt_s))
    expected = (segments - 10) / segments / ratio
    if expected < 0.1:
        assert found.pace == Pace.CANNOT_TELL  # 14 segments with BBR: so few follow the first ten
        return
    assert found.pace == Pace.PACED
    assert found.ratio == pytest.approx(ratio, rel=0.1)
    assert found.first_burst in (10, *range(12, segments + 1))  # gaps below 1 ms belong to the burst
    if segments == 32 and ratio == 2.0 and rtt_s == 0.1:
        assert (found.first_burst, found.train) == (10, 2.0)


@pytest.mark.parametrize(("slot_s", "pace"), [(0.0, "burst"), (0.0005, "burst"), (0.001, "cannot_tell")])
def test_a_slow_bottleneck_is_not_pacing(slot_s: float, pace: str) -> None:
    found = judge(32, flights(32, ratio=0.0, slot_s=slot_s))
    assert (found.pace, found.ratio, found.first_burst, found.train) == (pace, None, 32, None)
    assert found.slope == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("ratio", [2.0, 2.86])
def test_what_a_slow_bottleneck_hides_is_no_burst(ratio: float) -> None:
    """At 4 Mbit/s the last segment of a burst arrives after the last one that a paced sender sends."""
    assert judge(32, flights(32, ratio=ratio, rtt_s=0.04, slot_s=0.0025)).pace == Pace.CANNOT_TELL


def test_up_to_ten_segments_nothing_can_be_told() -> None:
    assert judge(10, flights(10)).pace == Pace.CANNOT_TELL
    assert judge(32, []).pace == Pace.CANNOT_TELL
    assert (
        judge(32, [linux_flight(32, 0.0), linux_flight(32, 0.05)]).pace == Pace.CANNOT_TELL
    )  # two points, no interval


def test_a_steep_slope_of_noise_is_not_told_either() -> None:
    spans = ((0.0, 0.09), (0.05, 0.0), (0.1, 0.12), (0.0, 0.0), (0.05, 0.1), (0.1, 0.02))
    noise = [Flight(delay_s=d, rtt_s=0.1, arrivals_s=[0.0] * 31 + [span]) for d, span in spans]
    found = judge(32, noise)
    assert found.slope is not None and found.slope_low is not None
    assert found.slope > 0.1 and found.slope_low < 0
    assert found.pace == Pace.CANNOT_TELL


def test_the_slope_is_that_of_the_textbook() -> None:
    # scipy.stats.linregress, and its stderr times t.ppf(0.975, 3).
    found = slope([1, 2, 3, 4, 5], [2.1, 3.9, 6.2, 7.8, 10.1])
    assert found == pytest.approx((1.99, 1.79994, 2.18006), abs=1e-4)
    assert slope([1, 1, 1], [1, 2, 3]) is None
