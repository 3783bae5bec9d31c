"""The ledger of a survey: one SQLite file that says which subjects are done, and what was found.

It is the survey's only memory: the list is written into it once, workers take subjects from it, and a subject is done
when its row says so in a committed transaction. After a kill at any moment, subjects that had been begun are begun
again, and no finished one is.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from survey.subjects import Subject
from upshift.errors import UsageError

SCHEMA = 1

_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE subjects (
    id INTEGER PRIMARY KEY,
    domain TEXT NOT NULL UNIQUE,
    rank INTEGER,
    provider TEXT,
    server_ip TEXT,
    alt_svc TEXT,
    outcome TEXT,  -- NULL until the subject is done
    document TEXT  -- what was found, as JSON
);
"""

BATCH = 1_000

_REMEDY = "wait until it ends, or name another file with --ledger"

Finished = tuple[str, str, Mapping[str, Any]]
"""(domain, outcome, what was found: a document that JSON can hold)."""


class Ledger:
    """An open ledger.

    Args:
        path: the file; made where it is missing.
        plan: all that decides the results. A ledger of another plan is refused.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._claim = _claimed(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._check(dict(plan))
        except UsageError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            raise UsageError(
                f"this is no ledger of a survey ({error})", where=str(path), remedy="name another file with --ledger"
            ) from None
        self._taken_up_to = 0

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
        self._claim.close()  # last: closing any descriptor of the file gives up SQLite's own locks (fcntl(2))

    def _discard(self) -> None:
        """Closes the file and removes it: nothing has been done yet."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _check(self, plan: dict[str, Any]) -> None:
        document = json.dumps({"schema": SCHEMA, **plan}, sort_keys=True)
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self._db.execute("INSERT OR IGNORE INTO about VALUES ('plan', ?)", (document,))
        stored, wanted = json.loads(self._about("plan") or "{}"), json.loads(document)
        changed = sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key))
        if changed:
            raise UsageError(
                f"this ledger is of another survey: {', '.join(changed)} changed",
                where=str(self.path),
                remedy="give the options of the first start, or another --ledger",
            )

    def _about(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def filled(self) -> bool:
        """Whether the whole list is in the ledger."""
        return self._about("filled") is not None

    def fill(self, subjects: Iterable[Subject]) -> int:
        """Writes the subjects into the ledger, all of them or none; returns how many.

        A broken list (UsageError) leaves no ledger, so that the mended one is not another survey.
        """
        rows = ((s.domain, s.rank, s.provider, s.server_ip, s.alt_svc) for s in subjects)
        self._db.execute("BEGIN")
        try:
            cursor = self._db.executemany(
                "INSERT OR IGNORE INTO subjects (domain, rank, provider, server_ip, alt_svc) VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            added = cursor.rowcount
            self._db.execute("INSERT INTO about VALUES ('filled', ?)", (str(added),))
            self._db.execute("COMMIT")
        except UsageError:
            self._db.execute("ROLLBACK")
            self._discard()
            raise
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return added

    def take(self) -> Iterator[Subject]:
        """Subjects that are not done, in the order of the list, read lazily; each is given once per open ledger."""
        while True:
            rows = self._db.execute(
                "SELECT id, domain, rank, provider, server_ip, alt_svc FROM subjects"
                " WHERE id > ? AND outcome IS NULL ORDER BY id LIMIT ?",
                (self._taken_up_to, BATCH),
            ).fetchall()
            if not rows:
                return
            for number, domain, rank, provider, server_ip, alt_svc in rows:
                self._taken_up_to = number
                yield Subject(domain=domain, rank=rank, provider=provider, server_ip=server_ip, alt_svc=alt_svc)

    def finish(self, finished: Iterable[Finished]) -> None:
        """Says that subjects are done, in one transaction, durably against a kill of the process."""
        rows = [(outcome, json.dumps(document), domain) for domain, outcome, document in finished]
        if not rows:
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(
                "UPDATE subjects SET outcome = ?, document = ? WHERE domain = ? AND outcome IS NULL", rows
            )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def counts(self) -> tuple[int, Counter[str]]:
        """Subjects in all, and how many ended in which outcome."""
        (total,) = self._db.execute("SELECT count(*) FROM subjects").fetchone()
        done = self._db.execute("SELECT outcome, count(*) FROM subjects WHERE outcome IS NOT NULL GROUP BY outcome")
        return int(total), Counter({str(outcome): int(count) for outcome, count in done})

    def results(self) -> Iterator[tuple[Subject, str, dict[str, Any]]]:
        """(subject, outcome, document) of all that is done, in the order of the list."""
        rows = self._db.execute(
            "SELECT domain, rank, provider, server_ip, alt_svc, outcome, document FROM subjects"
            " WHERE outcome IS NOT NULL ORDER BY id"
        )
        for domain, rank, provider, server_ip, alt_svc, outcome, document in rows:
            subject = Subject(domain=domain, rank=rank, provider=provider, server_ip=server_ip, alt_svc=alt_svc)
            yield subject, outcome, json.loads(document)


def _claimed(path: Path) -> IO[bytes]:
    """The file, opened and locked: two processes on one ledger would contact each subject twice."""
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise UsageError("another survey is at work on this ledger", where=str(path), remedy=_REMEDY) from None
    return handle
