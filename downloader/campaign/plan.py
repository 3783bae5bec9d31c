"""The plan: the order of targets and configurations, from a seed and without a clock.

A vantage point's plan is a list of measurement runs. Which of them gets which sequence of configurations is decided in
`order.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from core.domain import Target
from core.errors import UsageError
from downloader.campaign.campaign import Campaign, Order
from downloader.campaign.order import assign

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
    common = list(targets)
    random.Random(f"{campaign.seed}/targets").shuffle(common)
    first = (index * len(common)) // vantage_points
    visits = [
        (iteration, common[(first + iteration - 1 + step) % len(common)])
        for iteration in range(1, campaign.iterations + 1)
        for step in range(len(common))
    ]
    warmups = tuple(warmup.name for warmup in campaign.warmups)
    sequences = _sequences(campaign, [target for _, target in visits], vantage=vantage)
    return tuple(
        PlannedRun(
            number=number,
            iteration=iteration,
            target=target,
            configurations=(*warmups, *sequence),
            warmups=len(warmups),
        )
        for number, ((iteration, target), sequence) in enumerate(zip(visits, sequences, strict=True))
    )


def _sequences(campaign: Campaign, targets: Sequence[Target], *, vantage: str) -> list[tuple[str, ...]]:
    """The configurations of each measurement run in their order; `targets` has the target of each run."""
    names = tuple(configuration.name for configuration in campaign.configurations)
    if campaign.order == Order.PUBLISHED:
        return [names] * len(targets)
    runs = [(target.provider, (target.domain, target.url)) for target in targets]
    return assign(names, runs, random.Random(f"{campaign.seed}/{vantage}"))
