"""What is downloaded and how: targets, configurations (client, levels, kernel settings), and their comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A named pair of a client and the levels of all factors."""

    name: str
    client: str
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor name -> level. Other factors have their default level."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Options of the client, e.g. `max_data`; others have the client's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctl:
    """A kernel setting of a network namespace, e.g. `net.ipv4.tcp_ecn` = `1`."""

    name: str
    value: str
    field: int | None = None
    """For a setting of several numbers (`tcp_rmem`): the index of the one to set, from 0; the others are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAttribute:
    """An attribute of the routes that downloads take (iproute2 `ip route`, e.g. `window`); None removes it."""

    name: str
    value: str | None


Setting = Sysctl | RouteAttribute


class Role(StrEnum):
    """The purpose of a comparison, which decides how analysis treats its row. The vocabulary is closed."""

    EFFECT = "effect"
    """The effect of a configuration: a row of Table 2 and a finding of the report, with a verdict."""
    NOISE_FLOOR = "noise_floor"
    """Two identical configurations (A/A): a row of Table 2 without a verdict, which effects have to exceed."""
    CACHE = "cache"
    """The warm-up against the same configuration later in the run: the effect of caches, without a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of Table 2: the speed-up of `config` over `vs`, pair by pair within each measurement run."""

    name: str
    """The row's name in tables and report."""
    config: str
    """Name of a configuration, or of the warm-up."""
    vs: str
    """The reference: the name of another configuration."""
    role: Role = Role.EFFECT
    """One of `Role`."""

    @classmethod
    def of(cls, config: str, vs: str, role: Role = Role.EFFECT) -> Comparison:
        """A comparison with the default name, e.g. `WS vs BL`."""
        return cls(name=f"{config} vs {vs}", config=config, vs=vs, role=role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """When an option took effect in a download, or could: if this KPI is above this number, or is this word."""

    kpi: str
    """A KPI: a column of `downloads`."""
    above: float
    """Threshold, in the KPI's unit; for a word without meaning."""
    words: str
    """What it means, as text, e.g. `CE seen`."""
    equals: str | None = None
    """The word that the KPI has to be, for one that is text."""


class Provider(StrEnum):
    """The organisation that announces a target's address."""

    AKAMAI = "akamai"
    AMAZON = "amazon"
    CLOUDFLARE = "cloudflare"
    GOOGLE = "google"
    MICROSOFT = "microsoft"
    OTHER = "other"


TargetKey = tuple[str, str]
"""Domain and URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file on a server: one row of a `targets` file (`core.files.targets` reads and writes them)."""

    domain: str
    url: str
    provider: str = Provider.OTHER
    """One of `Provider`, or a name from a user's provider file."""
    rank: int | None = None
    """Position in the top list, from 1; of CrUX, the bucket."""
    size_bytes: int | None = None
    """Size of the file: its Content-Length, or the number of bytes read."""
    size_is_lower_bound: bool = False
    """The crawl stopped reading at the minimum size: the file has at least `size_bytes` bytes."""
    server_ip: str | None = None
    """The server address at the time of the crawl; a campaign resolves the name again."""
    depth: int | None = None
    """Number of links from the start page to the page that names the file; 0: the start page itself."""
    crawled_at: float | None = None
    """When the crawl of the domain ended."""
    alt_svc: str | None = None
    """The last Alt-Svc header (RFC 7838) of the URL's host that the crawl saw, which may offer QUIC."""
    cname_chain: str | None = None
    """CNAMEs from the URL's host to its address, in order, separated by spaces."""
    asn: int | None = None
    """Origin AS of the address."""
    organisation: str | None = None
    """Organisation that holds that AS."""
    prefix: str | None = None
    """The announced prefix that contains the address."""
    rule: str | None = None
    """Which rule chose the provider: seed, sibling, excluded, none."""
    rival_asns: str | None = None
    """Origin AS numbers of the prefix that are known to belong to other organisations, separated by spaces."""
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
    """The URL's host serves HTTP/3 at port 443."""
    iw_segments: int | None = None
    """The server's initial window in segments, if it counts in segments."""
    iw_bytes: int | None = None
    """Its initial window with segments of 1460 bytes."""
    iw_kind: str | None = None
    """What it counts the window in: segments, bytes, rfc3390, floor or mixed."""
    paced: bool | None = None
    """It paces its initial window."""

    @property
    def key(self) -> TargetKey:
        """What identifies it within its campaign."""
        return self.domain, self.url


class ObjectKind(StrEnum):
    """What an object of a page is, by its MIME type."""

    DOCUMENT = "document"
    STYLE = "style"
    SCRIPT = "script"
    IMAGE = "image"
    FONT = "font"
    OTHER = "other"

    @classmethod
    def of(cls, mime_type: str) -> ObjectKind:
        """The kind of a Content-Type without parameters, in lower case."""
        named = {
            "text/html": cls.DOCUMENT,
            "application/xhtml+xml": cls.DOCUMENT,
            "text/css": cls.STYLE,
            "application/x-font-ttf": cls.FONT,
            "application/vnd.ms-fontobject": cls.FONT,
        }
        if mime_type in named:
            return named[mime_type]
        if mime_type.endswith(("javascript", "ecmascript")):
            return cls.SCRIPT
        if mime_type.startswith(("font/", "application/font-")):
            return cls.FONT
        return cls.IMAGE if mime_type.startswith("image/") else cls.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class PageObject:
    """An object of a domain's start page, or the page itself: one row of `upshift crawl objects`."""

    domain: str
    rank: int | None = None
    """Position in the list, from 1."""
    provider: str | None = None
    """Provider of the domain, if the list has one."""
    url: str | None = None
    """Where the object is, without query; None if the visit of the domain ended before its start page."""
    is_page: bool = False
    """Whether it is the start page itself; each domain has one such row."""
    kind: str | None = None
    """One of `ObjectKind`, by the MIME type of the answer; None without an answer of status 200."""
    size_bytes: int | None = None
    """Size of the body on the wire, compressed by gzip where the server does so; None if it is not known."""
    size_is_lower_bound: bool = False
    """The count was stopped: the object has at least `size_bytes` bytes."""
    http_status: int | None = None
    """Status of the last answer."""
    failure: str | None = None
    """Why there is no size: an outcome of a crawl, such as off_domain, other_address, http_status."""
    server_ip: str | None = None
    """The address that answered; None if nothing was asked."""
    skipped: int = 0
    """Of a page: what it names that no server has (data, blob and invalid URLs), or is beyond the most per page."""
    crawled_at: float | None = None
    """When the visit of the domain ended."""
