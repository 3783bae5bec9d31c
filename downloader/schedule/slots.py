"""The plan that all hosts of a campaign share, and its slots: no two vantage points on one target at a time. Pure.

The hosts do not talk to each other. Targets that share a registered domain or an address form a group, and groups are
dealt into K classes of about equal expected time, for K vantage points. Time is divided into slots of equal length,
counted from 1970 (UTC). In slot s, vantage point i works on class (i + s) mod K: two vantage points never have the same
class in one slot, and each has all of them in K slots. A run starts only if its worst case ends `MARGIN_S` before the
slot does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.domain import Disturbance, Failure, Target, TargetKey, VoidReason
from core.errors import UsageError
from core.system.this_host import MOST_APART_S, Clock
from core.untrusted import host_and_port, registered_domain
from downloader.campaign.campaign import Campaign
from downloader.campaign.expected import expected_s, worst_s
from downloader.campaign.plan import PlannedRun, make_plan, plan_hash
from downloader.schedule.schedule import Cut, Gate, State, Wait

MARGIN_S = 5.0
"""Time between the worst case of a run and the end of its slot: more than two clocks may differ."""

START_S = 5.0
"""Time that a vantage point has for the start of a slot: in a slot that the longest run fills entirely it could never
begin, as nothing begins exactly with its slot."""

LEAST_AUTO_S = 1800.0
"""Shortest slot of `slot_s = "auto"`."""


def groups(targets: Sequence[Target]) -> list[list[Target]]:
    """The targets that no two vantage points may use at once, together: connected by a registered domain (of the target
    or its URL) or by `server_ip`. In the order of their first targets."""
    parent = list(range(len(targets)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, target in enumerate(targets):
        host, _ = host_and_port(target.url)
        marks = {("name", registered_domain(target.domain)), ("name", registered_domain(host))}
        if target.server_ip is not None:
            marks.add(("address", target.server_ip))
        for mark in marks:
            one, other = sorted((root(first.setdefault(mark, index)), root(index)))
            parent[other] = one
    members: dict[int, list[Target]] = {}
    for index, target in enumerate(targets):
        members.setdefault(root(index), []).append(target)
    return list(members.values())


def deal(weights: Sequence[float], count: int) -> list[int]:
    """A class for each weight, so that the classes have about equal sums: the heaviest first, to the lightest class."""
    sums, classes = [0.0] * count, [0] * len(weights)
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        classes[index] = min(range(count), key=lambda number: (sums[number], number))
        sums[classes[index]] += weights[index]
    return classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The slots of a campaign, the same at all vantage points."""

    length_s: float
    count: int
    """Number of vantage points, and of classes."""
    classes: Mapping[TargetKey, int]
    """Target -> class."""

    def slot(self, now: float) -> int:
        """The number of the slot at a Unix time."""
        return math.floor(now / self.length_s)

    def end(self, now: float) -> float:
        """When the slot at a Unix time ends."""
        return (self.slot(now) + 1) * self.length_s

    def is_turn(self, target: Target, index: int, now: float) -> bool:
        """Whether the vantage point of that index works on the target's class."""
        return (index + self.slot(now)) % self.count == self.classes[target.key]

    def fits(self, worst: float, now: float) -> bool:
        """Whether a run that takes at most `worst` seconds may start."""
        return now + worst + MARGIN_S <= self.end(now)

    def next_turn(self, target: Target, index: int, now: float) -> float:
        """When the next slot begins in which the vantage point works on the target's class; after the present one."""
        after = self.slot(now) + 1
        wait = (self.classes[target.key] - index - after) % self.count
        return (after + wait) * self.length_s


def slots_for(campaign: Campaign, targets: Sequence[Target], count: int) -> Slots | None:
    """The slots of a campaign with that many vantage points; None for a single one, and with `slot_s = 0`.

    Raises:
        UsageError: the longest run does not fit.
    """
    longest = max(targets, key=lambda target: worst_s(campaign, target))
    worst = worst_s(campaign, longest)
    need = START_S + worst + MARGIN_S
    length = campaign.slot_s
    if length == 0 or count == 1:
        return None
    if not isinstance(length, float):
        length = max(LEAST_AUTO_S, 2 * worst)
    if length < need:
        raise UsageError(
            f"the longest measurement run ({longest.domain}) takes up to {worst:g} s; it may start {START_S:g} s after "
            f"its slot of {length:g} s does, and has to end {MARGIN_S:g} s before it",
            where=f"{campaign.path}: field slot_s",
            remedy=f'write at least {math.ceil(need)}, or "auto"',
        )
    together = groups(targets)
    dealt = deal([sum(_weight(campaign, target) for target in group) for group in together], count)
    classes = {target.key: number for group, number in zip(together, dealt, strict=True) for target in group}
    return Slots(length_s=length, count=count, classes=classes)


