"""One download, one of an attempt that was repeated, and the counts of a plan's downloads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from core.domain.outcome import Failure, Outcome


class Transport(StrEnum):
    TCP = "tcp"
    QUIC = "quic"


@dataclass(frozen=True, kw_only=True)
class PlanColumns:
    """The columns of a download that are known before it starts."""

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
    """Number of attempts of the measurement run, this one included: earlier ones were void, or interrupted."""
    budget_s: float
    """The time budget; longer downloads are censored."""


@dataclass(frozen=True, kw_only=True)
class ClientColumns:
    """The columns that the client measures, under the same names in its document (`downloader.client`).

    Those named `*_s` that mark a moment count from `started_at`, the first packet; None: not reached.
    """

    started_at: float
    """When the client sent its first packet (SYN, Initial). All other times of the download count from here."""
    setup_s: float | None = None
    """Time from the call of the client to its first packet: start of the program, arguments, certificates. It is not
    part of any other time. None if no packet was sent."""
    outcome: str
    """One of `Outcome`."""
    failure: str | None
    """One of `Failure`; None if the download is ok."""
    failure_code: str | None = None
    """One of `FailureCode`: what exactly happened; None: the cause says all, or the client does not tell."""
    failure_number: int | None = None
    """The number that belongs to it: of a TLS alert, or an error code of HTTP/2, HTTP/3 or QUIC."""
    failure_detail: str | None
    """Description of the failure by the client or from the capture, as text."""
    http_status: int | None = None
    """Status of the final response."""
    http_version: str | None = None
    """HTTP version of the response: 1.1, 2 or 3."""
    content_length: int | None = None
    """Content-Length of the response."""
    content_type: str | None = None
    """Content-Type of the response."""
    body_bytes: int
    """Bytes of the body that were received."""
    body_sha256: str | None = None
    """SHA-256 of the body in hexadecimal, if it is complete."""
    server_ip: str | None = None
    """The server's address."""
    server_port: int | None = None
    """The server's port."""
    local_ip: str | None = None
    """The client's address."""
    local_port: int | None = None
    """The client's port."""
    connect_s: float | None = None
    """End of the TCP handshake; for QUIC, of the combined QUIC and TLS handshake."""
    tls_s: float | None = None
    """End of the TLS handshake; None for QUIC, where `connect_s` is the end of both."""
    headers_s: float | None = None
    """The final response's header was complete."""
    first_byte_s: float | None = None
    """First byte of the body that the client has: over TCP once its whole TLS record is there (of up to 16 KiB, RFC
    8446), over QUIC its packet; see `time_to_first_byte`. Equal to `headers_s` if the body is empty."""
    last_byte_s: float | None = None
    """Last byte of the body: the download time. For a censored download, the last byte received."""
    client_cpu_s: float | None = None
    """CPU time of the thread that downloads, from the first packet to the end. Closing the connection is included,
    hashing the body is not. None: unknown."""
    transfer_cpu_s: float | None = None
    """The part of `client_cpu_s` up to the moment when the outcome was known: the last body byte of an ok download."""
    run_delay_s: float | None = None
    """Time in which that thread was ready to run and waited for a CPU (schedstat), from the first packet to the same
    moment. None: the kernel does not report it."""
    socket_drops: int | None = None
    """Packets that the kernel dropped because the client read its UDP socket too late; None for TCP. Those that came
    merged (UDP GRO: quiche, quinn) count as one."""
    client_version: str | None = None
    """Versions of the client and its libraries."""
    tls_version: str | None = None
    """TLS version, as negotiated."""
    tls_cipher: str | None = None
    """The negotiated TLS cipher suite."""
    tls_group: str | None = None
    """The negotiated group of the key exchange; None if the client's TLS library does not report it (Python's before
    3.14)."""
    alpn: str | None = None
    """The protocol selected by ALPN (RFC 7301)."""


