"""The values that all stages share: frozen, slotted, keyword-only dataclasses. Names or docstrings give units.

Times are seconds as float unless a name says `_ms` or `_ns`; `*_at` are seconds since the Unix epoch (UTC). Rates are
Mbit/s = 10^6 bit/s. Sizes are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Provider(StrEnum):
    """The organisation that announces a target's address."""

    AKAMAI = "akamai"
    AMAZON = "amazon"
    CLOUDFLARE = "cloudflare"
    GOOGLE = "google"
    MICROSOFT = "microsoft"
    OTHER = "other"


class Transport(StrEnum):
    TCP = "tcp"
    QUIC = "quic"


class Outcome(StrEnum):
    """How a download ended; every download has exactly one outcome."""

    OK = "ok"
    FAILED = "failed"
    """It has a cause (`Failure`) and is left out of speed-ups."""
    CENSORED = "censored"
    """It hit its time or byte budget: its measured duration is a lower bound, and enters speed-ups as one."""


class Failure(StrEnum):
    """Why a download is not `ok`. The vocabulary is closed: every client maps its errors onto one of these."""

    ADDRESS_REFUSED = "address_refused"
    """The address may not be contacted from this place; no packet was sent."""
    DNS_ERROR = "dns_error"
    NETWORK_UNREACHABLE = "network_unreachable"
    CONNECTION_REFUSED = "connection_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection (for QUIC: no handshake) within the budget."""
    CONNECTION_RESET = "connection_reset"
    TLS_CERTIFICATE = "tls_certificate"
    TLS_ERROR = "tls_error"
    PROTOCOL_ERROR = "protocol_error"
    """The server violated HTTP or QUIC."""
    HTTP_STATUS = "http_status"
    """The status was not 200 (see `http_status`)."""
    CHALLENGE_PAGE = "challenge_page"
    """A bot check, or another HTML page with status 200, was served instead of the file."""
    BLOCK_PAGE = "block_page"
    """A CDN's edge refused the request itself, with status 403 or 429."""
    TRUNCATED_BODY = "truncated_body"
    """The body ended before its Content-Length."""
    LENGTH_MISMATCH = "length_mismatch"
    """The body was longer than its Content-Length."""
    CONTENT_CHANGED = "content_changed"
    """Length or hash differ from the other downloads of the same measurement run."""
    STALLED = "stalled"
    """Censored: the time budget was hit, and nothing arrived in its second half."""
    TIME_BUDGET = "time_budget"
    """Censored: the time budget was hit while data was arriving."""
    BYTE_BUDGET = "byte_budget"
    """Censored: the byte budget was hit."""
    CLIENT_CRASHED = "client_crashed"
    """The client program ended without a valid result."""
    UNKNOWN = "unknown"


class Role(StrEnum):
    """The purpose of a comparison, which decides how analysis treats its row. The vocabulary is closed."""

    EFFECT = "effect"
    """The effect of a configuration: a row of Table 2 and a finding of the report, with a verdict."""
    NOISE_FLOOR = "noise_floor"
    """Two identical configurations (A/A): a row of Table 2 without a verdict, which effects have to exceed."""
    CACHE = "cache"
    """The warm-up against the same configuration later in the run: the effect of caches, without a verdict."""


class VoidReason(StrEnum):
    """Why an attempt of a measurement run does not count. The vocabulary is closed, like `Failure`."""

    INTERRUPTED = "interrupted"
    """The campaign was stopped or killed during the run; not an error of the place."""
    EMULATOR_LATE = "emulator_late"
    """The path emulator delivered packets late."""
    EMULATOR_LOST = "emulator_lost"
    """The path emulator lost packets that it was not programmed to drop."""
    HOST_DROPPED = "host_dropped"
    """The host, or a device of the lab, dropped packets outside the path."""
    PORT_REUSED = "port_reused"
    """Two downloads of the run had the same client port, so their packets cannot be told apart."""
    UNKNOWN = "unknown"
    """Only in files of older versions, which stored a text instead."""


class HostDisturbance(StrEnum):
    """How the host falsified one download whose options were as requested. The vocabulary is closed, like `Failure`."""

    CLIENT_LATE = "client_late"
    """By the capture, the last byte arrived well before the client read it: the client waited for a processor."""


