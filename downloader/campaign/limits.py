"""How much a campaign may take, and when it ends: `budgets`, `disk`, `until_ci` of its file, and `--stop-when`. Pure.

A vantage point stops before the end of its plan where the intervals are narrow enough, in the steps of
`core.sequential`: the first measurement run of a domain in which both sides of a comparison have a time. They are taken
in the order of the plan, and follow from the journal's downloads, so a resumed campaign goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from core.domain import Comparison, Download, Failure, Outcome, Role
from core.errors import UsageError, nearest, use_one_of
from core.files.disk import parse_size
from core.sequential import ALPHA, Quantity, Rule, SpeedUps, all_meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Most IP bytes per UTC day, both directions, of all vantage points of a campaign together."""

    domain: int = 1_000_000_000
    """From and to one domain."""
    network: int = 50_000_000_000
    """From and to one AS (field `as`); where it is not known, one /24 or /48."""
    campaign: int = 500_000_000_000


class KeptCaptures(StrEnum):
    """Which captures are kept once their KPIs and proof are in the journal."""

    ALL = "all"
    SAMPLE = "sample"
    """A share of the measurement runs, chosen by seed."""
    FAILURES = "failures"
    """Those of runs in which a download is not ok, or not proven to have had its options."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a campaign's folder may use of this host's disk."""

    captures: KeptCaptures = KeptCaptures.ALL
    sample: float = 0.01
    """Share of runs whose captures are kept with `sample`."""
    limit: int = 20_000_000_000
    """Most bytes of the folder: journals, captures and tables."""
    reserve: int = 1_000_000_000
    """Bytes of the disk that stay free."""


_AS = "as"
"""Name of `Budgets.network` in a file: a keyword in Python."""


def read_budgets(value: object, where: str) -> Budgets:
    """The field `budgets`. Raises UsageError: one sentence with field and remedy."""
    names = {_AS if field.name == "network" else field.name: field.name for field in fields(Budgets)}
    entries = _table(value, names, where, 'write domain = "1 GB", as = "50 GB", campaign = "500 GB"')
    sizes = {names[name]: _size(size, f"{where}.{name}", least=1) for name, size in entries.items()}
    return Budgets(**sizes)


def read_disk(value: object, where: str) -> Disk:
    """The field `disk`. Raises UsageError: one sentence with field and remedy."""
    entries = _table(value, {field.name for field in fields(Disk)}, where, 'write captures = "all", limit = "20 GB"')
    changed: dict[str, Any] = {
        name: _size(entries[name], f"{where}.{name}", least=least)
        for name, least in (("limit", 1), ("reserve", 0))
        if name in entries
    }
    if "captures" in entries:
        if entries["captures"] not in tuple(KeptCaptures):
            known = ", ".join(KeptCaptures)
            raise UsageError(
                f"{entries['captures']!r} is unknown", where=f"{where}.captures", remedy=f"use one of {known}"
            )
        changed["captures"] = KeptCaptures(str(entries["captures"]))
    if "sample" in entries:
        share = entries["sample"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"{share!r} is not a share", where=f"{where}.sample", remedy="write a number from 0 to 1")
        changed["sample"] = float(share)
    return Disk(**changed)


