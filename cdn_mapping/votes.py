"""Who announces a prefix: the peers of a collector vote.

Rules, each with its reason:

- The origin that most peers see wins; in a tie, the lowest AS number, so that the table is reproducible.
- All other origins stay in the table (MOAS, and those of dissenting peers).
- A path that ends in an AS_SET or AS_TRANS votes for "unknown": it counts in the number of voters, never as an origin.
- Private and reserved AS numbers at the tail are skipped (`as_path.public_origin`); a path with only such numbers, one
  that ends in AS 0, or an empty one (a route of the collector's own network), does not vote and is counted.
- Default routes, and prefixes shorter than /8 (IPv4) or /16 (IPv6), are dropped: no registry allocates such blocks, so
  they are a peer's default route in parts, and would map every unrouted address. The real sample of 2014 begins
  with 0.0.0.0/0 out of AS 16637.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdn_mapping import as_path
from cdn_mapping.rib import LONGEST_CACHED_BYTES, RibEntry, RibReader

SHORTEST = {4: 8, 6: 16}
"""IP version -> shortest prefix length that is accepted."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRows:
    """Votes of one IP version: sorted by prefix, one row per prefix and origin."""

    high: U64
    """Upper 64 bits of the network address; zero for IPv4."""
    low: U64
    """Lower 64 bits; for IPv4 the address."""
    length: npt.NDArray[np.uint8]
    origin: I64
    """An AS number, or `as_path.SET_ORIGIN`."""
    votes: I64


_VOTE_BITS, _LENGTH_BITS = 16, 8


class _Columns:
    """Growing columns of one IP version: 16 or 24 bytes per row, where a dictionary of prefixes takes hundreds."""

    def __init__(self, version: int) -> None:
        self.high = array("Q") if version == 6 else None
        self.low = array("Q")
        self.facts = array("Q")
        """Origin + 1 (as `SET_ORIGIN` is -1), votes (a record has at most 65,535 routes), length."""

    def add(self, network: int, length: int, origin: int, votes: int) -> None:
        if self.high is not None:
            self.high.append(network >> 64)
            network &= 0xFFFF_FFFF_FFFF_FFFF
        self.low.append(network)
        self.facts.append(((origin + 1) << _VOTE_BITS | votes) << _LENGTH_BITS | length)

    def rows(self) -> VoteRows:
        """Sorted, with rows of the same prefix and origin summed (TABLE_DUMP has one record per peer)."""
        low, facts = np.array(self.low, np.uint64), np.array(self.facts, np.uint64)
        high = np.zeros_like(low) if self.high is None else np.array(self.high, np.uint64)
        length = (facts & np.uint64(2**_LENGTH_BITS - 1)).astype(np.uint8)
        votes = (facts >> np.uint64(_LENGTH_BITS) & np.uint64(2**_VOTE_BITS - 1)).astype(np.int64)
        origin = (facts >> np.uint64(_LENGTH_BITS + _VOTE_BITS)).astype(np.int64) - 1
        order = np.lexsort((origin, length, low, high))
        high, low, length, origin, votes = high[order], low[order], length[order], origin[order], votes[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (
            (high[1:] != high[:-1]) | (low[1:] != low[:-1]) | (length[1:] != length[:-1]) | (origin[1:] != origin[:-1])
        )
        starts = np.flatnonzero(fresh)
        return VoteRows(
            high=high[starts],
            low=low[starts],
            length=length[starts],
            origin=origin[starts],
            votes=np.add.reduceat(votes, starts),
        )


class _OriginCache(dict[bytes, int]):
    """Attributes with 4-byte AS numbers -> public origin. A dict, so that a cached look-up runs no Python code."""

    LIMIT = 400_000

    def __missing__(self, attributes: bytes) -> int:
        origin = as_path.quick_public_origin(attributes)
        if len(self) >= self.LIMIT:
            self.clear()
        if len(attributes) <= LONGEST_CACHED_BYTES:
            self[attributes] = origin
        return origin


class Ballot:
    """Collects the votes of one or several RIBs.

    Attributes:
        dropped: why routes did not vote -> number of routes.
        routes: routes seen in all.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.routes = 0
        self._columns = {4: _Columns(4), 6: _Columns(6)}

    def add_rib(self, reader: RibReader) -> None:
        """Counts the votes of a RIB file."""
        cache = _OriginCache()
        number = int.from_bytes
        routes = 0
        for record in reader.records():
            offset, version, network, length, as_bytes, peers, path_ids, blobs = record
            routes += len(blobs)
            if length < SHORTEST[version]:
                self._drop_short(length, len(blobs))
                continue
            try:
                if as_bytes == 4:
                    origins = [cache[blob] for blob in blobs]
                else:
                    origins = [as_path.public_origin(as_path.segments(blob, as_bytes=2)) for blob in blobs]
            except as_path.PathError as error:
                raise reader.fault(offset, str(error)) from None
            if path_ids is not None:  # ADD-PATH: several routes of one peer to the same origin are one vote
                origins = [origin for _, origin in dict.fromkeys(zip(peers, origins, strict=True))]
            if origins and origins[0] != as_path.NO_ORIGIN and origins.count(origins[0]) == len(origins):
                self._columns[version].add(number(network, "big"), length, origins[0], len(origins))
            else:
                self._count(version, number(network, "big"), length, origins)
        self.routes += routes

    def add_entries(self, entries: Iterable[RibEntry]) -> None:
        """Counts entries of another backend, whose paths are text."""
        import ipaddress

        parse = lru_cache(maxsize=1)(ipaddress.ip_network)  # entries of one prefix are adjacent
        origin_of = lru_cache(maxsize=_OriginCache.LIMIT)(as_path.public_origin_of_text)
        for entry in entries:
            self.routes += 1
            network = parse(entry.prefix)
            if network.prefixlen < SHORTEST[network.version]:
                self._drop_short(network.prefixlen, 1)
                continue
            origin = origin_of(entry.as_path)
            if origin == as_path.NO_ORIGIN:
                self.dropped["path without a public AS"] += 1
                continue
            self._columns[network.version].add(int(network.network_address), network.prefixlen, origin, 1)

    def rows(self, version: int) -> VoteRows:
        """The votes of an IP version."""
        return self._columns[version].rows()

    def _drop_short(self, length: int, routes: int) -> None:
        self.dropped["default route" if length == 0 else "prefix too short"] += routes

    def _count(self, version: int, network: int, length: int, origins: list[int]) -> None:
        """Counts one prefix's origins: routes without an origin are dropped."""
        for origin, votes in Counter(origins).items():
            if origin == as_path.NO_ORIGIN:
                self.dropped["path without a public AS"] += votes
            else:
                self._columns[version].add(network, length, origin, votes)
