"""Top lists: Tranco, CrUX, Umbrella, Majestic, Alexa, and bare lists of domains; plain, gz or zip.

The format is detected by the first row, not by the file's name:

- `rank,name` without a header: Tranco, Umbrella (which holds full host names, and bare top-level names), Alexa (frozen
  in 2023-02).
- `origin,rank`: CrUX. The rank is a bucket (1000 ... 1000000), and origins have a scheme and maybe a port.
- `GlobalRank,TldRank,Domain,...`: Majestic.
- one name per line: a bare list; the rank is the position in the list.

Invalid rows are counted by reason, and the first ones are reported with their line.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import idna

from core.errors import UsageError, unreadable
from core.untrusted import is_address

NAMED_FAULTS = 20
"""Most invalid rows that are kept with line and text; the others are only counted."""

MAX_LINE_BYTES = 4_096
"""Longer lines are invalid rows."""

MOST_RANK_DIGITS = 18
"""Ledgers and tables have 64 bits for a rank."""

MOST_LINE_BYTES = 1 << 20
"""A file with a longer line is not accepted as a list."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One usable row."""

    rank: int | None
    domain: str
    """Lower case, A-labels, no dot at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """One row that cannot be used."""

    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}: {self.text!r}"


class _RowError(ValueError):
    """Why a row cannot be used."""


class TopList:
    """Iterates over the usable rows of a list, once, without holding it in memory.

    Attributes:
        path: the file.
        form: `ranked`, `crux`, `majestic` or `bare`; known after the first row.
        rows: rows read so far, without the header.
        broken: reason -> rows that cannot be used.
        faults: the first of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.form: str | None = None
        self.rows = 0
        self.broken: Counter[str] = Counter()
        self.faults: list[RowFault] = []
        self._columns = (0, 0)

    def __iter__(self) -> Iterator[Listed]:
        line = 0
        try:
            with _opened(self.path) as handle:
                while text := handle.readline(MAX_LINE_BYTES):
                    line += 1
                    self._skip_rest(handle, line, text)
                    row = self._row(line, text)
                    if row is not None:
                        yield row
        except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"the compressed file is damaged or truncated after line {line} ({error})",
                where=str(self.path),
                remedy="fetch it again",
            ) from None
        if self.form is None:
            raise UsageError("the list is empty", where=str(self.path), remedy="give a top list")
        if self.rows == self.broken.total():
            why = f", line {self.faults[0].line}: {self.faults[0].reason}" if self.faults else ""
            raise UsageError(
                f"no row has a domain ({self.rows} rows{why})",
                where=str(self.path),
                remedy="give a top list: rank,domain, or one domain a line",
            )

    def _skip_rest(self, handle: IO[bytes], line: int, text: bytes) -> None:
        """Reads to the end of the line that begins with `text`."""
        size = len(text)
        while len(text) == MAX_LINE_BYTES and not text.endswith(b"\n"):
            text = handle.readline(MAX_LINE_BYTES)
            size += len(text)
            if size > MOST_LINE_BYTES:
                raise UsageError(
                    f"line {line} is longer than {MOST_LINE_BYTES >> 20} MiB",
                    where=str(self.path),
                    remedy="give a top list: rank,domain, or one domain a line",
                )

    def _row(self, line: int, raw: bytes) -> Listed | None:
        text = raw.decode("utf-8", "replace").removeprefix("\ufeff").strip()
        if not text or text.startswith("#"):
            return None
        fields = [part.strip().strip('"') for part in text.split(",")]
        if self.form is None and self._is_header(fields):
            return None
        self.rows += 1
        try:
            rank, name = self._rank_and_name(fields, raw)
            return Listed(rank=rank, domain=domain_of(name))
        except _RowError as error:
            reason = str(error)
            self.broken[reason] += 1
            if len(self.faults) < NAMED_FAULTS:
                self.faults.append(RowFault(line=line, text=text[:80], reason=reason))
            return None

    def _is_header(self, fields: list[str]) -> bool:
        """Detects the format by the first row; True if that row is a header."""
        lower = [name.lower() for name in fields]
        if lower[:2] == ["origin", "rank"]:
            self.form, self._columns = "crux", (1, 0)
            return True
        if lower[0] == "globalrank" and "domain" in lower:
            self.form, self._columns = "majestic", (0, lower.index("domain"))
            return True
        if lower[:2] in (["rank", "domain"], ["rank", "name"]):
            self.form, self._columns = "ranked", (0, 1)
            return True
        if len(fields) == 1:
            self.form = "bare"
            return lower[0] in ("domain", "origin", "host")
        if len(fields) >= 2 and (fields[0].isdigit() or not any(fields)):
            self.form, self._columns = "ranked", (0, 1)
            return False
        raise UsageError(
            f"the first row, {','.join(fields)[:60]!r}, matches no known list format",
            where=str(self.path),
            remedy="give Tranco, CrUX, Umbrella, Majestic, Alexa, or one domain a line",
        )

    def _rank_and_name(self, fields: list[str], raw: bytes) -> tuple[int | None, str]:
        if len(raw) >= MAX_LINE_BYTES:
            raise _RowError("line too long")
        if not any(fields):
            raise _RowError("empty fields")
        if self.form == "bare":
            if len(fields) != 1:
                raise _RowError("several fields in a bare list")
            return self.rows, fields[0]
        rank_at, name_at = self._columns
        if len(fields) <= max(rank_at, name_at):
            raise _RowError("too few fields")
        rank = fields[rank_at]
        if not (rank.isascii() and rank.isdigit()) or int(rank) < 1:
            raise _RowError("the rank is not a number")
        if len(rank) > MOST_RANK_DIGITS:
            raise _RowError("the rank is too large")
        return int(rank), fields[name_at]


