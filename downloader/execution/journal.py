"""The state of a running campaign: one SQLite journal per vantage point. No kill can lose or duplicate a download.

A measurement run is `planned`, `running` or `done`. While it runs, each finished download is staged; when the run is
accepted, its downloads enter the table `downloads` in one transaction, in which the run becomes `done`. The next
start finds an interrupted run in the state `running`: its staged downloads are moved to `superseded`, like those of a
void attempt, and the whole run is repeated, warm-up included.

Write-ahead log with synchronous=NORMAL: no committed data is lost when a process is killed. A power cut may undo the
last commits, completely and in order, so these runs are repeated; waiting for the disk after each download (FULL) has
no benefit, and would add disk traffic between downloads.

A folder goes on only with the plan that it has. The plan's hash leaves the number of iterations out: more of them
extend the plan. A lab's truth is not in the hash either, as it grows with Upshift; it is compared field by field.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.domain import Disturbance, Download, VoidReason
from core.errors import UsageError
from core.files.journal import FILE_NAME, SCHEMA, JournalReader, open_journals
from downloader.campaign.plan import PlannedRun
from downloader.limits import budget, captures
from downloader.limits.budget import Reserved, Spent
from downloader.limits.captures import CaptureTable, Settled
from downloader.schedule.slots import SharedPlan

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, iteration INTEGER NOT NULL, domain TEXT NOT NULL, url TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'running', 'done')),
    attempts INTEGER NOT NULL DEFAULT 0, voids INTEGER NOT NULL DEFAULT 0, void_reason TEXT
) STRICT;
CREATE TABLE plan (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, position INTEGER NOT NULL,
    configuration TEXT NOT NULL, UNIQUE (run, position), UNIQUE (run, configuration)
) STRICT;
CREATE TABLE staged (plan INTEGER PRIMARY KEY REFERENCES plan, attempt INTEGER NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE downloads (
    plan INTEGER PRIMARY KEY REFERENCES plan, outcome TEXT NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE TABLE superseded (
    id INTEGER PRIMARY KEY, plan INTEGER NOT NULL REFERENCES plan, attempt INTEGER NOT NULL,
    reason TEXT NOT NULL, detail TEXT, record TEXT NOT NULL
) STRICT;
CREATE INDEX superseded_by_plan ON superseded (plan);
"""

_TIMES = """
CREATE TABLE IF NOT EXISTS times (
    run INTEGER NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, parts TEXT NOT NULL, PRIMARY KEY (run, attempt)
) STRICT
"""
"""Where the time of an attempt went; journals of an older Upshift get it when they go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What an attempt took."""

    ip_bytes: int
    """Both directions, by its capture."""
    at: float
    """Unix time of its end."""
    exact: bool = True
    """False: its capture may lack packets, and `ip_bytes` is the most that it can be."""


