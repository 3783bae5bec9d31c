"""Undoes the plans of places: one by its owner or its guardian, and those that have neither any more.

Undoing a step twice, or before it was done, is safe. `recover` undoes the plans that have neither an owner nor a
guardian any more; after a restart of the host (another boot_id) nothing is left to undo, and the file is removed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from core.errors import PlaceError
from core.system.process import run
from vantage.host.undo_plan import (
    Plan,
    Step,
    boot_id,
    describe,
    leftovers,
    locked,
    own_namespace,
    plan_path,
    plans,
    remove_partial_files,
    shared_steps,
    write_plan,
)
from vantage.linux import sysctls
from vantage.linux.namespace import parse_route
from vantage.linux.offloads import set_features

HANDOVER_S = 20.0
"""How long `recover` waits for a guardian that is still undoing."""


def undo(state: Path, plan: Plan) -> tuple[str, ...]:
    """Undoes a plan and removes its file; call it with the lock held. Returns what could not be undone.

    Where something could not be, the file stays, with those steps and the reasons.
    """
    needed = shared_steps(other for other in plans(state) if other.ident != plan.ident)
    left: list[Step] = []
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
            if plan.boot != boot_id():
                plan_path(state, plan.ident).unlink(missing_ok=True)
                messages.append(f"{plan.place}: the host was restarted since, so there was nothing to undo")
            elif plan.namespace != own_namespace():
                messages.append(f"{plan.place}: its changes are in another network namespace ({plan.namespace})")
            elif faults := undo(state, plan):
                messages.append(f"{plan.place}: could not be undone: {'; '.join(faults)}")
            else:
                messages.append(f"{plan.place}: undid the changes of an earlier run ({describe(plan)})")
    return messages


def undo_step(step: Step) -> None:
    """Undoes one step. Something that no longer exists is not an error."""
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
        case "route":
            present = run(("ip", step.name, "route", "show")).stdout
            if step.value not in map(plain_route, present.splitlines()):
                run(("ip", step.name, "route", "replace", *step.value.split())).check(doing=f"restoring {step.value!r}")
        case "feature":
            try:
                set_features(step.name, {step.value: True})
            except PlaceError:
                if _has_link(step.name):
                    raise
        case _:
            raise PlaceError(f"unknown kind of change {step.kind!r}")


def plain_route(line: str) -> str:
    """A line of `ip route show` without its state (flags, time left), as `ip route replace` takes it."""
    words = list(parse_route(line))
    if "expires" in words:
        at = words.index("expires")
        del words[at : at + 2]
    return " ".join(words)


def _has_link(name: str) -> bool:
    """By netlink: /sys shows the interfaces of the network namespace in which it was mounted."""
    return run(("ip", "link", "show", "dev", name)).returncode == 0
