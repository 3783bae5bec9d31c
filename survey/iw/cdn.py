"""Names of CDNs, by the suffixes of a host and of its CNAMEs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from core.errors import UsageError
from core.files.config import read_text

MOST_BYTES = 16 << 20
"""Largest list."""

_OF_C = re.compile(r'\{\s*"([^"]+)"\s*,\s*"([^"]+)"\s*\}')
"""An entry of WebPageTest's `cdn.h`."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class CdnNames:
    """The CDN of a host.

    Args:
        patterns: suffix (whole labels, lower case, without a dot at its ends) -> name.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns

    def __len__(self) -> int:
        return len(self._patterns)

    def of(self, host: str, cnames: Iterable[str] = ()) -> str | None:
        """The CDN of the last CNAME that has one (it is closest to the address), else of the host; or None."""
        for name in (*reversed(list(cnames)), host):
            cdn = self._of_name(name.rstrip(".").lower())
            if cdn is not None:
                return cdn
        return None

    def _of_name(self, name: str) -> str | None:
        labels = name.split(".")
        suffixes = (".".join(labels[start:]) for start in range(len(labels)))  # the longest first
        return next((self._patterns[suffix] for suffix in suffixes if suffix in self._patterns), None)


@cache
def our_names() -> CdnNames:
    """The list that Upshift ships."""
    file = resources.files("survey") / "data" / "cdn-names.csv"
    return parse(file.read_text(encoding="utf-8"), where=str(file))


def read_names(path: Path | None) -> CdnNames:
    """A list of `suffix,name`, or WebPageTest's `cdn.h`; None: ours. Raises UsageError with the line."""
    return our_names() if path is None else parse(read_text(path, most_bytes=MOST_BYTES), where=str(path))


def parse(text: str, *, where: str) -> CdnNames:
    """As `read_names`."""
    of_c = _OF_C.findall(_COMMENT.sub("", text))
    rows = [(number, row) for number, row in enumerate(of_c, 1)] if of_c else _csv_rows(text)
    patterns: dict[str, str] = {}
    for number, row in rows:
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise UsageError(
                f"line {number}: {','.join(row)[:60]!r} is not a suffix and a name",
                where=where,
                remedy="write suffix,name on each line, such as example.net,Example",
            )
        suffix, name = (cell.strip() for cell in row)
        if suffix.upper() == "END_MARKER":
            continue
        patterns.setdefault(suffix.lower().strip("."), name)
    if not patterns:
        raise UsageError("there are no names of CDNs", where=where, remedy="write suffix,name on each line")
    return CdnNames(patterns)


def _csv_rows(text: str) -> list[tuple[int, tuple[str, ...]]]:
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    rows = [(number, tuple(next(csv.reader([line])))) for number, line in lines if line and not line.startswith("#")]
    return rows[1:] if rows and rows[0][1] == ("suffix", "name") else rows
