"""One domain, from its name to a verdict: candidates, forced negotiation, handshake and HEAD."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.outreach.dns import ResolveError, Resolver
from core.untrusted import is_address
from survey.access import ADDRESS_REFUSED, Access, NotAskedError
from survey.quic import candidates, wire
from survey.quic.candidates import Candidate, OfferSource
from survey.quic.exchange import ExchangeRequest, ExchangeResult, exchange
from survey.quic.negotiate import NegotiationAnswer, NegotiationKind, Negotiator
from survey.quic.record import NOT_ASKED, QuicCause, QuicRecord
from survey.subjects import Subject
from survey.surveys import Context, Remark, Visit

SPOKEN = (wire.VERSION_1, wire.VERSION_2)
"""Versions that we can connect with."""

ANSWERS_KEPT = 65_536
"""Endpoints whose negotiation result is cached: a CDN's address serves thousands of domains of a list."""

UNPADDED_BYTES = 64
"""UDP payload of the probe that a server must not answer."""


@asynccontextmanager
async def visits(context: Context) -> AsyncIterator[Visit]:
    """The visit, and the sockets that it probes with."""
    settings = context.settings
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic logs every error of a server there
    async with Negotiator() as negotiator:
        resolver = context.access.resolver
        assert isinstance(resolver, Resolver)  # noqa: S101 - this survey starts no program
        yield QuicVisitor(
            access=context.access,
            resolver=resolver,
            negotiator=negotiator,
            handshakes=asyncio.Semaphore(settings.handshakes),
            timeout_s=context.options.timeout,
            probes=settings.probes,
            everything=settings.everything,
            unpadded=settings.unpadded,
            user_agent=context.user_agent,
            ca_file=settings.trusted,
        ).visit
        # If there are any, the rate is too high for this host.
        dropped = negotiator.drops()
        sentence = f"this host dropped {dropped:,} replies to probes: lower --rate"
        context.remarks.append(Remark("dropped", dropped, sentence))


