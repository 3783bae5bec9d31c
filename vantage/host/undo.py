"""The plans of places: what each has changed on this host, and how that is undone.

A plan is a file, so that it outlives the place's owner and its guardian:

    STATE/host.lock          flock(2) around every reading, writing and undoing of plans
    STATE/host/IDENT.json    what one place has changed and how to undo it, written before each change

A plan is undone by its owner or its guardian. Undoing a step twice, or before it was done, is safe. `recover` undoes
the plans that have neither an owner nor a guardian any more; after a restart of the host nothing is left to undo, and
the file is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from core.domain import RouteAttribute
from core.errors import PlaceError, UsageError
from core.files import disk
from core.files.config import read_json
from core.files.disk import take_lock
from core.system.process import run, start_time_ticks
from vantage.linux import sysctls
from vantage.linux.namespace import first_route, with_attributes
from vantage.linux.offloads import set_features

RUN = Path("/run")
"""Empty after each boot (Filesystem Hierarchy Standard 3.0, section 3.15)."""

Process = tuple[int, int]
"""Number and start time in clock ticks (`core.system.process.start_time_ticks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStep:
    """How to undo one change.

    Attributes:
        kind: `sysctl` (write `value` to `name`), `link` (delete the interface `name`), `table` (delete the nftables
            table `name`), `attribute` (of the default route, whichever the host has by then; `name` is family and
            attribute, e.g. `-4 window`; without a value it is removed), `routes` (delete those that `value` selects,
            `dev DEVICE proto NUMBER`; `name` is `-4` or `-6`), or `feature` (switch the offload `value` of interface
            `name` on).
        shared: other places on this host may need the change too; the last of them undoes it.
        switch: a setting that was 0 (`switch_if_off`). Where it is 1 by then, somebody else has switched on, for all
            interfaces and so for good, what we had switched on for one, and it is left; "" undoes the step in any case.
    """

    kind: str
    name: str
    value: str = ""
    shared: bool = False
    switch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """Everything that one place has changed on this host, as it is in the state file."""

    ident: str
    place: str
    isolation: str
    boot: str
    namespace: str
    """The network namespace that the steps belong to, as /proc/PID/ns/net names it."""
    owner: Process
    guardian: Process | None = None
    steps: tuple[UndoStep, ...] = ()
    faults: tuple[str, ...] = field(default=())
    """What could not be undone, as sentences."""

    @property
    def owner_lives(self) -> bool:
        return start_time_ticks(self.owner[0]) == self.owner[1]

    @property
    def guarded(self) -> bool:
        """Whether its owner or its guardian lives."""
        return self.owner_lives or (
            self.guardian is not None and start_time_ticks(self.guardian[0]) == self.guardian[1]
        )


def boot_id() -> str:
    """The kernel's name for this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _is_of_this_boot(state: Path, plan: UndoPlan) -> bool:
    """Whether the host has not been restarted since.

    What lies below /run, where campaigns of a fleet keep theirs, is always of this boot. The kernel's name for it would
    not do there: in a container a unit with a /proc of its own sees another one than root, whose doctor reads the plan.
    """
    return state.resolve().is_relative_to(RUN) or plan.boot == boot_id()


def own_namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def plan_path(state: Path, ident: str) -> Path:
    return state / "host" / f"{ident}.json"


def write_plan(state: Path, plan: UndoPlan) -> None:
    """Writes the plan to disk atomically."""
    path = plan_path(state, plan.ident)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk.write_json(path, {"schema": 1, **asdict(plan)})


def read_plan(path: Path) -> UndoPlan | None:
    """The plan in that file, None if it does not exist. Raises PlaceError if it cannot be read."""
    remedy = "undo the changes that it lists, and remove the file"
    try:
        data = read_json(path, remedy=remedy)
        data.pop("schema")
        data["steps"] = tuple(UndoStep(**step) for step in data["steps"])
        data["faults"] = tuple(data["faults"])
        for key in ("owner", "guardian"):
            data[key] = tuple(data[key]) if data[key] is not None else None
        return UndoPlan(**data)
    except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not path.exists():
            return None
        reason = error.what if isinstance(error, UsageError) else error
        raise PlaceError(
            f"the record of changes to the host cannot be read ({reason})", where=str(path), remedy=remedy
        ) from None


def plans(state: Path) -> list[UndoPlan]:
    """All plans of the state folder."""
    return [plan for path in sorted((state / "host").glob("*.json")) if (plan := read_plan(path)) is not None]


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Holds the lock of the state folder; waits for it."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "host.lock").open("wb") as handle:
        take_lock(handle.fileno(), wait=True)
        yield


def shared_steps(state: Path, *, without: str) -> dict[tuple[str, str], UndoStep]:
    """Steps that living places of this network namespace share: (kind, name) -> step, with the original value.

    Args:
        without: ident of the place that asks.
    """
    return {
        (step.kind, step.name): step
        for plan in plans(state)
        if plan.ident != without and plan.guarded
        if _is_of_this_boot(state, plan) and plan.namespace == own_namespace()
        for step in plan.steps
        if step.shared
    }


def leftovers(state: Path) -> list[UndoPlan]:
    """Plans without a living owner or guardian."""
    return [plan for plan in plans(state) if not plan.guarded]


def switch_if_off(flag: str) -> str:
    """The setting that gives this flag of one interface to all of them (net/ipv4/devinet.c, inet_forward_change), if it
    is 0; else "".
    """
    folder, _, name = flag.rsplit("/", 2)
    switch = f"{folder}/all/{name}"
    return switch if sysctls.read(switch) == "0" else ""


def describe(plan: UndoPlan) -> str:
    """The plan's steps in a few words."""
    return ", ".join(f"{step.kind} {step.name}" for step in plan.steps) or "nothing"


def remove_partial_files(state: Path, ident: str = "*") -> None:
    """Removes files that a killed process was still writing (`whole_file` of the store). Call it with the lock held.

    Plans are written under the lock, so none is being written now.
    """
    for partial in (state / "host").glob(f".{ident}.json.*.part"):
        partial.unlink(missing_ok=True)


HANDOVER_S = 20.0
"""How long `recover` waits for a guardian that is still undoing."""


def undo(state: Path, plan: UndoPlan) -> tuple[str, ...]:
    """Undoes a plan and removes its file; call it with the lock held. Returns what could not be undone.

    Where something could not be, the file stays, with those steps and the reasons.
    """
    needed = shared_steps(state, without=plan.ident)
    left: list[UndoStep] = []
    faults: list[str] = []
    for step in plan.steps:
        if step.shared and (step.kind, step.name) in needed:
            continue
        try:
            undo_step(step)
        except (PlaceError, OSError) as error:
            left.append(step)
            faults.append(f"{step.kind} {step.name}: {error}")
    remove_partial_files(state, plan.ident)
    if left:
        write_plan(state, replace(plan, steps=tuple(left), faults=tuple(faults)))
    else:
        plan_path(state, plan.ident).unlink(missing_ok=True)
    return tuple(faults)


def recover(state: Path) -> list[str]:
    """Undoes the changes that dead campaigns left in this network namespace; returns one sentence per plan.

    Waits for a guardian that is at work (at most `HANDOVER_S`).
    """
    messages: list[str] = []
    deadline = time.monotonic() + HANDOVER_S
    while any(not plan.owner_lives and plan.guarded for plan in plans(state)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not (state / "host").is_dir():
        return messages
    with locked(state):
        remove_partial_files(state)
        for plan in leftovers(state):
            if not _is_of_this_boot(state, plan):
                plan_path(state, plan.ident).unlink(missing_ok=True)
                messages.append(f"{plan.place}: the host was restarted since, so there was nothing to undo")
            elif plan.namespace != own_namespace():
                messages.append(f"{plan.place}: its changes are in another network namespace ({plan.namespace})")
            elif faults := undo(state, plan):
                messages.append(f"{plan.place}: could not be undone: {'; '.join(faults)}")
            else:
                messages.append(f"{plan.place}: undid the changes of an earlier run ({describe(plan)})")
    return messages


def undo_step(step: UndoStep) -> None:
    """Undoes one step. Something that no longer exists is not an error."""
    if step.switch and sysctls.read(step.switch) == "1":
        return
    match step.kind:
        case "sysctl":
            with suppress(FileNotFoundError):  # the interface that had it no longer exists
                # What the kernel had refused to change, it refuses to write again.
                if sysctls.read(step.name) != step.value:
                    sysctls.write(step.name, step.value)
        case "link":
            if _has_link(step.name):
                done = run(("ip", "link", "delete", step.name))
                # The kernel removes the interface itself, some time after the end of the namespace with its other end.
                if done.returncode != 0 and _has_link(step.name):
                    done.check(doing=f"removing the interface {step.name}")
        case "table":
            family, _, name = step.name.partition(" ")
            done = run(("nft", "delete", "table", family, name))
            if done.returncode != 0 and "No such file or directory" not in done.stderr:
                done.check(doing=f"removing the nftables table {name}")
        case "attribute":
            family, _, name = step.name.partition(" ")
            route = first_route(run, family)
            wanted = with_attributes(route, [RouteAttribute(name=name, value=step.value or None)]) if route else ()
            if wanted != route:
                run(("ip", family, "route", "change", *wanted)).check(doing=f"restoring {' '.join(wanted)!r}")
        case "routes":
            done = run(("ip", step.name, "route", "flush", *step.value.split()))
            if done.returncode != 0 and _has_link(step.value.split()[1]):
                done.check(doing=f"removing the routes {step.value}")
        case "feature":
            try:
                set_features(step.name, {step.value: True})
            except PlaceError:
                if _has_link(step.name):
                    raise
        case _:
            raise PlaceError(f"unknown kind of change {step.kind!r}")


def _has_link(name: str) -> bool:
    """Whether the interface exists, by netlink: /sys shows those of the network namespace in which it was mounted."""
    return run(("ip", "link", "show", "dev", name)).returncode == 0
