"""The words of the field as values: frozen, slotted, keyword-only, with the unit in every name or docstring.

Times are seconds as float unless a name says `_ms` or `_ns`; `*_at` are seconds since the Unix epoch (UTC). Rates are
Mbit/s = 10^6 bit/s. Sizes are bytes.
"""

from __future__ import annotations

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
    """How a download ended; every download ends as exactly one of these."""

    OK = "ok"
    FAILED = "failed"
    """It has a cause (`Failure`) and no place in speed-ups."""
    CENSORED = "censored"
    """It hit its time or byte budget: its true duration is at least what was seen, and enters speed-ups as a bound."""


class Failure(StrEnum):
    """Why a download is not `ok`. The vocabulary is closed: every client maps what it meets onto one of these."""

    ADDRESS_REFUSED = "address_refused"
    """The address is outside what the place may reach; no packet left."""
    DNS_ERROR = "dns_error"
    NETWORK_UNREACHABLE = "network_unreachable"
    CONNECTION_REFUSED = "connection_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection (for QUIC: no handshake) within the budget."""
    CONNECTION_RESET = "connection_reset"
    TLS_CERTIFICATE = "tls_certificate"
    TLS_ERROR = "tls_error"
    PROTOCOL_ERROR = "protocol_error"
    """The peer broke HTTP or QUIC."""
    HTTP_STATUS = "http_status"
    """The status was not 200; `http_status` has it."""
    CHALLENGE_PAGE = "challenge_page"
    """A bot check came instead of the file."""
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
    """The client program ended without an answer that we can read."""
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What a comparison is for, and so how analysis reads its row. The vocabulary is closed."""

    EFFECT = "effect"
    """What a configuration changes: a row of Table 2 and a finding of the report, with a verdict."""
    NOISE_FLOOR = "noise_floor"
    """Two configurations that are the same (A/A): a row of Table 2 without a verdict, which the others have to beat."""
    CACHE = "cache"
    """The warm-up against the same configuration later in the run, so what caches do: a row without a verdict."""


class VoidReason(StrEnum):
    """Why an attempt of a measurement run does not count. The vocabulary is closed, as `Failure` is."""

    INTERRUPTED = "interrupted"
    """The campaign was stopped or killed in the middle: no fault of the place."""
    EMULATOR_LATE = "emulator_late"
    """The path emulator delivered packets late."""
    EMULATOR_LOST = "emulator_lost"
    """The path emulator lost packets that no programmed drop accounts for."""
    HOST_DROPPED = "host_dropped"
    """The host, or a device of the lab, dropped packets outside the path."""
    PORT_REUSED = "port_reused"
    """Two downloads of the run had the same client port: nobody can tell their packets apart by it."""
    UNKNOWN = "unknown"
    """Only in files of older versions, which had a text instead."""


class HostDisturbance(StrEnum):
    """What the host did to one download, whose options were as asked. The vocabulary is closed, as `Failure` is."""

    CLIENT_LATE = "client_late"
    """The last byte was there, by the capture, well before the client read it: the client waited for a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What made a measurement run void."""

    reason: VoidReason
    detail: str
    """One clause for a person, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file on a server: one row of a `targets` file (`upshift.files.targets` reads and writes them)."""

    domain: str
    url: str
    provider: str = Provider.OTHER
    """One of `Provider`, or a name from a provider file of the user's."""
    rank: int | None = None
    """Position in the top list, from 1."""
    size_bytes: int | None = None
    """Size of the file, from Content-Length or as far as it was read."""
    size_is_lower_bound: bool = False
    """The probe stopped at the minimum size: the file is at least `size_bytes` long."""
    server_ip: str | None = None
    """The address seen by the crawl; a campaign resolves again."""
    depth: int | None = None
    """Links from the start page."""
    crawled_at: float | None = None
    """When the crawl was done with the domain."""
    alt_svc: str | None = None
    """The start page's Alt-Svc header (RFC 7838): a QUIC candidate."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, separated by spaces."""
    asn: int | None = None
    """Origin AS of the address."""
    organisation: str | None = None
    """Holder of that AS."""
    prefix: str | None = None
    """The announced prefix that holds the address."""
    rule: str | None = None
    """Why it is this provider: seed, sibling, excluded, none."""
    rival_asns: str | None = None
    """Origins of the prefix that other organisations hold, separated by spaces."""
    dissent: float | None = None
    """Share of the routing table's peers that see another origin, from 0 to 1."""
    cname_provider: str | None = None
    """The provider that the CNAMEs name."""
    cname_agrees: bool | None = None
    """Whether it is the provider of the AS; None where one of the two is not known."""
    ecn: bool | None = None
    """The server negotiates ECN (RFC 3168)."""
    sack: bool | None = None
    """The server negotiates SACK (RFC 2018)."""
    window_scaling: bool | None = None
    """The server negotiates window scaling (RFC 7323)."""
    quic: bool | None = None
    """HTTP/3 was served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A named pair of a client and the levels of all factors."""

    name: str
    client: str
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor name -> level. Factors that are not named have their default level."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Numbers for the client, e.g. `max_data`; those that are not named have the client's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of Table 2: the speed-up of `config` over `vs`, pair by pair within each measurement run."""

    name: str
    """What tables and report call the row."""
    config: str
    """Name of a configuration, or of the warm-up."""
    vs: str
    """The reference: name of another one."""
    role: Role = Role.EFFECT
    """One of `Role`."""

    @classmethod
    def of(cls, config: str, vs: str, role: Role = Role.EFFECT) -> Comparison:
        """With the name that a comparison has by default: `WS vs BL`."""
        return cls(name=f"{config} vs {vs}", config=config, vs=vs, role=role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctl:
    """A kernel setting of a network namespace, e.g. `net.ipv4.tcp_ecn` = `1`."""

    name: str
    value: str
    field: int | None = None
    """For a setting of several numbers (`tcp_rmem`): which one, from 0; the others are left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAttribute:
    """An attribute of the routes that downloads take (iproute2 `ip route`, e.g. `window`); None removes it."""

    name: str
    value: str | None


Setting = Sysctl | RouteAttribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What the first SYN and its SYN-ACK carried: the proof of treatment for TCP.

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
    """The first SYN asked for ECN and a retransmitted one did not (the kernel's `tcp_ecn_fallback`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One attempt to get one file with one configuration: one row of a `downloads` file.

    Times named `*_s` count from `started_at`, the start of connecting; None means that this point was not reached.
    """

    campaign: str
    """Name of the campaign."""
    vantage: str
    """Name of the vantage point."""
    iteration: int
    """From 1; each has one measurement run per target."""
    domain: str
    """Domain of the target."""
    url: str
    """What was downloaded."""
    provider: str
    """The target's provider."""
    configuration: str
    """Name of the configuration, or of the warm-up."""
    client: str
    """Name of the client."""
    transport: str
    """One of `Transport`."""
    levels: str
    """The levels asked for, as JSON: factor -> level, defaults included."""
    position: int
    """Place within the measurement run; 0 is the warm-up."""
    attempts: int
    """Measurement runs it took until this one was accepted (1 to 3)."""
    started_at: float
    """When the client began to connect."""
    outcome: str
    """One of `Outcome`."""
    failure: str | None
    """One of `Failure`; None if the download is ok."""
    failure_detail: str | None
    """What the client or the capture says of it, for a person."""
    http_status: int | None
    """Status of the final response."""
    http_version: str | None
    """1.1 or 3."""
    content_length: int | None
    """Content-Length of the response."""
    content_type: str | None
    """Content-Type of the response."""
    body_bytes: int
    """Bytes of the body that arrived."""
    body_sha256: str | None
    """SHA-256 of a whole body, in hexadecimal."""
    server_ip: str | None
    """The address that was contacted."""
    server_port: int | None
    """The port that was contacted."""
    local_ip: str | None
    """The client's own address."""
    local_port: int | None
    """The client's own port."""
    dns_s: float | None
    """Time that the fresh DNS look-up of the measurement run (or of this download) took."""
    cnames: str | None
    """Where the CNAME records of the look-up led, in order, as a JSON list; None if there was no look-up."""
    connect_s: float | None
    """End of TCP's handshake; for QUIC, of QUIC's and TLS's."""
    tls_s: float | None
    """End of the TLS handshake; None for QUIC, where `connect_s` is the end of both."""
    headers_s: float | None
    """Header fields of the final response."""
    first_byte_s: float | None
    """First byte of the response."""
    last_byte_s: float | None
    """Last body byte: the download time. For a censored download, the latest byte that came."""
    budget_s: float
    """The time budget; what needs longer is censored."""
    client_cpu_s: float | None
    """Processor time that the client used."""
    socket_drops: int | None
    """Packets that the kernel dropped because the client read its UDP socket too late; None for TCP."""
    client_version: str | None
    """Versions of the client and its libraries."""
    tls_version: str | None
    """As negotiated."""
    tls_cipher: str | None
    """The cipher suite, as negotiated."""
    alpn: str | None
    """The protocol that ALPN chose (RFC 7301)."""
    transport_detail: str | None
    """What the client itself knows of the connection, as JSON: TCP_INFO, or QUIC version and transport parameters."""
    response_headers: str | None
    """The few headers that tell cache and CDN, as JSON."""
    capture: str | None
    """Path of the capture, relative to the campaign's folder."""
    capture_dropped: int | None
    """Packets that the kernel dropped before tcpdump read them, in the whole measurement run."""
    lab_lateness_p99_ms: float | None
    """How late the path emulator delivered packets during the measurement run (lab only)."""
    lab_sent: int | None
    """Packets of this connection that entered the emulator, both directions (lab only)."""
    lab_received: int | None
    """Those of them that left it at the other end (lab only)."""
    lab_dropped: int | None
    """Programmed drops: seeded loss, full queue, AQM (lab only)."""
    lab_marked: int | None
    """Packets that the emulator marked CE (lab only)."""
    void_reason: str | None = None
    """One of `VoidReason`, where the last attempt that the campaign allows was void, too; else None."""
    void_detail: str | None = None
    """The reason with its numbers, for a person."""
    host_disturbance: str | None = None
    """One of `HostDisturbance`, where the host falsified this download's time; else None."""
    host_disturbance_detail: str | None = None
    """What was seen, with its numbers, for a person."""
    treatment_ok: bool | None = None
    """Whether the wire carried what was asked; None (unproven) where nothing can tell."""
    treatment_detail: str | None = None
    """Why it is not true, as a sentence."""
    engine: str | None = None
    """Which versions inspected it: what the `treatment_*` columns and its row of `kpis` come from."""

    @property
    def accepted(self) -> bool | None:
        """Whether it may enter a speed-up: False if it is void, disturbed or its treatment disproved, None where
        unproven."""
        is_disturbed = self.void_reason is not None or self.host_disturbance is not None
        return False if is_disturbed else self.treatment_ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """One download of an attempt that was void or interrupted, and repeated: one row of a `superseded` file."""

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
    """Which attempt of the measurement run it was, from 1."""
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
    """The reason with its numbers, for a person."""
