"""aioquic's protocol engine for one download: certificates loaded before the clock starts, and causes of its end."""

from __future__ import annotations

from typing import Any

import cryptography.hazmat.backends.openssl.backend  # noqa: F401 - pyOpenSSL would import it within the handshake
import service_identity
from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicReceiveContext
from aioquic.quic.packet import QuicErrorCode, pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from OpenSSL import crypto

from core.domain import Failure, FailureCode
from core.outreach.quic_engine import CERTIFICATE_ALERTS, CRYPTO_ERROR, RememberingConnection
from core.untrusted import is_address
from downloader.programs import codes
from downloader.programs.common import Options, no_certificates

_MESSAGE_ERROR = 0x10E
"""H3_MESSAGE_ERROR (RFC 9114, section 8.1): the connection is sound, the message is not."""


class VerifyingConnection(RememberingConnection):
    """Verifies the server with certificates that are already loaded; aioquic reads its file during the handshake.

    Its flow-control windows stay as asked for: aioquic doubles a limit whenever half of it is used, so that all but the
    first round trips would have larger ones.
    """

    def __init__(self, configuration: QuicConfiguration, trusted: crypto.X509Store) -> None:
        self._trusted = trusted
        self.data_blocked = 0
        self.stream_data_blocked = 0
        self.rejected: FailureCode | None = None
        super().__init__(configuration=configuration)

    def _handle_data_blocked_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        self.data_blocked += 1
        super()._handle_data_blocked_frame(context, frame_type, buf)

    def _handle_stream_data_blocked_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        self.stream_data_blocked += 1
        super()._handle_stream_data_blocked_frame(context, frame_type, buf)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        limit.value = _moved(limit.value, limit.used, self.configuration.max_data)
        used, limit.used = limit.used, 0  # by which aioquic would double it
        try:
            super()._write_connection_limits(builder, space)
        finally:
            limit.used = used

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        receiver = stream.receiver
        came = receiver.highest_offset
        if stream.max_stream_data_local:  # else nothing may come: one of ours, in one direction
            stream.max_stream_data_local = _moved(
                stream.max_stream_data_local, came, self.configuration.max_stream_data
            )
        receiver.highest_offset = 0  # by which aioquic would double it
        try:
            super()._write_stream_limits(builder, space, stream)
        finally:
            receiver.highest_offset = came

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        context, check_signature = self.tls, self.tls._client_handle_certificate_verify

        def handle(message: Buffer) -> None:
            check_signature(message)
            self._verify(context)

        context._client_handle_certificate_verify = handle  # type: ignore[method-assign, assignment]

    def _verify(self, context: tls.Context) -> None:
        """Whether the server's certificate is for its name, and issued by a trusted authority. Raises an alert."""
        leaf, name = context._peer_certificate, context._server_name
        assert leaf is not None and name is not None  # noqa: S101 - the message with the certificate came before
        match = service_identity.cryptography
        try:
            chain = [crypto.X509.from_cryptography(issuer) for issuer in context._peer_certificate_chain]
            crypto.X509StoreContext(self._trusted, crypto.X509.from_cryptography(leaf), chain).verify_certificate()
            if is_address(name):
                match.verify_certificate_ip_address(leaf, name)
            else:
                match.verify_certificate_hostname(leaf, name)
        except crypto.X509StoreContextError as error:
            self.rejected = codes.of_verification(error.errors[0])
            raise tls.AlertBadCertificate(str(error)) from error
        except (service_identity.CertificateError, service_identity.VerificationError, ValueError) as error:
            self.rejected = FailureCode.WRONG_NAME
            raise tls.AlertBadCertificate(f"the certificate is not for {name} ({type(error).__name__})") from error


def _moved(limit: int, came: int, window: int) -> int:
    """The limit that lets a window come beyond what came; the same until half of the window is used."""
    return came + window if 2 * (limit - came) <= window else limit


def parameters(data: bytes | None) -> dict[str, Any] | None:
    """The transport parameters that affect speed: RFC 9000, section 18.2, times in ms, sizes in bytes."""
    if data is None:
        return None
    try:
        parsed = vars(pull_quic_transport_parameters(Buffer(data=data)))
    except ValueError:  # they made the connection fail, which the document reports
        return None
    return {name: value for name, value in parsed.items() if isinstance(value, int) and value is not None}


def closed_here(code: int, frame_type: int | None, reason: str, rejected: FailureCode | None = None) -> codes.Ending:
    """How it ended if we closed because of what the peer sent.

    Args:
        rejected: why the certificate was, if it was.
    """
    if CRYPTO_ERROR <= code < CRYPTO_ERROR + 0x100 and frame_type is not None:
        alert = code - CRYPTO_ERROR
        detail = f"TLS alert {alert}: {reason}"
        if alert in CERTIFICATE_ALERTS:
            return Failure.TLS_CERTIFICATE, detail, rejected, None
        return Failure.TLS_ERROR, detail, *codes.of_alert(alert)
    detail = f"the peer broke the protocol: error {code:#x} {reason}"
    if frame_type is not None:
        return Failure.PROTOCOL_ERROR, detail, FailureCode.QUIC_TRANSPORT, code
    if code == _MESSAGE_ERROR:
        return Failure.PROTOCOL_ERROR, detail, codes.of_message(reason), None
    return Failure.PROTOCOL_ERROR, detail, FailureCode.H3_CODE, code


def closed_there(code: int, by_application: bool, reason: str, established: bool) -> codes.Ending:
    """How it ended if the peer closed before the body was complete."""
    shown = f"the peer closed the connection: {'HTTP/3' if by_application else 'QUIC'} error {code:#x} {reason}"
    if not by_application and CRYPTO_ERROR <= code < CRYPTO_ERROR + 0x100:
        return Failure.TLS_ERROR, shown, *codes.of_alert(code - CRYPTO_ERROR)
    if not by_application and code == QuicErrorCode.CONNECTION_REFUSED and not established:
        return Failure.CONNECTION_REFUSED, shown, FailureCode.QUIC_TRANSPORT, code
    return Failure.CONNECTION_RESET, shown, None, None


def load_certificates(options: Options) -> crypto.X509Store:
    """The certificates to trust, loaded before the clock starts. Raises WrongUseError."""
    store = crypto.X509Store()
    try:
        store.load_locations(options.ca)
    except crypto.Error:
        raise no_certificates(options) from None
    return store
