"""A real handshake with one endpoint, and a HEAD over HTTP/3: whether the server is usable, not only answers probes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, QuicEvent, StreamReset

from core.outreach.quic_engine import (
    CERTIFICATE_ALERTS,
    CRYPTO_ERROR,
    NO_COMMON_VERSION,
    RememberingConnection,
    UncheckedHttp3,
    request_fields,
)
from core.reach import check_address
from survey.quic import wire
from survey.quic.record import QuicCause

ALPN = "h3"
_NO_APPLICATION_PROTOCOL = 120
"""TLS alert (RFC 7301, section 3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRequest:
    """The endpoint to contact, and how."""

    address: str
    port: int
    server_name: str
    """SNI, name in the certificate and authority: always the origin's, wherever the endpoint is (RFC 7838, 2.1)."""
    versions: tuple[int, ...] = (wire.VERSION_1, wire.VERSION_2)
    """Versions to try, in this order."""
    user_agent: str
    ca_file: Path | None = None
    timeout_s: float = 5.0
    """Time-out of the handshake, and again of the response [s]."""


@dataclass(slots=True, kw_only=True)
class ExchangeResult:
    """The result of an exchange."""

    cause: QuicCause = QuicCause.HANDSHAKE_TIMEOUT
    detail: str | None = None
    received: int = 0
    """Datagrams from the server that look like a handshake packet (long header, a version other than 0)."""
    version: int | None = None
    alpn: str | None = None
    tls_cipher: str | None = None
    handshake_s: float | None = None
    """Time from the first packet until the handshake is complete; includes our own processing time."""
    retry: bool = False
    """The server validated our address first (RFC 9000, section 8.1.2)."""
    parameters: wire.Parameters | None = None
    http_status: int | None = None
    answer_s: float | None = None
    """Time from the request to the response's header."""
    headers: dict[str, str] = field(default_factory=dict)
    """`server` and `alt-svc` of the response, if present."""


class _Exchange(asyncio.DatagramProtocol):
    """aioquic's engine between a datagram transport and a deadline."""

    def __init__(self, request: ExchangeRequest, quic: RememberingConnection) -> None:
        self.request, self.quic, self.finding = request, quic, ExchangeResult()
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._http: UncheckedHttp3 | None = None
        self._stream = 0
        self._started = self._requested = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._started = self.loop.time()
        self._deadline = self.loop.call_later(self.request.timeout_s, self._too_late)
        self.quic.connect((self.request.address, self.request.port), now=self._started)
        self._send()

    def datagram_received(self, data: bytes, _: Any) -> None:
        if self.done.done():
            return
        # Version Negotiation in answer to our handshake is not a handshake packet.
        if data[:1] >= b"\x80" and data[1:5] != b"\0\0\0\0":
            self.finding.received += 1
        try:
            self.quic.receive_datagram(data, (self.request.address, self.request.port), now=self.loop.time())
            self._turn()
        except Exception as error:  # the engine failed on the server's data: that is a result, too
            self.finish(QuicCause.TRANSPORT_ERROR, f"the server's data cannot be parsed ({type(error).__name__})")

    def error_received(self, error: Exception) -> None:
        """An ICMP error. It may be forged or late: where a packet came before, the deadline decides."""
        if self.finding.received == 0:
            self.finish(QuicCause.HANDSHAKE_TIMEOUT, f"ICMP: {error}")

    def finish(self, cause: QuicCause, detail: str | None = None) -> None:
        """Sets the result; the first one is kept."""
        if not self.done.done():
            self.finding.cause, self.finding.detail = cause, detail
            self.done.set_result(None)

    def close(self) -> None:
        """Closes the connection and frees its resources."""
        for handle in (self._timer, self._deadline):
            if handle is not None:
                handle.cancel()
        if self._transport is not None:
            with contextlib.suppress(Exception):  # the result is known; the engine may be in any state
                self.quic.close(error_code=ErrorCode.H3_NO_ERROR)
                self._send()
            self._transport.close()

    def _turn(self) -> None:
        """Handles the engine's events, then sends its datagrams."""
        while (event := self.quic.next_event()) is not None:
            self._on_quic(event)
        self._check_closed()
        self._send()

    def _send(self) -> None:
        assert self._transport is not None  # noqa: S101 - connection_made comes first
        now = self.loop.time()
        for data, _ in self.quic.datagrams_to_send(now=now):
            self._transport.sendto(data)
        if self._timer is not None:
            self._timer.cancel()
        timer = self.quic.get_timer()
        self._timer = None if timer is None or self.done.done() else self.loop.call_at(timer, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.done.done():
            return
        self.quic.handle_timer(now=self.loop.time())
        self._turn()

    def _too_late(self) -> None:
        if self.finding.handshake_s is not None:
            self.finish(QuicCause.HTTP_ERROR, f"no response within {self.request.timeout_s:g} s of the request")
        elif self.finding.received:
            self.finish(
                QuicCause.HANDSHAKE_TIMEOUT,
                f"{self.finding.received} datagrams received, but the handshake did not complete",
            )
        else:
            self.finish(QuicCause.HANDSHAKE_TIMEOUT, "no packet received")

    def _on_quic(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.finding.handshake_s = self.loop.time() - self._started
            self.finding.alpn = event.alpn_protocol
            if event.alpn_protocol != ALPN:
                self.finish(QuicCause.ALPN, f"the server chose {event.alpn_protocol!r}")
                return
            self._ask()
        elif isinstance(event, StreamReset) and self._http is not None and event.stream_id == self._stream:
            self.finish(QuicCause.HTTP_ERROR, f"the server reset the stream (error {event.error_code:#x})")
        if self._http is not None and not self.done.done():
            for answer in self._http.handle_event(event):
                self._on_http(answer)

    def _ask(self) -> None:
        request = self.request
        assert self._deadline is not None  # noqa: S101 - set when the exchange began
        self._deadline.cancel()
        self._deadline = self.loop.call_later(request.timeout_s, self._too_late)
        self._requested = self.loop.time()
        self._http = UncheckedHttp3(self.quic)
        self._stream = self.quic.get_next_available_stream_id()
        fields = request_fields("HEAD", request.server_name, "/", request.user_agent)
        self._http.send_headers(self._stream, fields, end_stream=True)

    def _on_http(self, event: H3Event) -> None:
        if not isinstance(event, HeadersReceived) or event.stream_id != self._stream or self.done.done():
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in event.headers}
        text = headers.get(":status", "")
        if not (len(text) == 3 and text.isascii() and text.isdigit()):
            self.finish(QuicCause.HTTP_ERROR, "a response without a valid status")
            return
        if text.startswith("1"):
            return  # an interim response (RFC 9110, section 15.2)
        finding = self.finding
        finding.http_status, finding.answer_s = int(text), self.loop.time() - self._requested
        finding.headers = {name: headers[name][:1_000] for name in ("server", "alt-svc") if name in headers}
        if finding.http_status >= 500 or finding.http_status == 421:
            # 421: this server does not serve the name over this connection (RFC 9110, section 15.5.20).
            self.finish(QuicCause.HTTP_ERROR, f"status {finding.http_status}")
        else:
            self.finish(QuicCause.OK)

    def _check_closed(self) -> None:
        """Whether either side has closed without a response."""
        here, event = self.quic.closed_here, self.quic._close_event
        established = self.finding.handshake_s is not None
        if here is not None:
            self.finish(*_verdict_here(*here))
        elif event is not None:
            if event.reason_phrase == NO_COMMON_VERSION:
                self.finish(QuicCause.VERSION_MISMATCH, "the server rejected our versions")
            elif event.reason_phrase == "Idle timeout":
                self.finish(
                    QuicCause.HTTP_ERROR if established else QuicCause.HANDSHAKE_TIMEOUT,
                    "the server stopped responding",
                )
            else:
                self.finish(*_verdict_there(event.error_code, event.frame_type, event.reason_phrase))


def _verdict_here(code: int, frame_type: int | None, reason: str) -> tuple[QuicCause, str]:
    """Cause and detail if we closed because of what the server sent."""
    if CRYPTO_ERROR <= code < CRYPTO_ERROR + 0x100 and frame_type is not None:
        alert = code - CRYPTO_ERROR
        if alert in CERTIFICATE_ALERTS:
            return QuicCause.CERTIFICATE, reason
        return (
            QuicCause.ALPN if alert == _NO_APPLICATION_PROTOCOL else QuicCause.TLS_ALERT
        ), f"TLS alert {alert}: {reason}"
    if code >= 0x100:
        return QuicCause.HTTP_ERROR, f"the server violated HTTP/3: error {code:#x} {reason}"
    return QuicCause.TRANSPORT_ERROR, f"the server violated QUIC: error {code:#x} {reason}"


def _verdict_there(code: int, frame_type: int | None, reason: str) -> tuple[QuicCause, str]:
    """Cause and detail if the server closed."""
    if frame_type is None:
        return QuicCause.HTTP_ERROR, f"the server closed the connection: HTTP/3 error {code:#x} {reason}"
    if CRYPTO_ERROR <= code < CRYPTO_ERROR + 0x100:
        alert = code - CRYPTO_ERROR
        cause = QuicCause.ALPN if alert == _NO_APPLICATION_PROTOCOL else QuicCause.TLS_ALERT
        return cause, f"the server sent TLS alert {alert} {reason}".rstrip()
    return QuicCause.TRANSPORT_ERROR, f"the server closed the connection: QUIC error {code:#x} {reason}".rstrip()


async def exchange(request: ExchangeRequest) -> ExchangeResult:
    """Handshake and HEAD with one endpoint; errors are part of the finding.

    Raises ReachError, before any packet is sent, if the address may not be contacted.
    """
    check_address(request.address)
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=True,
        idle_timeout=2 * request.timeout_s + 5,  # our deadlines apply, not the idle timeout
        server_name=request.server_name,
        verify_mode=ssl.CERT_REQUIRED,
        original_version=request.versions[0],
        supported_versions=list(request.versions),
    )
    if request.ca_file is not None:
        configuration.load_verify_locations(cafile=str(request.ca_file))
    quic = RememberingConnection(configuration=configuration)
    made: list[_Exchange] = []

    def protocol() -> _Exchange:
        made.append(_Exchange(request, quic))
        return made[0]

    try:
        await asyncio.get_running_loop().create_datagram_endpoint(protocol, remote_addr=(request.address, request.port))
    except OSError as error:
        for begun in made:
            begun.close()
        return ExchangeResult(cause=QuicCause.ADDRESS_REFUSED, detail=f"no socket: {error.strerror or error}")
    state = made[0]
    try:
        await state.done
    finally:
        state.close()
    _take_facts(state)
    return state.finding


def _take_facts(state: _Exchange) -> None:
    """Copies what the engine knows of the connection, however it ended."""
    quic, finding = state.quic, state.finding
    if quic.peer_parameters is not None:
        with contextlib.suppress(ValueError):
            finding.parameters = wire.read_parameters(quic.peer_parameters)
    finding.retry = quic._retry_count > 0
    if finding.handshake_s is not None:
        finding.version = quic._version
        suite = quic.tls.key_schedule
        finding.tls_cipher = f"TLS_{suite.cipher_suite.name}" if suite is not None else None