@dataclass(slots=True, kw_only=True)
class QuicVisitor:
    """What all visits share."""

    access: Access
    resolver: Resolver
    negotiator: Negotiator
    handshakes: asyncio.Semaphore
    """Limits concurrent handshakes: more would wait for our own processor, which would falsify their times."""
    user_agent: str
    ca_file: Path | None = None
    timeout_s: float = 5.0
    """Time-out of a probe, of a handshake, and of a response [s]."""
    probes: int = 2
    """Most probes to a server that does not answer."""
    everything: bool = False
    """Also probe domains that do not offer HTTP/3."""
    unpadded: bool = False
    """Also send a probe that must not be answered."""
    _answers: OrderedDict[tuple[str, int], asyncio.Task[tuple[NegotiationAnswer, bool | None]]] = field(
        default_factory=OrderedDict
    )

    async def visit(self, subject: Subject, record: QuicRecord) -> QuicRecord:
        """One domain's record. Always returns one."""
        record.origin = subject.origin
        await self.access.names.turn()
        try:
            for name in subject.names:
                self.access.admit(name)
        except NotAskedError as error:
            record.cause, record.detail = QuicCause(error.failure), error.detail
            return record
        tried: list[QuicRecord] = []
        for endpoint in await self._endpoints(subject, record):
            tried.append(await self._try(subject, endpoint, record))
            if tried[-1].cause == QuicCause.OK:
                break
        decides = min(tried, key=lambda one: (one.cause != QuicCause.OK, one.cause in NOT_ASKED), default=record)
        return replace(decides, endpoints=len(tried))

    async def _endpoints(self, subject: Subject, record: QuicRecord) -> list[Candidate]:
        """Endpoints that offer HTTP/3. Writes the offers into the record, and the cause if there are none."""
        by_record: list[Candidate] = []
        try:
            services = await self.resolver.services(subject.host)
            by_record = candidates.of_services(services)
            record.https_record_h3 = bool(by_record)
            record.https_record_alpn = ",".join(dict.fromkeys(p for s in services for p in s.alpn)) or None
        except ResolveError as error:
            record.cause, record.detail = QuicCause.DNS_ERROR, f"HTTPS record: {error.detail}"
        by_header: list[Candidate] = []
        if subject.alt_svc is not None:
            offer = candidates.parse_alt_svc(subject.alt_svc)
            by_header = candidates.of_alt_svc(subject.host, offer)
            record.alt_svc_h3 = bool(by_header)
            record.alt_svc_protocols = ",".join(dict.fromkeys(a.protocol for a in offer.alternatives)) or None
            record.alt_svc_broken = offer.broken
        return candidates.chosen(subject.host, by_record, by_header, guess=self.everything)

    async def _try(self, subject: Subject, endpoint: Candidate, offered: QuicRecord) -> QuicRecord:
        """One endpoint's record, with what was offered copied into it."""
        record = replace(offered, detail=None, host=endpoint.host, port=endpoint.port, source=endpoint.source)
        try:
            address = await self._address(subject, endpoint)
            record.server_ip = address
            hints = [hint for hint in endpoint.hints if (":" in hint) == (":" in address)]
            if hints:
                record.hints_differ = address not in hints
            answer, unpadded = await self._negotiate((*subject.names, endpoint.host), address, endpoint.port)
            _take_answer(record, answer, unpadded)
            await self._settle(subject, endpoint, address, answer, record)
        except ResolveError as error:
            record.cause, record.detail = QuicCause.DNS_ERROR, f"{endpoint.host}: {error.detail}"
        except NotAskedError as error:
            record.cause, record.detail = QuicCause(error.failure), error.detail
        return record

    async def _address(self, subject: Subject, endpoint: Candidate) -> str:
        """The address to contact, as `Access.choose` says.

        Raises:
            ResolveError: there is none.
            NotAskedError: none may be contacted, or the endpoint is an address of the family that is not surveyed.
        """
        if is_address(endpoint.host):
            if (":" in endpoint.host) != self.access.ipv6:
                raise NotAskedError(ADDRESS_REFUSED, f"{endpoint.host} is not of the family that is surveyed")
            return endpoint.host
        await self.access.names.turn()
        answer = await self.resolver.addresses(endpoint.host, ipv6=self.access.ipv6)
        return self.access.choose(answer, subject.server_ip, *subject.names, endpoint.host)

    async def _negotiate(
        self, names: tuple[str, ...], address: str, port: int
    ) -> tuple[NegotiationAnswer, bool | None]:
        """The endpoint's answer to a forced negotiation; domains with the same endpoint share it.

        Raises NotAskedError if the owner of a name opted out.
        """
        key = (address, port)
        while True:
            for name in names:
                self.access.admit(name, address)
            task = self._answers.get(key)
            if task is None:
                task = self._answers[key] = asyncio.get_running_loop().create_task(self._ask(names, address, port))
                if len(self._answers) > ANSWERS_KEPT:
                    self._answers.popitem(last=False)
            try:
                return await asyncio.shield(task)  # cancelling this visit does not cancel the shared probe
            except NotAskedError:  # of the domain for which it asked; another may ask for itself
                if self._answers.get(key) is task:
                    del self._answers[key]

    def _turn(self, names: tuple[str, ...], address: str) -> AbstractAsyncContextManager[None]:
        """Holds the limits of an address for one probe, but no place: a silent server would have it for nothing."""
        return self.access.turn(*names, address=address, place=nullcontext())

    async def _ask(self, names: tuple[str, ...], address: str, port: int) -> tuple[NegotiationAnswer, bool | None]:
        answer = NegotiationAnswer(kind=NegotiationKind.SILENT, probes=0)
        for _ in range(self.probes):
            async with self._turn(names, address):
                latest = await self.negotiator.ask(address, port, timeout_s=self.timeout_s)
            answer = replace(latest, probes=answer.probes + latest.probes)
            if answer.kind is not NegotiationKind.SILENT:
                break
        if not (self.unpadded and answer.kind is NegotiationKind.VERSIONS):
            return answer, None
        async with self._turn(names, address):
            small = await self.negotiator.ask(
                address, port, timeout_s=min(1.0, self.timeout_s), size_bytes=UNPADDED_BYTES
            )
        return answer, small.kind is NegotiationKind.VERSIONS

    async def _settle(
        self, subject: Subject, endpoint: Candidate, address: str, answer: NegotiationAnswer, record: QuicRecord
    ) -> None:
        """The result: by the negotiation if that is enough, else by a handshake."""
        if answer.probes == 0:
            raise NotAskedError(ADDRESS_REFUSED, "this host has no route to it, or its own rules forbid it")
        offered = endpoint.source is not OfferSource.GUESS
        if answer.kind in (NegotiationKind.REFUSED, NegotiationKind.UNREACHABLE) or (
            answer.kind is NegotiationKind.SILENT and not offered
        ):
            record.cause = QuicCause.ADVERTISED_ONLY if offered else QuicCause.NO_ANSWER
            record.detail = {
                NegotiationKind.REFUSED: "ICMP: port closed",
                NegotiationKind.UNREACHABLE: "ICMP: unreachable",
            }.get(answer.kind)
            return
        versions: tuple[int, ...] = SPOKEN
        if answer.offer is not None:
            versions = tuple(version for version in SPOKEN if version in answer.offer.versions)
            if not versions:
                record.cause, record.detail = QuicCause.VERSION_MISMATCH, "the server lists no version that we support"
                return
        request = ExchangeRequest(
            address=address,
            port=endpoint.port,
            server_name=subject.host,
            versions=versions,
            user_agent=self.user_agent,
            ca_file=self.ca_file,
            timeout_s=self.timeout_s,
        )
        # A silent server costs little processor time, and would occupy a slot for the whole time-out.
        place = nullcontext() if answer.kind is NegotiationKind.SILENT else self.handshakes
        async with self.access.turn(*subject.names, endpoint.host, address=address, place=place):
            finding = await exchange(request)
        record.cause, record.detail = verdict(answer, finding)
        _take_finding(record, finding)


