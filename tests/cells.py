"""How much of a test runs when: in `make check`, `make test`, and `make soak` (tests/soak_plugin.py has the options).

A sweep declares all its cells once, and names those that are quick: `make test` runs the quick cells, `make soak` all
of them. Quick cells reach each branch and each cause at least once, in a few seconds each.

    @cells("part", every=PARTS, quick=["tcpdump"])
    def test_a_part_is_killed(part: str, repeats: Repeats) -> None:
        for _ in range(repeats(quick=3, soak=20)):
            ...

`make check` leaves out what is marked `thorough` (simulations, kills, tests that start many programs). Examples of a
property are the same ones each time, and in `make soak` new ones, twenty times as many.

    @settings(max_examples=examples(30))
    @given(...)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import hypothesis
import pytest

SOAK = "soak"
"""The marker of cells that only `make soak` runs."""


THOROUGH = "thorough"
"""The marker of tests that `make check` leaves out."""


class Repeats(Protocol):
    """The fixture `repeats`: how often to do something in this run."""

    def __call__(self, *, quick: int, soak: int) -> int: ...


def cells(
    names: str,
    *,
    every: Iterable[Any],
    quick: Collection[Any],
    ids: Callable[[Any], str] | None = None,
    indirect: bool = False,
) -> pytest.MarkDecorator:
    """Parametrizes a test with all cells of a sweep; those not in `quick` are for `make soak`.

    Where a test has several of these decorators, a combination is quick where each of its values is.

    Args:
        names: as for `pytest.mark.parametrize`.
        every: all values, each of them a tuple where there are several names.
        quick: some of them, at least one.
        ids, indirect: as for `pytest.mark.parametrize`.

    Raises:
        ValueError: `quick` is empty, or has a value that `every` does not have.
    """
    values = list(every)
    strange = [value for value in quick if value not in values]
    if strange or not quick:
        raise ValueError(f"quick cells of {names}: {strange or 'none'}; name some of {values}")
    soak = getattr(pytest.mark, SOAK)
    several = "," in names
    found = [pytest.param(*(value if several else (value,)), marks=() if value in quick else soak) for value in values]
    return pytest.mark.parametrize(names, found, ids=ids, indirect=indirect)


def examples(count: int) -> int:
    """How many examples of a property Hypothesis tries: `count`, in `make soak` twenty times as many."""
    return 20 * count if hypothesis.settings.get_current_profile_name() == SOAK else count
