"""The target set of a campaign, chosen from mapped and surveyed targets.

It belongs to the survey package because its criterion, "supports the options", is the survey's: this package defines
and writes the columns `ecn`, `sack`, `window_scaling` and `quic`.

The choice:

- One target per domain. Rows of the same domain and file are joined (one file may bring the options, another QUIC). One
  file is one target: of several domains that lead to it (in a list of host names) that of the best rank.
- Only targets that support what is required; a target that was not surveyed does not count as supporting.
- Per provider, strata by rank (1-1,000, -10,000, -100,000, -1,000,000, beyond, without rank), each with its share of
  the places (largest remainders), so that ranks in the set are distributed as among the eligible targets.
- Within a stratum the domains with the smallest SHA-256 of seed and domain: the same seed gives the same set, the order
  of the input does not matter, and if a list gains or loses a few domains, only a few places change.
- Targets of an earlier set (`union`) stay, with their file and what newer files say of it, even if they no longer
  support the options; new ones fill the rest.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from core.domain import Provider
from core.files.targets import MAPPED
from core.untrusted import canonical
from survey.figures import RANK_BUCKETS
from survey.iw.record import OF_TARGETS, OF_WINDOW

Row = Mapping[str, Any]
"""A target as a dictionary: all columns of the file, also those that `Target` does not have."""


class Require(StrEnum):
    """What a target must support."""

    TCP = "tcp"
    """ECN, SACK and window scaling."""
    QUIC = "quic"
    BOTH = "both"
    NONE = "none"


_COLUMNS = {
    Require.TCP: ("ecn", "sack", "window_scaling"),
    Require.QUIC: ("quic",),
    Require.BOTH: ("ecn", "sack", "window_scaling", "quic"),
    Require.NONE: (),
}

_OF_ADDRESS = (*MAPPED, "server_ip", "cname_chain")
"""What mapping says, and of what."""

NOT_CHOSEN = "not drawn: enough others"
SAME_FILE = "the same file as another domain's"


@dataclass(slots=True, kw_only=True)
class ProviderPlaces:
    """The places of one provider in the set, and its targets on the way into them."""

    wanted: int
    seen: int = 0
    kept: int = 0
    """Targets kept from the earlier set."""
    eligible: int = 0
    chosen: int = 0
    """Including kept ones."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason -> targets."""
    strata: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Stratum -> (eligible, drawn)."""

    @property
    def missing(self) -> int:
        """Places that stay empty."""
        return max(0, self.wanted - self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A target set, and how it was chosen."""

    rows: list[Row]
    shares: dict[str, ProviderPlaces]
    dropped: list[tuple[str, str, str, str]]
    """(domain, url, provider, reason), every row that is not in the set."""
    kept_without_support: list[str]
    """Domains of the earlier set that do not meet the requirement; they are in the set."""


def lacks(row: Row, require: Require) -> str | None:
    """Why a target is not eligible, None if it is."""
    if urlsplit(row["url"]).scheme != "https":
        return "its URL is not https; campaigns download https only"
    columns = _COLUMNS[require]
    unknown = [name for name in columns if row.get(name) is None]
    without = [name for name in columns if row.get(name) is False]
    if without:
        return "does not support " + ", ".join(without)
    return "not surveyed: " + ", ".join(unknown) if unknown else None


def stratum(rank: int | None) -> str:
    """Name of the rank's stratum."""
    if rank is None:
        return "without rank"
    low = 1
    for high in RANK_BUCKETS:
        if rank <= high:
            return f"{low:,}-{high:,}"
        low = high + 1
    return f"{low:,} and beyond"


