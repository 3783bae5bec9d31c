"""The state of a running campaign: one SQLite journal per vantage point. No kill can lose or duplicate a download.

A measurement run is `planned`, `running` or `done`. While it runs, each finished download is staged; when the run is
accepted, its downloads enter the table `downloads` in one transaction, in which the run becomes `done`. The next
start finds an interrupted run in the state `running`: its staged downloads are moved to `superseded`, like those of a
void attempt, and the whole run is repeated, warm-up included.

Write-ahead log with synchronous=NORMAL: no committed data is lost when a process is killed. A power cut may undo the
last commits, completely and in order, so these runs are repeated; waiting for the disk after each download (FULL) has
no benefit, and would add disk traffic between downloads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downloader.campaign.plan import PlannedRun
from downloader.limits import captures, spent
from downloader.limits.captures import CaptureTable, Settled
from downloader.limits.spent import Entry, Reserved, Spent
from upshift.domain import Disturbance, Download, Outcome, Superseded, VoidReason
from upshift.errors import UsageError
from upshift.files import conversions

SCHEMA = 2
"""Version of the tables below and of the records in them (those of `downloads` in `upshift.files.store`)."""

FILE_NAME = "journal.sqlite"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What an attempt took."""

    ip_bytes: int
    """Both directions, by its capture."""
    at: float
    """Unix time of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Progress of a journal, in downloads unless noted otherwise."""

    planned: int
    recorded: int
    ok: int
    failed: int
    censored: int
    void_runs: int
    """Attempts of measurement runs that were disturbed."""
    interrupted_runs: int
    """Attempts of measurement runs that were interrupted."""


