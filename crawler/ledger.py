"""The ledger of a crawl: which domains are done, and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import upshift.outreach.ledger
from upshift.domain import Target
from upshift.outreach.lists import Listed, in_shard


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
class Filled:
    """What came of writing a list into the ledger."""

    added: int
    duplicates: int
    other_shards: int
    first_duplicates: tuple[tuple[int, str], ...]
    """(line, domain) of the first ones."""


class Ledger(upshift.outreach.ledger.Ledger):
    """An open ledger of a crawl."""

    WHAT = "crawl"
    CREATE = """
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
        with self._filling():
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
        return Filled(added=added, duplicates=duplicates, other_shards=others, first_duplicates=tuple(first))

    def take(self) -> Iterator[tuple[str, int | None]]:
        """Domains that are not done, in the order of the list, read lazily; each is given once per open ledger."""
        yield from self._take(
            "SELECT id, domain, rank FROM domains WHERE id > ? AND outcome IS NULL ORDER BY id LIMIT ?"
        )

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

    def found(self) -> Iterator[Target]:
        """Targets in the order of the list, read lazily."""
        rows = self._db.execute(
            "SELECT domain, url, rank, size_bytes, size_is_lower_bound, server_ip, depth, crawled_at, alt_svc,"
            " cname_chain FROM domains WHERE outcome = 'found' ORDER BY id"
        )
        for domain, url, rank, size, lower, address, depth, crawled_at, alt_svc, chain in rows:
            yield Target(
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
