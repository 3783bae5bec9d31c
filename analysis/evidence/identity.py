"""Did all downloads of a measurement run get the same object from the same server? Pure.

A speed-up compares times for the same bytes from the same cache. Each download after the warm-ups is compared with the
most frequent value; in a tie, with the first one. A header field that a response does not have is not compared.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from analysis.evidence.cache_headers import CacheAnswer, read_cache_headers
from core.domain import CacheState, Download, Failure, IdentityFlag

AGE_SLACK_S = 2.0
"""Copies whose storage times differ by at most this are the same: Age has whole seconds, and caches' clocks differ."""

_LONGEST_ROUTED = {4: 24, 6: 48}
"""IP version -> the longest prefix that is usually routed; two addresses in it have one origin AS."""


def with_identity(downloads: Sequence[Download]) -> list[Download]:
    """The downloads of a measurement run with the values of their header fields, and with their flags."""
    read = [_with_answer(download) for download in downloads]
    measured = [d for d in read if not d.is_warmup and d.http_status is not None]
    flags: dict[int, list[tuple[IdentityFlag, str]]] = {id(download): [] for download in measured}
    for download, flag, detail in _differences(measured):
        flags[id(download)].append((flag, detail))
    return [_flagged(download, flags.get(id(download))) for download in read]


def _with_answer(download: Download) -> Download:
    if download.http_status is None:
        return download
    answer: CacheAnswer = read_cache_headers(headers_of(download))
    return replace(download, cache_state=answer.state.value, edge=answer.edge, age_s=answer.age_s, etag=answer.etag)


def headers_of(download: Download) -> dict[str, str]:
    """The headers of its response that are kept, by their names in small letters."""
    try:
        headers = json.loads(download.response_headers or "{}")
    except (ValueError, RecursionError):  # by hand, or by another tool
        return {}
    return {str(name): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}


def _flagged(download: Download, flags: Sequence[tuple[IdentityFlag, str]] | None) -> Download:
    if flags is None:
        return replace(download, identity_flags=None, identity_detail=None)
    detail = "; ".join(f"{flag}: {words}" for flag, words in flags) or None
    return replace(download, identity_flags=json.dumps([flag.value for flag, _ in flags]), identity_detail=detail)


def _differences(measured: Sequence[Download]) -> Iterator[tuple[Download, IdentityFlag, str]]:
    """Each download that differs: its flag, and a description."""
    for flag, value in _VALUES:
        for download, mine, theirs in _others(measured, value):
            yield download, flag, f"{mine}, most of the run had {theirs}"
    for download in measured:
        if download.failure == Failure.CONTENT_CHANGED:
            yield download, IdentityFlag.OBJECT, download.failure_detail or "another object"
        if download.cache_state == CacheState.MISS:
            yield download, IdentityFlag.MISS, "after the warm-up"
    yield from _other_networks(measured)
    yield from _other_ages(measured)


def _others(
    measured: Sequence[Download], value: Callable[[Download], Hashable]
) -> Iterator[tuple[Download, Hashable, Hashable]]:
    """Downloads whose value is not the most frequent one, with both values; None means no value."""
    values = [value(download) for download in measured]
    known = Counter(one for one in values if one is not None)
    if len(known) < 2:
        return
    usual = known.most_common(1)[0][0]  # equal counts come in order of first appearance
    for download, mine in zip(measured, values, strict=True):
        if mine not in (None, usual):
            yield download, mine, usual


def _opaque_tag(download: Download) -> str | None:
    """The ETag without `W/`: both kinds identify the same representation (RFC 9110, section 8.8.3.2)."""
    return None if download.etag is None else download.etag.removeprefix("W/")


_VALUES: tuple[tuple[IdentityFlag, Callable[[Download], Hashable]], ...] = (
    (IdentityFlag.STATUS, lambda download: download.http_status),
    (IdentityFlag.EDGE, lambda download: download.edge),
    (IdentityFlag.ETAG, _opaque_tag),
)


def _other_networks(measured: Sequence[Download]) -> Iterator[tuple[Download, IdentityFlag, str]]:
    for download, mine, theirs in _others(measured, _network):
        yield download, IdentityFlag.NETWORK, f"{download.server_ip} in {mine}, most of the run had {theirs}"


def _network(download: Download) -> str | None:
    """The target's announced prefix if it contains the server's address, else the longest that is usually routed."""
    try:
        address = ipaddress.ip_address(download.server_ip or "")
        announced = ipaddress.ip_network(download.prefix, strict=False) if download.prefix else None
    except ValueError:
        return None
    if announced is not None and address in announced:
        return str(announced)
    return str(ipaddress.ip_network((address, _LONGEST_ROUTED[address.version]), strict=False))


def _other_ages(measured: Sequence[Download]) -> Iterator[tuple[Download, IdentityFlag, str]]:
    """Copies that were not stored when most were.

    A response that came at `t` with the Age `a` was stored (or validated) at `t - a`, at any time of request (RFC
    9111, section 4.2.3). A miss has its own flag; if all have Age 0, nothing is cached.
    """
    stored = [
        (download.started_at + download.headers_s - download.age_s, download)
        for download in measured
        if download.age_s is not None and download.headers_s is not None and download.cache_state != CacheState.MISS
    ]
    if not any(download.age_s for _, download in stored):
        return
    near = [sum(abs(at - other) <= AGE_SLACK_S for other, _ in stored) for at, _ in stored]
    usual, _ = stored[near.index(max(near))]
    for at, download in stored:
        if abs(at - usual) > AGE_SLACK_S:
            earlier = "earlier" if at < usual else "later"
            yield (
                download,
                IdentityFlag.AGE,
                (f"Age {download.age_s} s, so stored {abs(at - usual):.0f} s {earlier} than most of the run's"),
            )
