"""The plan: the order of targets and configurations, from a seed and without a clock.

A vantage point's plan is a list of measurement runs. In a balanced plan the runs come in blocks of as many runs as
there are configurations. Within a block each run is a different rotation of one circle of configurations, so each
configuration has each position exactly once per block. The circle and the order of the rotations are drawn again for
each block, so that predecessors vary. In the circle, the transport with fewer configurations is spread evenly among the
other, so that they alternate as far as possible.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from downloader import clients
from downloader.campaign.campaign import Campaign, Order
from upshift.domain import Configuration, Target, Transport
from upshift.errors import UsageError

MOST_RUNS = 2_000_000
"""Most measurement runs of one vantage point: a plan is held in memory, 300 bytes per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One measurement run: all configurations for one target, after the warm-ups."""

    number: int
    """From 0, in the order of the plan; also part of the capture's name."""
    iteration: int
    """From 1."""
    target: Target
    configurations: tuple[str, ...]
    """Names in order of position, those of warm-ups first."""
    warmups: int = 1
    """How many of them are warm-ups."""

    @property
    def positions(self) -> range:
        """Position of each: what follows the warm-ups has 1."""
        return range(1 - self.warmups, 1 - self.warmups + len(self.configurations))


def make_plan(
    campaign: Campaign, targets: Sequence[Target], *, vantage: str, index: int, vantage_points: int
) -> tuple[PlannedRun, ...]:
    """The measurement runs of one vantage point.

    Args:
        index, vantage_points: index of this vantage point, and their number. All visit the targets in the same order,
            each from another start, so that at equal speed no two need the same target at the same time.

    Raises:
        UsageError: the plan is too long.
    """
    if campaign.iterations * len(targets) > MOST_RUNS:
        raise UsageError(
            f"{campaign.iterations} iterations of {len(targets)} targets are more than {MOST_RUNS} measurement runs",
            where=f"{campaign.path}: field iterations",
            remedy="lower it, or divide the targets among campaigns",
        )
    orders = _orders(campaign, seed=f"{campaign.seed}/{vantage}")
    common = list(targets)
    random.Random(f"{campaign.seed}/targets").shuffle(common)
    warmups = tuple(warmup.name for warmup in campaign.warmups)
    runs: list[PlannedRun] = []
    for iteration in range(1, campaign.iterations + 1):
        start = (index * len(common)) // vantage_points + iteration - 1
        for step in range(len(common)):
            runs.append(
                PlannedRun(
                    number=len(runs),
                    iteration=iteration,
                    target=common[(start + step) % len(common)],
                    configurations=(*warmups, *next(orders)),
                    warmups=len(warmups),
                )
            )
    return tuple(runs)


def _orders(campaign: Campaign, *, seed: str) -> Iterator[tuple[str, ...]]:
    """Orders of the configurations, one per measurement run, endless."""
    if campaign.order == Order.PUBLISHED:
        while True:
            yield tuple(configuration.name for configuration in campaign.configurations)
    yield from balanced_orders(campaign.configurations, random.Random(seed))


def balanced_orders(configurations: Sequence[Configuration], generator: random.Random) -> Iterator[tuple[str, ...]]:
    """Orders in which every configuration has every position once per block of `len(configurations)` orders."""
    groups: dict[Transport, list[str]] = {Transport.TCP: [], Transport.QUIC: []}
    for configuration in configurations:
        groups[clients.ALL[configuration.client].transport].append(configuration.name)
    fewer, more = sorted(groups.values(), key=len)
    size = len(configurations)
    while True:
        generator.shuffle(fewer)
        generator.shuffle(more)
        circle = spread(fewer, more)
        starts = list(range(size))
        generator.shuffle(starts)
        for start in starts:
            yield tuple(circle[(start + position) % size] for position in range(size))


def spread(fewer: Sequence[str], more: Sequence[str]) -> list[str]:
    """A circle in which the smaller group is spread as evenly as possible among the larger one."""
    size = len(fewer) + len(more)
    places = {(number * size) // len(fewer) for number in range(len(fewer))}
    first, second = iter(fewer), iter(more)
    return [next(first) if place in places else next(second) for place in range(size)]
