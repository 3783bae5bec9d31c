"""The order of configurations within measurement runs: Williams squares, seeded. Pure.

In a Williams square (E. J. Williams, Experimental designs balanced for the estimation of residual effects of
treatments, 1949) every configuration has every position equally often, and follows every other equally often. An even
number K of configurations needs K sequences, an odd one 2K: no K sequences exist for 3 and 5.

Here sequences come in pairs, of which one is the other backwards. So after each pair every configuration has the same
mean position, and a drift that is linear in the position cancels out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterator, Sequence


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
    found: list[tuple[str, ...]] = []
    for group in _starts(size):
        generator.shuffle(group)
        for start in group:
            sequence = tuple(labels[(start + step) % size] for step in steps)
            pair = [sequence, sequence[::-1]]
            generator.shuffle(pair)
            found += pair
    return found


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
    as often as needed: the runs of a group are then a stretch of a periodic order.
    """
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, (group, target) in enumerate(runs):
        groups.setdefault(group, {}).setdefault(target, []).append(index)
    size = len(names) * (1 + len(names) % 2)
    found: dict[int, tuple[str, ...]] = {}
    rest: list[int] = []
    for targets in groups.values():
        for iterations in targets.values():
            generator.shuffle(iterations)
        members = list(itertools.chain.from_iterable(targets.values()))
        whole = len(members) - len(members) % size
        found |= zip(members[:whole], _squares(names, generator), strict=False)
        rest += members[whole:]
    found |= zip(rest, itertools.cycle(square(names, generator)), strict=False)
    return [found[index] for index in range(len(runs))]


def _squares(names: Sequence[str], generator: random.Random) -> Iterator[tuple[str, ...]]:
    while True:
        yield from square(names, generator)
