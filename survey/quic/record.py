"""One domain's survey of QUIC (a row of a `survey_quic` file), and the figures of many: shares of domains that offer,
answer and serve HTTP/3, with 95 % intervals: overall, by rank, provider and cause."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from survey.figures import Breakdown, Figures, Share, cell, results_of, shares_by_group, shares_of
from survey.quic.negotiate import NegotiationKind


class QuicCause(StrEnum):
    """How it ended; every domain has exactly one cause."""

    OK = "ok"
    """A verified handshake with ALPN h3, and a response below 500 over HTTP/3."""
    NO_CANDIDATE = "no_candidate"
    """Neither an HTTPS record nor Alt-Svc offers h3; nothing was sent to the servers."""
    DNS_ERROR = "dns_error"
    ADDRESS_REFUSED = "address_refused"
    """No address that may be contacted, or that this host has a route to; no packet was sent."""
    BLOCKED = "blocked"
    """Domain or address is on a block list; no packet was sent."""
    NO_ANSWER = "no_answer"
    """Not offered, probed all the same (`--all`), and silent."""
    ADVERTISED_ONLY = "advertised_only"
    """Offered, but neither the probe nor the handshake was answered."""
    VERSION_NEGOTIATION_ONLY = "version_negotiation_only"
    """It lists a version that we support, and then does not answer a handshake of that version."""
    VERSION_MISMATCH = "version_mismatch"
    """It lists no version that we support (1, 2)."""
    CERTIFICATE = "certificate"
    """The certificate is not valid for the domain, or not to be trusted."""
    TLS_ALERT = "tls_alert"
    ALPN = "alpn"
    """No h3 in the handshake."""
    TRANSPORT_ERROR = "transport_error"
    """Either side closed with a QUIC error, or its packets cannot be parsed."""
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    """Packets were received, but the handshake was not complete in time."""
    HTTP_ERROR = "http_error"
    """Handshake complete, but no response, a broken one, 421, or 500 and above."""


NOT_ASKED = frozenset({QuicCause.DNS_ERROR, QuicCause.ADDRESS_REFUSED, QuicCause.BLOCKED})
"""These say nothing about the server: whether it supports QUIC stays unknown."""


@dataclass(slots=True, kw_only=True)
class QuicRecord:
    """The result for one domain. None: not tested, or unknown.

    The columns from `host` to `response_s` are about the endpoint that decided: the first one that serves HTTP/3, else
    the first one that was asked, else the first one offered.
    """

    domain: str
    """The domain, as in the list."""
    rank: int | None = None
    provider: str | None = None
    """Provider, as mapped before the survey."""
    surveyed_at: float
    """When the survey of the domain ended."""
    cause: str = QuicCause.NO_CANDIDATE
    """One of `survey.quic.record.QuicCause`."""
    detail: str | None = None
    """The server's or the system's error message."""

    https_record_h3: bool | None = None
    """An HTTPS record offers h3; None if the look-up failed."""
    https_record_alpn: str | None = None
    """All protocols of all HTTPS records, comma separated."""
    alt_svc_h3: bool | None = None
    """The crawl saw an Alt-Svc header that offers h3; None if the domain was not crawled."""
    alt_svc_protocols: str | None = None
    """All protocols of that header, comma separated."""
    alt_svc_broken: int | None = None
    """Entries of it that violate the grammar of RFC 7838."""
    endpoints: int = 0
    """Tried."""

    origin: str | None = None
    """Whose HTTP/3 was asked for: the host of the target's URL, with its port if that is not 443, which alone is asked;
    without a URL, the domain."""
    host: str | None = None
    """Name of the endpoint: that host, or an alternative name from its offer."""
    port: int | None = None
    """UDP port of the endpoint."""
    source: str | None = None
    """Source of the endpoint: `https_record`, `alt_svc`, `guess`."""
    server_ip: str | None = None
    """The address that was contacted."""
    hints_differ: bool | None = None
    """The record's address hints do not contain `server_ip`, which is from DNS."""

    negotiation: str | None = None
    """How the forced version negotiation was answered: one of `survey.quic.negotiate.NegotiationKind`."""
    negotiation_flaw: str | None = None
    """What was wrong with an answer: one of `survey.quic.wire.Flaw`."""
    negotiation_probes: int | None = None
    """Packets sent to force version negotiation."""
    negotiation_s: float | None = None
    """Time from the last probe to its answer [s]. Domains with the same address and port share a probe."""
    versions: str | None = None
    """Versions in the server's order, as 8 hexadecimal digits, comma separated; without reserved ones."""
    versions_greased: bool | None = None
    """The list has reserved versions (RFC 9000, section 15), which exercise clients' version negotiation."""
    versions_duplicated: bool | None = None
    """The list has a version twice."""
    answers_unpadded: bool | None = None
    """The server answers a probe that is too small to begin a connection, which RFC 9000, section 5.2.2 forbids."""

    version: str | None = None
    """QUIC version of the connection, as 8 hexadecimal digits."""
    alpn: str | None = None
    """The protocol selected by ALPN (RFC 7301)."""
    tls_cipher: str | None = None
    """The negotiated cipher suite."""
    retry: bool | None = None
    """The server validated our address with a Retry packet first."""
    handshake_s: float | None = None
    """Time from the first Initial to the end of the handshake [s]."""
    http_status: int | None = None
    """Status of the response to a HEAD request over HTTP/3."""
    response_s: float | None = None
    """Time from the request to the response header [s]."""
    server: str | None = None
    """The `server` header of the HTTP/3 response."""
    alt_svc: str | None = None
    """The Alt-Svc header of the HTTP/3 response."""

    transport_parameters: str | None = None
    """All transport parameters of the server, in its order, as JSON; the columns below repeat some of them."""
    max_idle_timeout_ms: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    max_udp_payload_size_bytes: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_data_bytes: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_stream_data_bidi_local_bytes: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_stream_data_bidi_remote_bytes: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_stream_data_uni_bytes: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_streams_bidi: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    initial_max_streams_uni: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    ack_delay_exponent: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    max_ack_delay_ms: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    disable_active_migration: bool | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    active_connection_id_limit: int | None = None
    """Transport parameter (RFC 9000, section 18.2)."""
    max_datagram_frame_size_bytes: int | None = None
    """Transport parameter (RFC 9221, section 3)."""


