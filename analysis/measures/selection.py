"""The user's choice of downloads that enter speed-ups. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.measures.columns import Downloads, Texts, counts
from core.domain import CacheState, IdentityFlag, Outcome


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


WITHOUT_HITS = ("in a run with a cache miss", "in a run with an unknown cache state")
"""Why `--only-hits` leaves a measurement run out."""


def runs_without_hits(downloads: Downloads) -> Texts:
    """Per measurement run: empty, or that a download after the warm-up was not a cache hit (`WITHOUT_HITS`).

    Failed downloads are ignored: their cache state is unknown, and they are not in speed-ups anyway.
    """
    judged = ~downloads.is_warmup & ~downloads.outcome.are(Outcome.FAILED)
    missed = downloads.any_of_run(judged & downloads.cache_state.are(CacheState.MISS))
    other = downloads.any_of_run(judged & ~downloads.cache_state.are(CacheState.HIT))
    return Texts(np.where(missed, 0, np.where(other, 1, -1)).astype(np.int8), WITHOUT_HITS)


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


def client_limits(downloads: Downloads) -> ClientLimits:
    """Counts over all downloads, warm-ups included."""
    clients, ceilings = downloads.client.names, downloads.ceilings
    near = downloads.near_ceiling == 1
    unknown = downloads.has_rate & (downloads.near_ceiling < 0)
    of_client = counts((downloads.client.codes, len(clients)), where=near)
    of_ceiling = counts((downloads.ceiling, len(ceilings)), where=near)
    reasons: dict[str, set[str]] = {}
    pairs = counts((downloads.ceiling, len(ceilings)), (downloads.client.codes, len(clients)), where=unknown)
    for at, client in np.argwhere(pairs).tolist():
        reasons.setdefault(ceilings[at].fault or "", set()).add(clients[client])
    return ClientLimits(
        downloads=int(np.count_nonzero(downloads.has_rate)),
        near={name: int(count) for name, count in sorted(zip(clients, of_client, strict=True)) if count},
        doubtful=sum(int(count) for known, count in zip(ceilings, of_ceiling, strict=True) if known.too_low),
        unknown=int(np.count_nonzero(unknown)),
        reasons={reason: sorted(names) for reason, names in sorted(reasons.items())},
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
    """Measurement runs in which every download after the warm-up was a cache hit, except those that failed."""
    missed_runs: int
    """Runs with a cache miss."""
    unknown_runs: int
    """Runs without one in which the state of some download is unknown; in the others all failed after the warm-up."""


def identity(downloads: Downloads) -> Identity:
    """Counts over all measurement runs."""
    texts = downloads.identity_flags
    answered = downloads.any_of_run(texts.codes >= 0)
    flags = [flags_of(text) for text in texts.names]
    by_flag = {
        flag: downloads.any_of_run(texts.map([flag in members for members in flags], empty=False))
        for flag in IdentityFlag
    }
    numbers = {flag: int(np.count_nonzero(runs)) for flag, runs in by_flag.items()}
    judged = downloads.any_of_run(~downloads.is_warmup & ~downloads.outcome.are(Outcome.FAILED))
    others = runs_without_hits(downloads).codes[answered & judged]
    return Identity(
        runs=int(np.count_nonzero(answered)),
        flagged=int(np.count_nonzero(np.any(list(by_flag.values()), axis=0))),
        by_flag={flag: count for flag, count in numbers.items() if count},
        hit_runs=int(np.count_nonzero(others < 0)),
        missed_runs=int(np.count_nonzero(others == 0)),
        unknown_runs=int(np.count_nonzero(others == 1)),
    )


def flags_of(text: str | None) -> tuple[IdentityFlag, ...]:
    """The flags in `Download.identity_flags`; unknown ones, from a newer version, are skipped."""
    try:
        names = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(flag for flag in IdentityFlag if isinstance(names, list) and flag.value in names)
