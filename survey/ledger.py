"""The ledger of a survey: which subjects are done, and the result of each as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from core.outreach import ledger
from survey.subjects import Subject

Record = TypeVar("Record")

_KNOWN = ("provider", "server_ip", "alt_svc", "url", "mime_type")
"""Fields of a subject besides domain and rank."""

_OF_SUBJECT = ("domain", "rank", "provider")
"""Fields that a record takes from its subject; the others form the document."""


def document_of(record: Any) -> dict[str, Any]:
    """The fields of a record (a dataclass) that do not come from its subject."""
    return {name: getattr(record, name) for name in _found_columns(record.__class__)}


@cache  # called thousands of times a second
def _found_columns(record_type: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(record_type) if column.name not in _OF_SUBJECT)


class Ledger(ledger.Ledger):
    """An open ledger of a survey."""

    WHAT = "survey"

    def fill(self, subjects: Iterable[Subject]) -> int:
        """Writes the subjects into the ledger, all of them or none; returns how many.

        A broken list (UsageError) leaves no ledger behind, so the corrected list can use the same file.
        """
        with self._filling():
            return self._add(_entry(subject) for subject in subjects)

    def take(self) -> Iterator[Subject]:
        """Pending subjects in the order of the list, read lazily; each once per open ledger."""
        return map(_subject, self.entries())

    def records(self, record_type: Callable[..., Record]) -> Iterator[Record]:
        """The results as records, in the order of the list."""
        for entry, _, document in self.results():
            provider = entry.known.get("provider")
            subject = _subject(entry)
            yield record_type(domain=subject.domain, rank=entry.rank, provider=provider, **document)


def _entry(subject: Subject) -> ledger.Entry:
    known = {name: value for name in _KNOWN if (value := getattr(subject, name)) is not None}
    return ledger.Entry(domain=subject.key, rank=subject.rank, known=known)


def _subject(entry: ledger.Entry) -> Subject:
    mime_type = entry.known.get("mime_type")
    domain = entry.domain if mime_type is None else entry.domain.removesuffix(f" {mime_type}")
    return Subject(domain=domain, rank=entry.rank, **entry.known)
