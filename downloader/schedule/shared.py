"""What all hosts of a campaign have in common: its targets, its vantage points, its slots, and the hash of all that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.domain import Target
from downloader.campaign.campaign import Campaign, plan_hash
from downloader.campaign.plan import PlannedRun, make_plan
from downloader.schedule.slots import Slots, key_of, slots_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """The plan of a campaign, the same at all its hosts."""

    campaign: Campaign
    targets: Sequence[Target]
    vantage_points: tuple[str, ...]
    """All, in order of name."""
    slots: Slots | None
    """None: vantage points work whenever they can."""

    @property
    def digest(self) -> str:
        """The plan's hash."""
        slots = self.slots
        classes = None if slots is None else [slots.classes[key_of(target)] for target in self.targets]
        return plan_hash(self.campaign, self.targets, self.vantage_points, classes=classes)

    def index(self, vantage: str) -> int:
        """The index of a vantage point."""
        return self.vantage_points.index(vantage)

    def runs(self, vantage: str) -> tuple[PlannedRun, ...]:
        """The measurement runs of a vantage point. Raises UsageError if there are too many."""
        return make_plan(
            self.campaign,
            self.targets,
            vantage=vantage,
            index=self.index(vantage),
            vantage_points=len(self.vantage_points),
        )


def share(
    campaign: Campaign, targets: Sequence[Target], vantage_points: Sequence[str], here: Sequence[str]
) -> SharedPlan:
    """The shared plan.

    Args:
        vantage_points: all of the campaign.
        here: those of this host. Where these are not all, slots are used unless the campaign says `slot_s = 0`; else
            only if it names a length, as the vantage points of a process take turns.

    Raises:
        UsageError: the longest measurement run does not fit into a slot.
    """
    wanted = campaign.slot_s is not None or set(here) != set(vantage_points)
    slots = slots_for(campaign, targets, len(vantage_points)) if wanted else None
    return SharedPlan(campaign=campaign, targets=targets, vantage_points=tuple(sorted(vantage_points)), slots=slots)
