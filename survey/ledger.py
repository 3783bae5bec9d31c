"""The ledger of a survey: which subjects are done, and what was found, as one document each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from survey.subjects import Subject
from upshift.outreach import ledger

Record = TypeVar("Record")

_KNOWN = ("provider", "server_ip", "alt_svc")
"""What a subject has beside its domain and rank."""

_OF_SUBJECT = ("domain", "rank", "provider")
"""What a record has from its subject; the rest of it is the document."""


def document_of(record: Any) -> dict[str, Any]:
    """What was found, of a record that is a dataclass: all that its subject does not say."""
    return {name: getattr(record, name) for name in _found_columns(record.__class__)}


@cache  # it is asked for thousands of times a second
def _found_columns(record_type: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(record_type) if column.name not in _OF_SUBJECT)


class Ledger(ledger.Ledger):
    """An open ledger of a survey."""

    WHAT = "survey"

    def fill(self, subjects: Iterable[Subject]) -> int:
        """Writes the subjects into the ledger, all of them or none; returns how many.

        A broken list (UsageError) leaves no ledger, so that the corrected one is not another survey.
        """
        with self._filling():
            return self._add(_entry(subject) for subject in subjects)

    def take(self) -> Iterator[Subject]:
        """Subjects that are not done, in the order of the list, read lazily; each is given once per open ledger."""
        return map(_subject, self.entries())

    def records(self, record_type: Callable[..., Record]) -> Iterator[Record]:
        """The results as records, in the order of the list."""
        for entry, _, document in self.results():
            provider = entry.known.get("provider")
            yield record_type(domain=entry.domain, rank=entry.rank, provider=provider, **document)


def _entry(subject: Subject) -> ledger.Entry:
    known = {name: value for name in _KNOWN if (value := getattr(subject, name)) is not None}
    return ledger.Entry(domain=subject.domain, rank=subject.rank, known=known)


def _subject(entry: ledger.Entry) -> Subject:
    return Subject(domain=entry.domain, rank=entry.rank, **entry.known)
