"""Cache state from response header fields. Pure; reads untrusted text, and never fails on it.

Sources: RFC 9111 (Age), RFC 9211 (Cache-Status), RFC 9110 (Via, ETag), W3C Server Timing; and the vendors' pages
"Cloudflare cache responses", "Pragma headers" (Akamai), "X-Cache" and "X-Served-By" (Fastly), "Server-Timing header"
(CloudFront), `$upstream_cache_status` (nginx). Access: 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from core.domain import CacheState

Headers = Mapping[str, str]
"""Names in lower case; several fields of one name are joined by commas (RFC 9110, section 5.2)."""

MAX_AGE_S = 1 << 31
"""The value used for a larger Age (RFC 9111, section 1.2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAnswer:
    """The cache from which a response came."""

    state: CacheState
    edge: str | None
    """Name of the edge location, or else of the last proxy."""
    age_s: int | None
    etag: str | None


def read_cache_headers(headers: Headers) -> CacheAnswer:
    """The cache state from a response's header fields; the most specific field counts."""
    age_s = _age_s(headers)
    states = (read(headers[name]) for name, read in _STATES.items() if name in headers)
    state = next((state for state in states if state is not CacheState.UNKNOWN), CacheState.UNKNOWN)
    if state is CacheState.UNKNOWN and age_s:
        # A response with Age came from a cache (RFC 9111, section 5.1); but caches send 0 on a miss, too.
        state = CacheState.HIT
    edges = (read(headers[name]) for name, read in _EDGES.items() if name in headers)
    edge = next((edge for edge in edges if edge is not None), None)
    return CacheAnswer(state=state, edge=edge, age_s=age_s, etag=headers.get("etag", "").strip() or None)


def _age_s(headers: Headers) -> int | None:
    """Age. The first member of a list counts; invalid numbers are ignored (RFC 9111, section 5.1)."""
    text = headers.get("age", "").partition(",")[0].strip()
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    return MAX_AGE_S if len(digits) > 10 else min(int(digits), MAX_AGE_S)


_HITS = frozenset({"HIT", "TCP_HIT", "TCP_MEM_HIT", "TCP_IMS_HIT", "TCP_NEGATIVE_HIT", "UPDATING"})
"""`UPDATING` (Cloudflare, nginx): from the cache, while another request refreshes it."""

_MISSES = frozenset(
    {"MISS", "EXPIRED", "BYPASS", "DYNAMIC", "REVALIDATED", "STALE"}
    | {"TCP_MISS", "TCP_REFRESH_HIT", "TCP_REFRESH_MISS", "TCP_REFRESH_FAIL_HIT", "TCP_REMOTE_HIT"}
    | {"REFRESHHIT", "CONFIG_NOCACHE", "PRIVATE_NOSTORE"}
)
"""Responses that were revalidated (`REVALIDATED`, `TCP_REFRESH_HIT`, CloudFront's `RefreshHit`) waited for another
server, as did those after its time-out (`STALE`, `TCP_REFRESH_FAIL_HIT`)."""


def _of_word(text: str) -> CacheState:
    """The state from the first word: `TCP_HIT from a1-2-3-4 (...)`, `Hit from cloudfront`, `MISS`."""
    words = text.split(maxsplit=1)
    word = words[0].upper() if words else ""
    return CacheState.HIT if word in _HITS else CacheState.MISS if word in _MISSES else CacheState.UNKNOWN


def _of_last_word(text: str) -> CacheState:
    """Caches append: the last member of the list is the one next to us (Fastly's X-Cache: `MISS, HIT`)."""
    return _of_word(_last(text))


def _of_cache_status(text: str) -> CacheState:
    """RFC 9211: the last member is the cache next to us; `hit` or `fwd=REASON` is a parameter of it."""
    _, *parameters = _split(_last(text), ";")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "fwd":
            return CacheState.MISS
        if name == "hit" and value.strip() in ("", "?1"):
            return CacheState.HIT
    return CacheState.UNKNOWN


_CLOUDFRONT_TIMING = {
    "cdn-cache-hit": CacheState.HIT,
    "cdn-cache-miss": CacheState.MISS,
    "cdn-cache-refresh": CacheState.MISS,
}


def _of_server_timing(text: str) -> CacheState:
    """Akamai's `cdn-cache; desc=HIT`, CloudFront's `cdn-cache-hit`."""
    for name, description in _timings(text):
        if name == "cdn-cache":
            return _of_word(description)
        if name in _CLOUDFRONT_TIMING:
            return _CLOUDFRONT_TIMING[name]
    return CacheState.UNKNOWN


_STATES: Mapping[str, Callable[[str], CacheState]] = {
    "cf-cache-status": _of_word,
    "cache-status": _of_cache_status,
    "x-cache": _of_last_word,
    "x-cache-status": _of_last_word,
    "server-timing": _of_server_timing,
}
"""Fields with a cache state, the most specific first."""

_RAY = re.compile(r"[0-9a-fA-F]+-([A-Z]{3})")
_FASTLY = re.compile(r"cache-[a-z0-9-]+-([A-Z0-9]+)")


def _of_ray(text: str) -> str | None:
    """Cloudflare: `230b030023ae2822-SJC` ends with the data centre's airport code."""
    match = _RAY.fullmatch(text.strip())
    return match[1] if match else None


def _of_served_by(text: str) -> str | None:
    """Fastly: `cache-iad2120-IAD, cache-sjc3120-SJC`. The last is next to us. Its data centre is used; its
    node changes from request to request. Other vendors use arbitrary names, which are ignored."""
    match = _FASTLY.fullmatch(_last(text))
    return match[1] if match else None


def _of_pop_timing(text: str) -> str | None:
    """CloudFront's `cdn-pop;desc="SEA19-C1"`."""
    return next((description or None for name, description in _timings(text) if name == "cdn-pop"), None)


def _of_via(text: str) -> str | None:
    """`1.1 varnish`, `1.1 lhr-edge (software)`: the last recipient of the request (RFC 9110, section 7.6.3)."""
    words = _last(text).split()
    return words[1] if len(words) > 1 else None


_EDGES: Mapping[str, Callable[[str], str | None]] = {
    "cf-ray": _of_ray,
    "x-amz-cf-pop": lambda text: text.strip() or None,
    "x-served-by": _of_served_by,
    "server-timing": _of_pop_timing,
    "via": _of_via,
}
"""Fields with a location, the most specific first."""


def _timings(text: str) -> Iterator[tuple[str, str]]:
    """Names of Server-Timing's metrics, and their descriptions, empty if missing."""
    for metric in _split(text, ","):
        name, *parameters = (part.strip() for part in _split(metric, ";"))
        pairs = dict(parameter.partition("=")[::2] for parameter in parameters)
        yield name.lower(), pairs.get("desc", "").strip().strip('"')


def _last(text: str) -> str:
    return _split(text, ",")[-1].strip()


def _split(text: str, separator: str) -> list[str]:
    """Parts between separators outside quoted strings; at least one."""
    parts, quoted = [""], False
    for character in text:
        if character == '"':
            quoted = not quoted
        if character == separator and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts
