"""Sweeps: a test declares all its cells once, and names those that are quick.

`make test` runs the quick cells, `make soak` (pytest's option `--soak`, tests/soak_plugin.py) all of them. Quick cells
reach each branch and each cause at least once, in a few seconds each.

    @cells("part", every=PARTS, quick=["tcpdump"])
    def test_a_part_is_killed(part: str, repeats: Repeats) -> None:
        for _ in range(repeats(quick=3, soak=20)):
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import pytest

SOAK = "soak"
"""The marker of cells that only `make soak` runs."""


class Repeats(Protocol):
    """The fixture `repeats`: how often to do something in this run."""

    def __call__(self, *, quick: int, soak: int) -> int: ...


def cells(
    names: str,
    *,
    every: Iterable[Any],
    quick: Collection[Any],
    ids: Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrizes a test with all cells of a sweep; those not in `quick` are for `make soak`.

    Where a test has several of these decorators, a combination is quick where each of its values is.

    Args:
        names: as for `pytest.mark.parametrize`.
        every: all values, each of them a tuple where there are several names.
        quick: some of them, at least one.
        ids: as for `pytest.mark.parametrize`.

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
    return pytest.mark.parametrize(names, found, ids=ids)