def identity(path: Path) -> str:
    """Name and content of a list, for the plans of ledgers: a resumed crawl or survey must have the same list.

    Raises:
        UsageError: it is a device, which may be endless.
    """
    if path.is_char_device() or path.is_block_device():
        raise UsageError("this is a device, not a file", where=str(path), remedy="check the path")
    with path.open("rb") as handle:
        return f"{path.name}, sha256 {hashlib.file_digest(handle, 'sha256').hexdigest()}"


def in_shard(domain: str, number: int, of: int) -> bool:
    """Whether a domain is in shard `number` (from 1) of `of`: by hash, so that each shard has all ranks."""
    digest = hashlib.sha256(domain.encode()).digest()
    return int.from_bytes(digest[:8], "big") % of == number - 1


def parse_shard(text: str) -> tuple[int, int]:
    """(number from 1, of how many) from `i/n`. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is not None and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise UsageError(f"{text!r} is not a valid shard", where="--shard", remedy="write i/n with i from 1 to n, e.g. 2/8")


def domain_of(name: str) -> str:
    """The host of a name or origin, as in DNS. Raises ValueError with the reason why it cannot be used."""
    if "://" in name:
        try:
            host = urlsplit(name).hostname or ""
        except ValueError:
            raise _RowError("not a domain name") from None
    else:
        host = name
    host = host.strip().rstrip(".").lower()
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise _RowError("not a domain name") from None
    if is_address(host.strip("[]")):
        raise _RowError("an IP address")
    labels = host.split(".")
    # A top-level name has a letter (RFC 1123, section 2.1): 192.0.2.0-192.0.2.255 and 192.0.2 are addresses to people.
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or not re.search("[a-z]", labels[-1]):
        raise _RowError("not a domain name")
    if len(labels) < 2:
        raise _RowError("a bare top-level name")
    return host


def _opened(path: Path) -> IO[bytes]:
    """The list as a stream of bytes. In a zip there must be exactly one file."""
    try:
        handle = path.open("rb")
    except OSError as error:
        raise UsageError(unreadable(error), where=str(path), remedy="check the path") from None
    magic = handle.read(4)
    handle.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return _Closing(gzip.open(handle), handle)
    if magic == b"PK\x03\x04":
        try:
            archive = zipfile.ZipFile(handle)
            names = [name for name in archive.namelist() if not name.endswith("/")]
            stream = archive.open(names[0]) if len(names) == 1 else None
        except RuntimeError as error:  # encrypted, or compressed by an unknown method
            handle.close()
            raise UsageError(
                f"the zip file cannot be unpacked ({error})", where=str(path), remedy="unpack it with another program"
            ) from None
        except (zipfile.BadZipFile, lzma.LZMAError, OSError, UnicodeError) as error:
            handle.close()
            raise UsageError(
                f"the zip file is damaged or truncated ({error})", where=str(path), remedy="fetch it again"
            ) from None
        if stream is None:
            handle.close()
            raise UsageError(
                f"the zip file holds {len(names)} files", where=str(path), remedy="leave only the list in it"
            )
        return _Closing(stream, handle)
    return handle


class _Closing(io.BufferedReader):
    """A decompressing stream that closes the file below it, too."""

    def __init__(self, stream: Any, below: IO[bytes]) -> None:
        super().__init__(stream)  # GzipFile and ZipExtFile have readinto, though their types do not say so
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()
