"""The prefix table: which AS announces an address. Built once from RIBs, stored as `.npz`, vectorised."""

from __future__ import annotations

import ipaddress
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdn_mapping.as_path import SET_ORIGIN
from cdn_mapping.intervals import NONE, Cuts, flatten
from cdn_mapping.votes import VoteRows
from core.errors import UsageError, not_found
from core.files.disk import whole_file
from core.reach import IPAddress, IPNetwork

FORMAT = 1
"""Version of the file. Increase it when an array changes meaning; older files are refused and built again."""

UNKNOWN = 0
"""Origin of a prefix that is announced by AS_SETs only."""

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The table's entry for the prefix that holds an address."""

    prefix: IPNetwork
    asn: int | None
    """The origin AS that most peers see; None if all paths end in AS_SETs."""
    votes: Mapping[int, int]
    """AS number -> peers that see it as the origin, most first."""
    as_set_votes: int
    """Peers whose path ends in an AS_SET."""

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
class Family:
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
    row_votes: npt.NDArray[np.int32]

    @property
    def moas(self) -> npt.NDArray[np.bool_]:
        """Whether each prefix has several origins."""
        real: I64 = np.zeros(len(self.row_origin) + 1, np.int64)
        np.cumsum(self.row_origin > 0, out=real[1:])
        return real[self.first_row[1:]] - real[self.first_row[:-1]] > 1

    def describe(self, index: int) -> Origin:
        """The data of one prefix."""
        network = int(self.high[index]) << 64 | int(self.low[index])
        kind = ipaddress.IPv4Network if self.version == 4 else ipaddress.IPv6Network
        rows = range(self.first_row[index], self.first_row[index + 1])
        votes = {int(self.row_origin[r]): int(self.row_votes[r]) for r in rows}
        sets = votes.pop(SET_ORIGIN, 0)
        return Origin(
            prefix=kind((network, int(self.length[index]))),
            asn=int(self.origin[index]) or None,
            votes=dict(sorted(votes.items(), key=lambda item: (-item[1], item[0]))),
            as_set_votes=sets,
        )


_ARRAYS = ("high", "low", "length", "origin", "first_row", "row_origin", "row_votes")


def build_family(version: int, rows: VoteRows) -> Family:
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
    return Family(
        version=version,
        cuts=flatten(high, low, length, bits=32 if version == 4 else 128),
        high=high,
        low=low,
        length=length,
        origin=np.where(winner == SET_ORIGIN, UNKNOWN, winner).astype(np.uint32),
        first_row=np.append(starts, count).astype(np.int32),
        row_origin=rows.origin,
        row_votes=rows.votes.astype(np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTable:
    """Addresses -> prefix and origin, for both IP versions."""

    v4: Family
    v6: Family
    about: Mapping[str, Any] = field(default_factory=dict)
    """Origin of the table: sources, routes, peers, what was dropped, what was truncated."""

    def find(self, address: str | IPAddress) -> Origin | None:
        """The longest match of one address, None if no prefix holds it."""
        ip = unmapped(ipaddress.ip_address(address))
        value = int(ip)
        family = self.v4 if ip.version == 4 else self.v6
        index = family.cuts.find(
            np.array([value >> 64], np.uint64), np.array([value & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)
        )[0]
        return None if index == NONE else family.describe(int(index))

    def origins_v4(self, addresses: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Origin AS of each IPv4 address (32-bit numbers), 0 if there is none. Sorted batches are fastest."""
        if len(self.v4.origin) == 0:
            return np.zeros(len(addresses), np.uint32)
        index = self.v4.cuts.find_v4(addresses)
        origins = self.v4.origin[index]
        origins[index == NONE] = UNKNOWN
        return origins

    def origins_v6(self, high: U64, low: U64) -> npt.NDArray[np.uint32]:
        """Origin AS of each IPv6 address (upper and lower half), 0 if there is none."""
        if len(self.v6.origin) == 0:
            return np.zeros(len(high), np.uint32)
        index = self.v6.cuts.find(high, low)
        origins = self.v6.origin[index]
        origins[index == NONE] = UNKNOWN
        return origins

    def find_all(self, addresses: Sequence[str | IPAddress]) -> list[Origin | None]:
        """`find` for many addresses: those of a version are looked up at once."""
        parsed = [unmapped(ipaddress.ip_address(address)) for address in addresses]
        origins: list[Origin | None] = [None] * len(parsed)
        for version, family in ((4, self.v4), (6, self.v6)):
            chosen = [position for position, ip in enumerate(parsed) if ip.version == version]
            values = [int(parsed[position]) for position in chosen]
            high = np.array([value >> 64 for value in values], np.uint64)
            low = np.array([value & 0xFFFF_FFFF_FFFF_FFFF for value in values], np.uint64)
            index = family.cuts.find(high, low)
            known = {int(i): family.describe(int(i)) for i in np.unique(index) if i != NONE}
            for position, i in zip(chosen, index, strict=True):
                origins[position] = known.get(int(i))
        return origins

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


def unmapped(ip: IPAddress) -> IPAddress:
    """The IPv4 address inside an IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2), else the address itself."""
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


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


def _stored_family(stored: Mapping[str, Any], version: int) -> Family:
    name = f"v{version}"
    arrays = {key: stored[f"{name}_{key}"] for key in _ARRAYS}
    low = stored[f"{name}_cut_low"] if version == 6 else None
    cuts = Cuts(key=stored[f"{name}_cut_key"], low=low, prefix=stored[f"{name}_cut_prefix"])
    lengths = {len(arrays[key]) for key in ("high", "low", "length", "origin")}
    if len(lengths) != 1 or len(arrays["first_row"]) != lengths.pop() + 1 or len(cuts.key) != len(cuts.prefix):
        raise ValueError(f"its {name} arrays do not fit together")
    return Family(version=version, cuts=cuts, **arrays)
