"""The owner's side of the guardian: starts it, records each change before it is made, and has all changes undone."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import PlaceError
from core.system.process import PARENT_DEATH, Child, Completed, module_environment, run, start, start_time_ticks
from vantage.host import undo
from vantage.host.guardian import MARK
from vantage.host.undo import UndoPlan, UndoStep
from vantage.linux import sysctls

RELEASE_S = 30.0
"""How long the guardian may take to undo everything (each step is a short program)."""


class UndoLog:
    """The changes that one place makes to the host, recorded so that the guardian can undo them.

    Attributes:
        ident: names the place's state file, interfaces and tables.
        recovered: leftovers of dead campaigns that were undone first, as sentences.

    Raises:
        PlaceError: the guardian cannot be started, or another campaign is changing this host's settings.
    """

    def __init__(self, place: str, *, isolation: str, state: Path) -> None:
        self._state = state
        self.ident = secrets.token_hex(4)
        self.recovered = undo.recover(state)
        owner = (os.getpid(), start_time_ticks(os.getpid()) or 0)
        # The guardian first: from here on, everything in the state file is undone.
        self._guardian: Child | None = start(
            (sys.executable, "-P", "-m", "vantage.host.guardian", str(state), self.ident, *map(str, owner)),
            stdin=True,
            stdout=True,
            env={**module_environment(), MARK: ""},
            outlive=True,
        )
        self._expect("ready")
        self._plan = UndoPlan(
            ident=self.ident,
            place=place,
            isolation=isolation,
            boot=undo.boot_id(),
            namespace=undo.own_namespace(),
            owner=owner,
            guardian=(self._guardian.pid, start_time_ticks(self._guardian.pid) or 0),
        )
        try:
            with undo.locked(state):
                self._refuse_second_campaign()
                undo.write_plan(state, self._plan)
        except BaseException:
            self.release()
            raise

    @property
    def steps(self) -> tuple[UndoStep, ...]:
        """What will be undone."""
        return self._plan.steps

    @property
    def environment(self) -> dict[str, str]:
        """Environment that every program of the place needs, so that the guardian finds it."""
        return {MARK: self.ident}

    def run(self, argv: Sequence[str], *, stdin: str | None = None) -> Completed:
        """Runs a program on the host that makes a recorded change."""
        return run((*PARENT_DEATH, *argv), stdin=stdin, env=self.environment)

    def add(self, steps: Iterable[UndoStep]) -> None:
        """Records changes before they are made; a setting that is already recorded keeps its first value."""
        self.check_guarded()
        with undo.locked(self._state):
            self._record(steps)

    def share(self, flags: Sequence[str], interfaces: Collection[str]) -> tuple[str, ...]:
        """Records that these settings will be 1. Other places may set them too; the last one restores them.

        Returns those that were not 1 originally. Offloads of these interfaces that another place's change switched off
        are recorded as well.
        """
        self.check_guarded()
        with undo.locked(self._state):
            theirs = undo.shared_steps(self._state, without=self.ident)
            steps = []
            for flag in flags:
                before = theirs.get(("sysctl", flag))
                value = before.value if before else sysctls.read(flag)
                if value is not None and value != "1":
                    switch = before.switch if before else undo.switch_if_off(flag)
                    steps.append(UndoStep(kind="sysctl", name=flag, value=value, shared=True, switch=switch))
            features = [step for step in theirs.values() if step.kind == "feature" and step.name in interfaces]
            self._record((*steps, *features))
        return tuple(step.name for step in steps)

    def _record(self, steps: Iterable[UndoStep]) -> None:
        def key(step: UndoStep) -> tuple[str, ...]:
            return (step.kind, step.name, step.value if step.kind == "feature" else "")

        known = {key(step) for step in self._plan.steps}
        new = tuple(step for step in steps if key(step) not in known)
        if new:
            self._plan = replace(self._plan, steps=(*self._plan.steps, *new))
            undo.write_plan(self._state, self._plan)

    def hold(self, namespace: str) -> None:
        """Makes the guardian open this network namespace (a path); it kills the programs in it at the end."""
        self._tell(f"hold {namespace}")
        self._expect("held")

    def release(self) -> None:
        """Undoes everything. May be called twice. Raises PlaceError naming what could not be undone."""
        keeper, self._guardian = self._guardian, None
        if keeper is None:
            return
        with contextlib.suppress(BrokenPipeError):
            if keeper.stdin is not None:
                with keeper.stdin:  # closed in any case: Python 3.13 prints a traceback of what fails without us
                    keeper.stdin.write("end\n")
        try:
            keeper.wait(RELEASE_S)
        finally:
            if keeper.stdout is not None:
                keeper.stdout.close()
        with undo.locked(self._state):
            path = undo.plan_path(self._state, self.ident)
            plan = undo.read_plan(path)
            # It still exists if the guardian was killed or a step failed: try here.
            faults = undo.undo(self._state, plan) if plan is not None else ()
        if faults:
            raise PlaceError(
                f"changes to this host could not be undone: {'; '.join(faults)}",
                where=str(path),
                remedy="fix it by hand; upshift doctor lists it until then",
            )

    def _refuse_second_campaign(self) -> None:
        if self._plan.isolation != "host":
            return
        for other in undo.plans(self._state):
            if other.owner_lives and other.isolation == "host" and other.namespace == self._plan.namespace:
                raise PlaceError(
                    f"process {other.owner[0]} ({other.place}) is changing this host's settings",
                    remedy='wait until it ends, or use isolation = "netns"',
                )

    def check_guarded(self) -> None:
        """Raises PlaceError if the guardian has ended."""
        if self._guardian is None or self._guardian.returncode is not None:
            raise PlaceError(
                "the guardian that restores this host has ended, so nothing more is changed",
                remedy="start the campaign again",
            )

    def _tell(self, line: str) -> None:
        self.check_guarded()
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.write(line + "\n")
            self._guardian.stdin.flush()

    def _expect(self, word: str) -> None:
        if self._guardian is None or self._guardian.stdout is None or self._guardian.stdout.readline().strip() != word:
            raise PlaceError("the guardian that restores this host did not start", remedy="upshift doctor")
