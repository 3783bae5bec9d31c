"""One domain's survey of TCP options: choose an address, complete a handshake, record what was negotiated."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from core.errors import PlaceError
from survey.access import Access, NotAskedError
from survey.options.prober import REPLY, REQUEST, TcpInfo, parse_tcp_info
from survey.options.record import LOCAL_FAULTS, SHAKEN, OptionsRecord, failure_of
from survey.programs import ProberPool, ProberProgram
from survey.subjects import Subject
from survey.surveys import Context, Visit

Peer = tuple[str, int]
"""Address and TCP port."""


@dataclass(frozen=True, slots=True)
class HandshakeAttempt:
    """How one attempt ended."""

    errno: int
    """0: handshake completed; else an errno of connect(2)."""
    info: TcpInfo | None
    """None if there was no socket."""


def prober(timeout_s: float) -> ProberProgram[Peer, HandshakeAttempt]:
    """The program that makes the handshakes, `survey.options.prober`."""
    return ProberProgram(
        # -P: do not import modules from the working directory.
        argv=(sys.executable, "-P", "-m", "survey.options.prober", str(timeout_s)),
        encode=_request,
        reply_bytes=REPLY.size,
        decode=_replies,
        greeted=_greeted,
    )


def _request(number: int, endpoint: Peer) -> bytes:
    address, port = endpoint
    family, version = (socket.AF_INET6, 6) if ":" in address else (socket.AF_INET, 4)
    return REQUEST.pack(number, version, socket.inet_pton(family, address), port)


def _replies(data: bytes) -> Iterator[tuple[int, HandshakeAttempt]]:
    for number, code, info in REPLY.iter_unpack(data):
        yield number, HandshakeAttempt(code, parse_tcp_info(info) if any(info) else None)


def _greeted(line: bytes) -> None:
    try:
        wrong = json.loads(line)["wrong"]
    except (ValueError, KeyError):
        raise PlaceError(
            "the prober could not be started", remedy="run upshift doctor to see what is missing"
        ) from None
    if wrong:
        settings = ", ".join(f"{name} = {value}" for name, value in sorted(wrong.items()))
        raise PlaceError(
            f"the kernel settings here do not request every option ({settings})",
            remedy="leave --isolation at netns (as root), or set tcp_ecn = 1, tcp_ecn_fallback = 0 and "
            "tcp_sack, tcp_window_scaling, tcp_timestamps = 1 in this network namespace",
        )


@asynccontextmanager
async def visits(context: Context) -> AsyncIterator[Visit]:
    """The visit, and the programs that make its handshakes."""
    settings = context.settings
    async with ProberPool(prober(context.options.timeout), context.start, count=settings.probers) as probers:
        yield OptionsVisitor(
            access=context.access, probers=probers, ports=settings.ports, again_after_s=settings.again_after
        ).visit


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsVisitor:
    """What all visits share."""

    access: Access
    probers: ProberPool[Peer, HandshakeAttempt]
    ports: Sequence[int] = (443, 80)
    """Tried in this order until a handshake completes."""
    again_after_s: float = 3.0
    """A server that negotiates no option is tried again after this time; 0: never."""

    async def visit(self, subject: Subject, record: OptionsRecord) -> OptionsRecord:
        """Surveys one domain.

        Raises:
            NotAskedError: no packet was sent.
            PlaceError: the error is this host's, not the server's.
        """
        address, chain = await self.access.address(subject)
        record.server_ip = address
        record.cname_chain = " ".join(chain) or None
        await self._shake(subject, record, address)
        return record

    async def _shake(self, subject: Subject, record: OptionsRecord, address: str) -> None:
        faults: list[tuple[int, int]] = []
        for port in self.ports:
            handshake = await self._handshake(subject, record, address, port)
            if handshake.errno in SHAKEN and handshake.info is not None:
                record.outcome, record.server_port = "ok", port
                _note(record, handshake.info)
                # No option may be due to a SYN cookie without timestamps (net/ipv4/syncookies.c).
                if self.again_after_s and not (record.sack or record.window_scaling or record.timestamps):
                    await asyncio.sleep(self.again_after_s)
                    await self._once_more(subject, record, address, port)
                return
            faults.append((port, handshake.errno))
            if handshake.info is not None:
                record.syn_retransmissions = handshake.info.retransmissions
        record.server_port = faults[0][0]
        record.failure = failure_of(faults[0][1])
        record.failure_detail = "; ".join(f"port {port}: {os.strerror(code)}" for port, code in faults)

    async def _once_more(self, subject: Subject, record: OptionsRecord, address: str, port: int) -> None:
        """A second handshake; what it negotiates counts too."""
        first = _negotiated(record)
        try:
            handshake = await self._handshake(subject, record, address, port)
        except NotAskedError:
            return  # opted out meanwhile; earlier results are kept
        if handshake.errno in SHAKEN and handshake.info is not None:
            _note(record, handshake.info)
            record.varied = _negotiated(record) != first

    async def _handshake(self, subject: Subject, record: OptionsRecord, address: str, port: int) -> HandshakeAttempt:
        turn = partial(self.access.turn, *subject.names, address=address)
        handshake = await self.probers.ask((address, port), turn)
        record.attempts += 1
        if handshake.errno in LOCAL_FAULTS:
            raise PlaceError(
                f"this host cannot open that many connections ({os.strerror(handshake.errno)})",
                remedy="lower --concurrency or --rate, then run the same command again to resume",
            )
        return handshake


def _negotiated(record: OptionsRecord) -> tuple[bool, bool, bool, bool]:
    return bool(record.ecn), bool(record.sack), bool(record.window_scaling), bool(record.timestamps)


def _note(record: OptionsRecord, info: TcpInfo) -> None:
    """Adds what a handshake negotiated to the record."""
    record.ecn = bool(record.ecn) or info.ecn
    record.sack = bool(record.sack) or info.sack
    record.window_scaling = bool(record.window_scaling) or info.window_scaling
    record.timestamps = bool(record.timestamps) or info.timestamps
    if info.peer_window_scale is not None:
        record.window_scale = info.peer_window_scale
    record.snd_mss_bytes = info.snd_mss_bytes
    record.rtt_s = info.rtt_s
    record.syn_retransmissions = info.retransmissions
