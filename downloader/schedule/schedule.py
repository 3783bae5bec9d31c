"""The choice of the next measurement run: the first one in the plan whose target all gates admit.

A gate is one reason why a measurement run may have to wait; the limits, the slots and requests to stop are gates.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.domain import Disturbance, Download, Failure, TargetKey
from downloader.campaign.plan import PlannedRun


class State(StrEnum):
    """What a vantage point is doing."""

    RUNNING = "running"
    WAITING_FOR_TARGET = "waiting for target"
    """Other vantage points of this process download from all targets that are left."""
    WAITING_FOR_SLOT = "waiting for slot"
    WAITING_FOR_BUDGET = "waiting for budget"
    WAITING_FOR_CLOCK = "waiting for clock"
    WAITING_FOR_OPT_OUTS = "waiting for opt-outs"
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

        With `until`, the target is not asked for again before that time, unless the clock is set back: so each choice
        is quick, whatever the number of targets. None as `until`: it is asked for again every second. With
        `State.STOPPING` the vantage point ends once no run may start before.
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


class Turns:
    """The targets in use, shared by the vantage points of a process."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._busy: set[str] = set()

    def take(self, domain: str) -> bool:
        """Takes a target; False if it is in use."""
        with self._condition:
            free = domain not in self._busy
            self._busy.add(domain)
        return free

    def give_back(self, domain: str) -> None:
        """Ends the use of a target."""
        with self._condition:
            self._busy.discard(domain)
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns when a target is given back, or after that time."""
        with self._condition:
            self._condition.wait(seconds)


POLL_S = 1.0
"""Longest time between two questions to the gates while nothing may start, and while a client runs."""

TURN_S = 0.2
"""Longest wait for a target that another vantage point of this process uses."""

Listener = Callable[[State, str, float | None], None]
"""Told what the vantage point does, why, and until when (Unix time; None: unknown)."""


class Schedule:
    """The waiting runs of one vantage point.

    A target that a gate refuses until some time is set aside until then. So each choice looks only at targets that may
    start, and at those in use by other vantage points, however long the plan is.

    Args:
        runs: in the order of the plan.
        clock: gives Unix time.
        sleep: waits for that many seconds, or until the campaign is stopped. None: by `stop`.
    """

    def __init__(
        self,
        runs: Iterable[PlannedRun],
        *,
        turns: Turns,
        gates: Sequence[Gate],
        stop: threading.Event,
        tell: Listener,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._turns, self._gates, self._stop, self._tell, self._clock = turns, gates, stop, tell, clock
        self._sleep = sleep or stop.wait
        self._runs: dict[TargetKey, deque[PlannedRun]] = {}
        for run in runs:
            self._runs.setdefault(run.target.key, deque()).append(run)
        self._ready = [(waiting[0].number, key) for key, waiting in self._runs.items()]
        heapq.heapify(self._ready)
        self._aside: list[tuple[float, int, TargetKey, Wait]] = []
        """Targets that were refused until a time: a heap of (that time, number of the next run, key, the answer)."""
        self._looked_at = 0.0

    @property
    def left(self) -> bool:
        """Whether any run is waiting."""
        return bool(self._runs)

    def next(self) -> PlannedRun | None:
        """The next run, whose target is in use until `give_back`; waits for it. None: it is to end."""
        while self._runs and not self._stop.is_set():
            before, now = self._looked_at, self._clock()
            self._looked_at = now
            if now < before:  # the clock was set back: the times until which targets are refused are of the old one
                while self._aside:
                    heapq.heappush(self._ready, heapq.heappop(self._aside)[1:3])
            hold = next((wait for gate in self._gates if (wait := gate.holds(now)) is not None), None)
            if hold is not None:
                self._tell(hold.state, hold.reason, hold.until)
                if hold.state is State.STOPPING:
                    return None
                self._wait(hold.until, now)
                continue
            choice = self._choose(now)
            if isinstance(choice, PlannedRun):
                self._tell(State.RUNNING, choice.target.domain, None)
                return choice
            self._tell(choice.state, choice.reason, choice.until)
            if choice.state is State.STOPPING:
                return None
            if choice.state is State.WAITING_FOR_TARGET:
                self._turns.wait(TURN_S)
            else:
                self._wait(choice.until, now)
        return None

    def give_back(self, run: PlannedRun, *, again: bool) -> None:
        """A run that `next` gave has ended; its target is free.

        Args:
            again: it is not recorded, so it is the next one of its target.
        """
        key = run.target.key
        self._turns.give_back(run.target.domain)
        if again:
            self._runs.setdefault(key, deque()).appendleft(run)
        if waiting := self._runs.get(key):
            heapq.heappush(self._ready, (waiting[0].number, key))

    def began(self, run: PlannedRun, attempt: int) -> None:
        """Tells all gates that an attempt starts."""
        for gate in self._gates:
            gate.began(run, attempt, self._clock())

    def resolved(self, run: PlannedRun, attempt: int, address: str) -> None:
        """Tells all gates the server's address."""
        for gate in self._gates:
            gate.resolved(run, attempt, address, self._clock())

    def cut(self, run: PlannedRun) -> Cut | None:
        """Why a running run must end."""
        now = self._clock()
        return next((cut for gate in self._gates if (cut := gate.cuts(run, now)) is not None), None)

    def ended(self, run: PlannedRun, attempt: int, downloads: Sequence[Download]) -> None:
        """Tells all gates that an attempt has ended, and with which downloads."""
        for gate in self._gates:
            gate.ended(run, attempt, downloads, self._clock())

    def _wait(self, until: float | None, now: float) -> None:
        self._sleep(POLL_S if until is None else max(min(until - now, POLL_S), 0.0))

    def _choose(self, now: float) -> PlannedRun | Wait:
        """The first run that may start, or why there is none."""
        while self._aside and self._aside[0][0] <= now:
            _, number, key, _ = heapq.heappop(self._aside)
            heapq.heappush(self._ready, (number, key))
        refused: list[tuple[int, TargetKey]] = []
        soonest: Wait | None = None
        try:
            while self._ready:
                number, key = heapq.heappop(self._ready)
                wait = self._refusal(self._runs[key][0], now)
                if wait is None:
                    return self._pop(key)
                if wait.until is not None and wait.until > now:
                    heapq.heappush(self._aside, (wait.until, number, key, wait))
                    continue
                refused.append((number, key))
                if soonest is None or wait.state is State.WAITING_FOR_TARGET:
                    soonest = wait  # a target in use is free soonest
            return soonest or self._aside[0][3]
        finally:
            for entry in refused:
                heapq.heappush(self._ready, entry)

    def _pop(self, key: TargetKey) -> PlannedRun:
        waiting = self._runs[key]
        run = waiting.popleft()
        if not waiting:
            del self._runs[key]
        return run

    def _refusal(self, run: PlannedRun, now: float) -> Wait | None:
        """Why a run may not start. If it may, its target is in use from now on."""
        for gate in self._gates:
            if (wait := gate.admits(run, now)) is not None:
                return wait
        if self._turns.take(run.target.domain):
            return None
        return Wait(State.WAITING_FOR_TARGET, f"another vantage point downloads from {run.target.domain}")