def _offers(record: QuicRecord) -> bool | None:
    """None where nobody knows: the look-up failed, and no header offers it."""
    return record.alt_svc_h3 or record.https_record_h3


def _serves(record: QuicRecord) -> bool:
    return record.cause == QuicCause.OK


SHARES: Mapping[str, Callable[[QuicRecord], bool | None]] = {
    "offered": _offers,
    "https record": lambda r: r.https_record_h3,
    "alt-svc": lambda r: r.alt_svc_h3,
    "answers vn": lambda r: r.negotiation == NegotiationKind.VERSIONS,
    "http/3": _serves,
}
"""Name -> whether a domain counts. Of all domains that could be asked (`NOT_ASKED` says which could not)."""


def _unheard(record: QuicRecord) -> bool:
    """Nobody knows its headers, and nothing was sent to it, as DNS offers nothing."""
    return record.cause == QuicCause.NO_CANDIDATE and record.alt_svc_h3 is None


AT_MOST: Mapping[str, Callable[[QuicRecord], bool | None]] = {
    "offered": lambda r: _offers(r) if r.https_record_h3 is None or r.alt_svc_h3 is not None else True,
    "answers vn": lambda r: r.cause == QuicCause.NO_CANDIDATE or r.negotiation == NegotiationKind.VERSIONS,
    "http/3": lambda r: _unheard(r) or _serves(r),
}
"""The same, if all count of which it is not known: headers may offer what DNS does not, who is not asked may answer."""

NAMED_VERSIONS = {
    "00000001": "QUIC 1",
    "6b3343cf": "QUIC 2",
    "709a50c4": "QUIC 2, draft",
    "ff00001d": "draft 29",
}
"""RFC 9000, RFC 9369, and what servers still list."""


