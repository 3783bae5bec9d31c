"""Target lists: CSV that people write, or the `targets` Parquet of the crawl; every fault is one sentence."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from downloader.campaign.campaign import Campaign
from upshift.domain import Provider, Target
from upshift.errors import UsageError
from upshift.files import store
from upshift.scrub import scrub

_REQUIRED = ("domain", "url", "provider")
_OPTIONAL = ("size_bytes", "rank")


def load_targets(campaign: Campaign) -> list[Target]:
    """The targets of a campaign's file; a relative path starts at the campaign file.

    Raises:
        UsageError: a missing file, a broken row (with file, line and remedy), or a target twice.
    """
    path = campaign.path.parent / campaign.targets
    if path.suffix == ".parquet":
        targets = store.read_rows(path, "targets", Target)
    elif path.suffix == ".csv":
        targets = list(_csv_rows(path))
    else:
        raise UsageError(
            f"{campaign.targets!r} is neither a .csv nor a .parquet file",
            where=f"{campaign.path}: field targets",
            remedy='name such a file, or write "lab"',
        )
    check_targets(targets, where=str(path))
    return targets


def check_targets(targets: Sequence[Target], *, where: str) -> None:
    """Raises UsageError unless every target can be downloaded and told from the others."""
    if not targets:
        raise UsageError("there are no targets", where=where, remedy="add at least one row")
    seen: set[tuple[str, str]] = set()
    for number, target in enumerate(targets, start=1):
        fault = _fault(target)
        if fault is None and (target.domain, target.url) in seen:
            fault = "this target is there twice"
        seen.add((target.domain, target.url))
        if fault is not None:
            raise UsageError(
                f"target {number} ({scrub(target.domain, most=80)}): {fault}", where=where, remedy="mend or drop it"
            )


def host_and_port(url: str) -> tuple[str, int]:
    """Host (without brackets) and port of an https URL. Raises ValueError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError("the URL is not https://HOST/...")
    return parts.hostname, parts.port or 443


def _fault(target: Target) -> str | None:
    if not target.domain or not target.domain.isprintable() or len(target.domain) > 253:
        return "the domain is empty, too long, or has control characters"
    if not target.url.isascii() or not target.url.isprintable() or " " in target.url:
        return "the URL has characters that must be percent-encoded"
    try:
        host_and_port(target.url)
    except ValueError as error:
        return scrub(str(error))
    return None


def _csv_rows(path: Path) -> Iterator[Target]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), remedy="check the field targets") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise UsageError(
            f"this is no text file in UTF-8 ({error})", where=str(path), remedy="save it as CSV in UTF-8"
        ) from None
    reader = csv.DictReader(text.splitlines(), restkey="", strict=True)
    header = reader.fieldnames or ()
    missing = [name for name in _REQUIRED if name not in header]
    unknown = [name for name in header if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        said = (
            f"the column {missing[0]} is missing" if missing else f"there is no column {scrub(unknown[0], most=40)!r}"
        )
        raise UsageError(
            said, where=f"{path}, line 1", remedy=f"use {','.join(_REQUIRED)} and, if known, {','.join(_OPTIONAL)}"
        )
    try:
        for row in reader:
            yield _target(row, where=f"{path}, line {reader.line_num}")
    except csv.Error as error:
        where = f"{path}, line {reader.reader.line_num}"
        raise UsageError(str(error), where=where, remedy="mend that line") from None


def _target(row: Mapping[str, str | None], *, where: str) -> Target:
    if "" in row or None in row.values():
        raise UsageError(
            "the row has another number of columns than the header", where=where, remedy="quote values with commas"
        )
    values = {name: (value or "").strip() for name, value in row.items()}
    target = Target(
        domain=values["domain"].lower(),
        url=values["url"],
        provider=values["provider"].lower() or Provider.OTHER,
        size_bytes=_number(values, "size_bytes", where=where),
        rank=_number(values, "rank", where=where),
    )
    fault = _fault(target)
    if fault is not None:
        raise UsageError(fault, where=where, remedy="mend or drop the row")
    return target


def _number(values: Mapping[str, str], name: str, *, where: str) -> int | None:
    text = values.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 16 and int(text) > 0):
        raise UsageError(
            f"{name} {scrub(text, most=40)!r} is no whole number above 0",
            where=where,
            remedy="mend it, or leave it empty",
        )
    return int(text)