class TreatmentReason(StrEnum):
    """Why a treatment is disproved or unproven. The vocabulary is closed, like `Failure`.

    At the client alone, a server that refuses and a path that strips cannot be distinguished. That needs data from the
    server's end (`Download.server_end`), which the lab records.
    """

    WRONG_OFFER = "wrong_offer"
    """The client's first SYN did not have the requested options."""
    NO_SYN_ACK = "no_syn_ack"
    """The client requested the option, and no SYN-ACK was captured."""
    FELL_BACK = "fell_back"
    """The client's kernel retransmitted its SYN without ECN (tcp_ecn_fallback)."""
    REFUSED_OR_STRIPPED = "refused_or_stripped"
    """The SYN-ACK lacks the option: the server refused it, or the path removed it; it is unknown which."""
    SERVER_REFUSED = "server_refused"
    """The server received the request and did not accept it; or it accepted ECN and sent no packets with ECT."""
    STRIPPED = "stripped"
    """The path removed the option from the SYN or from the SYN-ACK."""
    REWRITTEN = "rewritten"
    """The path changed the handshake in both directions: as requested for the client, but not for the server."""
    BLEACHED = "bleached"
    """ECN was negotiated, and under 10 % of 50 or more data packets arrived with ECT or CE."""
    CE_CLEARED = "ce_cleared"
    """The path marked packets CE, and under 10 % of these marks arrived."""
    QUIC_VERSION = "quic_version"
    """The QUIC version or the protocol (ALPN) was not the requested one."""
    ACCOUNTS_DIFFER = "accounts_differ"
    """Client and capture contradict each other."""
    NO_EVIDENCE = "no_evidence"
    """There is no capture, no SYN in it, or no report by the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """Why a download did not have what was requested."""

    reason: TreatmentReason
    detail: str
    """One clause of text, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """When an option took effect in a download: if this KPI is above this number."""

    kpi: str
    """A column of `kpis`."""
    above: float
    """Threshold, in the KPI's unit."""
    words: str
    """What it means, as text, e.g. `CE seen`."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Why a measurement run is void."""

    reason: VoidReason
    detail: str
    """One clause of text, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file on a server: one row of a `targets` file (`upshift.files.targets` reads and writes them)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What the first SYN and its SYN-ACK carried, at the client or at the server: the proof of treatment for TCP.

    `None` in a `synack_*` field means that no SYN-ACK was captured. Sources: RFC 9293 (flags, MSS), RFC 7323 (window
    scale, timestamps), RFC 2018 (SACK permitted), RFC 3168 section 6.1.1 (ECN-setup SYN has ECE and CWR, ECN-setup
    SYN-ACK has ECE only).
    """

    syn_ecn: bool
    synack_ecn: bool | None
    syn_sack: bool
    synack_sack: bool | None
    syn_window_scale: int | None
    """The shift count, None if the option is absent."""
    synack_window_scale: int | None
    synack_seen: bool
    syn_timestamps: bool
    synack_timestamps: bool | None
    syn_mss: int | None
    synack_mss: int | None
    syn_window: int
    """Unscaled window of the SYN [bytes]."""
    syn_count: int
    """SYNs of this connection, retransmitted ones included."""
    later_syn_without_ecn: bool
    """The first SYN requested ECN and a retransmitted one did not (the kernel's `tcp_ecn_fallback`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EcnDelivery:
    """Delivery of the ECN field (RFC 3168, section 5) of the server's packets. All counts are packets."""

    data: int
    """Data packets of the server that arrived."""
    marked: int
    """Data packets that arrived with ECT(0), ECT(1) or CE."""
    ce: int
    """Packets of the server that arrived with CE."""
    sent_marked: int | None = None
    """Packets that left the server with ECT or CE; None without data from the server's end."""
    ce_set: int | None = None
    """Packets that the path marked CE; likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The data of a TCP connection that factors check."""

    client: Handshake
    """As the client sent and received it."""
    server: Handshake | None = None
    """As the server received and sent it; None without data from the server's end."""
    ecn: EcnDelivery | None = None
    """None if the capture is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One download of one file with one configuration: one row of a `downloads` file.

    Columns named `*_s` that mark a moment count from `started_at`, the first packet; None: not reached.
    """

    campaign: str
    """Name of the campaign."""
    vantage: str
    """Name of the vantage point."""
    iteration: int
    """Number of the iteration, from 1; each has one measurement run per target."""
    domain: str
    """Domain of the target."""
    url: str
    """URL of the file."""
    provider: str
    """The target's provider."""
    configuration: str
    """Name of the configuration, or of the warm-up."""
    client: str
    """Name of the client."""
    transport: str
    """One of `Transport`."""
    levels: str
    """The requested levels, as JSON: factor -> level, defaults included."""
    position: int
    """Position within the measurement run, from 1; warm-ups come first, the last of them at 0."""
    attempts: int
    """Number of attempts of the measurement run, this one included (1 to 3)."""
    started_at: float
    """When the client sent its first packet (SYN, Initial). All other times of the download count from here."""
    setup_s: float | None
    """Time from the call of the client to its first packet: start of the program, arguments, certificates. It is not
    part of any other time. None if no packet was sent."""
    outcome: str
    """One of `Outcome`."""
    failure: str | None
    """One of `Failure`; None if the download is ok."""
    failure_detail: str | None
    """Description of the failure by the client or from the capture, as text."""
    http_status: int | None
    """Status of the final response."""
    http_version: str | None
    """HTTP version of the response: 1.1 or 3."""
    content_length: int | None
    """Content-Length of the response."""
    content_type: str | None
    """Content-Type of the response."""
    body_bytes: int
    """Bytes of the body that were received."""
    body_sha256: str | None
    """SHA-256 of the body in hexadecimal, if it is complete."""
    server_ip: str | None
    """The server's address."""
    server_port: int | None
    """The server's port."""
    local_ip: str | None
    """The client's address."""
    local_port: int | None
    """The client's port."""
    dns_s: float | None
    """Duration of the uncached DNS look-up for the measurement run (or for this download)."""
    cnames: str | None
    """Targets of the CNAME records in the DNS answer, in order, as a JSON list; None without a look-up."""
    connect_s: float | None
    """End of the TCP handshake; for QUIC, of the combined QUIC and TLS handshake."""
    tls_s: float | None
    """End of the TLS handshake; None for QUIC, where `connect_s` is the end of both."""
    headers_s: float | None
    """The final response's header was complete."""
    first_byte_s: float | None
    """First byte of the body; equal to `headers_s` if the body is empty."""
    last_byte_s: float | None
    """Last byte of the body: the download time. For a censored download, the last byte received."""
    budget_s: float
    """The time budget; longer downloads are censored."""
    client_cpu_s: float | None
    """CPU time of the thread that downloads, from the first packet to the end. Closing the connection is included,
    hashing the body is not. None: unknown."""
    transfer_cpu_s: float | None
    """The part of `client_cpu_s` up to the moment when the outcome was known: the last body byte of an ok download."""
    run_delay_s: float | None
    """Time in which that thread was ready to run and waited for a CPU (schedstat), from the first packet to the same
    moment. None: the kernel does not report it."""
    socket_drops: int | None
    """Packets that the kernel dropped because the client read its UDP socket too late; None for TCP."""
    client_version: str | None
    """Versions of the client and its libraries."""
    tls_version: str | None
    """TLS version, as negotiated."""
    tls_cipher: str | None
    """The negotiated TLS cipher suite."""
    tls_group: str | None
    """The negotiated group of the key exchange; None if the client's TLS library does not report it (Python's before
    3.14)."""
    alpn: str | None
    """The protocol selected by ALPN (RFC 7301)."""
    transport_detail: str | None
    """The client's data about the connection, as JSON: TCP_INFO, or QUIC version and transport parameters."""
    response_headers: str | None
    """Response headers that identify cache and CDN, as JSON."""
    capture: str | None
    """Path of the capture, relative to the campaign's folder."""
    capture_dropped: int | None
    """Packets that the kernel dropped before tcpdump read them, during the whole measurement run."""
    lab_lateness_p99_ms: float | None
    """How late the path emulator delivered packets during the measurement run (lab only)."""
    lab_sent: int | None
    """Packets of this connection that entered the emulator, both directions (lab only)."""
    lab_received: int | None
    """Packets of this connection that left the emulator (lab only)."""
    lab_dropped: int | None
    """Packets dropped as programmed: seeded loss, full queue, AQM (lab only)."""
    lab_marked: int | None
    """Packets that the emulator marked CE (lab only)."""
    server_end: str | None = None
    """Data from the server's end of the path, as JSON (lab only): the SYN as it arrived there, the
    SYN-ACK as it left, and ECN fields as they left and as they were marked on the way."""
    void_reason: str | None = None
    """One of `VoidReason` if the measurement run was still void in the last attempt; else None."""
    void_detail: str | None = None
    """The reason with its numbers, as text."""
    host_disturbance: str | None = None
    """One of `HostDisturbance` if the host falsified this download's time; else None."""
    host_disturbance_detail: str | None = None
    """Description of the disturbance with its numbers, as text."""
    slow_handshake: bool | None = None
    """Whether the handshake took longer than 1.3 times its round trips + 15 ms (`upshift.compose.inspect.handshakes`);
    None if it did not complete, or the round-trip time is unknown."""
    treatment_ok: bool | None = None
    """Whether the packets had the requested options; None (unproven) if that cannot be determined."""
    treatment_reason: str | None = None
    """One of `TreatmentReason` (the first if there are several) if `treatment_ok` is not true; else None."""
    treatment_detail: str | None = None
    """Why `treatment_ok` is not true, as a sentence."""
    prefix: str | None = None
    """The announced prefix of the target's address at the time of mapping."""
    asn: int | None = None
    """Its origin AS, likewise."""
    cache_state: str | None = None
    """One of `CacheState`; None without a response."""
    edge: str | None = None
    """The edge location or proxy that answered, from the header fields."""
    age_s: int | None = None
    """Time that the response was stored in caches, by its Age (RFC 9111, section 5.1)."""
    etag: str | None = None
    """The response's entity tag (RFC 9110, section 8.8.3)."""
    identity_flags: str | None = None
    """The `IdentityFlag`s of the download, as a JSON list; None for a warm-up, and without a response."""
    identity_detail: str | None = None
    """What differs, as text."""
    engine: str | None = None
    """Versions of the programs that made the `treatment_*` columns and the row of `kpis`."""

    @property
    def is_warmup(self) -> bool:
        """Whether it only warmed caches; left out of figures and most tables."""
        return self.position <= 0

    @property
    def accepted(self) -> bool | None:
        """Whether it may enter a speed-up: False if it is void, disturbed or a mismatch; None if unproven."""
        is_disturbed = self.void_reason is not None or self.host_disturbance is not None
        return False if is_disturbed else self.treatment_ok

    @property
    def time_bounds_s(self) -> tuple[float, float] | None:
        """Bounds of the download time [s], equal if it is known; None without a valid time.

        A censored download took longer than it was observed: it ended at its byte budget with its last byte, or at its
        time budget, even if data stopped before.
        """
        if self.outcome == Outcome.CENSORED:
            seen = self.last_byte_s or 0.0
            return (seen if self.failure == Failure.BYTE_BUDGET else max(seen, self.budget_s)), math.inf
        if self.outcome == Outcome.FAILED or self.last_byte_s is None or not 0 < self.last_byte_s < math.inf:
            return None
        return self.last_byte_s, self.last_byte_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """One download of a void or interrupted attempt that was repeated: one row of a `superseded` file."""

    campaign: str
    vantage: str
    iteration: int
    domain: str
    url: str
    provider: str
    configuration: str
    client: str
    position: int
    attempt: int
    """Number of the attempt, from 1."""
    started_at: float
    outcome: str
    failure: str | None
    last_byte_s: float | None
    body_bytes: int
    capture: str | None
    """Path of the attempt's capture; None for an interrupted one, whose capture is removed."""
    capture_dropped: int | None
    lab_lateness_p99_ms: float | None
    reason: str
    """One of `VoidReason`."""
    detail: str | None
    """The reason with its numbers, as text."""
