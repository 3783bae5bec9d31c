"""The plan of one place: what it has changed on this host, and how to undo each change.

It is a file, so that it outlives the place's owner and its guardian:

    STATE/host.lock          flock(2) around every reading, writing and undoing of plans
    STATE/host/IDENT.json    what one place has changed and how to undo it, written before each change
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from core.errors import PlaceError, UsageError
from core.files import atomic
from core.files.config import read_json
from core.system.process import start_time_ticks

Process = tuple[int, int]
"""Number and start time in clock ticks (`core.system.process.start_time_ticks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How to undo one change.

    Attributes:
        kind: `sysctl` (write `value` to `name`), `link` (delete the interface `name`), `table` (delete the nftables
            table `name`), `route` (replace by the line `value` as `ip route show` printed it; `name` is `-4` or `-6`),
            or `feature` (switch the offload `value` of interface `name` on).
        shared: other places on this host may need the change too; the last of them undoes it.
    """

    kind: str
    name: str
    value: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one place has changed on this host, as it is in the state file."""

    ident: str
    place: str
    isolation: str
    boot: str
    namespace: str
    """The network namespace that the steps belong to, as /proc/PID/ns/net names it."""
    owner: Process
    guardian: Process | None = None
    steps: tuple[Step, ...] = ()
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


def own_namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def plan_path(state: Path, ident: str) -> Path:
    return state / "host" / f"{ident}.json"


def write_plan(state: Path, plan: Plan) -> None:
    """Writes the plan to disk atomically."""
    path = plan_path(state, plan.ident)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.write_json(path, {"schema": 1, **asdict(plan)})


def read_plan(path: Path) -> Plan | None:
    """The plan in that file, None if it does not exist. Raises PlaceError if it cannot be read."""
    remedy = "undo the changes that it lists, and remove the file"
    try:
        data = read_json(path, remedy=remedy)
        data.pop("schema")
        data["steps"] = tuple(Step(**step) for step in data["steps"])
        data["faults"] = tuple(data["faults"])
        for key in ("owner", "guardian"):
            data[key] = tuple(data[key]) if data[key] is not None else None
        return Plan(**data)
    except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not path.exists():
            return None
        said = error.what if isinstance(error, UsageError) else error
        raise PlaceError(
            f"the record of changes to the host cannot be read ({said})", where=str(path), remedy=remedy
        ) from None


def plans(state: Path) -> list[Plan]:
    """All plans of the state folder."""
    return [plan for path in sorted((state / "host").glob("*.json")) if (plan := read_plan(path)) is not None]


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Holds the lock of the state folder; waits for it."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "host.lock").open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def shared_steps(others: Iterable[Plan]) -> dict[tuple[str, str], Step]:
    """Steps that living places of this network namespace share: (kind, name) -> step, with the original value."""
    return {
        (step.kind, step.name): step
        for plan in others
        if plan.guarded and plan.boot == boot_id() and plan.namespace == own_namespace()
        for step in plan.steps
        if step.shared
    }


def leftovers(state: Path) -> list[Plan]:
    """Plans without a living owner or guardian."""
    return [plan for plan in plans(state) if not plan.guarded]


def describe(plan: Plan) -> str:
    """The plan's steps in a few words."""
    return ", ".join(f"{step.kind} {step.name}" for step in plan.steps) or "nothing"


def remove_partial_files(state: Path, ident: str = "*") -> None:
    """Removes files that a killed process was still writing (`whole_file` of the store). Call it with the lock held.

    Plans are written under the lock, so none is being written now.
    """
    for partial in (state / "host").glob(f".{ident}.json.*.part"):
        partial.unlink(missing_ok=True)
