"""One server's initial window: what to request, votes per MSS, what the window is counted in, pacing.

An object of a list is large enough to fill the window. Without one: `/`, then a redirect within the domain, then a path
of 1,000 letters that an error page may repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urljoin

from survey.access import Access, NotAskedError
from survey.iw.pacing import UNPACED_SEGMENTS, Flight, Pace, judge
from survey.iw.record import IwRecord, arrivals_text, windows_text
from survey.iw.request import PORTS, Request
from survey.iw.sources import CdnNames
from survey.iw.votes import BOUNDS, MERGED, ProbeResult, Vote, bounded, decide, fit, is_within_rfc6928
from survey.iw.wire import COOKIE_BYTES, Note, ProbeReply, ProbeRequest, ProbeVerdict, Scheme
from survey.programs import Turn
from survey.subjects import Subject

LONG_PATH = "/" + "a" * 1_000

URL_REFUSED = "url_refused"
"""Failure of a subject whose URL the prober cannot request."""


class ObjectCandidates:
    """The objects of one server, in the order in which they are tried.

    Args:
        first: the object of the list, or `/`.
        is_listed: whether the list names this object; then no other one is tried.
    """

    def __init__(self, first: Request, *, is_listed: bool) -> None:
        self.wanted = first
        self._steps = [] if is_listed else ["redirect", "long"]

    def more(self, reply: ProbeReply) -> bool:
        """Goes on to the next object after an answer that was too short; False if there is none.

        False also where the answer had more than was sent: it is long enough, and the rest was lost on its way.
        """
        if reply.content_length is not None and reply.content_length > reply.flight_bytes:
            return False
        while self._steps:
            step = self._steps.pop(0)
            if step == "long":
                self.wanted = replace(self.wanted, path=LONG_PATH)
                return True
            if (target := redirect(self.wanted, reply)) is not None:
                self.wanted = target
                return True
        return False


def redirect(wanted: Request, reply: ProbeReply) -> Request | None:
    """Where a redirect within the domain leads, with its cookie; None if there is none.

    Another scheme or port would be another server, and is not followed.
    """
    if not (300 <= reply.http_status < 400 and reply.location):
        return None
    try:
        target = Request.of(urljoin(wanted.url, reply.location))
    except ValueError:
        return None
    cookie = reply.set_cookie if len(reply.set_cookie) <= COOKIE_BYTES and reply.set_cookie.isascii() else ""
    target = replace(target, cookie=cookie if cookie.isprintable() else "")
    if (target.scheme, target.port) != (wanted.scheme, wanted.port) or not _same_domain(wanted.host, target.host):
        return None
    return target if target != wanted else None


def _same_domain(one: str, other: str) -> bool:
    """Whether one host lies within the other."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


PACING_MSS = 1200
"""MSS of the flights whose pacing is judged [bytes]."""

PACING_DELAYS_MS = (0, 50, 100)
PACING_ROUNDS = 2
"""Flights per delay."""

MOST_PACING_PROBES = 12

SYN_ACK_AGAIN_US = 1_000_000
"""A SYN-ACK that takes as long may be the second (RFC 6298). The server has no round trip of that, without time stamps,
and does not pace (Linux, tcp_synack_rtt_meas)."""

SMALL_MSS = 500
"""Firewalls drop SYNs with an MSS up to this one, against CVE-2019-11477 (`-m tcpmss --mss 1:500 -j DROP`) [bytes]."""