@dataclass(frozen=True, kw_only=True)
class ProofColumns:
    """The columns that inspection fills, besides the KPIs."""

    host_disturbance: str | None = None
    """One of `HostDisturbance` if the host falsified this download's time; else None."""
    host_disturbance_detail: str | None = None
    """Description of the disturbance with its numbers, as text."""
    slow_handshake: bool | None = None
    """Whether the handshake took longer than 1.3 times its round trips + 15 ms (`analysis.evidence.proof`);
    None if it did not complete, or the round-trip time is unknown."""
    treatment_ok: bool | None = None
    """Whether the packets had the requested options; None (unproven) if that cannot be determined."""
    treatment_reason: str | None = None
    """One of `TreatmentReason` (the first if there are several) if `treatment_ok` is not true; else None."""
    treatment_detail: str | None = None
    """Why `treatment_ok` is not true, as a sentence."""
    engine: str | None = None
    """Versions of the programs that made the `treatment_*` columns."""
    kpi_engine: str | None = None
    """Versions of the programs that made the KPIs; None: no connection is known to belong to the download, and its KPIs
    are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download(ProofColumns, ClientColumns, PlanColumns):
    """One download of one file with one configuration: the first columns of a row of `downloads`, before its KPIs.

    Besides those of the plan, the client and the proof, it has what the measurement run and its place tell.
    """

    dns_s: float | None = None
    """Duration of the uncached DNS look-up for the measurement run (or for this download)."""
    cnames: str | None = None
    """Targets of the CNAME records in the DNS answer, in order, as a JSON list; None without a look-up."""
    transport_detail: str | None = None
    """The client's data about the connection, as JSON: TCP_INFO, or QUIC version and transport parameters."""
    response_headers: str | None = None
    """Response headers that identify cache and CDN, as JSON."""
    capture: str | None = None
    """Path of the capture, relative to the campaign's folder."""
    capture_dropped: int | None = None
    """Packets that the kernel dropped before tcpdump read them, during the whole measurement run."""
    lab_lateness_p99_ms: float | None = None
    """How late the path emulator delivered packets during the measurement run (lab only)."""
    lab_sent: int | None = None
    """Packets of this connection that entered the emulator, both directions (lab only)."""
    lab_received: int | None = None
    """Packets of this connection that left the emulator (lab only)."""
    lab_dropped: int | None = None
    """Packets dropped as programmed: seeded loss, full queue, AQM (lab only)."""
    lab_marked: int | None = None
    """Packets that the emulator marked CE (lab only)."""
    server_end: str | None = None
    """Data from the server's end of the path, as JSON (lab only): the SYN as it arrived there, the
    SYN-ACK as it left, and ECN fields as they left and as they were marked on the way."""
    void_reason: str | None = None
    """One of `VoidReason` if the measurement run was still void in the last attempt; else None."""
    void_detail: str | None = None
    """The reason with its numbers, as text."""
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
    client_http: str | None = None
    """The HTTP version that the client is for; None: any, as client and server agree."""
    run: int | None = None
    """Number of the measurement run within its file, in the order of the rows; None: in no file yet."""

    @property
    def is_warmup(self) -> bool:
        """Whether it only warmed caches; left out of figures and most tables."""
        return self.position <= 0

    @property
    def cpu_share(self) -> float | None:
        """Share of a core that the client used from the first packet to the last body byte; None if unknown."""
        return self.share_of_time(self.transfer_cpu_s)

    @property
    def run_delay_share(self) -> float | None:
        """Share of that time in which the client waited for a CPU; None if unknown."""
        return self.share_of_time(self.run_delay_s)

    def share_of_time(self, part_s: float | None) -> float | None:
        """A part of the time from the first packet to the last body byte."""
        return None if part_s is None or not self.last_byte_s else part_s / self.last_byte_s

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far a plan is: downloads, unless a name says runs."""

    planned: int = 0
    ok: int = 0
    failed: int = 0
    censored: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    """Cause of failure or censoring -> downloads, most frequent first."""
    void_runs: int = 0
    """Attempts of measurement runs that were disturbed."""
    interrupted_runs: int = 0
    """Attempts of measurement runs that were interrupted."""

    @property
    def recorded(self) -> int:
        return self.ok + self.failed + self.censored

    def with_run(self, downloads: Sequence[Download], *, void: bool) -> Counts:
        """The counts with a measurement run that is recorded, void if its last attempt was disturbed, too."""
        outcomes = Counter(download.outcome for download in downloads)
        causes = Counter(download.failure for download in downloads if download.failure is not None)
        run = Counts(
            ok=outcomes[Outcome.OK],
            failed=outcomes[Outcome.FAILED],
            censored=outcomes[Outcome.CENSORED],
            causes={str(cause): count for cause, count in causes.items()},
            void_runs=int(void),
        )
        return replace(total([self, run]), planned=self.planned)


def total(parts: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    added = list(parts)
    causes = sum((Counter(part.causes) for part in added), Counter[str]())
    numbers = [entry.name for entry in fields(Counts) if entry.name != "causes"]
    return Counts(
        causes=dict(causes.most_common()), **{name: sum(getattr(part, name) for part in added) for name in numbers}
    )
