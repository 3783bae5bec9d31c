"""Samples of prefixes: addresses in the order of a keyed permutation, each once, neighbours far apart."""

from __future__ import annotations

import hashlib
import ipaddress
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from core.errors import ReachError, UsageError
from core.files.config import read_text
from core.outreach.lists import Fault
from core.reach import IPNetwork, check_public, environment_prefixes
from survey.subjects import Subject

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

MOST_BYTES = 64 << 20
"""Largest file of prefixes."""


class Sample:
    """The addresses of a sample; iterate over it, as over `survey.subjects.Subjects`.

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

    is_targets = False

    def __init__(
        self, path: Path, *, share: float, seed: int, shard: tuple[int, int] = (1, 1), limit: int | None = None
    ) -> None:
        self.path = path
        self.duplicates = 0
        self.broken: Counter[str] = Counter()
        self.faults: list[Fault] = []
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
        self._shard = shard
        self._limit = limit

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
    for number, line in enumerate(read_text(path, most_bytes=MOST_BYTES).splitlines(), 1):
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
        if allowed is not None and not any(_contains(limit, prefix) for limit in allowed):
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


def _contains(outer: IPNetwork, inner: IPNetwork) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def check_block_list(sample: Sample, *, has_block_list: bool) -> None:
    """Raises UsageError for a large sample without a block list."""
    if sample.count > MOST_WITHOUT_BLOCK_LIST and not has_block_list:
        raise UsageError(
            f"a sample of {sample.count:,} addresses (more than {MOST_WITHOUT_BLOCK_LIST:,}) needs a block list",
            where="--block-list",
            remedy="give the prefixes whose owners asked not to be scanned, or a smaller --sample",
        )
