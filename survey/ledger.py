"""The ledger of a survey: which subjects are done, and what was found, as one document each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import upshift.outreach.ledger
from survey.subjects import Subject

Record = TypeVar("Record")

_OF_SUBJECT = ("domain", "rank", "provider")
"""What a record has from its subject; the rest of it is the document."""

Finished = tuple[str, str, Mapping[str, Any]]
"""(domain, outcome, what was found: a document that JSON can hold)."""


def document_of(record: Any) -> dict[str, Any]:
    """What was found, of a record that is a dataclass: all that its subject does not say."""
    return {name: getattr(record, name) for name in _found_columns(record.__class__)}


@cache  # it is asked for thousands of times a second
def _found_columns(record_type: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(record_type) if column.name not in _OF_SUBJECT)


class Ledger(upshift.outreach.ledger.Ledger):
    """An open ledger of a survey."""

    WHAT = "survey"
    CREATE = """
        CREATE TABLE domains (
            id INTEGER PRIMARY KEY,
            domain TEXT NOT NULL UNIQUE,
            rank INTEGER,
            provider TEXT,
            server_ip TEXT,
            alt_svc TEXT,
            outcome TEXT,  -- NULL until the domain is done
            document TEXT  -- what was found, as JSON
        );
        """

    def fill(self, subjects: Iterable[Subject]) -> int:
        """Writes the subjects into the ledger, all of them or none; returns how many.

        A broken list (UsageError) leaves no ledger, so that the mended one is not another survey.
        """
        with self._filling():
            cursor = self._db.executemany(
                "INSERT OR IGNORE INTO domains (domain, rank, provider, server_ip, alt_svc) VALUES (?, ?, ?, ?, ?)",
                ((s.domain, s.rank, s.provider, s.server_ip, s.alt_svc) for s in subjects),
            )
        return cursor.rowcount

    def take(self) -> Iterator[Subject]:
        """Subjects that are not done, in the order of the list, read lazily; each is given once per open ledger."""
        rows = self._take(
            "SELECT id, domain, rank, provider, server_ip, alt_svc FROM domains"
            " WHERE id > ? AND outcome IS NULL ORDER BY id LIMIT ?"
        )
        for domain, rank, provider, server_ip, alt_svc in rows:
            yield Subject(domain=domain, rank=rank, provider=provider, server_ip=server_ip, alt_svc=alt_svc)

    def finish(self, finished: Iterable[Finished]) -> None:
        """Says that subjects are done, in one transaction, durably against a kill of the process."""
        rows = [(outcome, json.dumps(document), domain) for domain, outcome, document in finished]
        if not rows:
            return
        with self._transaction():
            self._db.executemany(
                "UPDATE domains SET outcome = ?, document = ? WHERE domain = ? AND outcome IS NULL", rows
            )

    def results(self) -> Iterator[tuple[Subject, str, dict[str, Any]]]:
        """(subject, outcome, document) of all that is done, in the order of the list."""
        rows = self._db.execute(
            "SELECT domain, rank, provider, server_ip, alt_svc, outcome, document FROM domains"
            " WHERE outcome IS NOT NULL ORDER BY id"
        )
        for domain, rank, provider, server_ip, alt_svc, outcome, document in rows:
            subject = Subject(domain=domain, rank=rank, provider=provider, server_ip=server_ip, alt_svc=alt_svc)
            yield subject, outcome, json.loads(document)

    def records(self, record_type: Callable[..., Record]) -> Iterator[Record]:
        """The results as records, in the order of the list."""
        for subject, _, document in self.results():
            yield record_type(**{name: getattr(subject, name) for name in _OF_SUBJECT}, **document)
