"""The subjects of a survey: the domains of a top list, or the targets of a `targets` file; see `Source` for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from core.files import targets
from core.outreach.lists import RowFault, TopList, in_shard
from core.untrusted import port_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One domain to survey."""

    domain: str
    rank: int | None = None
    """Position in the top list, from 1; for CrUX, the rank bucket."""
    provider: str | None = None
    """Provider, as mapped by `upshift map targets`; None if it was not mapped."""
    server_ip: str | None = None
    """The address seen by the crawl."""
    alt_svc: str | None = None
    """The Alt-Svc header that the crawl saw (RFC 7838), empty if there was none; None if it was not crawled."""
    url: str | None = None
    """The target's URL, or an object of the domain."""
    mime_type: str | None = None
    """Its type, if the list has one. A domain is surveyed once per type."""

    @property
    def host(self) -> str:
        """The host of its URL; without one, or one that is not valid, the domain."""
        try:
            return (urlsplit(self.url or "").hostname or "").rstrip(".") or self.domain
        except ValueError:
            return self.domain

    @property
    def port(self) -> int:
        """The port of its URL; without one, or one that is not valid, 443."""
        try:
            return port_of(urlsplit(self.url or "https:"))
        except ValueError:
            return 443

    @property
    def origin(self) -> str:
        """Its host, with the port of its URL if that is another one than 443."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """What may be blocked: the domain, and its host if that is another."""
        return tuple(dict.fromkeys((self.domain, self.host)))

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        return self.domain if self.mime_type is None else f"{self.domain} {self.mime_type}"


class Source(ABC):
    """Where subjects come from: iterates over them, once.

    Args:
        path: the file.
        limit: most subjects of this shard; None: all.
        shard: (number from 1, of how many).
    """

    is_targets = False
    """Whether the file is a `targets` file."""

    def __init__(self, path: Path, *, limit: int | None = None, shard: tuple[int, int] = (1, 1)) -> None:
        self.path = path
        self.duplicates = 0
        """Rows skipped because of a duplicate; known after the iteration, as the two below."""
        self.broken: Counter[str] = Counter()
        """Reason -> rows that cannot be used."""
        self.faults: list[RowFault] = []
        """The first of them."""
        self._limit, self._shard = limit, shard

    @abstractmethod
    def __iter__(self) -> Iterator[Subject]: ...


_KNOWN = ("domain", "rank", "server_ip", "alt_svc", "url")


class Subjects(Source):
    """The domains of a top list of any kind, or of a `targets` file (Parquet); duplicates are skipped.

    Args:
        path: the file.
        limit: most subjects (of this shard).
        shard: (number from 1, of how many), by hash of the domain.

    Raises:
        UsageError: the file is missing; during iteration: a broken file, with the line.
    """

    def __init__(self, path: Path, *, limit: int | None = None, shard: tuple[int, int] = (1, 1)) -> None:
        super().__init__(path, limit=limit, shard=shard)
        self.is_targets = targets.is_table(path)

    def __iter__(self) -> Iterator[Subject]:
        seen: set[str] = set()
        for subject in self._of_targets() if self.is_targets else self._of_list():
            if self._limit is not None and len(seen) >= self._limit:
                return
            if self._shard[1] > 1 and not in_shard(subject.domain, *self._shard):
                continue
            if subject.domain in seen:
                self.duplicates += 1
                continue
            seen.add(subject.domain)
            yield subject

    def _of_list(self) -> Iterator[Subject]:
        rows = TopList(self.path)
        self.broken, self.faults = rows.broken, rows.faults
        for row in rows:
            yield Subject(domain=row.domain, rank=row.rank)

    def _of_targets(self) -> Iterator[Subject]:
        # A crawl notes when it read the page. Without such times, one header tells that all pages were read; a list by
        # hand has none, and nobody knows what servers offer.
        rows = partial(targets.values, self.path)
        is_timed = any(row["crawled_at"] is not None for row in rows(("domain", "crawled_at")))
        is_read = not is_timed and any(row["alt_svc"] for row in rows(("domain", "alt_svc")))
        for row in rows((*_KNOWN, "crawled_at")):
            crawled_at = row.pop("crawled_at")
            if is_read or crawled_at is not None:
                row["alt_svc"] = row["alt_svc"] or ""
            yield Subject(**row)