def _share(records: Iterable[QuicRecord], holds: Callable[[QuicRecord], bool | None]) -> Share:
    return shares_of(((record.domain, bool(holds(record))) for record in records), (True,))[True]


def figures(records: Sequence[QuicRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    surveyed = [record for record in records if record.cause not in NOT_ASKED]
    offered = [record for record in surveyed if _offers(record)]
    answered = [record for record in surveyed if record.negotiation == NegotiationKind.VERSIONS]
    listed = ((record.domain, version) for record in answered for version in (record.versions or "").split(","))
    small = [record for record in surveyed if record.answers_unpadded is not None]
    shares = shares_by_group(surveyed, "all", SHARES)
    most = shares_by_group(surveyed, "all", AT_MOST)
    bounds = [name for name, share in most["all"].items() if share.count > shares["all"][name].count]
    for group, own in shares.items():
        shares[group] = own | {name: replace(own[name], high=most[group][name].high) for name in bounds}
    # Who offers nothing is not contacted: results that were mapped afterwards have providers of those who offer alone.
    providers = {record.provider for record in surveyed} - {None}
    without = {record.provider for record in surveyed if record.cause == QuicCause.NO_CANDIDATE}
    if mapped_after := bool(providers) and without == {None}:
        shares = {group: own for group, own in shares.items() if group not in providers}
    fewer = ", ".join(f"{name} (n = {s.n:,})" for name, s in shares["all"].items() if s.n != len(surveyed))
    times = [record.handshake_s for record in surveyed if record.handshake_s is not None]
    flaws = dict(Counter(r.negotiation_flaw for r in surveyed if r.negotiation_flaw is not None).most_common())
    singles = {
        "usable_of_offered": _share(offered, _serves),
        "greased": _share(answered, lambda record: record.versions_greased),
        "answers_unpadded": _share(small, lambda record: record.answers_unpadded),
    }
    median_s = statistics.median(times) if times else None
    return Figures(
        title=f"{len(surveyed):,} of {results_of(records)} could be surveyed. Shares of these in %, 95 % intervals:",
        counts={"domains": len(records), "asked": len(surveyed)},
        shares=shares,
        lower_bounds=bounds,
        breakdowns={
            "causes": Breakdown(
                title="All domains, by cause:",
                heading=("cause", "domains %"),
                group="all domains",
                shares=shares_of((record.domain, record.cause) for record in records),
            ),
            "versions": Breakdown(
                title="Versions that servers list, in % of the domains whose servers answered the negotiation:",
                heading=("version", "domains %"),
                group="domains whose servers answered the negotiation",
                shares=shares_of(listed, of=(record.domain for record in answered)),
                labels={version: f"{version} {name}" for version, name in NAMED_VERSIONS.items()},
            ),
        },
        singles=singles,
        values={"flaws": flaws, "handshake_median_s": median_s},
        notes=[
            *([f"Of all domains, these are shares of those of which it is known: {fewer}."] if fewer else []),
            *_notes(singles, flaws, median_s),
            *([f"Lower bounds, with intervals up to what is possible: {', '.join(bounds)}. {_WHY}"] if bounds else []),
            *([_MAPPED_AFTER] if mapped_after else []),
        ],
    )


_WHY = "Nobody knows what headers of domains that were not crawled offer, and what who was not asked would answer."

_MAPPED_AFTER = (
    "No shares per provider: domains that offer nothing were not contacted, so their providers are not known. "
    "Map the list before it is surveyed."
)


def _notes(singles: Mapping[str, Share], flaws: Mapping[str, int], median_s: float | None) -> list[str]:
    notes = [f"Of domains that offer h3, {cell(singles['usable_of_offered'])} % serve it."]
    unpadded = singles["answers_unpadded"]
    if unpadded.n:
        notes.append(f"Of domains whose servers answered, {cell(unpadded)} % also answer a probe that is too small.")
    if flaws:
        notes.append("Flawed answers: " + ", ".join(f"{flaw} {count:,}" for flaw, count in flaws.items()) + ".")
    if median_s is not None:
        notes.append(f"Median handshake time: {median_s * 1000:.1f} ms.")
    return notes