class Journal:
    """The journal of one vantage point. Use from one thread at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens an existing journal.

        Args:
            read_only: nothing is changed; older versions can be read.

        Raises:
            UsageError: it is not a journal, or of a version that cannot be used.
        """
        self.path = path
        self._db = _connect(path, read_only=read_only)
        try:
            if not read_only:
                self._db.execute("PRAGMA foreign_keys = ON")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA wal_autocheckpoint = 250")  # a log of 1 MB: it counts for the disk's limit
            self._version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.OperationalError:  # disk full, no permission: an error of the disk, not of the file
            self._db.close()
            raise
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise UsageError(f"not a valid journal ({error})", where=str(path), remedy="use another --out") from None
        if self._version > SCHEMA:
            self._db.close()
            raise UsageError(
                f"the journal's version {self._version} is newer than this Upshift knows ({SCHEMA})",
                where=str(path),
                remedy="update Upshift",
            )
        if 0 < self._version < SCHEMA and not read_only:
            self._db.close()
            raise UsageError(
                f"this campaign was started by an older Upshift (journal version {self._version}, now {SCHEMA})",
                where=str(path),
                remedy="use another --out; upshift inspect and the reports still read this one",
            )

    @classmethod
    def open(cls, folder: Path, runs: Sequence[PlannedRun], *, plan_hash: str) -> Journal:
        """The journal in a vantage point's folder: made for this plan, or resumed.

        Raises:
            UsageError: the folder holds the journal of another plan.
        """
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder / FILE_NAME)
        try:
            journal._prepare(runs, plan_hash)
        except BaseException:
            journal.close()
            raise
        return journal

    def _prepare(self, runs: Sequence[PlannedRun], plan_hash: str) -> None:
        if self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
            self._create(runs, plan_hash)
        elif self.meta("plan_hash") != plan_hash:
            raise another_plan(self.path.parent)
        with self._transaction():
            for statement in (spent.TABLE + captures.TABLE).split(";"):  # journals from before these have none
                self._db.execute(statement)
            for (number,) in self._db.execute("SELECT number FROM runs WHERE state = 'running'").fetchall():
                self._supersede(number, VoidReason.INTERRUPTED, None)

    def _create(self, runs: Sequence[PlannedRun], plan_hash: str) -> None:
        with self._transaction():
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
            self.set_meta("plan_hash", plan_hash)
            for run in runs:
                values = (run.number, run.iteration, run.target.domain, run.target.url)
                self._db.execute("INSERT INTO runs (number, iteration, domain, url) VALUES (?, ?, ?, ?)", values)
                for position, name in zip(run.positions, run.configurations, strict=True):
                    self._db.execute(
                        "INSERT INTO plan (run, position, configuration) VALUES (?, ?, ?)", (run.number, position, name)
                    )
            # Part of the transaction: a journal either has its whole plan, or is empty and created again.
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        self._version = SCHEMA

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def meta(self, key: str) -> str | None:
        """A value that belongs to the whole journal."""
        row = next(self._select("SELECT value FROM meta WHERE key = ?", key), None)
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Sets a value that belongs to the whole journal."""
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
        )

    def open_runs(self) -> list[int]:
        """Numbers of the runs that are not done, in the order of the plan."""
        return [row[0] for row in self._db.execute("SELECT number FROM runs WHERE state != 'done' ORDER BY number")]

    @property
    def spent(self) -> Spent:
        """The account of IP bytes, for reading."""
        return Spent(self._db)

    @property
    def captures(self) -> CaptureTable:
        """The captures that were packed or dropped."""
        return CaptureTable(self._db)

    def findings(self, capture: str) -> str | None:
        """What was found in a capture that was dropped; None if it was not."""
        return self.captures.dropped(capture) if self.has_captures else None

    @property
    def has_captures(self) -> bool:
        """Whether it says what became of captures. Journals of older versions and those a kill left empty do not."""
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'captures'").fetchone() is not None

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

    def resolved(self, number: int, attempt: int, address: str, network: str | None) -> None:
        """Enters the server's address in the account: from now on its capture has what is sent to it."""
        self.spent.resolved(number, attempt, address, network)

    def settle(self, entry: Entry, ip_bytes: int) -> None:
        """Enters what a killed attempt took."""
        self.spent.settle(entry.run, entry.attempt, ip_bytes)

    @property
    def has_account(self) -> bool:
        """Whether it keeps an account of IP bytes: journals of older versions have none."""
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'spent'").fetchone() is not None

    def attempt(self, number: int, attempt: int) -> list[Download]:
        """The downloads of an attempt that were finished: recorded, or superseded, in the order of the plan."""
        rows = self._db.execute(
            "SELECT id, record FROM plan JOIN downloads ON plan = id"
            " WHERE run = ?1 AND json_extract(record, '$.attempts') = ?2"
            " UNION ALL SELECT plan.id, record FROM plan JOIN superseded ON plan = plan.id"
            " WHERE run = ?1 AND attempt = ?2 ORDER BY 1",
            (number, attempt),
        )
        return [conversions.build(Download, self._converted(record)) for _, record in rows]

    def _settle(self, number: int, ended: Ended | None, capture: Settled | None = None) -> None:
        if capture is not None:
            self.captures.add(capture)
        if ended is not None:
            self.spent.settle(number, self._attempt(number), ended.ip_bytes, ended=ended.at)

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
    ) -> int:
        """Returns a disturbed run to the plan, and how often it has been void. `downloads` replace the staged ones."""
        with self._transaction():
            attempt = self._attempt(number)
            self._settle(number, ended, capture)
            self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
            for download in downloads:
                self.stage(number, attempt, download)
            self._supersede(number, why.reason, why.detail)
            values = (why.reason.value, number)
            self._db.execute("UPDATE runs SET voids = voids + 1, void_reason = ? WHERE number = ?", values)
        return int(self._db.execute("SELECT voids FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def interrupt(self, number: int, *, ended: Ended | None = None) -> None:
        """Returns a run that was ended early to the plan; its staged downloads are superseded."""
        with self._transaction():
            self._settle(number, ended)
            self._supersede(number, VoidReason.INTERRUPTED, None)

    def voids(self, number: int) -> int:
        """How often a run has been void so far."""
        return int(self._db.execute("SELECT voids FROM runs WHERE number = ?", (number,)).fetchone()[0])

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

    def void_attempts(self, number: int) -> set[int]:
        """The attempts of a run that were void; their captures are named in `superseded`."""
        rows = self._db.execute(
            "SELECT DISTINCT attempt FROM superseded WHERE plan IN (SELECT id FROM plan WHERE run = ?) AND reason != ?",
            (number, VoidReason.INTERRUPTED.value),
        )
        return {row[0] for row in rows}

    def capture_paths(self) -> list[str]:
        """Paths of the captures of recorded runs and void attempts, dropped ones too, in order of name."""
        named = "SELECT json_extract(record, '$.capture') AS capture FROM"
        query = f"{named} downloads UNION {named} superseded ORDER BY capture"
        return [row[0] for row in self._select(query) if row[0] is not None]

    def copy(self, to: Path) -> None:
        """Copies the journal as of now, whoever writes in it, as one file without a log (SQLite's backup)."""
        with contextlib.closing(sqlite3.connect(to, isolation_level=None)) as made:
            self._db.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")

    def downloads(self) -> Iterator[Download]:
        """The recorded downloads in the order of the plan, so those of a measurement run follow each other."""
        for (record,) in self._select("SELECT record FROM downloads ORDER BY plan"):
            yield conversions.build(Download, self._converted(record))

    def is_done(self, number: int) -> bool:
        """Whether a run is recorded."""
        return bool(self._db.execute("SELECT state = 'done' FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def recorded_runs(self) -> int:
        """How many measurement runs are recorded."""
        return sum(row[0] for row in self._select("SELECT COUNT(*) FROM runs WHERE state = 'done'"))

    def planned_runs(self) -> int:
        """How many measurement runs the plan has."""
        return sum(row[0] for row in self._select("SELECT COUNT(*) FROM runs"))

    def superseded(self) -> Iterator[Superseded]:
        """The downloads of void and interrupted attempts, in the order in which they were discarded."""
        if self._version == 1:
            for attempt, text, record in self._select("SELECT attempt, reason, record FROM superseded ORDER BY id"):
                reason, detail = conversions.void_reason(text)
                yield self._superseded(record, attempt, reason.value, detail)
            return
        for attempt, why, detail, record in self._select(
            "SELECT attempt, reason, detail, record FROM superseded ORDER BY id"
        ):
            yield self._superseded(record, attempt, why, detail)

    def _superseded(self, record: str, attempt: int, reason: str, detail: str | None) -> Superseded:
        told = {"attempt": attempt, "reason": reason, "detail": detail}
        return conversions.build(Superseded, {**self._converted(record), **told})

    def _select(self, query: str, *values: str) -> Iterator[Any]:
        """Rows of a query; none if a kill happened before the plan was written."""
        return iter(()) if self._version == 0 else self._db.execute(query, values)

    def _converted(self, record: str) -> Mapping[str, Any]:
        return conversions.converted("downloads", self._version, SCHEMA, json.loads(record))

    def counts(self) -> Counts:
        """The journal's progress."""
        outcomes = dict(self._db.execute("SELECT outcome, COUNT(*) FROM downloads GROUP BY outcome").fetchall())
        planned = self._db.execute("SELECT COUNT(*) FROM plan").fetchone()[0]
        runs = self._db.execute(
            "SELECT TOTAL(voids), TOTAL(attempts - voids - (state = 'done' AND void_reason IS NULL)"
            " - (state = 'running')) FROM runs"
        ).fetchone()
        return Counts(
            planned=planned,
            recorded=sum(outcomes.values()),
            ok=outcomes.get(Outcome.OK, 0),
            failed=outcomes.get(Outcome.FAILED, 0),
            censored=outcomes.get(Outcome.CENSORED, 0),
            void_runs=int(runs[0]),
            interrupted_runs=int(runs[1]),
        )

    def causes(self) -> dict[str, int]:
        """Cause of failure or censoring -> downloads, most frequent first."""
        return dict(
            self._db.execute(
                "SELECT json_extract(record, '$.failure') AS cause, COUNT(*) FROM downloads"
                " WHERE outcome != ? AND cause IS NOT NULL GROUP BY cause ORDER BY COUNT(*) DESC, cause",
                (Outcome.OK,),
            )
        )

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


def another_plan(folder: Path) -> UsageError:
    """The error for a vantage point's folder with another plan's hash."""
    return UsageError(
        "this folder holds another plan (campaign, targets, vantage points, --here or Upshift have changed)",
        where=str(folder),
        remedy="use another --out, or the campaign that started here",
    )


def _dump(download: Download) -> str:
    return json.dumps(dataclasses.asdict(download))


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    # A journal whose log is empty can be read on a read-only file system, such as a mounted archive; with
    # `immutable` SQLite does not make the files that it needs for a log (https://sqlite.org/wal.html, read-only).
    log = path.with_name(f"{path.name}-wal")
    alone = not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
