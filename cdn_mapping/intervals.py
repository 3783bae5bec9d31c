"""Vectorised longest-prefix match: prefixes flattened to intervals that do not overlap, found by binary search.

A table of prefixes cuts the address space at the first address of each prefix and at the first one after it. Between
two cuts every address has the same longest match, so a look-up is one search among the cuts, and a batch of them is
one call of numpy. `benchmarks/mapping` has the figures beside a radix tree.

Addresses of IPv6 are pairs of 64-bit numbers, upper and lower half; those of IPv4 have an upper half of zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
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

    def find_v4(self, addresses: npt.NDArray[np.uint32]) -> I32:
        """`find` for IPv4 addresses as 32-bit numbers, without conversion to 64 bits."""
        if len(self.key) == 0:
            return np.full(len(addresses), NONE, np.int32)
        at = np.searchsorted(self.key, addresses, side="right")
        at -= 1
        matches: I32 = self.prefix[at]
        matches[at < 0] = NONE
        return matches

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
    if len(low) == 0:
        empty = np.zeros(0, np.uint64)
        return Cuts(
            key=empty.astype(np.uint32) if bits == 32 else empty,
            low=None if bits == 32 else empty,
            prefix=np.zeros(0, np.int32),
        )
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
