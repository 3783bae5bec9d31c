"""What both users of aioquic, the download client and the survey, need beyond its public interface."""

from __future__ import annotations

from aioquic.h3.connection import H3Connection
from aioquic.quic.connection import QuicConnection
from aioquic.tls import Group

CRYPTO_ERROR = 0x100
"""QUIC reports a TLS alert as this number plus the alert (RFC 9001, section 4.8)."""

CERTIFICATE_ALERTS = frozenset({42, 43, 44, 45, 46, 48})
"""bad_certificate to certificate_unknown, and unknown_ca (RFC 8446, section 6)."""

NO_COMMON_VERSION = "Could not find a common protocol version"
"""aioquic's message when a server answers our first packet with versions that it does not support (RFC 9000,
section 6)."""


class UncheckedHttp3(H3Connection):
    """aioquic's HTTP/3 without its check of the announced length.

    If the lengths differ, aioquic drops the last bytes, and reports a malformed message. In answer to HEAD it expects
    the body, which such an answer has not (RFC 9110, section 8.6).
    """

    def _check_content_length(self, stream: object) -> None:
        pass


def request_fields(method: str, authority: str, path: str, user_agent: str) -> list[tuple[bytes, bytes]]:
    """The header fields of a request, in the order in which they are sent."""
    fields = {
        ":method": method,
        ":scheme": "https",
        ":authority": authority,
        ":path": path,
        "user-agent": user_agent,
        "accept-encoding": "identity",
        "accept": "*/*",
    }
    return [(name.encode(), value.encode("utf-8", "replace")) for name, value in fields.items()]


class RememberingConnection(QuicConnection):
    """aioquic's connection, which also keeps both sides' transport parameters and our reason for closing.

    It offers only X25519: aioquic sends a key share for every group that it lists (four by default), where the other
    clients send this one.

    Attributes:
        peer_parameters, local_parameters: as they were sent (RFC 9000, section 18); None until then.
        closed_here: (error code, frame type or None for the application's, reason) of our first close.
    """

    peer_parameters: bytes | None = None
    local_parameters: bytes | None = None
    closed_here: tuple[int, int | None, str] | None = None

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._supported_groups = [Group.X25519]

    @property
    def group(self) -> str:
        """The group of the key exchange: the one that is offered, as aioquic follows no HelloRetryRequest."""
        return str(self.tls._supported_groups[0].name)

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        self.peer_parameters = data
        super()._parse_transport_parameters(data, from_session_ticket)

    def _serialize_transport_parameters(self) -> bytes:
        self.local_parameters = super()._serialize_transport_parameters()
        return self.local_parameters

    def close(self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = "") -> None:
        if self.closed_here is None:
            self.closed_here = (error_code, frame_type, reason_phrase)
        super().close(error_code=error_code, frame_type=frame_type, reason_phrase=reason_phrase)
