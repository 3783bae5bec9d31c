"""Asks many servers for their QUIC versions through one socket per address family.

A probe needs one datagram and no state in the kernel, so thousands can be in flight. Answers are matched to probes by
the connection ID that they must echo. A full receive buffer drops answers silently: we request a large one, and callers
limit their rate (of 5,000 probes sent at once, 188 answers arrived in a trial).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import StrEnum

from core.outreach.sockets import IP_RECVERR, IPV6_RECVERR, socket_drops
from core.reach import check_address
from survey.quic import wire

RECEIVE_BUFFER_BYTES = 1 << 24

_DATAGRAMS_PER_TURN = 512
"""Most answers that are read before other tasks may run."""

LATE_KEPT = 16_384
"""Probes that are remembered when they have ended, for answers that come late: at 1,000 a second, those of 16 s."""

_SO_RCVBUFFORCE = 33
"""include/uapi/asm-generic/socket.h: beyond net.core.rmem_max, if privileged."""

_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL})
"""Errors with which our own kernel refuses to send."""

Peer = tuple[str, int]
"""Numeric address and UDP port."""


class NegotiationKind(StrEnum):
    """How an endpoint answered a forced negotiation."""

    VERSIONS = "versions"
    """A valid list of versions."""
    FLAWED = "flawed"
    """Only invalid answers; `flaw` says what was wrong with the first one."""
    REFUSED = "refused"
    """ICMP: port unreachable."""
    UNREACHABLE = "unreachable"
    """ICMP or our own kernel: no route to the host."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationAnswer:
    """The result of a forced negotiation."""

    kind: NegotiationKind
    offer: wire.VersionOffer | None = None
    flaw: wire.Flaw | None = None
    probes: int = 1
    """Datagrams sent."""
    answer_s: float | None = None
    """Time from the last probe to the valid answer; None if it answered an earlier one."""


class _Waiting:
    """A probe in flight, or one that has ended: a time-out cancels its result."""

    def __init__(self, probe: wire.Probe, peer: Peer, size_bytes: int) -> None:
        self.probe, self.peer, self.size_bytes = probe, peer, size_bytes
        self.flaw: wire.Flaw | None = None
        self.answered_at: float | None = None
        """When its own answer came."""
        self.result: asyncio.Future[wire.VersionOffer | NegotiationKind] = asyncio.get_running_loop().create_future()

    def settle(self, result: wire.VersionOffer | NegotiationKind, *, answered_at: float | None = None) -> None:
        if not self.result.done():
            self.answered_at = answered_at
            self.result.set_result(result)


