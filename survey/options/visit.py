"""One domain's survey: resolve, choose an address, shake hands, and tell what was negotiated."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from survey.options.probers import Handshake, Probers
from survey.options.record import LOCAL_FAULTS, SHAKEN, Failure, OptionsRecord, failure_of
from survey.options.tcp_info import TcpInfo
from survey.subjects import Subject
from upshift.errors import BlockedError, PlaceError, ReachError
from upshift.outreach.blocks import BlockLists
from upshift.outreach.dns import Answer, ResolveError, Resolver
from upshift.outreach.pace import Lanes, TokenBucket
from upshift.reach import check_public


class _NotAskedError(Exception):
    """No packet left for the server."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


@dataclass(slots=True, kw_only=True)
class Visitor:
    """What all visits share."""

    resolver: Resolver
    probers: Probers
    blocks: BlockLists
    names: TokenBucket
    """The rate of DNS questions."""
    handshakes: TokenBucket
    pace: Lanes
    sockets: asyncio.Semaphore
    ports: Sequence[int] = (443, 80)
    """Tried in this order until hands are shaken."""
    ipv6: bool = False
    again_after_s: float = 3.0
    """A server that negotiates no option at all is asked again after this time; 0: never."""

    async def visit(self, subject: Subject) -> OptionsRecord:
        """Surveys one domain. Raises PlaceError where this host, not the server, is at fault."""
        record = OptionsRecord(
            domain=subject.domain,
            rank=subject.rank,
            provider=subject.provider,
            outcome="failed",
            surveyed_at=time.time(),
        )
        try:
            self._admit(subject.domain, None)
            await self.names.turn()
            answer = await self.resolver.addresses(subject.domain, ipv6=self.ipv6)
            record.cname_chain = " ".join(answer.chain) or None
            record.server_ip = address = self._choose(subject, answer)
            await self._shake(record, address)
        except _NotAskedError as error:
            record.failure, record.failure_detail = error.failure, error.detail
        except ResolveError as error:
            record.failure, record.failure_detail = str(error.cause), error.detail
        return record

    def _admit(self, domain: str, address: str | None) -> None:
        """Raises _NotAskedError where the domain or the address is to be left alone."""
        try:
            self.blocks.check(domain, address)
        except BlockedError as error:
            raise _NotAskedError(Failure.BLOCKED, error.what) from None
        refusal = None if address is None else _refusal(address)
        if refusal is not None:
            raise _NotAskedError(Failure.ADDRESS_REFUSED, refusal)

    def _choose(self, subject: Subject, answer: Answer) -> str:
        """The crawl's address while DNS still names it, else the first that may be contacted."""
        refused: _NotAskedError | None = None
        for address in sorted(answer.addresses, key=lambda found: found != subject.server_ip):
            try:
                self._admit(subject.domain, address)
            except _NotAskedError as error:
                refused = refused or error
            else:
                return address
        raise refused or _NotAskedError(Failure.NO_ADDRESS, "no address")

    async def _shake(self, record: OptionsRecord, address: str) -> None:
        faults: list[tuple[int, int]] = []
        for port in self.ports:
            handshake = await self._handshake(record, address, port)
            if handshake.errno in SHAKEN and handshake.info is not None:
                record.outcome, record.server_port = "ok", port
                _note(record, handshake.info)
                # What a SYN cookie without timestamps leaves of the options (net/ipv4/syncookies.c): nothing.
                if self.again_after_s and not (record.sack or record.window_scaling or record.timestamps):
                    await asyncio.sleep(self.again_after_s)
                    await self._once_more(record, address, port)
                return
            faults.append((port, handshake.errno))
            if handshake.info is not None:
                record.syn_retransmissions = handshake.info.retransmissions
        record.server_port = faults[0][0]
        record.failure = failure_of(faults[0][1])
        record.failure_detail = "; ".join(f"port {port}: {os.strerror(code)}" for port, code in faults)

    async def _once_more(self, record: OptionsRecord, address: str, port: int) -> None:
        """A second handshake; what it negotiates counts too."""
        first = _negotiated(record)
        try:
            handshake = await self._handshake(record, address, port)
        except _NotAskedError:
            return  # they opted out meanwhile; what was seen before, stays
        if handshake.errno in SHAKEN and handshake.info is not None:
            _note(record, handshake.info)
            record.varied = _negotiated(record) != first

    async def _handshake(self, record: OptionsRecord, address: str, port: int) -> Handshake:
        async with self.pace.turn(address), self.sockets:
            await self.handshakes.turn()
            self._admit(record.domain, address)  # the last moment: waiting takes time, and they may have opted out
            record.attempts += 1
            handshake = await self.probers.probe(address, port)
        if handshake.errno in LOCAL_FAULTS:
            raise PlaceError(
                f"this host cannot open so many connections ({os.strerror(handshake.errno)})",
                remedy="lower --concurrency or --rate, then give the same command again: it goes on",
            )
        return handshake


@lru_cache(maxsize=1 << 16)
def _refusal(address: str) -> str | None:
    """Why an address may not be contacted, None where it may. One address of a CDN serves thousands of domains."""
    try:
        check_public(address)
    except ReachError as error:
        return error.what
    return None


def _negotiated(record: OptionsRecord) -> tuple[bool, bool, bool, bool]:
    return bool(record.ecn), bool(record.sack), bool(record.window_scaling), bool(record.timestamps)


def _note(record: OptionsRecord, info: TcpInfo) -> None:
    """Adds what a handshake negotiated to what is known."""
    record.ecn = bool(record.ecn) or info.ecn
    record.sack = bool(record.sack) or info.sack
    record.window_scaling = bool(record.window_scaling) or info.window_scaling
    record.timestamps = bool(record.timestamps) or info.timestamps
    if info.peer_window_scale is not None:
        record.window_scale = info.peer_window_scale
    record.snd_mss_bytes = info.snd_mss_bytes
    record.rtt_s = info.rtt_s
    record.syn_retransmissions = info.retransmissions
