"""Whether the downloads of a measurement run had the same file from the same place."""

from __future__ import annotations

from enum import StrEnum


class CacheState(StrEnum):
    """Whether a response came from the edge's cache, by its header fields. The vocabulary is closed."""

    HIT = "hit"
    """The edge answered from its cache, without contacting another server."""
    MISS = "miss"
    """The edge asked another server first: it did not have the file, may not keep it, or had to validate it."""
    UNKNOWN = "unknown"
    """No header field shows it."""


class IdentityFlag(StrEnum):
    """How a download differs from most others of its measurement run. The vocabulary is closed, like `Failure`.

    Warm-ups are not compared. Only values that both responses have are compared.
    """

    STATUS = "status_differs"
    """Another HTTP status."""
    OBJECT = "object_differs"
    """Another length or hash."""
    NETWORK = "network_differs"
    """A server address in another network: neither one announced prefix nor one /24 (IPv6: /48) has both."""
    MISS = "cache_miss"
    """A cache miss after the warm-up."""
    EDGE = "edge_differs"
    """Another edge location."""
    AGE = "age_differs"
    """Another cached copy: its Age does not agree with that of the others and the time between them."""
    ETAG = "etag_differs"
    """Another entity tag."""