class Negotiator:
    """Open sockets, and the probes that wait for an answer. Use it as an async context manager."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._by_id: dict[bytes, _Waiting] = {}
        """Those in flight, and `LATE_KEPT` that have ended."""
        self._ended: deque[bytes] = deque()
        """IDs of the latter, in order."""
        self._by_peer: defaultdict[Peer, list[_Waiting]] = defaultdict(list)

    async def __aenter__(self) -> Negotiator:
        return self

    async def __aexit__(self, *_: object) -> None:
        for sock in self._sockets.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()

    def drops(self) -> int:
        """Answers that the kernel dropped because we did not read them in time."""
        return sum(socket_drops(sock) or 0 for sock in self._sockets.values())

    async def ask(
        self, address: str, port: int, *, timeout_s: float, size_bytes: int = wire.PADDED_BYTES
    ) -> NegotiationAnswer:
        """One probe, and its answer.

        Args:
            address: numeric; refused with ReachError if it may not be contacted.
            port: UDP port.
            timeout_s: longest wait for the answer [s].
            size_bytes: UDP payload; 1200 or more, except to test how the server treats smaller ones.
        """
        check_address(address)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(wire.new_probe(), (address, port), size_bytes)
        self._by_id[waiting.probe.source_id] = waiting
        self._by_peer[waiting.peer].append(waiting)
        try:
            sent_at = loop.time()
            if not self._send(waiting):
                return NegotiationAnswer(kind=NegotiationKind.UNREACHABLE, probes=0)
            result = await asyncio.wait_for(waiting.result, timeout_s)
        except TimeoutError:
            kind = NegotiationKind.SILENT if waiting.flaw is None else NegotiationKind.FLAWED
            return NegotiationAnswer(kind=kind, flaw=waiting.flaw)
        finally:
            self._ended.append(waiting.probe.source_id)
            if len(self._ended) > LATE_KEPT:
                del self._by_id[self._ended.popleft()]
            self._by_peer[waiting.peer].remove(waiting)
            if not self._by_peer[waiting.peer]:
                del self._by_peer[waiting.peer]
        if isinstance(result, NegotiationKind):
            return NegotiationAnswer(kind=result, flaw=waiting.flaw)
        answer_s = None if waiting.answered_at is None else waiting.answered_at - sent_at
        return NegotiationAnswer(kind=NegotiationKind.VERSIONS, offer=result, flaw=waiting.flaw, answer_s=answer_s)

    def _send(self, waiting: _Waiting) -> bool:
        """Sends a probe; False if our kernel has no route."""
        address, port = waiting.peer
        sock = self._socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        data = wire.datagram(waiting.probe, waiting.size_bytes)
        for _ in range(8):
            try:
                sock.sendto(data, (address, port))
                return True
            except BlockingIOError:
                return True  # a full send queue drops the datagram, as any path may
            except OSError as error:
                # Each pending ICMP error of an earlier probe is reported here, whatever we are sending.
                if not self._take_errors(sock) and error.errno in _UNREACHABLE:
                    return False
        return False

    def _socket(self, family: int) -> socket.socket:
        known = self._sockets.get(family)
        if known is not None:
            return known
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        asyncio.get_running_loop().add_reader(sock, self._readable, sock)
        self._sockets[family] = sock
        return sock

    def _readable(self, sock: socket.socket) -> None:
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                data, sender = sock.recvfrom(65_535)
            except BlockingIOError:
                break
            except OSError:  # a pending ICMP error; the error queue below has its details
                if not self._take_errors(sock):
                    break
            else:
                self._take(data, (sender[0], sender[1]))
        self._take_errors(sock)

    def _take(self, data: bytes, sender: Peer) -> None:
        """An answer from `sender`. One to a probe that timed out is that of the next one like it, which waits."""
        try:
            asked = self._by_id.get(wire.peek(data)[1])
        except wire.FlawedError as error:
            self._complain(sender, error.flaw)
            return
        if asked is None or asked.peer != sender:
            self._complain(sender, wire.Flaw.WRONG_CONNECTION_ID)
            return
        is_late = asked.result.cancelled()
        try:
            offer = wire.read_offer(data, asked.probe)
        except wire.FlawedError as error:
            if is_late:
                self._complain(sender, error.flaw)
            else:
                asked.flaw = asked.flaw or error.flaw
            return
        if not is_late:
            asked.settle(offer, answered_at=asyncio.get_running_loop().time())
            return
        for waiting in self._by_peer.get(sender, ()):
            if waiting.size_bytes == asked.size_bytes and not waiting.result.done():
                waiting.settle(offer)
                return

    def _complain(self, sender: Peer, flaw: wire.Flaw) -> None:
        """An answer that echoes no probe in flight: it is counted for the oldest one to that peer without a flaw."""
        for waiting in self._by_peer.get(sender, ()):
            if waiting.flaw is None:
                waiting.flaw = flaw
                return

    def _take_errors(self, sock: socket.socket) -> bool:
        """Takes all ICMP errors from the socket's queue; False if there is none."""
        taken = False
        while True:
            try:
                payload, ancillary, _, peer = sock.recvmsg(2_048, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return taken
            taken = True
            # struct sock_extended_err (include/uapi/linux/errqueue.h) begins with the errno.
            for (number,) in (struct.unpack_from("=I", data) for _, _, data in ancillary if len(data) >= 16):
                if number != errno.EMSGSIZE:  # a smaller path MTU is handled by the kernel
                    kind = NegotiationKind.REFUSED if number == errno.ECONNREFUSED else NegotiationKind.UNREACHABLE
                    self._settle_error((peer[0], peer[1]), payload, kind)

    def _settle_error(self, peer: Peer, payload: bytes, kind: NegotiationKind) -> None:
        """Ends the probe that an ICMP error quotes; if the quote is too short, or it has ended, all to that peer."""
        try:
            quoted = self._by_id.get(wire.peek(payload)[2])
        except wire.FlawedError:
            quoted = None
        if quoted is not None and quoted.peer == peer and not quoted.result.done():
            quoted.settle(kind)
            return
        for waiting in self._by_peer.get(peer, ()):
            waiting.settle(kind)
