"""The ledger of a crawl: one SQLite file that says which domains are done, and what was found.

It is the crawl's only memory: the list is written into it once, workers take domains from it, and a domain is done when
its row says so in one committed transaction. After a kill at any moment, domains that had been begun are begun again,
and no finished one is.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upshift.domain import Target
from upshift.errors import UsageError
from upshift.lists import Listed, in_shard

SCHEMA = 1

_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE domains (
    id INTEGER PRIMARY KEY,
    domain TEXT NOT NULL UNIQUE,
    rank INTEGER,
    outcome TEXT,           -- NULL until the domain is done
    detail TEXT,
    url TEXT,
    size_bytes INTEGER,
    size_is_lower_bound INTEGER NOT NULL DEFAULT 0,
    server_ip TEXT,
    depth INTEGER,
    alt_svc TEXT,
    cname_chain TEXT,
    requests INTEGER NOT NULL DEFAULT 0,
    received_bytes INTEGER NOT NULL DEFAULT 0,
    crawled_at REAL
);
"""

BATCH = 1_000


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of one domain."""

    domain: str
    outcome: str
    detail: str | None = None
    url: str | None = None
    size_bytes: int | None = None
    size_is_lower_bound: bool = False
    server_ip: str | None = None
    depth: int | None = None
    alt_svc: str | None = None
    cname_chain: str | None = None
    requests: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledTarget(Target):
    """A row of the targets file, with what the crawl saw on the way."""

    alt_svc: str | None = None
    """The start page's Alt-Svc header: a QUIC candidate."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, with a space between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What came of writing a list into the ledger."""

    added: int
    duplicates: int
    other_shards: int
    first_duplicates: tuple[tuple[int, str], ...]
    """(line, domain) of the first ones."""


class Ledger:
    """An open ledger.

    Args:
        path: the file; made where it is missing.
        plan: all that decides the results of the crawl. A ledger of another plan is refused.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._check(dict(plan))
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"this is no ledger of a crawl ({error})", where=str(path), remedy="name another file with --ledger"
            ) from None
        self._taken_up_to = 0

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

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
        stored = json.loads(self._about("plan") or "{}")
        changed = sorted(key for key in {*stored, *plan, "schema"} if stored.get(key) != json.loads(document).get(key))
        if changed:
            self._db.close()
            raise UsageError(
                f"this ledger is of another crawl: {', '.join(changed)} changed",
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

    def fill(self, rows: Iterable[Listed], *, shard: tuple[int, int] = (1, 1), limit: int | None = None) -> Filled:
        """Writes the list into the ledger, all of it or nothing.

        A broken list (UsageError) leaves no ledger, so that the mended one is not another crawl.

        Args:
            rows: the list, in order.
            shard: (number from 1, of how many).
            limit: rows with new domains of this shard after which to stop.
        """
        added = duplicates = others = 0
        first: list[tuple[int, str]] = []
        self._db.execute("BEGIN")
        try:
            for row in rows:
                if limit is not None and added >= limit:
                    break
                if not in_shard(row.domain, *shard):
                    others += 1
                    continue
                cursor = self._db.execute(
                    "INSERT OR IGNORE INTO domains (domain, rank) VALUES (?, ?)", (row.domain, row.rank)
                )
                if cursor.rowcount:
                    added += 1
                else:
                    duplicates += 1
                    if len(first) < 20:
                        first.append((row.line, row.domain))
            self._db.execute("INSERT INTO about VALUES ('filled', ?)", (str(added),))
            self._db.execute("COMMIT")
        except UsageError:
            self._db.execute("ROLLBACK")
            self._discard()
            raise
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return Filled(added=added, duplicates=duplicates, other_shards=others, first_duplicates=tuple(first))

    def take(self) -> Iterator[tuple[str, int | None]]:
        """Domains that are not done, in the order of the list, read lazily; each is given once per open ledger."""
        while True:
            rows = self._db.execute(
                "SELECT id, domain, rank FROM domains WHERE id > ? AND outcome IS NULL ORDER BY id LIMIT ?",
                (self._taken_up_to, BATCH),
            ).fetchall()
            if not rows:
                return
            for number, domain, rank in rows:
                self._taken_up_to = number
                yield domain, rank

    def finish(self, result: Result) -> None:
        """Says that a domain is done, durably against a kill of the process."""
        self._db.execute(
            "UPDATE domains SET outcome = ?, detail = ?, url = ?, size_bytes = ?, size_is_lower_bound = ?,"
            " server_ip = ?, depth = ?, alt_svc = ?, cname_chain = ?, requests = ?, received_bytes = ?, crawled_at = ?"
            " WHERE domain = ? AND outcome IS NULL",
            (
                result.outcome,
                result.detail,
                result.url,
                result.size_bytes,
                result.size_is_lower_bound,
                result.server_ip,
                result.depth,
                result.alt_svc,
                result.cname_chain,
                result.requests,
                result.received_bytes,
                time.time(),
                result.domain,
            ),
        )

    def counts(self) -> tuple[int, Counter[str]]:
        """Domains in all, and how many ended in which outcome."""
        (total,) = self._db.execute("SELECT count(*) FROM domains").fetchone()
        done = self._db.execute("SELECT outcome, count(*) FROM domains WHERE outcome IS NOT NULL GROUP BY outcome")
        return int(total), Counter({str(outcome): int(count) for outcome, count in done})

    def found(self) -> Iterator[CrawledTarget]:
        """Targets in the order of the list, read lazily."""
        rows = self._db.execute(
            "SELECT domain, url, rank, size_bytes, size_is_lower_bound, server_ip, depth, crawled_at, alt_svc,"
            " cname_chain FROM domains WHERE outcome = 'found' ORDER BY id"
        )
        for domain, url, rank, size, lower, address, depth, crawled_at, alt_svc, chain in rows:
            yield CrawledTarget(
                domain=domain,
                url=url,
                rank=rank,
                size_bytes=size,
                size_is_lower_bound=bool(lower),
                server_ip=address,
                depth=depth,
                crawled_at=crawled_at,
                alt_svc=alt_svc,
                cname_chain=chain,
            )
