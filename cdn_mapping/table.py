"""The prefix table: which AS announces an address. Built once from RIBs, stored as `.npz`, vectorised.

Longest-prefix match is a binary search: prefixes are flattened to intervals that do not overlap. A table of prefixes
cuts the address space at the first address of each prefix and at the first one after it. Between two cuts every address
has the same longest match, so a look-up is one search among the cuts, and a batch of them is one call of numpy.
`benchmarks/mapping` has the figures beside a radix tree. Addresses of IPv6 are pairs of 64-bit numbers, upper and lower
half; those of IPv4 have an upper half of zero.
"""

from __future__ import annotations

import ipaddress
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Any

import numpy as np
import numpy.typing as npt

from cdn_mapping.as_path import SET_ORIGIN
from cdn_mapping.votes import I64, U64, VoteRows
from core.errors import UsageError, not_found
from core.files.disk import whole_file
from core.reach import IPAddress

I32 = npt.NDArray[np.int32]

NONE = -1
"""Index that stands for "no prefix holds this address"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Sorted cuts of one IP version, and the prefix that matches from each cut to the next.

    `key` is what the binary search compares: the address for IPv4 (32 bits), the upper half for IPv6. `low` is None for
    IPv4; for IPv6 it is the lower half of each cut, zero for all but prefixes longer than /64.
    """

    key: npt.NDArray[np.uint32] | U64
    low: U64 | None
    prefix: I32
    """Index of the prefix that is the longest match from this cut on, or `NONE`."""

    def find(self, high: U64, low: U64) -> I32:
        """Index of the longest match of each address, `NONE` where there is none."""
        if len(self.key) == 0:
            return np.full(len(low), NONE, np.int32)
        wanted = low.astype(np.uint32) if self.low is None else high
        at = np.searchsorted(self.key, wanted, side="right")
        if self.low is not None:
            at = self._refine(at, high, low)
        matches = self.prefix[np.maximum(at - 1, 0)]
        return np.where(at == 0, np.int32(NONE), matches)

    def _refine(self, at: npt.NDArray[np.int64], high: U64, low: U64) -> npt.NDArray[np.int64]:
        """Among cuts of the same upper half, the last one whose lower half is not above the address's.

        Nearly all prefixes are /64 or shorter, so few addresses get here; they are searched in parallel.
        """
        assert self.low is not None  # noqa: S101 - narrows the type
        last = np.maximum(at - 1, 0)
        todo = np.flatnonzero((at > 0) & (self.key[last] == high) & (self.low[last] > low))
        if len(todo) == 0:
            return at
        wanted_low = low[todo]
        left = np.searchsorted(self.key, high[todo], side="left")
        right = at[todo]
        while True:
            open_ = left < right
            if not open_.any():
                break
            middle = (left + right) // 2
            safe = np.minimum(middle, len(self.key) - 1)
            above = self.low[safe] > wanted_low
            right = np.where(open_ & above, middle, right)
            left = np.where(open_ & ~above, middle + 1, left)
        at = at.copy()
        at[todo] = left
        return at