def _table(value: object, names: Mapping[str, str] | set[str], where: str, remedy: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UsageError("it is not a table", where=where, remedy=remedy)
    for name in value:
        if name not in names:
            meant = nearest(str(name), names)
            raise UsageError(
                "unknown field", where=f"{where}.{name}", remedy=f"did you mean {meant}?" if meant else remedy
            )
    return value


def _size(value: object, where: str, *, least: int) -> int:
    remedy = 'write a number of bytes, or a size such as "20 GB"'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError("it is not a size", where=where, remedy=remedy)
    try:
        size = parse_size(value)
    except ValueError as error:
        raise UsageError(str(error), where=where, remedy=remedy) from None
    if size < least:
        raise UsageError(f"it must be at least {least}", where=where, remedy=remedy)
    return size


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
    widths: dict[str, object] = {}
    where = "--stop-when"
    for entry in entries:
        if entry == NEVER:
            continue
        name, equals, width = entry.partition("=")
        try:
            widths[name] = float(width) if equals else width
        except ValueError:
            raise _wrong(repr(entry), where) from None
    return _checked(widths, comparisons, where)


def _checked(entries: Mapping[str, object], comparisons: Sequence[Comparison], where: str) -> Rule:
    rule: dict[Quantity, float] = {}
    for name, width in entries.items():
        if name not in tuple(Quantity):
            raise UsageError(
                f"{name!r} is not a quantity with an interval", where=where, remedy=use_one_of(name, tuple(Quantity))
            )
        quantity = Quantity(name)
        if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width < 1:
            raise _wrong(repr(width), where)
        rule[quantity] = float(width)
    if rule and not any(comparison.role is Role.EFFECT for comparison in comparisons):
        raise UsageError(
            f"the campaign has no comparison with the role {Role.EFFECT}, so no interval could become narrow",
            where=where,
            remedy="add one to [[comparisons]], or leave this out",
        )
    return rule


def _wrong(what: str, where: str) -> UsageError:
    return UsageError(
        f"{what} is not a valid width of an interval",
        where=where,
        remedy="write a number between 0 and 1: 0.05 is 5 %",
    )


_Step = tuple[SpeedUps, str, tuple[float, float], tuple[float, float]]
"""Where it counts, and the arguments of `SpeedUps.add`."""


class Stopping:
    """Whether a vantage point has measured enough: its intervals, after each measurement run.

    A run counts once all before it in the plan are recorded. The plan's order is random, as the intervals need it; that
    of the records is not, as slots and budgets choose targets by server and network.

    Args:
        rule: when they are narrow enough.
        comparisons: those of the campaign; the ones with the role effect count.
        recorded: its measurement runs so far: number and downloads of each.
    """

    def __init__(
        self, rule: Rule, comparisons: Sequence[Comparison], recorded: Iterable[tuple[int, Sequence[Download]]]
    ) -> None:
        self._rule = rule
        effects = [comparison for comparison in comparisons if comparison.role is Role.EFFECT]
        self._comparisons = [(comparison, SpeedUps()) for comparison in effects] if self._rule else []
        self._counted = 0
        """How many runs of the plan count."""
        self._waiting: dict[int, list[_Step]] = {}
        if self._rule:
            for number, run in recorded:
                self.record(number, run)

    def record(self, number: int, run: Sequence[Download]) -> None:
        """An accepted measurement run of that number."""
        if not self._rule:
            return
        self._waiting[number] = list(self._steps(run))
        while (steps := self._waiting.pop(self._counted, None)) is not None:
            self._counted += 1
            for speed_ups, domain, mine, theirs in steps:
                speed_ups.add(domain, mine, theirs)

    def _steps(self, run: Sequence[Download]) -> Iterator[_Step]:
        by_name = {download.configuration: download for download in run}
        for comparison, speed_ups in self._comparisons:
            config, vs = by_name.get(comparison.config), by_name.get(comparison.vs)
            if config is None or vs is None or config.accepted is False or vs.accepted is False:
                continue
            mine, theirs = _bounds_s(config, vs), _bounds_s(vs, config)
            if mine is not None and theirs is not None:
                yield speed_ups, config.domain, mine, theirs

    @property
    def reached(self) -> bool:
        """Whether all intervals are narrow enough; never, without a rule."""
        return all_meet(self._rule, (speed_ups for _, speed_ups in self._comparisons))

    def state(self) -> dict[str, Any]:
        """For the journal and `environment.json`: the rule, how many runs of the plan count, and each interval; an
        infinite end is None."""
        return {
            "rule": {quantity.value: width for quantity, width in self._rule.items()},
            "alpha": ALPHA,
            "reached": self.reached,
            "counted_runs": self._counted,
            "comparisons": [
                {
                    "name": comparison.name,
                    "domains": len(speed_ups.domains),
                    "reached": speed_ups.meets(self._rule),
                    **{quantity.value: _ends(speed_ups, quantity) for quantity in Quantity},
                }
                for comparison, speed_ups in self._comparisons
            ],
        }


def _bounds_s(download: Download, other: Download) -> tuple[float, float] | None:
    """Bounds of the time of a download that is compared with another one [s]; None without a valid time."""
    bounds = download.time_bounds_s
    both_cut = download.outcome == other.outcome == Outcome.CENSORED
    if bounds and bounds[0] > 0 and both_cut and download.failure == Failure.BYTE_BUDGET:
        # Its time to that byte, which the other one reached then, too, or not before its time budget: as in Table 2
        # ("Same byte", docs/method/statistics.md).
        return bounds[0], bounds[0]
    return bounds


def _ends(speed_ups: SpeedUps, quantity: Quantity) -> tuple[float, float | None]:
    interval = speed_ups.interval(quantity)
    return interval.low, interval.high if math.isfinite(interval.high) else None
