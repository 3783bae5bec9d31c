"""Lists of objects from an archive of crawls: CSV of `url,mime_type,size_bytes`.

Of each domain and type the largest object is taken: a large object is more likely to fill the window.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.errors import UsageError, unreadable
from core.outreach.lists import NAMED_FAULTS, Fault, domain_of, in_shard
from core.untrusted import url_fault
from survey.subjects import Subject

COLUMNS = ("url", "mime_type", "size_bytes")


def is_archive(path: Path) -> bool:
    """Whether a file is such a list, by its header."""
    try:
        with path.open("rb") as handle:
            first = handle.read(4_096).decode("utf-8-sig", "replace").partition("\n")[0]
    except OSError as error:
        raise UsageError(unreadable(error), where=str(path), remedy="check the path") from None
    names = {name.strip().strip('"') for name in first.split(",")}
    return {"url", "mime_type"} <= names and "domain" not in names


@dataclass(frozen=True, slots=True)
class _Object:
    url: str
    size_bytes: int


class Archive:
    """The largest object per domain and type; iterate over it, as over `survey.subjects.Subjects`.

    Args:
        path: the file.
        limit: most objects of this shard.
        shard: (number from 1, of how many), by hash of the domain.
    """

    is_targets = False

    def __init__(self, path: Path, *, limit: int | None = None, shard: tuple[int, int] = (1, 1)) -> None:
        self.path = path
        self.duplicates = 0
        self.broken: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._limit = limit
        self._shard = shard

    def __iter__(self) -> Iterator[Subject]:
        largest: dict[tuple[str, str], _Object] = {}
        rows = 0
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as handle:
                reader = csv.DictReader(handle)
                self._check_names(reader.fieldnames or ())
                for row in reader:
                    rows += 1
                    self._take(row, reader.line_num, largest)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"this is not CSV in UTF-8 ({error})", where=str(self.path), remedy="save it so") from None
        if not rows or self.broken.total() == rows:
            why = f", line {self.faults[0].line}: {self.faults[0].reason}" if self.faults else ""
            raise UsageError(
                f"no usable rows ({rows} rows{why})", where=str(self.path), remedy="write url,mime_type,size_bytes"
            )
        keys = [key for key in largest if in_shard(key[0], *self._shard)]
        for domain, mime_type in keys[: self._limit]:
            yield Subject(domain=domain, url=largest[domain, mime_type].url, mime_type=mime_type)

    def _check_names(self, names: object) -> None:
        missing = [name for name in COLUMNS if name not in (names or ())]  # type: ignore[operator]
        if missing:
            raise UsageError(
                f"the column {missing[0]} is missing", where=f"{self.path}, line 1", remedy="write " + ",".join(COLUMNS)
            )

    def _take(self, row: dict[str, str | None], line: int, largest: dict[tuple[str, str], _Object]) -> None:
        url = (row["url"] or "").strip()
        size = (row["size_bytes"] or "").strip()
        fault = url_fault(url)
        domain = ""
        if fault is None:
            try:
                domain = domain_of(url)
            except ValueError as error:
                fault = str(error)
        if fault is None and not (size.isascii() and size.isdecimal() and len(size) < 16):
            fault = "size_bytes is not a whole number"
        if fault is not None:
            self.broken[fault] += 1
            if len(self.faults) < NAMED_FAULTS:
                self.faults.append(Fault(line=line, text=url[:80], reason=fault))
            return
        # Parameters (charset) do not make another type.
        mime_type = (row["mime_type"] or "").partition(";")[0].strip().lower() or "unknown"
        key = (domain, mime_type)
        if key in largest:
            self.duplicates += 1
        if key not in largest or int(size) > largest[key].size_bytes:
            largest[key] = _Object(url, int(size))
