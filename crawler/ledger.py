"""The ledger of a crawl: which domains are done, and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from core.domain import PageObject, Target
from core.outreach import ledger
from core.outreach.lists import Listed, in_shard


@dataclass(slots=True, kw_only=True)
class DomainResult:
    """The result of one domain."""

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
    objects: list[dict[str, Any]] | None = None
    """Rows of a crawl for objects: columns of `PageObject` that differ from its defaults."""


_OF_TARGET = (
    "url", "size_bytes", "size_is_lower_bound", "server_ip", "depth", "crawled_at", "alt_svc", "cname_chain",
)  # fmt: skip
"""The columns of a target that a result fills."""


class CrawlLedger(ledger.Ledger):
    """An open ledger of a crawl."""

    WHAT = "crawl"

    def fill(
        self, rows: Iterable[Listed | ledger.LedgerEntry], *, shard: tuple[int, int] = (1, 1), limit: int | None = None
    ) -> int:
        """Writes the list into the ledger, all of it or nothing; returns how many rows were duplicates.

        A broken list (UsageError) leaves no ledger behind, so the corrected list can be crawled into the same file.

        Args:
            rows: the list, in order.
            shard: (number from 1, of how many).
            limit: rows with new domains of this shard after which to stop.
        """
        added = duplicates = 0
        with self._filling():
            for row in rows:
                if limit is not None and added >= limit:
                    break
                if in_shard(row.domain, *shard):
                    entry = ledger.LedgerEntry(domain=row.domain, rank=row.rank) if isinstance(row, Listed) else row
                    is_new = self._add([entry])
                    added, duplicates = added + is_new, duplicates + 1 - is_new
        return duplicates

    def take(self) -> Iterator[str]:
        """Pending domains in the order of the list; each once per open ledger."""
        return (entry.domain for entry in self.entries())

    def finish(self, result: DomainResult) -> None:
        """Marks a domain as done; survives a kill of the process."""
        document = asdict(result) | {"crawled_at": time.time()}
        self.record([(document.pop("domain"), document.pop("outcome"), document)])

    def targets(self) -> Iterator[Target]:
        """Targets in the order of the list, read lazily."""
        for entry, _, document in self.results("found"):
            columns = {name: document[name] for name in _OF_TARGET}
            yield Target(domain=entry.domain, rank=entry.rank, **columns)

    def objects(self) -> Iterator[PageObject]:
        """The rows of a crawl for objects, in the order of the list, read lazily; a failed visit is one row."""
        for entry, outcome, document in self.results():
            known = {"domain": entry.domain, "rank": entry.rank, **entry.known, "crawled_at": document["crawled_at"]}
            failed = [{"is_page": True, "failure": outcome, "server_ip": document["server_ip"]}]
            for row in document["objects"] or failed:
                yield PageObject(**known, **row)
