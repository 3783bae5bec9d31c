"""The user's choice of downloads that enter speed-ups. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.measures.ceilings import delivery_rate
from analysis.measures.dataset import Record
from upshift.domain import CacheState, Download, IdentityFlag, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The user's choice."""

    unproven: bool = False
    """Include downloads whose treatment could not be determined."""
    only_hits: bool = False
    """Keep only measurement runs in which every download after the warm-up was a cache hit."""
    unlimited_only: bool = False
    """Leave out downloads above 70 % of their client's ceiling. Downloads with unknown ceiling stay in."""


DEFAULT = Selection()


def runs_without_hits(records: Iterable[Record]) -> dict[Hashable, str]:
    """Measurement runs in which a download after the warm-up was not a cache hit, with the reason.

    Failed downloads are ignored: their cache state is unknown, and they are not in speed-ups anyway.
    """
    found: dict[Hashable, str] = {}
    for record in records:
        d = record.download
        if d.is_warmup or d.outcome == Outcome.FAILED or d.cache_state == CacheState.HIT:
            continue
        if d.cache_state == CacheState.MISS:
            found[record.run] = "in a run with a cache miss"
        else:
            found.setdefault(record.run, "in a run with an unknown cache state")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """How many downloads may have been limited by the client itself."""

    downloads: int
    """Downloads with a rate: ok or censored, with a body."""
    near: Mapping[str, int]
    """Client -> downloads above `CEILING_SHARE` of its ceiling; only clients that have some."""
    doubtful: int
    """Those of them whose ceiling was measured while other programs used the CPUs, so that it is too low."""
    unknown: int
    """Downloads for which it is unknown."""
    reasons: Mapping[str, Sequence[str]]
    """Why a ceiling is unknown -> clients."""


def client_limits(records: Iterable[Record]) -> ClientLimits:
    """Counts over all downloads, warm-ups included."""
    rated = [r for r in records if r.download.outcome != Outcome.FAILED and delivery_rate(r.download) is not None]
    unknown = [record for record in rated if record.near_ceiling is None]
    reasons: dict[str, set[str]] = {}
    for record in unknown:
        reasons.setdefault(record.ceiling.fault or "", set()).add(record.download.client)
    near = Counter(record.download.client for record in rated if record.near_ceiling)
    return ClientLimits(
        downloads=len(rated),
        near=dict(sorted(near.items())),
        doubtful=sum(bool(record.near_ceiling) and record.ceiling.too_low for record in rated),
        unknown=len(unknown),
        reasons={reason: sorted(clients) for reason, clients in sorted(reasons.items())},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How many measurement runs got the same object from the same server."""

    runs: int
    """Measurement runs with a response."""
    flagged: int
    """Runs in which at least one download has a flag."""
    by_flag: Mapping[IdentityFlag, int]
    """Flag -> number of runs that have it; only flags that occur, in the order of `IdentityFlag`."""
    hit_runs: int
    """Measurement runs in which every download after the warm-up was a cache hit."""
    missed_runs: int
    """Runs with a cache miss; in the others the state of some download is unknown."""


def identity(records: Sequence[Record]) -> Identity:
    """Counts over all measurement runs."""
    flags: dict[Hashable, set[IdentityFlag]] = {}
    for record in records:
        if record.download.identity_flags is not None:
            flags.setdefault(record.run, set()).update(flags_of(record.download))
    counts = Counter(flag for members in flags.values() for flag in members)
    others = {run: why for run, why in runs_without_hits(records).items() if run in flags}
    missed = sum("miss" in why for why in others.values())
    return Identity(
        runs=len(flags),
        flagged=sum(bool(members) for members in flags.values()),
        by_flag={flag: counts[flag] for flag in IdentityFlag if counts[flag]},
        hit_runs=len(flags) - len(others),
        missed_runs=missed,
    )


def flags_of(download: Download) -> tuple[IdentityFlag, ...]:
    """The download's flags; unknown ones, from a newer version, are skipped."""
    try:
        found = json.loads(download.identity_flags or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(flag for flag in IdentityFlag if isinstance(found, list) and flag.value in found)