def _weight(campaign: Campaign, target: Target) -> float:
    # A lower bound of a size counts as if it were exact, as in 0.1.0: the classes are in the plan's hash.
    return expected_s(campaign, replace(target, size_is_lower_bound=False))


CUT_S = MOST_APART_S
"""How long before the end of its slot a run is ended that takes longer than its worst case, because a client hangs: so
nothing is sent to a target that another vantage point's clock has already."""


class SlotGate(Gate):
    """Admits runs of the class that the vantage point has in the present slot, if they fit into the rest of it.

    Args:
        index: of the vantage point among all of the campaign.
        clock: reads this host's clock; None: it is trusted.
    """

    def __init__(
        self, campaign: Campaign, slots: Slots, index: int, *, clock: Callable[[], Clock] | None = None
    ) -> None:
        self._campaign, self._slots, self._index, self._clock = campaign, slots, index, clock
        self._checked: int | None = None
        self._end = 0.0

    def holds(self, now: float) -> Wait | None:
        """The clock is checked in each slot, until it is good."""
        slot = self._slots.slot(now)
        if self._clock is not None and slot != self._checked and (fault := self._clock().fault()) is not None:
            return Wait(State.WAITING_FOR_CLOCK, fault)
        self._checked = slot
        return None

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        if not self._slots.is_turn(run.target, self._index, now):
            reason = "the targets that are left belong to other vantage points in this slot"
        elif not self._slots.fits(worst_s(self._campaign, run.target), now):
            reason = "no measurement run that is left fits into the rest of this slot"
        else:
            return None
        return Wait(State.WAITING_FOR_SLOT, reason, self._slots.next_turn(run.target, self._index, now))

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:  # noqa: ARG002 - the signature is the gates'
        self._end = self._slots.end(now)

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:
        if now < self._end - CUT_S:
            return None
        detail = f"it took longer than {worst_s(self._campaign, run.target):g} s, its worst case, and its slot ended"
        return Cut(detail, Failure.UNKNOWN, Disturbance(reason=VoidReason.SLOT_ENDED, detail=detail))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """The plan of a campaign, the same at all its hosts."""

    campaign: Campaign
    targets: Sequence[Target]
    vantage_points: tuple[str, ...]
    """All, in order of name."""
    slots: Slots | None
    """None: vantage points work whenever they can."""
    truth: Mapping[str, Any] | None = None
    """What a lab's topology says of its paths (docs/design/house.md, `lab.json`); None outside a lab."""
    without_http3: Sequence[Target] = ()
    """Targets at which nothing is planned over QUIC; those for which then nothing is left are not among `targets`."""

    @property
    def digest(self) -> str:
        """The plan's hash."""
        slots = self.slots
        classes = None if slots is None else [slots.classes[target.key] for target in self.targets]
        return plan_hash(self.campaign, self.targets, self.vantage_points, classes=classes)

    def index(self, vantage: str) -> int:
        """The index of a vantage point."""
        return self.vantage_points.index(vantage)

    def runs(self, vantage: str, earlier: Sequence[int] = ()) -> tuple[PlannedRun, ...]:
        """The measurement runs of a vantage point (`earlier`: see `make_plan`). Raises UsageError if there are too
        many."""
        return make_plan(
            self.campaign,
            self.targets,
            vantage=vantage,
            index=self.index(vantage),
            vantage_points=len(self.vantage_points),
            earlier=earlier,
        )


def share(
    campaign: Campaign,
    targets: Sequence[Target],
    vantage_points: Sequence[str],
    here: Sequence[str],
    truth: Mapping[str, Any] | None = None,
) -> SharedPlan:
    """The shared plan.

    Args:
        vantage_points: all of the campaign.
        here: those of this host. Where these are not all, slots are used unless the campaign says `slot_s = 0`; else
            only if it names a length, as the vantage points of a process take turns.

    Raises:
        UsageError: the longest measurement run does not fit into a slot, or no target has anything to download.
    """
    without_http3, targets = campaign.without_http3(targets), [one for one in targets if campaign.measures(one)]
    if not targets:
        raise UsageError(
            "all targets are known to be without HTTP/3, and all configurations use QUIC",
            where=f"{campaign.path}: field targets",
            remedy="name others, or empty their column `quic`",
        )
    wanted = campaign.slot_s is not None or set(here) != set(vantage_points)
    slots = slots_for(campaign, targets, len(vantage_points)) if wanted else None
    names = tuple(sorted(vantage_points))
    return SharedPlan(
        campaign=campaign,
        targets=targets,
        vantage_points=names,
        slots=slots,
        truth=truth,
        without_http3=without_http3,
    )
