"""What a campaign may be doing, and a gate: one reason why a measurement run may have to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.domain import Disturbance, Download, Failure
from downloader.campaign.plan import PlannedRun


class State(StrEnum):
    """What a vantage point is doing."""

    RUNNING = "running"
    WAITING_FOR_TARGET = "waiting for target"
    """Other vantage points of this process download from all targets that are left."""
    WAITING_FOR_SLOT = "waiting for slot"
    WAITING_FOR_BUDGET = "waiting for budget"
    WAITING_FOR_CLOCK = "waiting for clock"
    PAUSED = "paused"
    PAUSED_FOR_DISK = "paused for disk"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """By a signal or as asked, before the end of the plan; the same command goes on."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why nothing may start now."""

    state: State
    reason: str
    """For the user, as part of a sentence."""
    until: float | None = None
    """Unix time before which it cannot end; None: unknown."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a running measurement run must end now."""

    reason: str
    failure: Failure | None = None
    """The cause of this download and of those that are left in the run, which is then recorded. None: the attempt
    counts as interrupted, and the run is repeated when all gates admit it."""
    void: Disturbance | None = None
    """With a cause: why the attempt is void."""


class Gate:
    """One reason to wait, of one vantage point. Everything is called by the vantage point's own thread.

    `now` is Unix time. A gate overrides what it needs.
    """

    def holds(self, now: float) -> Wait | None:
        """Why no run of the vantage point may start; asked before each run, and every second while it waits.

        With `State.STOPPING` the vantage point ends, as if its plan did.
        """

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        """Why this run may not start. The answer depends on the run's target only.

        With `until`, the target is not asked for again before that time: so each choice is quick, whatever the number
        of targets. None as `until`: it is asked for again every second. With `State.STOPPING` the vantage point ends
        once no run may start before.
        """

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:
        """An attempt starts, nothing has been sent. What may not be lost by a kill is written here."""

    def resolved(self, run: PlannedRun, attempt: int, address: str, now: float) -> None:
        """The server's address is known, and nothing has been sent to it; `cuts` is asked next.

        In the published order it is called before each download.
        """

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:
        """Why the running run must end. Asked before each look-up and download, and about every second while a client
        runs."""

    def ended(self, run: PlannedRun, attempt: int, downloads: Sequence[Download], now: float) -> None:
        """An attempt ended by itself or by a cut: valid, void or interrupted. `downloads` is what was finished.

        Not called after a kill.
        """