def verdict(answer: NegotiationAnswer, finding: ExchangeResult) -> tuple[QuicCause, str | None]:
    """Cause and detail of an endpoint with which a handshake was tried."""
    if finding.cause is not QuicCause.HANDSHAKE_TIMEOUT:
        return finding.cause, finding.detail
    if answer.kind is NegotiationKind.FLAWED:
        return QuicCause.TRANSPORT_ERROR, f"its answer is not a valid Version Negotiation packet: {answer.flaw}"
    if finding.received:
        return finding.cause, finding.detail
    if answer.kind is NegotiationKind.VERSIONS:
        return QuicCause.VERSION_NEGOTIATION_ONLY, finding.detail
    return QuicCause.ADVERTISED_ONLY, finding.detail


def _take_answer(record: QuicRecord, answer: NegotiationAnswer, unpadded: bool | None) -> None:
    record.negotiation, record.negotiation_probes = answer.kind, answer.probes
    record.negotiation_flaw, record.negotiation_s = answer.flaw, answer.answer_s
    record.answers_unpadded = unpadded
    if answer.offer is not None:
        record.versions = ",".join(f"{version:08x}" for version in answer.offer.versions)
        record.versions_greased, record.versions_duplicated = answer.offer.greased, answer.offer.duplicates


def _take_finding(record: QuicRecord, finding: ExchangeResult) -> None:
    record.version = None if finding.version is None else f"{finding.version:08x}"
    record.alpn, record.tls_cipher, record.retry = finding.alpn, finding.tls_cipher, finding.retry
    record.handshake_s, record.response_s = finding.handshake_s, finding.answer_s
    record.http_status = finding.http_status
    record.server, record.alt_svc = finding.headers.get("server"), finding.headers.get("alt-svc")
    if finding.parameters is not None:
        record.transport_parameters = finding.parameters.as_json()
        for identifier, name in wire.NUMBERS.items():
            setattr(record, name, finding.parameters.number(identifier))
        record.disable_active_migration = finding.parameters.has(wire.DISABLE_ACTIVE_MIGRATION)