def flatten(high: U64, low: U64, length: npt.NDArray[np.uint8], *, bits: int) -> Cuts:
    """The cuts of a set of distinct prefixes (network addresses with host bits zero).

    Args:
        high, low: network addresses.
        length: prefix lengths.
        bits: 32 or 128.
    """
    end_high, end_low, beyond = _after(high, low, length, bits)
    all_high, all_low = np.concatenate((high, end_high)), np.concatenate((low, end_low))
    order = np.lexsort((all_low, all_high))
    sorted_high, sorted_low = all_high[order], all_low[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (sorted_high[1:] != sorted_high[:-1]) | (sorted_low[1:] != sorted_low[:-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(fresh) - 1
    cut_high, cut_low = sorted_high[fresh], sorted_low[fresh]
    first, stop = rank[: len(low)], rank[len(low) :].copy()
    stop[beyond] = len(cut_low)  # the prefix reaches the last address: no cut comes after it

    painted = np.full(len(cut_low), NONE, np.int32)
    for size in np.unique(length):  # short prefixes first, so that longer ones overwrite them
        chosen = np.flatnonzero(length == size)
        counts = stop[chosen] - first[chosen]
        offsets = np.cumsum(counts) - counts
        cells = np.arange(counts.sum()) - np.repeat(offsets - first[chosen], counts)
        painted[cells] = np.repeat(chosen.astype(np.int32), counts)

    needed = np.ones(len(painted), bool)
    needed[1:] = painted[1:] != painted[:-1]
    key = cut_low[needed].astype(np.uint32) if bits == 32 else cut_high[needed]
    return Cuts(key=key, low=None if bits == 32 else cut_low[needed], prefix=painted[needed])


def _after(high: U64, low: U64, length: npt.NDArray[np.uint8], bits: int) -> tuple[U64, U64, npt.NDArray[np.bool_]]:
    """First address after each prefix, and which prefixes reach the end of the address space (their value wraps)."""
    host = (bits - length.astype(np.int64)).astype(np.uint64)
    one, zero = np.uint64(1), np.uint64(0)
    if bits == 32:
        after = low + (one << host)
        beyond = after > np.uint64(0xFFFF_FFFF)
        return high, np.where(beyond, low, after), beyond
    in_low = host < np.uint64(64)
    step_low = np.where(in_low, one << np.where(in_low, host, zero), zero)
    step_high = np.where(in_low, zero, one << np.where(in_low, zero, np.minimum(host - np.uint64(64), np.uint64(63))))
    end_low = low + step_low
    carry = (in_low & (end_low < low)).astype(np.uint64)
    end_high = high + step_high + carry
    beyond = (end_high < high) | (length == 0)
    return np.where(beyond, high, end_high), np.where(beyond, low, end_low), beyond


FORMAT = 2
"""Version of the file. Increase it when an array changes meaning; older files are refused and built again."""

UNKNOWN = 0
"""Origin of a prefix that is announced by AS_SETs or AS_TRANS only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The table's entry for the prefix that holds an address."""

    prefix: str
    asn: int | None
    """The origin AS that most peers see; None if all paths end in AS_SETs or AS_TRANS."""
    votes: Mapping[int, int]
    """AS number -> peers that see it as the origin, most first."""
    as_set_votes: int
    """Peers whose path ends in an AS_SET, or in AS_TRANS."""

    @property
    def moas(self) -> bool:
        """Several AS announce the prefix (multiple-origin AS)."""
        return len(self.votes) > 1

    @property
    def dissent(self) -> float:
        """Share of peers that see another origin than `asn`, AS_SETs included."""
        total = sum(self.votes.values()) + self.as_set_votes
        return 1.0 - self.votes.get(self.asn or UNKNOWN, 0) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressFamily:
    """The prefixes of one IP version. All arrays but those of `rows` have one element per prefix."""

    version: int
    cuts: Cuts
    high: U64
    low: U64
    length: npt.NDArray[np.uint8]
    origin: npt.NDArray[np.uint32]
    first_row: npt.NDArray[np.int32]
    """Index of the prefix's first vote in `row_origin` and `row_votes`; one element more than prefixes."""
    row_origin: I64
    """Origins of each prefix: most votes first, in a tie the lowest AS number; AS_SETs last."""
    row_votes: npt.NDArray[np.int32]

    @property
    def moas(self) -> npt.NDArray[np.bool_]:
        """Whether each prefix has several origins."""
        real: I64 = np.zeros(len(self.row_origin) + 1, np.int64)
        np.cumsum(self.row_origin > 0, out=real[1:])
        return real[self.first_row[1:]] - real[self.first_row[:-1]] > 1

    def describe(self, index: int) -> Origin:
        """The data of one prefix."""
        high, low = int(self.high[index]), int(self.low[index])
        is_v4 = self.version == 4
        network = inet_ntop(AF_INET, low.to_bytes(4, "big")) if is_v4 else ipaddress.IPv6Address(high << 64 | low)
        rows = range(self.first_row[index], self.first_row[index + 1])
        votes = {int(self.row_origin[r]): int(self.row_votes[r]) for r in rows}
        sets = votes.pop(SET_ORIGIN, 0)
        return Origin(
            prefix=f"{network}/{self.length[index]}",
            asn=int(self.origin[index]) or None,
            votes=votes,
            as_set_votes=sets,
        )


_ARRAYS = ("high", "low", "length", "origin", "first_row", "row_origin", "row_votes")


def build_family(version: int, rows: VoteRows) -> AddressFamily:
    """The winner per prefix, and the intervals. `rows` are sorted by prefix (see `VoteRows`)."""
    count = len(rows.low)
    fresh = np.ones(count, bool)
    fresh[1:] = (
        (rows.high[1:] != rows.high[:-1]) | (rows.low[1:] != rows.low[:-1]) | (rows.length[1:] != rows.length[:-1])
    )
    starts = np.flatnonzero(fresh)
    prefix_of_row = np.cumsum(fresh) - 1
    # Most votes first, in a tie the lowest AS number; AS_SETs last, as they never win over a known AS.
    order = np.lexsort((rows.origin, -rows.votes, rows.origin == SET_ORIGIN, prefix_of_row))
    winner = rows.origin[order[starts]]
    high, low, length = rows.high[starts], rows.low[starts], rows.length[starts]
    return AddressFamily(
        version=version,
        cuts=flatten(high, low, length, bits=32 if version == 4 else 128),
        high=high,
        low=low,
        length=length,
        origin=np.where(winner == SET_ORIGIN, UNKNOWN, winner).astype(np.uint32),
        first_row=np.append(starts, count).astype(np.int32),
        row_origin=rows.origin[order],
        row_votes=rows.votes[order].astype(np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTable:
    """Addresses -> prefix and origin, for both IP versions."""

    v4: AddressFamily
    v6: AddressFamily
    about: Mapping[str, Any] = field(default_factory=dict)
    """Origin of the table: sources, routes, peers, what was dropped, what was truncated."""

    def find(self, address: str | IPAddress) -> Origin | None:
        """The longest match of one address, None if no prefix holds it."""
        return self.find_all([address])[0]

    def find_all(self, addresses: Sequence[str | IPAddress]) -> list[Origin | None]:
        """`find` for many addresses: those of a version are looked up at once. Raises ValueError for other text."""
        packed = b"".join(map(_packed, addresses))
        high, low = np.frombuffer(packed, ">u8").reshape(-1, 2).T.astype(np.uint64)
        is_v4 = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
        origins = np.full(len(addresses), None, object)
        for family, chosen in ((self.v4, is_v4), (self.v6, ~is_v4)):
            indices, at = np.unique(family.cuts.find(high[chosen], low[chosen]), return_inverse=True)
            known = np.empty(len(indices), object)
            known[:] = [None if index == NONE else family.describe(index) for index in indices.tolist()]
            origins[chosen] = known[at]
        described: list[Origin | None] = origins.tolist()
        return described

    def save(self, path: Path) -> None:
        """Writes the table atomically; uncompressed, because it is loaded often."""
        arrays: dict[str, Any] = {"format": np.array(FORMAT), "about": np.array(json.dumps(dict(self.about)))}
        for name, family in (("v4", self.v4), ("v6", self.v6)):
            for key in _ARRAYS:
                arrays[f"{name}_{key}"] = getattr(family, key)
            arrays[f"{name}_cut_key"], arrays[f"{name}_cut_prefix"] = family.cuts.key, family.cuts.prefix
            if family.cuts.low is not None:
                arrays[f"{name}_cut_low"] = family.cuts.low
        with whole_file(path) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **arrays)


def _packed(address: str | IPAddress) -> bytes:
    """An address of either version in 16 bytes, IPv4 as a mapped one, by the C library: a list has a million."""
    text = str(address)
    try:
        return inet_pton(AF_INET6, f"::ffff:{text}" if "." in text and ":" not in text else text)
    except OSError:  # a zone, or no address at all
        return ipaddress.ip_address(address).packed


def build(rows: Mapping[int, VoteRows], about: Mapping[str, Any]) -> PrefixTable:
    """A table from the votes of each IP version."""
    return PrefixTable(v4=build_family(4, rows[4]), v6=build_family(6, rows[6]), about=about)


def load(path: Path) -> PrefixTable:
    """Reads a table. Raises UsageError for a missing or broken file, or one of another version."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
            if int(stored["format"]) != FORMAT:
                raise UsageError(
                    f"this prefix table has format {int(stored['format'])}, this Upshift reads {FORMAT}",
                    where=str(path),
                    remedy="build it again: upshift map table RIB -o FILE.npz",
                )
            return PrefixTable(
                v4=_stored_family(stored, 4), v6=_stored_family(stored, 6), about=json.loads(str(stored["about"]))
            )
    except FileNotFoundError:
        raise not_found(path) from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"not a valid prefix table of Upshift ({reason})",
            where=str(path),
            remedy="build it again: upshift map table RIB -o FILE.npz",
        ) from None


def _stored_family(stored: Mapping[str, Any], version: int) -> AddressFamily:
    name = f"v{version}"
    arrays = {key: stored[f"{name}_{key}"] for key in _ARRAYS}
    low = stored[f"{name}_cut_low"] if version == 6 else None
    cuts = Cuts(key=stored[f"{name}_cut_key"], low=low, prefix=stored[f"{name}_cut_prefix"])
    lengths = {len(arrays[key]) for key in ("high", "low", "length", "origin")}
    if len(lengths) != 1 or len(arrays["first_row"]) != lengths.pop() + 1 or len(cuts.key) != len(cuts.prefix):
        raise ValueError(f"its {name} arrays do not fit together")
    return AddressFamily(version=version, cuts=cuts, **arrays)