FAILURES = frozenset({*ProbeVerdict, MERGED}) - {ProbeVerdict.LIMITED, ProbeVerdict.LATE} - BOUNDS
"""Verdicts that come without any number, whatever the MSS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IwVisitor:
    """What all visits share."""

    access: Access
    ask: Callable[[ProbeRequest, Turn], Awaitable[ProbeReply]]
    """The prober."""
    user_agent: str
    names: CdnNames
    scheme: Scheme = Scheme.HTTP
    """Scheme of subjects without a URL."""
    path: str = "/"
    """Path of subjects without a URL."""
    mss: Sequence[int] = (64, 128, 536, 1200)
    larger_mss: bool = True
    """Whether a server that answers no SYN with a small MSS gets one above `SMALL_MSS`."""
    published: bool = False
    """Ten votes per MSS, always."""
    pipeline: int = 1
    pacing: bool = False
    limit_ms: int = 15_000
    vantage: str | None = None
    vantage_fit: bool | None = None

    async def visit(self, subject: Subject, record: IwRecord) -> IwRecord:
        """Surveys one server.

        Raises:
            NotAskedError: no packet was sent, or the owner opted out meanwhile.
            PlaceError: the error is this host's, not the server's.
        """
        record.mime_type, record.vantage, record.vantage_fit = subject.mime_type, self.vantage, self.vantage_fit
        wanted = self._wanted(subject)
        record.scheme, record.url = wanted.scheme.name.lower(), wanted.url
        record.server_ip, chain = await self.access.address(subject)
        record.cname_chain = " ".join(chain) or None
        record.cdn = self.names.of(wanted.host, chain)
        session = _Session(visitor=self, record=record, address=record.server_ip)
        candidates = ObjectCandidates(wanted, is_listed=subject.url is not None)
        votes: dict[int, Vote] = {}
        least = 0
        for mss in sorted(self.mss):
            if mss <= least:
                continue
            votes[mss] = await session.vote(candidates, mss)
            if votes[mss].verdict in FAILURES:
                is_silent = votes[mss].verdict == ProbeVerdict.CONNECT_TIMEOUT and len(votes) == 1
                if not self.larger_mss or mss > SMALL_MSS or not is_silent:
                    break
                least = SMALL_MSS
        record.url = candidates.wanted.url
        votes = bounded(votes)
        self._note(record, votes)
        if self.pacing and PACING_MSS in votes and votes[PACING_MSS].verdict == ProbeVerdict.LIMITED:
            await session.pace(candidates.wanted, votes[PACING_MSS].segments or 0)
        return record

    def _wanted(self, subject: Subject) -> Request:
        if subject.url is not None:
            try:
                return Request.of(subject.url)
            except ValueError as error:
                raise NotAskedError(URL_REFUSED, str(error)) from None
        return Request(scheme=self.scheme, host=subject.domain, port=PORTS[self.scheme], path=self.path)

    def _note(self, record: IwRecord, votes: dict[int, Vote]) -> None:
        record.windows = windows_text(votes)
        limited = [vote for vote in votes.values() if vote.verdict == ProbeVerdict.LIMITED]
        last = votes[max(votes)]
        record.verdict = str(ProbeVerdict.LIMITED) if limited else last.verdict
        if last.verdict in FAILURES and not limited:
            record.failure = last.verdict
            return
        record.within_rfc6928 = is_within_rfc6928(votes)
        window = fit(votes)
        if window is not None:
            record.iw_kind, record.iw_segments, record.iw_bytes = str(window.kind), window.segments, window.bytes
        elif len(self.mss) == 1 and limited:
            record.iw_segments = limited[0].segments


@dataclass(slots=True, kw_only=True)
class _Session:
    """The probes of one server."""

    visitor: IwVisitor
    record: IwRecord
    address: str

    async def probe(self, wanted: Request, mss: int, *, ack_delay_ms: int = 0) -> ProbeReply:
        """One probe; notes in the record what any probe tells."""
        visitor, record = self.visitor, self.record
        request = ProbeRequest(
            address=self.address,
            port=wanted.port,
            mss=mss,
            host=wanted.host,
            scheme=wanted.scheme,
            path=wanted.path,
            cookie=wanted.cookie,
            user_agent=visitor.user_agent,
            pipeline=visitor.pipeline,
            ack_delay_ms=ack_delay_ms,
            limit_ms=visitor.limit_ms,
        )
        names = (record.domain, wanted.host)
        reply = await visitor.ask(request, lambda: visitor.access.turn(*names, address=self.address))
        record.probes += 1
        record.losses += reply.holes > 0
        if reply.largest_bytes:
            record.mss_ignored = bool(record.mss_ignored) or bool(reply.notes & Note.MSS_IGNORED)
        record.http_status = reply.http_status or record.http_status
        record.tls_version = {12: "1.2", 13: "1.3"}.get(reply.tls_version, record.tls_version)
        record.rtt_s = _least(record.rtt_s, reply.rtt_us)
        record.retransmission_s = _least(record.retransmission_s, reply.retransmission_us)
        return reply

    async def vote(self, candidates: ObjectCandidates, mss: int) -> Vote:
        """The answer for one MSS; goes on to the next object if this one is too short."""
        probes: list[ProbeResult] = []
        short: list[ProbeResult] = []
        while (vote := decide(probes, published=self.visitor.published)) is None:
            reply = await self.probe(candidates.wanted, mss)
            probe = ProbeResult.of(reply)
            is_short = probe.verdict in (ProbeVerdict.LOWER_BOUND, ProbeVerdict.NO_DATA, ProbeVerdict.RESET)
            # What filled the window once is long enough: the answer, or what followed our ACK, was lost this time.
            is_short = is_short and not any(earlier.is_vote for earlier in probes)
            if is_short and candidates.more(reply):
                short += [probe] if probe.verdict == ProbeVerdict.LOWER_BOUND else []
                probes.clear()
                continue
            probes.append(probe)
        best = max(short, key=lambda probe: probe.segments, default=None)
        if best is not None and vote.verdict != ProbeVerdict.LIMITED and best.segments > (vote.segments or 0):
            # An earlier object was longer than the last one.
            return Vote(
                verdict=ProbeVerdict.LOWER_BOUND,
                segments=best.segments,
                bytes=best.bytes,
                payload_bytes=best.payload_bytes,
                agreeing=1,
                probes=vote.probes + len(short),
            )
        return vote

    async def pace(self, wanted: Request, segments: int) -> None:
        """Judges the pacing of a window, and keeps the arrivals of one flight without delay."""
        delays = (0,) if segments <= UNPACED_SEGMENTS else PACING_DELAYS_MS
        wanted_flights = 1 if segments <= UNPACED_SEGMENTS else PACING_ROUNDS * len(PACING_DELAYS_MS)
        flights: list[Flight] = []
        for number, delay_ms in enumerate(itertools.cycle(delays)):
            if number == MOST_PACING_PROBES or len(flights) == wanted_flights:
                break
            if sum(flight.delay_s == delay_ms / 1000 for flight in flights) == PACING_ROUNDS:
                continue
            reply = await self.probe(wanted, PACING_MSS, ack_delay_ms=delay_ms)
            flight = _flight(reply, segments, delay_ms)
            if flight is None:
                continue
            flights.append(flight)
            if delay_ms == 0 and self.record.arrivals is None:
                self.record.arrivals = arrivals_text(reply.arrivals)
        pacing = judge(segments, flights)
        record = self.record
        record.pace = str(pacing.pace)
        record.paced = None if pacing.pace == Pace.CANNOT_TELL else pacing.pace == Pace.PACED
        record.pacing_slope, record.pacing_slope_low = pacing.slope, pacing.slope_low
        record.pacing_slope_high, record.pacing_ratio = pacing.slope_high, pacing.ratio
        record.first_burst, record.train, record.spread_rtt = pacing.first_burst, pacing.train, pacing.spread_rtt


def _flight(reply: ProbeReply, segments: int, delay_ms: int) -> Flight | None:
    """The arrivals of a complete flight; None if an end is missing, packets of the handshake were lost, or no time
    passed (the clock was set back)."""
    is_whole = reply.flight_segments == segments and not reply.notes & (Note.ARRIVALS_CUT | Note.HELD_UP)
    # Over TLS the server's handshake comes a round trip earlier: only the answer is spread by pacing.
    arrivals = [arrival.at_us / 1e6 for arrival in reply.arrivals if arrival.end > reply.handshake_bytes]
    is_first = (reply.handshake_us or 0) < SYN_ACK_AGAIN_US
    if reply.verdict != ProbeVerdict.LIMITED or not (is_whole and is_first and reply.rtt_us) or len(arrivals) < 2:
        return None
    return Flight(delay_s=delay_ms / 1000, rtt_s=reply.rtt_us / 1e6, arrivals_s=arrivals)


def _least(known: float | None, measured_us: int | None) -> float | None:
    if measured_us is None:
        return known
    return measured_us / 1e6 if known is None else min(known, measured_us / 1e6)
