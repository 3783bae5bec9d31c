"""The gate of slots: a vantage point works on its class only, with clocks that can be trusted."""

from __future__ import annotations

from collections.abc import Callable

from core.domain import Disturbance, Failure, VoidReason
from core.system.clock import Clock
from downloader.campaign.campaign import Campaign
from downloader.campaign.plan import PlannedRun
from downloader.campaign.times import worst_s
from downloader.schedule.gate import Cut, Gate, State, Wait
from downloader.schedule.slots import Slots

CUT_S = 3.0
"""How long before the end of its slot a run is ended that takes longer than its worst case, because a client hangs."""


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
