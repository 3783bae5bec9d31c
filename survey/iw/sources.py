"""What a user gives to the survey: archives of objects, prefixes to sample, names of CDNs.

An archive is CSV of `url,mime_type,size_bytes`. Of each domain and type the largest object is taken: a large object is
more likely to fill the window. A sample has addresses in the order of a keyed permutation, each once, neighbours far
apart. CDNs are named by the suffixes of a host and of its CNAMEs.
"""

from __future__ import annotations

import csv
import hashlib
import ipaddress
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from pathlib import Path

from core.errors import ReachError, UsageError, unreadable
from core.files.config import read_text
from core.outreach.lists import NAMED_FAULTS, RowFault, domain_of, in_shard
from core.reach import IPNetwork, check_public, environment_prefixes
from core.untrusted import url_fault
from survey.iw.request import Request
from survey.subjects import Source, Subject

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


class Archive(Source):
    """The largest object per domain and type. Shards go by hash of the domain."""

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
                Request.of(url)
            except ValueError as error:
                fault = str(error)
        if fault is None and not (size.isascii() and size.isdecimal() and len(size) < 16):
            fault = "size_bytes is not a whole number"
        if fault is not None:
            self.broken[fault] += 1
            if len(self.faults) < NAMED_FAULTS:
                self.faults.append(RowFault(line=line, text=url[:80], reason=fault))
            return
        # Parameters (charset) do not make another type.
        mime_type = (row["mime_type"] or "").partition(";")[0].strip().lower() or "unknown"
        key = (domain, mime_type)
        if key in largest:
            self.duplicates += 1
        if key not in largest or int(size) > largest[key].size_bytes:
            largest[key] = _Object(url, int(size))


_ROUNDS = 4


class Permutation:
    """A permutation of `range(size)`, chosen by the seed.

    Args:
        size: at least 1.
        seed: any number.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._bytes = (self._half + 7) // 8
        key = hashlib.blake2b(str(seed).encode(), digest_size=32).digest()
        # A keyed hash per round; copying its state is cheaper than to key it again.
        self._rounds = [
            hashlib.blake2b(key=key, salt=bytes([number]), digest_size=self._bytes) for number in range(_ROUNDS)
        ]

    def __getitem__(self, index: int) -> int:
        value = self._once(index)
        while value >= self._size:  # at most four times the range: fewer than four steps on average
            value = self._once(value)
        return value

    def _once(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for keyed in self._rounds:
            state = keyed.copy()
            state.update(right.to_bytes(self._bytes, "big"))
            left, right = right, left ^ (int.from_bytes(state.digest(), "big") & self._mask)
        return left << self._half | right


MOST_WITHOUT_BLOCK_LIST = 65_536
"""A larger sample needs a block list."""

MOST_PREFIXES_BYTES = 64 << 20
"""Largest file of prefixes."""


class PrefixSample(Source):
    """The addresses of a sample.

    Addresses that must not be contacted (special purposes) are passed over and counted in `broken`.

    Args:
        path: one prefix a line, `#` begins a comment.
        share: of the addresses, above 0, at most 1.
        seed: of the permutation.
        shard: (number from 1, of how many): disjoint parts of the same sample.
        limit: most addresses of this shard.

    Raises:
        UsageError: the file, or a line of it, is not usable; the sample is empty.
    """

    def __init__(
        self, path: Path, *, share: float, seed: int, shard: tuple[int, int] = (1, 1), limit: int | None = None
    ) -> None:
        super().__init__(path, limit=limit, shard=shard)
        self._prefixes = read_prefixes(path)
        self._ends = list(accumulate(prefix.num_addresses for prefix in self._prefixes))
        self.count = math.floor(self._ends[-1] * share + 0.5)
        """Addresses of the sample, all shards together."""
        if self.count == 0:
            raise UsageError(
                f"the sample is empty: {share:g} of {self._ends[-1]:,} addresses",
                where="--sample",
                remedy="give a larger share",
            )
        self._permutation = Permutation(self._ends[-1], seed)

    def __iter__(self) -> Iterator[Subject]:
        number, of = self._shard
        given = 0
        for index in range(number - 1, self.count, of):
            if self._limit is not None and given >= self._limit:
                return
            address = self._address(self._permutation[index])
            try:
                check_public(address)
            except ReachError:
                self.broken["addresses that may not be contacted"] += 1
                continue
            given += 1
            yield Subject(domain=address, server_ip=address)

    def _address(self, place: int) -> str:
        at = bisect_right(self._ends, place)
        before = self._ends[at - 1] if at else 0
        return str(self._prefixes[at][place - before])


def read_prefixes(path: Path) -> Sequence[IPNetwork]:
    """The prefixes of a file, overlaps merged; IPv4 first.

    Raises:
        UsageError: with the line: not a prefix, or outside what the environment allows.
    """
    prefixes: dict[int, list[IPNetwork]] = {4: [], 6: []}
    allowed = environment_prefixes()
    for number, line in enumerate(read_text(path, most_bytes=MOST_PREFIXES_BYTES).splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            prefix = ipaddress.ip_network(entry)
        except ValueError as error:
            raise UsageError(
                f"line {number}: {entry[:60]!r} is not a prefix ({error})",
                where=str(path),
                remedy="write one prefix per line, such as 198.51.100.0/24",
            ) from None
        limits = [limit for limit in allowed or () if limit.version == prefix.version]
        if allowed is not None and not any(prefix.subnet_of(limit) for limit in limits):  # type: ignore[arg-type]
            raise UsageError(
                f"line {number}: {prefix} is outside what may be contacted here",
                where=str(path),
                remedy="while a lab is active, give prefixes of the lab",
            )
        prefixes[prefix.version].append(prefix)
    merged = [prefix for family in prefixes.values() for prefix in ipaddress.collapse_addresses(family)]  # type: ignore[type-var]
    if not merged:
        raise UsageError("there are no prefixes", where=str(path), remedy="write one prefix per line")
    return merged


def check_block_list(sample: PrefixSample, *, has_block_list: bool) -> None:
    """Raises UsageError for a large sample without a block list."""
    if sample.count > MOST_WITHOUT_BLOCK_LIST and not has_block_list:
        raise UsageError(
            f"a sample of {sample.count:,} addresses (more than {MOST_WITHOUT_BLOCK_LIST:,}) needs a block list",
            where="--block-list",
            remedy="give the prefixes whose owners asked not to be scanned, or a smaller --sample",
        )


MOST_NAMES_BYTES = 16 << 20
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
    return parse_names(file.read_text(encoding="utf-8"), where=str(file))


def read_names(path: Path | None) -> CdnNames:
    """A list of `suffix,name`, or WebPageTest's `cdn.h`; None: ours. Raises UsageError with the line."""
    return our_names() if path is None else parse_names(read_text(path, most_bytes=MOST_NAMES_BYTES), where=str(path))


def parse_names(text: str, *, where: str) -> CdnNames:
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
