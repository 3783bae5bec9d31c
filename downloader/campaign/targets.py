"""The targets of a campaign: every row can be downloaded, and is unique."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.domain import Target
from core.errors import UsageError
from core.files import targets as table
from core.untrusted import domain_fault, host_and_port, scrub, url_fault
from downloader.campaign.campaign import Campaign

NEEDS = ("domain", "url", "provider")
"""Columns that a campaign requires."""


def load_targets(campaign: Campaign) -> list[Target]:
    """The targets of a campaign's file; a relative path starts at the campaign file.

    Raises:
        UsageError: a missing file, a broken row (with file, line and remedy), or a duplicate target.
    """
    path = campaign.path.parent / campaign.targets
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UsageError(
            f"{campaign.targets!r} is neither a .csv nor a .parquet file",
            where=f"{campaign.path}: field targets",
            remedy='name such a file, or write "lab"',
        )
    return _checked(table.rows(path, needs=NEEDS), where=str(path))


def check_targets(targets: Sequence[Target], *, where: str) -> None:
    """Raises UsageError unless every target can be downloaded and is unique."""
    _checked(((f"{where}: target {number}", target) for number, target in enumerate(targets, 1)), where=where)


def _checked(rows: Iterable[tuple[str, Target]], *, where: str) -> list[Target]:
    """Checks the targets, each given with its place in the file. Raises UsageError."""
    checked: list[Target] = []
    seen: set[tuple[str, str]] = set()
    for place, target in rows:
        fault = _fault(target)
        if fault is None and (target.domain, target.url) in seen:
            fault = f"this target ({scrub(target.domain, most=80)}) is listed twice"
        if fault is not None:
            raise UsageError(fault, where=place, remedy="correct or remove it")
        seen.add((target.domain, target.url))
        checked.append(target)
    if not checked:
        raise UsageError("no targets", where=where, remedy="add at least one row")
    return checked


def _fault(target: Target) -> str | None:
    fault = domain_fault(target.domain) or url_fault(target.url)
    if fault is not None:
        return fault
    try:
        host_and_port(target.url)
    except ValueError as error:
        return str(error)
    return None
