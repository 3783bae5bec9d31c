"""The plan: the order of targets and configurations, from a seed and without a clock; and the hash that identifies it.

A vantage point's plan is a list of measurement runs; their sequences of configurations come from Williams squares.

In a Williams square (E. J. Williams, Experimental designs balanced for the estimation of residual effects of
treatments, 1949) every configuration has every position equally often, and follows every other equally often. An even
number K of configurations needs K sequences, an odd one 2K: no K sequences exist for 3 and 5.

Here sequences come in pairs, of which one is the other backwards. So after each pair every configuration has the same
mean position, and a drift that is linear in the position cancels out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core import paper
from core.domain import Target
from core.errors import UsageError
from downloader.campaign.campaign import Campaign, Order


def square(names: Sequence[str], generator: random.Random) -> list[tuple[str, ...]]:
    """The sequences of one Williams square, with its labels and the order of its sequences drawn.

    After any number of its sequences, each name has followed each other equally often within one. The exception is
    exactly half of a square of odd size, where it is within two: no half of its sequences meets the bound.

    Returns:
        len(names) sequences if that is even, else twice as many. Each is followed by its mirror image.
    """
    labels = list(names)
    generator.shuffle(labels)
    size = len(labels)
    steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(size)]  # 0, 1, -1, 2, -2, ...
    sequences: list[tuple[str, ...]] = []
    for group in _starts(size):
        generator.shuffle(group)
        for start in group:
            sequence = tuple(labels[(start + step) % size] for step in steps)
            pair = [sequence, sequence[::-1]]
            generator.shuffle(pair)
            sequences += pair
    return sequences


def _starts(size: int) -> list[list[int]]:
    """First elements of the pairs of a square; the order within a group is free.

    With an even size the mirror image of a sequence belongs to the same square, so half of the starts are enough. With
    an odd size each pair of neighbours occurs twice, in sequences whose starts differ by (size - 1) / 2. Such steps
    make one cycle through all starts, and every second start of it a group without a common pair of neighbours.
    """
    if size % 2 == 0:
        return [list(range(size // 2))]
    cycle = [(number * (size // 2)) % size for number in range(size)]
    return [cycle[0:-1:2], cycle[-1:], cycle[1:-1:2]]


def assign(
    names: Sequence[str], runs: Sequence[tuple[Hashable, Hashable]], generator: random.Random
) -> list[tuple[str, ...]]:
    """The sequence of each measurement run, balanced over all of them and over those of each group.

    Args:
        runs: group and target of each run. Targets of a group that come one after the other get mirrored sequences,
            and so do the iterations of a target; which iteration gets which is drawn.

    Whole squares, each drawn anew, go to one group. The runs that remain in each group share one more square, repeated
    as often as needed: the runs of a group are then consecutive in a periodic order.
    """
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, (group, target) in enumerate(runs):
        groups.setdefault(group, {}).setdefault(target, []).append(index)
    size = len(names) * (1 + len(names) % 2)
    sequences: dict[int, tuple[str, ...]] = {}
    rest: list[int] = []
    for targets in groups.values():
        for iterations in targets.values():
            generator.shuffle(iterations)
        members = list(itertools.chain.from_iterable(targets.values()))
        whole = len(members) - len(members) % size
        sequences |= zip(members[:whole], _squares(names, generator), strict=False)
        rest += members[whole:]
    sequences |= zip(rest, itertools.cycle(square(names, generator)), strict=False)
    return [sequences[index] for index in range(len(runs))]


def _squares(names: Sequence[str], generator: random.Random) -> Iterator[tuple[str, ...]]:
    while True:
        yield from square(names, generator)


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
    campaign: Campaign,
    targets: Sequence[Target],
    *,
    vantage: str,
    index: int,
    vantage_points: int,
    earlier: Sequence[int] = (),
) -> tuple[PlannedRun, ...]:
    """The measurement runs of one vantage point.

    Args:
        index, vantage_points: index of this vantage point, and their number. All visit the targets in the same order,
            each from another start, so that at equal speed no two need the same target at the same time.
        earlier: how many iterations the campaign had before it was extended, once or more often. Their runs stay as
            they were, and those of each extension are balanced for themselves.

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
    sequences: list[tuple[str, ...]] = []
    for before, until in itertools.pairwise((0, *earlier, campaign.iterations)):
        part = visits[before * len(common) : until * len(common)]
        sequences += _sequences(campaign, [t for _, t in part], seed=f"{vantage}/{before}" if before else vantage)
    return tuple(
        PlannedRun(
            number=number,
            iteration=iteration,
            target=target,
            configurations=sequence,
            warmups=sum(name in paper.WARMUPS for name in sequence[: len(paper.WARMUPS)]),
        )
        for number, ((iteration, target), sequence) in enumerate(zip(visits, sequences, strict=True))
    )


def _sequences(campaign: Campaign, targets: Sequence[Target], *, seed: str) -> list[tuple[str, ...]]:
    """The names of each measurement run in their order, warm-ups first; `targets` has the target of each run.

    Runs without QUIC have fewer, so they are balanced for themselves.
    """
    short = {target.key for target in campaign.without_http3(targets)}
    groups: dict[bool, list[int]] = {}
    for index, target in enumerate(targets):
        groups.setdefault(target.key in short, []).append(index)
    ordered: dict[int, tuple[str, ...]] = {}
    for is_short, members in groups.items():
        every = [configuration.name for configuration in campaign.of(targets[members[0]])]
        warmups = tuple(name for name in every if name in paper.WARMUPS)
        names = tuple(name for name in every if name not in paper.WARMUPS)
        sequences = [names] * len(members)
        if campaign.order != Order.PUBLISHED:
            runs = [(targets[index].provider, targets[index].key) for index in members]
            drawn = f"{seed}/without HTTP/3" if is_short else seed
            sequences = assign(names, runs, random.Random(f"{campaign.seed}/{drawn}"))
        ordered |= {index: (*warmups, *sequence) for index, sequence in zip(members, sequences, strict=True)}
    return [ordered[index] for index in range(len(targets))]


def plan_hash(
    campaign: Campaign,
    targets: Sequence[Target],
    vantage_points: Sequence[str],
    *,
    classes: Sequence[int] | None = None,
) -> str:
    """SHA-256 over everything that affects what is downloaded, how, and in which order; the same at all hosts.

    The number of iterations is left out, as more of them extend a plan; so is a lab, whose truth is compared by itself.

    Only what differs from the defaults is hashed, so that a campaign goes on when Upshift has learned something new.
    That no default has changed since is checked by what the journals have (`downloader.execution.journal`).

    Args:
        vantage_points: all, wherever they run.
        classes: with slots, the class of each target: addresses and the list of public suffixes affect it.
    """
    plan: dict[str, Any] = {
        "campaign": {name: value for name, value in campaign.differences().items() if name != "iterations"},
        "targets": [[t.domain, t.url, t.provider, t.size_bytes, t.size_is_lower_bound] for t in targets],
        "vantage_points": sorted(vantage_points),
    }
    if apart := campaign.without_http3(targets):
        plan["without_http3"] = [target.key for target in apart]
    if classes is not None:
        plan["classes"] = list(classes)
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
