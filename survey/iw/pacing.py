"""Whether a server paces its initial window, from flights whose handshake's ACK we delayed.

The delay makes the server believe in a longer round trip, and a pacing sender spreads its window over a share of that.
A slow bottleneck spreads packets as well, but no further when we wait longer: so the slope of the flight's span over
the delay tells pacing. It may also hide it: a burst is only what was over long before a pacing sender could be.

Linux sends ten segments at once and paces the others (net/ipv4/tcp_output.c, tcp_update_skb_after_send), at
`ratio` windows per round trip: span = (N - 10) / N * RTT / ratio. The ratio is 2.0 in slow start
(`tcp_pacing_ss_ratio`), 2.86 for BBR (net/ipv4/tcp_bbr.c, bbr_high_gain).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from survey.figures import student

UNPACED_SEGMENTS = 10
"""Segments that Linux sends before it paces: with a window of these or fewer nothing can be told."""

LEAST_SLOPE = 0.1
"""A steeper slope of span over delay is pacing."""

FASTEST_RATIO = 2.86
"""Windows per round trip of the fastest pacing, BBR's."""

SURE_BURST = 0.5
"""Part of the time that the fastest pacing takes, below which a flight was sent at once: the rest is for jitter."""

LEAST_GAP_S = 1e-3
"""Shorter gaps are within a burst, whatever the bottleneck."""


class Pace(StrEnum):
    """How the window leaves the server. The vocabulary is closed."""

    BURST = "burst"
    PACED = "paced"
    CANNOT_TELL = "cannot_tell"
    """At most ten segments, too few flights, flights that do not agree, or a bottleneck that would hide pacing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The arrivals of one flight."""

    delay_s: float
    """How long we delayed the handshake's ACK."""
    rtt_s: float
    """Time from our SYN to the SYN-ACK, without the delay."""
    arrivals_s: Sequence[float]
    """When each segment arrived, in order of arrival; without retransmissions."""

    @property
    def span_s(self) -> float:
        return self.arrivals_s[-1] - self.arrivals_s[0]

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The judgement."""

    pace: Pace
    slope: float | None = None
    """Slope of the flight's span over the delay."""
    slope_low: float | None = None
    """Ends of its 95 % interval."""
    slope_high: float | None = None
    first_burst: int | None = None
    """Segments before the first gap (median over the flights)."""
    train: float | None = None
    """Mean number of segments of the trains after it."""
    spread_rtt: float | None = None
    """Span over the round trip that the server believes in (median)."""
    ratio: float | None = None
    """Windows per round trip that the span implies."""


def judge(segments: int, flights: Sequence[Flight]) -> Pacing:
    """The judgement of a server's flights at several delays.

    Args:
        segments: the server's window, from the vote with the same MSS.
        flights: complete ones; those with a lost end make the span too short.
    """
    usable = [flight for flight in flights if len(flight.arrivals_s) >= 2]
    if segments <= UNPACED_SEGMENTS or not usable:
        return Pacing(pace=Pace.CANNOT_TELL)
    spread = statistics.median(flight.span_s / (flight.rtt_s + flight.delay_s) for flight in usable)
    first, train = bursts(usable)
    fitted = slope([flight.delay_s for flight in usable], [flight.span_s for flight in usable])
    if fitted is None:
        return Pacing(pace=Pace.CANNOT_TELL, first_burst=first, train=train, spread_rtt=spread)
    value, low, high = fitted
    pace = Pace.CANNOT_TELL
    if value > LEAST_SLOPE and low > 0:
        pace = Pace.PACED
    elif value <= LEAST_SLOPE and _is_burst(segments, usable):
        pace = Pace.BURST
    ratio = (segments - UNPACED_SEGMENTS) / segments / value if pace == Pace.PACED else None
    return Pacing(
        pace=pace,
        slope=value,
        slope_low=low,
        slope_high=high,
        first_burst=first,
        train=train,
        spread_rtt=spread,
        ratio=ratio,
    )


def _is_burst(segments: int, flights: Sequence[Flight]) -> bool:
    """Whether all flights with the longest delay were over before the fastest pacing could have sent them."""
    delay_s = max(flight.delay_s for flight in flights)
    paced = SURE_BURST * (segments - UNPACED_SEGMENTS) / segments / FASTEST_RATIO
    longest = [flight for flight in flights if flight.delay_s == delay_s]
    return all(flight.span_s < paced * (flight.rtt_s + delay_s) for flight in longest)


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """Least squares: the slope and its 95 % interval; None with fewer than three points or a single x."""
    n = len(x)
    if n < 3:
        return None
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    spread = math.fsum((one - mean_x) ** 2 for one in x)
    if spread <= 0:
        return None
    value = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residual = math.fsum((b - mean_y - value * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    degrees = n - 2
    half = student(degrees) * math.sqrt(residual / degrees / spread)
    return value, value - half, value + half


def bursts(flights: Sequence[Flight]) -> tuple[int, float | None]:
    """Length of the first burst (median), and the mean length of the trains after it (None if there are none)."""
    limit = max(LEAST_GAP_S, 2 * _bottleneck_gap_s(flights))
    firsts, trains = [], []
    for flight in flights:
        lengths = [1]
        for gap in flight.gaps_s:
            if gap < limit:
                lengths[-1] += 1
            else:
                lengths.append(1)
        firsts.append(lengths[0])
        trains += lengths[1:]
    return round(statistics.median(firsts)), statistics.fmean(trains) if trains else None


def _bottleneck_gap_s(flights: Sequence[Flight]) -> float:
    """The bottleneck's own gap: the typical one among the first segments, which leave at once, without our delay."""
    least = min(flight.delay_s for flight in flights)
    gaps = [gap for f in flights if f.delay_s == least for gap in f.gaps_s[: UNPACED_SEGMENTS - 1]]
    return statistics.median(gaps)
