"""The truth of a running campaign: one SQLite journal per vantage point. No kill makes it lose or double a download.

A measurement run is `planned`, `running` or `done`. While it runs, each finished download is staged; when the run is
accepted, its downloads enter the table `downloads` in one transaction, in which the run becomes `done`. A run that was
interrupted is found `running` by the next start: what was staged goes to `superseded`, and the run is made again whole,
warm-up included.

Write-ahead log with synchronous=NORMAL: nothing that was committed is lost when a process is killed. A power cut may
undo the last commits, whole and in order, so those runs are simply made again; waiting for the disk after each
download (FULL) would buy nothing more, and would put disk traffic between downloads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downloader.plan import PlannedRun
from upshift.domain import Download, Outcome
from upshift.errors import UsageError

SCHEMA = 1
"""Version of the tables below."""

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
    reason TEXT NOT NULL, record TEXT NOT NULL
) STRICT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far a journal is, in downloads unless it says otherwise."""

    planned: int
    recorded: int
    ok: int
    failed: int
    censored: int
    void_runs: int
    """Attempts of measurement runs that were disturbed."""
    interrupted_runs: int
    """Attempts of measurement runs that were cut off."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds a campaign's folder for one process; the lock dies with it, however it dies (flock(2)).

    Raises:
        UsageError: another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("a")
    except OSError as error:
        raise UsageError(
            f"results cannot be written here ({error.strerror})",
            where=str(folder),
            remedy="name another folder by --out" if error.errno != errno.ENOSPC else "make room there",
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another upshift run is working in this folder",
                where=str(folder),
                remedy="wait for it, or use another --out",
            ) from None
        yield


class Journal:
    """The journal of one vantage point. Use from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Opens an existing journal. Raises UsageError where it is none of ours, or of a newer version."""
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
        self._db.execute("PRAGMA foreign_keys = ON")
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.OperationalError:  # no room, no permission: a fault of the disk, not of the file
            self._db.close()
            raise
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise UsageError(f"this is no journal ({error})", where=str(path), remedy="use another --out") from None
        if version > SCHEMA:
            self._db.close()
            raise UsageError(
                f"the journal's version {version} is newer than this Upshift knows ({SCHEMA})",
                where=str(path),
                remedy="update Upshift",
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
            raise UsageError(
                "this folder holds another plan (campaign, targets or vantage points have changed)",
                where=str(self.path.parent),
                remedy="use another --out, or the campaign that began here",
            )
        with self._transaction():
            for (number,) in self._db.execute("SELECT number FROM runs WHERE state = 'running'").fetchall():
                self._supersede(number, "interrupted")

    def _create(self, runs: Sequence[PlannedRun], plan_hash: str) -> None:
        with self._transaction():
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
            self.set_meta("plan_hash", plan_hash)
            for run in runs:
                values = (run.number, run.iteration, run.target.domain, run.target.url)
                self._db.execute("INSERT INTO runs (number, iteration, domain, url) VALUES (?, ?, ?, ?)", values)
                for position, name in enumerate(run.configurations):
                    self._db.execute(
                        "INSERT INTO plan (run, position, configuration) VALUES (?, ?, ?)", (run.number, position, name)
                    )
            # Part of the transaction: a journal either has its whole plan, or is empty and made anew.
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")

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
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Sets a value that belongs to the whole journal."""
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
        )

    def open_runs(self) -> list[int]:
        """Numbers of the runs that are not done, in the order of the plan."""
        return [row[0] for row in self._db.execute("SELECT number FROM runs WHERE state != 'done' ORDER BY number")]

    def begin(self, number: int) -> int:
        """Starts a run; which attempt this is, from 1."""
        with self._transaction():
            self._supersede(number, "interrupted")
            self._db.execute("UPDATE runs SET state = 'running', attempts = attempts + 1 WHERE number = ?", (number,))
        return int(self._db.execute("SELECT attempts FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def stage(self, number: int, attempt: int, download: Download) -> None:
        """Keeps a finished download of a run that is not accepted yet."""
        plan = self._plan_id(number, download.configuration)
        self._db.execute("INSERT INTO staged VALUES (?, ?, ?)", (plan, attempt, _dump(download)))

    def void(self, number: int, reason: str, downloads: Sequence[Download]) -> int:
        """Throws a disturbed run back; how often it has been void by now. `downloads` replace what was staged."""
        with self._transaction():
            attempt = self._db.execute("SELECT attempts FROM runs WHERE number = ?", (number,)).fetchone()[0]
            self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
            for download in downloads:
                self.stage(number, attempt, download)
            self._supersede(number, f"void: {reason}")
            self._db.execute("UPDATE runs SET voids = voids + 1, void_reason = ? WHERE number = ?", (reason, number))
        return int(self._db.execute("SELECT voids FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def voids(self, number: int) -> int:
        """How often a run has been void so far."""
        return int(self._db.execute("SELECT voids FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def accept(self, number: int, downloads: Sequence[Download], *, void: str | None = None) -> None:
        """Records a run: all of its downloads at once, or none.

        Args:
            void: why the run cannot be believed, where no attempt is left; it is counted as void, and recorded.
        """
        with self._transaction():
            planned = self._db.execute("SELECT COUNT(*) FROM plan WHERE run = ?", (number,)).fetchone()[0]
            if len(downloads) != planned:
                raise AssertionError(f"run {number} has {len(downloads)} downloads of {planned}")
            for download in downloads:
                values = (self._plan_id(number, download.configuration), download.outcome, _dump(download))
                self._db.execute("INSERT INTO downloads VALUES (?, ?, ?)", values)
            self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
            self._db.execute(
                "UPDATE runs SET state = 'done', voids = voids + ?, void_reason = ? WHERE number = ?",
                (0 if void is None else 1, void, number),
            )

    def _supersede(self, number: int, reason: str) -> None:
        self._db.execute(
            "INSERT INTO superseded (plan, attempt, reason, record) SELECT plan, attempt, ?, record FROM staged "
            "WHERE plan IN (SELECT id FROM plan WHERE run = ?)",
            (reason, number),
        )
        self._db.execute("DELETE FROM staged WHERE plan IN (SELECT id FROM plan WHERE run = ?)", (number,))
        self._db.execute("UPDATE runs SET state = 'planned' WHERE number = ?", (number,))

    def _plan_id(self, number: int, configuration: str) -> int:
        row = self._db.execute(
            "SELECT id FROM plan WHERE run = ? AND configuration = ?", (number, configuration)
        ).fetchone()
        return int(row[0])

    def downloads(self) -> list[Download]:
        """The recorded downloads, in the order of the plan."""
        rows = self._db.execute("SELECT record FROM downloads ORDER BY plan")
        return [_load(row[0]) for row in rows]

    def superseded(self) -> list[Download]:
        """Downloads of void and interrupted attempts; the reason is their `treatment_detail`."""
        rows = self._db.execute("SELECT record, reason FROM superseded ORDER BY id").fetchall()
        return [dataclasses.replace(_load(record), treatment_ok=False, treatment_detail=why) for record, why in rows]

    def counts(self) -> Counts:
        """How far the journal is."""
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

    def close(self) -> None:
        """Closes the file; everything that was committed stays."""
        self._db.close()


def _dump(download: Download) -> str:
    return json.dumps(dataclasses.asdict(download))


def _load(record: str) -> Download:
    values: dict[str, Any] = json.loads(record)
    return Download(**values)
