"""Whether a folder's results are of the plan that is to go on there, and in which fields they are not.

The plan's hash leaves the number of iterations out: more of them extend the plan. A lab's truth is not in the hash
either, as it grows with Upshift; it is compared field by field.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import UsageError
from core.files.journal import FILE_NAME, JournalReader
from downloader.schedule.slots import SharedPlan

_MOST_NAMED = 6
"""Most changes that an error names."""


def check_folder(plan: SharedPlan, out: Path) -> None:
    """Raises UsageError if the folder has results of another plan, or of a vantage point that is not in it."""
    known = {path.parent.name: path for path in sorted(out.glob(f"vantage/*/{FILE_NAME}"))}
    if unknown := sorted(known.keys() - set(plan.vantage_points)):
        raise UsageError(
            f"this folder has results of other vantage points ({', '.join(unknown)})",
            where=str(out),
            remedy="name the same vantage points, or use another --out",
        )
    for path in known.values():
        with contextlib.closing(JournalReader(path)) as journal:
            check_journal(journal, plan)


def check_journal(journal: JournalReader, plan: SharedPlan) -> None:
    """Raises UsageError, which names the fields that changed, if a journal is of another plan."""
    if journal.is_empty:
        return
    changed = list(_changes(journal, plan))
    if changed or journal.meta("plan_hash") != plan.digest:
        raise another_plan(journal.path.parent, changed)


def another_plan(folder: Path, changed: list[str]) -> UsageError:
    """The error for a vantage point's folder with results of another plan."""
    more = [f"and {len(changed) - _MOST_NAMED} more"] if len(changed) > _MOST_NAMED else []
    what = ", ".join([*changed[:_MOST_NAMED], *more]) or "targets, slots or Upshift itself"
    return UsageError(
        f"this folder holds another plan; changed since: {what}",
        where=str(folder),
        remedy="use another --out, or the campaign that started here",
    )


def earlier_iterations(folder: Path, plan: SharedPlan) -> tuple[int, ...]:
    """How many iterations the plan of a vantage point's folder had before each of its extensions (see `make_plan`)."""
    path = folder / FILE_NAME
    if not path.exists():
        return ()
    with contextlib.closing(JournalReader(path)) as journal:
        recorded = json.loads(journal.meta("campaign") or "{}").get("iterations", plan.campaign.iterations)
        earlier = tuple(json.loads(journal.meta("extended_from") or "[]"))
    return earlier if recorded == plan.campaign.iterations else (*earlier, recorded)


def as_recorded(plan: SharedPlan) -> dict[str, Any]:
    """The plan's description as a journal keeps it."""
    recorded: dict[str, Any] = json.loads(json.dumps(plan.campaign.description()))
    return recorded


def _changes(journal: JournalReader, plan: SharedPlan) -> Iterator[str]:
    """What differs from the plan of a journal, of all that both have: fields, with both values where they are short."""
    earlier, now = json.loads(journal.meta("campaign") or "{}"), as_recorded(plan)
    for name in sorted(earlier.keys() & now.keys() - {"configurations", "iterations"}):
        if not _agree(earlier[name], now[name]):
            yield f"{name}{_values(earlier[name], now[name])}"
    if now["iterations"] < earlier.get("iterations", 0):
        yield f"iterations{_values(earlier['iterations'], now['iterations'])}"
    before, after = ({one["name"]: one for one in side.get("configurations", ())} for side in (earlier, now))
    for name in sorted(before.keys() | after.keys()) if before else ():
        if not _agree(before.get(name), after.get(name)):
            yield f"configuration {name}"
    targets = {(target.domain, target.url) for target in plan.targets}
    if (recorded := set(journal.db.execute("SELECT DISTINCT domain, url FROM runs"))) != targets:
        yield f"targets ({len(targets - recorded)} new, {len(recorded - targets)} gone)"
    yield from _changes_of_lab(json.loads(journal.meta("lab") or "{}"), plan.truth or {})


def _changes_of_lab(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a lab's paths that differ; each once, with the first path that has it."""
    before, after = ({(p["vantage"], p["domain"]): p for p in side.get("paths", ())} for side in (earlier, now))
    seen: set[str] = set()
    for (vantage, domain), path in after.items():
        old = before.get((vantage, domain), path)
        for name in sorted(old.keys() & path.keys() - seen):
            if not _agree(old[name], path[name]):
                seen.add(name)
                yield f"the lab's {name}{_values(old[name], path[name])} from {vantage} to {domain}"


def _values(earlier: object, now: object) -> str:
    shown = f" ({json.dumps(earlier)}, now {json.dumps(now)})"
    return shown if len(shown) < 60 else ""


def _agree(earlier: object, now: object) -> bool:
    """Whether two descriptions agree in all that both have: a newer Upshift may know more fields."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        return all(_agree(earlier[name], now[name]) for name in earlier.keys() & now.keys())
    if isinstance(earlier, list) and isinstance(now, list):
        return len(earlier) == len(now) and all(map(_agree, earlier, now))
    return earlier == now
