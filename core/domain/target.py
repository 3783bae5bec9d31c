"""What is downloaded: a file on a server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Provider(StrEnum):
    """The organisation that announces a target's address."""

    AKAMAI = "akamai"
    AMAZON = "amazon"
    CLOUDFLARE = "cloudflare"
    GOOGLE = "google"
    MICROSOFT = "microsoft"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file on a server: one row of a `targets` file (`core.files.targets` reads and writes them)."""

    domain: str
    url: str
    provider: str = Provider.OTHER
    """One of `Provider`, or a name from a user's provider file."""
    rank: int | None = None
    """Position in the top list, from 1."""
    size_bytes: int | None = None
    """Size of the file: its Content-Length, or the number of bytes read."""
    size_is_lower_bound: bool = False
    """The crawl stopped reading at the minimum size: the file has at least `size_bytes` bytes."""
    server_ip: str | None = None
    """The server address at the time of the crawl; a campaign resolves the name again."""
    depth: int | None = None
    """Number of links from the start page to the file."""
    crawled_at: float | None = None
    """When the crawl of the domain ended."""
    alt_svc: str | None = None
    """The start page's Alt-Svc header (RFC 7838), which may offer QUIC."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, separated by spaces."""
    asn: int | None = None
    """Origin AS of the address."""
    organisation: str | None = None
    """Organisation that holds that AS."""
    prefix: str | None = None
    """The announced prefix that contains the address."""
    rule: str | None = None
    """Which rule chose the provider: seed, sibling, excluded, none."""
    rival_asns: str | None = None
    """Origin AS numbers of the prefix that belong to other organisations, separated by spaces."""
    dissent: float | None = None
    """Share of the route collectors' peers that see another origin AS, from 0 to 1."""
    cname_provider: str | None = None
    """The provider according to the CNAMEs."""
    cname_agrees: bool | None = None
    """Whether `cname_provider` equals the provider of the AS; None if one of them is unknown."""
    ecn: bool | None = None
    """The server negotiates ECN (RFC 3168)."""
    sack: bool | None = None
    """The server negotiates SACK (RFC 2018)."""
    window_scaling: bool | None = None
    """The server negotiates window scaling (RFC 7323)."""
    quic: bool | None = None
    """The server serves HTTP/3."""
    iw_segments: int | None = None
    """The server's initial window in segments, if it counts in segments."""
    iw_bytes: int | None = None
    """Its initial window with segments of 1460 bytes."""
    iw_kind: str | None = None
    """What it counts the window in: segments, bytes, rfc3390, floor or mixed."""
    paced: bool | None = None
    """It paces its initial window."""
