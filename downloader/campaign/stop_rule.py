"""When a vantage point stops before the end of its plan: the field `until_ci`, and `upshift run --stop-when`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from core.domain import Comparison, Role
from core.errors import UsageError, use_one_of
from core.sequential import Quantity, Rule

NEVER = "never"
"""The value of `--stop-when` that cancels the campaign's `until_ci`."""


def read_rule(value: object, comparisons: Sequence[Comparison], where: str) -> Rule:
    """The rule in a campaign file: `until_ci = 0.05` for the median, or `until_ci = {median = 0.05, share = 0.2}`.

    Raises:
        UsageError: neither of the two, a width out of range, or no comparison whose interval could become narrow.
    """
    entries = value if isinstance(value, Mapping) else {Quantity.MEDIAN.value: value}
    return _checked(entries, comparisons, where)


def parse_rule(entries: Iterable[str], comparisons: Sequence[Comparison]) -> Rule:
    """The rule of `--stop-when` options: `median=0.05`, `share=0.2`, or `never`.

    Raises:
        UsageError: as `read_rule`.
    """
    found: dict[str, object] = {}
    where = "--stop-when"
    for entry in entries:
        if entry == NEVER:
            continue
        name, equals, width = entry.partition("=")
        try:
            found[name] = float(width) if equals else width
        except ValueError:
            raise _wrong(repr(entry), where) from None
    return _checked(found, comparisons, where)


def _checked(entries: Mapping[str, object], comparisons: Sequence[Comparison], where: str) -> Rule:
    rule: dict[Quantity, float] = {}
    for name, width in entries.items():
        if name not in tuple(Quantity):
            raise UsageError(
                f"{name!r} is not a quantity with an interval", where=where, remedy=use_one_of(name, tuple(Quantity))
            )
        quantity = Quantity(name)
        if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width < _limit(quantity):
            raise _wrong(repr(width), where)
        rule[quantity] = float(width)
    if rule and not any(comparison.role is Role.EFFECT for comparison in comparisons):
        raise UsageError(
            f"the campaign has no comparison with the role {Role.EFFECT}, so no interval could become narrow",
            where=where,
            remedy="add one to [[comparisons]], or leave this out",
        )
    return rule


def _limit(quantity: Quantity) -> float:
    return 1.0 if quantity is Quantity.SHARE else math.inf


def _wrong(what: str, where: str) -> UsageError:
    return UsageError(
        f"{what} is not a valid width of an interval",
        where=where,
        remedy="write a number above 0, e.g. median 0.05; a share's is below 1",
    )