class Journal(JournalReader):
    """The journal of one vantage point, for writing."""

    _read_only = False

    @classmethod
    def open(
        cls, folder: Path, runs: Sequence[PlannedRun], *, plan_hash: str, meta: Mapping[str, str] | None = None
    ) -> Journal:
        """The journal in a vantage point's folder: made for this plan, or resumed, with the runs of more iterations.

        Args:
            meta: values of the whole, set together with the runs that they describe.

        Raises:
            UsageError: the folder holds the journal of another plan.
        """
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder / FILE_NAME)
        try:
            journal._prepare(runs, plan_hash, meta or {})
        except BaseException:
            journal.close()
            raise
        return journal

    def _prepare(self, runs: Sequence[PlannedRun], plan_hash: str, meta: Mapping[str, str]) -> None:
        if not self.is_empty and self.meta("plan_hash") != plan_hash:
            raise another_plan(self.path.parent, [])
        # One transaction: a journal either has its whole plan and what describes it, or is empty and created again.
        with self._transaction():
            if self.is_empty:
                for statement in (_TABLES + budget.TABLE + captures.TABLE).split(";"):
                    self._db.execute(statement)
                self._version = SCHEMA
            self._db.execute(_TIMES)
            self._plan(runs[self.planned_runs() :])
            for key, value in {**meta, "plan_hash": plan_hash}.items():
                self.set_meta(key, value)
            # What is added is of this version; the rest still is read.
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")
            for (number,) in self._db.execute("SELECT number FROM runs WHERE state = 'running'").fetchall():
                self._supersede(number, VoidReason.INTERRUPTED, None)

    def _plan(self, runs: Sequence[PlannedRun]) -> None:
        for run in runs:
            values = (run.number, run.iteration, run.target.domain, run.target.url)
            self._db.execute("INSERT INTO runs (number, iteration, domain, url) VALUES (?, ?, ?, ?)", values)
            for position, name in zip(run.positions, run.configurations, strict=True):
                self._db.execute(
                    "INSERT INTO plan (run, position, configuration) VALUES (?, ?, ?)", (run.number, position, name)
                )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @property
    def spent(self) -> Spent:
        """The account of IP bytes."""
        return Spent(self._db)

    @property
    def captures(self) -> CaptureTable:
        """The captures that were packed or dropped."""
        return CaptureTable(self._db)

    def set_meta(self, key: str, value: str) -> None:
        """Sets a value that belongs to the whole journal."""
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
        )

    def open_runs(self) -> list[int]:
        """Numbers of the runs that are not done, in the order of the plan."""
        return [row[0] for row in self._db.execute("SELECT number FROM runs WHERE state != 'done' ORDER BY number")]

    def begin(self, number: int, reserved: Reserved | None = None) -> int:
        """Starts a run; returns the number of the attempt, from 1.

        Args:
            reserved: what is entered in the account meanwhile.
        """
        with self._transaction():
            self._supersede(number, VoidReason.INTERRUPTED, None)
            self._db.execute("UPDATE runs SET state = 'running', attempts = attempts + 1 WHERE number = ?", (number,))
            attempt = self._attempt(number)
            if reserved is not None:
                self.spent.reserve(number, attempt, reserved)
        return attempt

    def _attempt(self, number: int) -> int:
        return int(self._db.execute("SELECT attempts FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def _settle(self, number: int, ended: Ended | None, capture: Settled | None = None) -> None:
        if capture is not None:
            self.captures.add(capture)
        if ended is not None:
            self.spent.settle(number, self._attempt(number), ended.ip_bytes, ended=ended.at, exact=ended.exact)

    def stage(self, number: int, attempt: int, download: Download) -> None:
        """Stores a finished download of a run that is not accepted yet."""
        plan = self._plan_id(number, download.configuration)
        self._db.execute("INSERT INTO staged VALUES (?, ?, ?)", (plan, attempt, _dump(download)))

    def void(
        self,
        number: int,
        why: Disturbance,
        downloads: Sequence[Download],
        *,
        ended: Ended | None = None,
        capture: Settled | None = None,
    ) -> None:
        """Returns a disturbed run to the plan. `downloads` replace the staged ones."""
        with self._transaction():
            attempt = self._attempt(number)
            self._settle(number, ended, capture)
            self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
            for download in downloads:
                self.stage(number, attempt, download)
            self._supersede(number, why.reason, why.detail)
            values = (why.reason.value, number)
            self._db.execute("UPDATE runs SET voids = voids + 1, void_reason = ? WHERE number = ?", values)

    def interrupt(self, number: int, *, ended: Ended | None = None) -> None:
        """Returns a run that was ended early to the plan; its staged downloads are superseded."""
        with self._transaction():
            self._settle(number, ended)
            self._supersede(number, VoidReason.INTERRUPTED, None)

    def accept(
        self,
        number: int,
        downloads: Sequence[Download],
        *,
        void: Disturbance | None = None,
        ended: Ended | None = None,
        capture: Settled | None = None,
    ) -> None:
        """Records a run: all its downloads at once, what it took, and what was in its capture.

        Args:
            void: why the run is not valid, if no attempt is left; it is recorded, and counted as void.
        """
        with self._transaction():
            planned = self._db.execute("SELECT COUNT(*) FROM plan WHERE run = ?", (number,)).fetchone()[0]
            if len(downloads) != planned:
                raise AssertionError(f"run {number} has {len(downloads)} downloads of {planned}")
            self._settle(number, ended, capture)
            for download in downloads:
                values = (self._plan_id(number, download.configuration), download.outcome, _dump(download))
                self._db.execute("INSERT INTO downloads VALUES (?, ?, ?)", values)
            self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
            self._db.execute(
                "UPDATE runs SET state = 'done', voids = voids + ?, void_reason = ? WHERE number = ?",
                (0 if void is None else 1, None if void is None else void.reason.value, number),
            )

    def took(self, number: int, attempt: int, parts: Mapping[str, float]) -> None:
        """Records where the time of an attempt went (`downloader.execution.attempt`) [s]."""
        self._db.execute("INSERT OR REPLACE INTO times VALUES (?, ?, ?)", (number, attempt, json.dumps(parts)))

    def _supersede(self, number: int, reason: VoidReason, detail: str | None) -> None:
        self._db.execute(
            "INSERT INTO superseded (plan, attempt, reason, detail, record)"
            " SELECT plan, attempt, ?, ?, record FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)",
            (reason.value, detail, number),
        )
        self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
        self._db.execute("UPDATE runs SET state = 'planned' WHERE number = ?", (number,))

    def _plan_id(self, number: int, configuration: str) -> int:
        row = self._db.execute(
            "SELECT id FROM plan WHERE run = ? AND configuration = ?", (number, configuration)
        ).fetchone()
        return int(row[0])


def _dump(download: Download) -> str:
    """The record as JSON; what is None is left out, as `build` takes it for None."""
    known = {name: value for name, value in dataclasses.asdict(download).items() if value is not None}
    return json.dumps(known, separators=(",", ":"))


_MOST_NAMED = 6
"""Most changes that an error names."""


def check_folder(plan: SharedPlan, out: Path) -> None:
    """Raises UsageError if the folder has results of another plan, or of a vantage point that is not in it.

    Of fields that changed, the error names some. A journal that cannot be read is an error, too (`open_journals`).
    """
    known = {path.parent.name for path in out.glob(f"vantage/*/{FILE_NAME}")}
    if unknown := sorted(known - set(plan.vantage_points)):
        raise UsageError(
            f"this folder has results of other vantage points ({', '.join(unknown)})",
            where=str(out),
            remedy="name the same vantage points, or use another --out",
        )
    if not known:
        return
    with open_journals(out) as journals:
        for journal in journals.values():
            changed = list(_changes(journal, plan))
            if changed or journal.meta("plan_hash") != plan.digest:
                raise another_plan(journal.path.parent, changed)


def in_recorded_order(names: tuple[str, ...], out: Path) -> tuple[str, ...]:
    """The vantage points in the folder's order, if it has the same: the order is in the hash, and changes nothing."""
    if not any(out.glob(f"vantage/*/{FILE_NAME}")):
        return names
    with open_journals(out) as journals:
        known = (tuple(journal.document("campaign").get("vantage_points", ())) for journal in journals.values())
        return next((order for order in known if set(order) == set(names)), names)


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
        recorded = journal.document("campaign").get("iterations", plan.campaign.iterations)
        earlier = tuple(json.loads(journal.meta("extended_from") or "[]"))
    return earlier if recorded == plan.campaign.iterations else (*earlier, recorded)


def as_recorded(plan: SharedPlan) -> dict[str, Any]:
    """The plan's description as a journal keeps it."""
    recorded: dict[str, Any] = json.loads(json.dumps(plan.campaign.description()))
    return recorded


def _changes(journal: JournalReader, plan: SharedPlan) -> Iterator[str]:
    """What differs from the plan of a journal, of all that both have: fields, with both values where they are short."""
    earlier, now = journal.document("campaign"), as_recorded(plan)
    for name in sorted(earlier.keys() & now.keys() - {"configurations", "iterations"}):
        if not _agree(earlier[name], now[name]):
            yield f"{name}{_values(earlier[name], now[name])}"
    if now["iterations"] < earlier.get("iterations", 0):
        yield f"iterations{_values(earlier['iterations'], now['iterations'])}"
    before, after = ({one["name"]: one for one in side.get("configurations", ())} for side in (earlier, now))
    for name in sorted(before.keys() | after.keys()) if before else ():
        if not _agree(before.get(name), after.get(name)):
            yield f"configuration {name}"
    targets = {target.key for target in plan.targets}
    if (recorded := set(journal.db.execute("SELECT DISTINCT domain, url FROM runs"))) != targets:
        yield f"targets ({len(targets - recorded)} new, {len(recorded - targets)} gone)"
    yield from _changes_of_lab(journal.document("lab"), plan.truth or {})


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