def allocate(sizes: Mapping[str, int], places: int) -> dict[str, int]:
    """Places per stratum in proportion to its size: largest remainders; in a tie the larger stratum, then by name."""
    total = sum(sizes.values())
    places = min(places, total)
    if total == 0:
        return dict.fromkeys(sizes, 0)
    given = {name: places * size // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (-(places * sizes[name] % total), -sizes[name], name))
    for name in by_remainder[: places - sum(given.values())]:
        given[name] += 1
    return given


def _file(row: Row) -> str:
    """What tells files apart."""
    return canonical(row["url"])


def _joined(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """One row per domain, and the rows left out. Of several files of a domain the first one is kept."""
    merged: dict[str, dict[str, Any]] = {}
    dropped: list[tuple[Row, str]] = []
    for row in rows:
        known = merged.get(row["domain"])
        if known is None:
            merged[row["domain"]] = dict(row)
        elif _file(known) != _file(row):
            dropped.append((row, "another file of the same domain"))
        else:
            taken: tuple[str, ...] = _OF_ADDRESS if known.get("rule") is not None else ()
            if not taken and row.get("rule") is not None:
                known |= {"server_ip": None, "cname_chain": None}  # the mapping that comes may be of another
            if any(known.get(name) is not None for name in OF_WINDOW):
                taken += OF_TARGETS
            elif any(row.get(name) is not None for name in OF_WINDOW):
                known["paced"] = None  # it is not of the window that comes
            if known.get("size_bytes") is None and "size_is_lower_bound" in row:
                known["size_is_lower_bound"] = row["size_is_lower_bound"]  # it is said of the size, which comes too
            for name, value in row.items():
                if name in taken:
                    continue
                if known.get(name) is None or (name == "provider" and known[name] == Provider.OTHER):
                    known[name] = value
    return list(merged.values()), dropped


def _draw(share: ProviderPlaces, strata: Mapping[str, list[Row]], seed: int) -> tuple[list[Row], list[Row]]:
    """Fills the places of one provider; the rows that were drawn, and the others."""
    drawn: list[Row] = []
    others: list[Row] = []
    places = allocate({name: len(members) for name, members in strata.items()}, share.missing)
    for name, members in strata.items():
        members.sort(key=lambda row: hashlib.sha256(f"{seed}\n{row['domain']}".encode()).digest())
        drawn += members[: places[name]]
        others += members[places[name] :]
        share.strata[name] = (len(members), places[name])
    share.chosen += len(drawn)
    return drawn, others


def _by_rank(row: Row) -> tuple[bool, int, str]:
    """Best rank first, those without rank last."""
    return row.get("rank") is None, row.get("rank") or 0, row["domain"]


class _Draft:
    """The places of each provider while targets are chosen, and what was dropped."""

    def __init__(self, per_provider: int, other: int) -> None:
        self._wanted = {Provider.OTHER: other}
        self._per_provider = per_provider
        self.shares: dict[str, ProviderPlaces] = {}
        self.dropped: list[tuple[str, str, str, str]] = []

    def share(self, row: Row) -> ProviderPlaces:
        """The places of a target's provider."""
        provider = row["provider"]
        return self.shares.setdefault(provider, ProviderPlaces(wanted=self._wanted.get(provider, self._per_provider)))

    def drop(self, row: Row, reason: str) -> None:
        """A target that is not in the set."""
        self.share(row).dropped[reason] += 1
        self.dropped.append((row["domain"], row["url"], row["provider"], reason))


def compose(
    rows: Sequence[Row],
    *,
    per_provider: int,
    other: int,
    require: Require,
    seed: int,
    earlier: Sequence[Row] = (),
) -> Composition:
    """Chooses a target set (rules: at the top of this module).

    Args:
        rows: targets, in the order in which files of one domain take precedence.
        per_provider: places for each provider.
        other: places for targets without a provider.
        require: what they must support.
        seed: of the random draw.
        earlier: targets to keep.
    """
    draft = _Draft(per_provider, other)
    stay = {row["domain"]: row for row in reversed(earlier)}
    again = [row for row in rows if row["domain"] in stay]
    newer = [{**row, "url": was["url"]} for row in again if _file(row) == _file(was := stay[row["domain"]])]
    kept, kept_twice = _joined([*newer, *earlier, *again])
    chosen = list(kept)
    for row in kept:
        share = draft.share(row)
        share.kept += 1
        share.chosen += 1
    fresh, twice = _joined(row for row in rows if row["domain"] not in stay)
    eligible: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row, reason in (*kept_twice, *twice):
        draft.share(row).seen += 1
        draft.drop(row, reason)
    taken = set(map(_file, kept))
    for row in sorted(fresh, key=_by_rank):
        share = draft.share(row)
        share.seen += 1
        if (lack := lacks(row, require)) is not None:
            draft.drop(row, lack)
            continue
        if _file(row) in taken:
            draft.drop(row, SAME_FILE)
            continue
        taken.add(_file(row))
        share.eligible += 1
        eligible[row["provider"]][stratum(row.get("rank"))].append(row)
    for provider, strata in eligible.items():
        drawn, others = _draw(draft.shares[provider], strata, seed)
        chosen += drawn
        for row in others:
            draft.drop(row, NOT_CHOSEN)
    chosen.sort(key=lambda row: (row["provider"], *_by_rank(row)))
    return Composition(
        rows=chosen,
        shares=dict(sorted(draft.shares.items())),
        dropped=sorted(draft.dropped),
        kept_without_support=sorted(row["domain"] for row in kept if lacks(row, require) is not None),
    )


def account(composition: Composition) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "targets": len(composition.rows),
        "kept_without_support": composition.kept_without_support,
        "providers": {
            provider: {
                "wanted": share.wanted,
                "seen": share.seen,
                "eligible": share.eligible,
                "kept_from_earlier_set": share.kept,
                "chosen": share.chosen,
                "missing": share.missing,
                "strata": {
                    name: {"eligible": members, "drawn": drawn}
                    for name, (members, drawn) in sorted(share.strata.items())
                },
                "dropped": dict(sorted(share.dropped.items())),
            }
            for provider, share in composition.shares.items()
        },
    }
