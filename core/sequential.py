"""Confidence sequences for speed-ups: intervals that hold at all looks together, so that one may stop at any of them.

An interval for a fixed number of domains does not hold when a campaign ends as soon as the interval is narrow or
favourable: with a look after every domain its error is several times the nominal one. The sequences here are wrong at
*any* look with probability at most alpha, whatever the rule to stop. One step is one domain.

Both come from one bet. A bettor who starts with 1 stakes on each step of a 0/1 sequence whose mean is said to be
`mean`. If that is true, the capital is a non-negative martingale, and ever exceeds 1/alpha with probability at most
alpha (Ville's inequality). So the means under which the capital is below 1/alpha form a confidence sequence.

- Share of domains with a speed-up above 1: Waudby-Smith and Ramdas, Estimating means of bounded random variables by
  betting, J. R. Stat. Soc. B 86 (2024). For values of 0 and 1 the bets of a Beta mixture have a closed form.
- Median: Howard and Ramdas, Sequential estimation of quantiles with applications to A/B testing and best-arm
  identification, Bernoulli 28 (2022), with the beta-binomial mixture: the number of values below the median is such a
  sequence with mean 1/2, so the bounds are order statistics.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ALPHA = 0.05
"""Probability that an interval misses the truth at one look or more."""

_SHARE_PRIOR = 0.5
"""Beta(1/2, 1/2), Krichevsky and Trofimov's: near the best bet for every share."""

_MEDIAN_PRIOR = 12.0
"""Beta(12, 12): narrowest at about 200 domains. The mean is known there, so the bets may be near it."""


class Quantity(StrEnum):
    """What has an interval."""

    MEDIAN = "median"
    """Median speed-up. Width: how far the upper end is above the lower one, relative to it."""
    SHARE = "share"
    """Share of domains with a speed-up above 1, from 0 to 1. Width: upper end less lower end."""


Rule = Mapping[Quantity, float]
"""Quantity -> largest width at which to stop; all must be met. Empty: never stop early."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval."""

    low: float
    high: float


def log_capital(successes: int, steps: int, mean: float, prior: float) -> float:
    """Logarithm of the capital after bets against `mean`, with a Beta(prior, prior) mixture.

    It depends only on the number of successes: their order does not matter.
    """
    failures = steps - successes
    won = _log_beta(successes + prior, failures + prior) - _log_beta(prior, prior)
    return won - successes * math.log(mean) - failures * math.log1p(-mean)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def share_interval(least: int, most: int, steps: int) -> Interval:
    """The share of successes, of which `least` to `most` are known to be among the steps."""
    return Interval(_lowest_mean(least, steps), 1.0 - _lowest_mean(steps - most, steps))


def _lowest_mean(successes: int, steps: int) -> float:
    """The lowest mean that is not excluded, to 1e-9, rounded down."""
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / steps  # the capital falls from the left up to the observed share
    while high - low > 1e-9:
        middle = (low + high) / 2
        if log_capital(successes, steps, middle, _SHARE_PRIOR) < -math.log(ALPHA):
            high = middle
        else:
            low = middle
    return low


def median_rank(steps: int) -> int:
    """The rank k, from 1, so that the k-th smallest and the k-th largest value are the interval of the median.

    0 with too few steps: the interval is then unbounded. With ties the interval still holds: there is a 0/1 sequence of
    mean 1/2 between the indicators of *below the median* and *not above it*.
    """
    low, high = -1, steps // 2  # low is excluded, high is not
    while high - low > 1:
        middle = (low + high) // 2
        if log_capital(middle, steps, 0.5, _MEDIAN_PRIOR) < -math.log(ALPHA):
            high = middle
        else:
            low = middle
    return high


@dataclass(slots=True)
class SpeedUps:
    """The speed-ups of one comparison, one step per domain. A censored download leaves only bounds."""

    lows: list[float] = field(default_factory=list)
    """Sorted."""
    highs: list[float] = field(default_factory=list)
    """Sorted."""
    faster: int = 0
    """Domains with a speed-up above 1."""
    perhaps: int = 0
    """Domains whose bounds allow that, those included."""
    domains: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, speed_ups: Mapping[str, tuple[float, float]]) -> SpeedUps:
        """All steps at once.

        Args:
            speed_ups: domain -> bounds of its speed-up; equal where it is known.
        """
        bounds = speed_ups.values()
        return cls(
            lows=sorted(low for low, _ in bounds),
            highs=sorted(high for _, high in bounds),
            faster=sum(_is_faster(low, high) for low, high in bounds),
            perhaps=sum(high > 1 for _, high in bounds),
            domains=set(speed_ups),
        )

    def add(self, domain: str, config: tuple[float, float], vs: tuple[float, float]) -> None:
        """A measurement run of a domain; only the first one of a domain is a step.

        Args:
            config, vs: bounds of the two download times [s]; equal where the time is known.
        """
        if domain in self.domains:
            return
        self.domains.add(domain)
        low, high = vs[0] / config[1], vs[1] / config[0] if config[0] else math.inf
        insort(self.lows, low)
        insort(self.highs, high)
        self.faster += _is_faster(low, high)
        self.perhaps += high > 1

    def interval(self, quantity: Quantity) -> Interval:
        """The interval after all steps so far."""
        steps = len(self.lows)
        if quantity is Quantity.SHARE:
            return share_interval(self.faster, self.perhaps, steps) if steps else Interval(0.0, 1.0)
        rank = median_rank(steps)
        return Interval(self.lows[rank - 1], self.highs[-rank]) if rank else Interval(0.0, math.inf)

    def width(self, quantity: Quantity) -> float:
        """The width of the interval, see `Quantity`; may be infinite."""
        interval = self.interval(quantity)
        if quantity is Quantity.SHARE:
            return interval.high - interval.low
        return interval.high / interval.low - 1 if interval.low and not math.isinf(interval.high) else math.inf

    def meets(self, rule: Rule) -> bool:
        """Whether all its intervals are narrow enough."""
        return all(self.width(quantity) <= width for quantity, width in rule.items())


def _is_faster(low: float, high: float) -> bool:
    return low > 1 or low == 1 < high  # bounds exclude their own value


def words(rule: Rule) -> str:
    """The rule as the command line takes it, e.g. `median=0.05`."""
    return " ".join(f"{quantity}={width:g}" for quantity, width in rule.items())


def all_meet(rule: Rule, comparisons: Iterable[SpeedUps]) -> bool:
    """Whether to stop: there is a rule, and every comparison meets it."""
    return bool(rule) and all(one.meets(rule) for one in comparisons)
