"""The ledger of a crawl or a survey: one SQLite file, one table, one plan, one process that uses it.

A ledger holds the whole state of its command: the list is written into it once, workers take rows from it, and a row
is marked as done in a committed transaction. After a kill at any moment, unfinished rows are repeated, and finished
ones are not.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from core.errors import FREE_SPACE, PlaceError, UsageError
from core.files.disk import give_to_caller, take_lock

SCHEMA = 2

BATCH = 1_000
"""Rows read at a time."""

_CREATE = """
    BEGIN;
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE domains (
        id INTEGER PRIMARY KEY,        -- in the order of the list
        domain TEXT NOT NULL UNIQUE,
        rank INTEGER,
        known TEXT,                    -- what was known before, as JSON; NULL: nothing
        outcome TEXT,                  -- NULL until the domain is done
        document TEXT                  -- what was found, as JSON
    );
    COMMIT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One domain of the list."""

    domain: str
    rank: int | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    """What was known of it before, as JSON values."""


Finished = tuple[str, str, Mapping[str, Any]]
"""(domain, outcome, result as JSON values)."""


class Ledger:
    """An open ledger; base class of the stages' ledgers.

    Class attribute of the derived class:
        WHAT: the command, named in errors: `crawl`, `survey`.
        OPTION: the option that names the ledger.

    Args:
        path: the file; created if missing.
        plan: all options that affect the results, as JSON values. A ledger of another plan is refused.

    Raises:
        UsageError: not a ledger, one of another plan, or one that another process has open.
    """

    WHAT: str
    OPTION = "--ledger"

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._taken_up_to = 0
        try:
            with ExitStack() as opened:
                # The claim is closed last: closing any descriptor of the file releases SQLite's own locks (fcntl(2)).
                opened.enter_context(self._claimed())
                self._db = opened.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._check(dict(plan))
                self._opened = opened.pop_all()
        except (sqlite3.DatabaseError, IsADirectoryError, PermissionError) as error:
            raise UsageError(
                f"not a valid ledger of a {self.WHAT} ({error})",
                where=str(path),
                remedy=f"give another one with {self.OPTION}",
            ) from None

    def _claimed(self) -> IO[bytes]:
        """The file, opened and locked: two processes on one ledger would contact each domain twice."""
        handle = self.path.open("ab")
        if not take_lock(handle.fileno()):
            handle.close()
            raise UsageError(
                f"another {self.WHAT} is using this ledger",
                where=str(self.path),
                remedy=f"wait until it ends, or give another one with {self.OPTION}",
            )
        return handle

    def close(self) -> None:
        """Closes the file, which belongs to the user who called sudo."""
        self._opened.close()
        give_to_caller(self.path)

    def _discard(self) -> None:
        """Closes the file and removes it: it has no results yet."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _check(self, plan: dict[str, Any]) -> None:
        document = json.dumps({"schema": SCHEMA, **plan}, sort_keys=True)
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.executescript(_CREATE)
        self._db.execute("INSERT OR IGNORE INTO about VALUES ('plan', ?)", (document,))
        stored, wanted = json.loads(self._about("plan") or "{}"), json.loads(document)
        changed = sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key))
        if changed:
            raise UsageError(
                f"this ledger belongs to another {self.WHAT}: {', '.join(changed)} changed",
                where=str(self.path),
                remedy=f"use the options of the first start, or another {self.OPTION}",
            )

    def _about(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def filled(self) -> bool:
        """Whether the whole list is in the ledger."""
        return self._about("filled") is not None

    @contextmanager
    def _filling(self) -> Iterator[None]:
        """The block writes the list, completely or not at all.

        A broken list (UsageError) leaves no ledger behind, so the corrected list can use the same file.
        """
        try:
            with self._transaction():
                yield
                self._db.execute("INSERT INTO about VALUES ('filled', 'yes')")
        except UsageError:
            self._discard()
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:  # SQLite itself may have rolled it back
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                what = f"results cannot be written ({error})"
                raise PlaceError(what, where=str(self.path), remedy=FREE_SPACE) from None
            raise

    def _add(self, entries: Iterable[LedgerEntry]) -> int:
        """Writes domains into the list, without duplicates; returns how many. Only within `_filling`."""
        rows = ((e.domain, e.rank, json.dumps(dict(e.known)) if e.known else None) for e in entries)
        return self._db.executemany(
            "INSERT OR IGNORE INTO domains (domain, rank, known) VALUES (?, ?, ?)", rows
        ).rowcount

    def entries(self) -> Iterator[LedgerEntry]:
        """Pending domains, in the order of the list, read lazily; each once per open ledger."""
        select = "SELECT id, domain, rank, known FROM domains WHERE id > ? AND outcome IS NULL ORDER BY id LIMIT ?"
        while rows := self._db.execute(select, (self._taken_up_to, BATCH)).fetchall():
            for number, domain, rank, known in rows:
                self._taken_up_to = number
                yield _entry(domain, rank, known)

    def record(self, finished: Iterable[Finished]) -> None:
        """Marks domains as done in one transaction; survives a kill of the process. Raises PlaceError: a full disk."""
        rows = [(outcome, json.dumps(dict(document)), domain) for domain, outcome, document in finished]
        if not rows:
            return
        with self._transaction():
            self._db.executemany(
                "UPDATE domains SET outcome = ?, document = ? WHERE domain = ? AND outcome IS NULL", rows
            )

    def results(self, outcome: str | None = None) -> Iterator[tuple[LedgerEntry, str, dict[str, Any]]]:
        """(entry, outcome, document) of finished domains, all or with one outcome, in the list's order, read lazily."""
        rows = self._db.execute(
            "SELECT domain, rank, known, outcome, document FROM domains"
            " WHERE outcome IS NOT NULL AND coalesce(outcome = ?, TRUE) ORDER BY id",
            (outcome,),
        )
        for domain, rank, known, ended, document in rows:
            yield _entry(domain, rank, known), ended, json.loads(document)

    def counts(self) -> tuple[int, Counter[str]]:
        """Number of rows, and number per outcome."""
        (total,) = self._db.execute("SELECT count(*) FROM domains").fetchone()
        done = self._db.execute("SELECT outcome, count(*) FROM domains WHERE outcome IS NOT NULL GROUP BY outcome")
        return int(total), Counter({str(outcome): int(count) for outcome, count in done})


def _entry(domain: str, rank: int | None, known: str | None) -> LedgerEntry:
    return LedgerEntry(domain=domain, rank=rank, known={} if known is None else json.loads(known))
