"""Both words on a failure (`core.domain.Failure`, `FailureCode`), from what the kernel and OpenSSL tell."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from core.domain import Failure, FailureCode
from core.outreach.sockets import IP_RECVERR, IPV6_RECVERR

Coded = tuple[FailureCode | None, int | None]
"""The failure code and its number."""

Ending = tuple[Failure, str, FailureCode | None, int | None]
"""Cause, detail, failure code and its number."""

_NO_ROUTE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    | {errno.EINVAL}
)
"""The last is a blackhole route's (fib_props in net/ipv4/fib_semantics.c), while connecting."""
_NETWORK_ERRORS = _NO_ROUTE | {errno.EACCES, errno.EPERM, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.ENONET}
_NETWORK_ERRORS |= {errno.ENOBUFS}
"""ENOPROTOOPT and ENONET are ICMP's codes 2 and 8 (icmp_err_convert in net/ipv4/icmp.c). ENOBUFS: a queue of this host
is full (net_xmit_errno), which all clients but libcurl take for a loss."""
_RESET_ERRORS = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN})
"""The last is what a connection has become whose reset came before it was asked for its address."""

_OF_VERIFICATION: Mapping[int, FailureCode] = {
    9: FailureCode.NOT_YET_VALID,
    10: FailureCode.EXPIRED,
    62: FailureCode.WRONG_NAME,
    64: FailureCode.WRONG_NAME,  # an IP address
    18: FailureCode.SELF_SIGNED,
    **dict.fromkeys((2, 19, 20, 21), FailureCode.UNKNOWN_CA),
}
"""X509_V_ERR_* of OpenSSL (include/openssl/x509_vfy.h); BoringSSL has the same (rust/clientkit/src/code.rs)."""

_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "BAD_RECORD_TYPE"}
    | {"RECORD_LAYER_FAILURE"}
)
_VERSION = frozenset({"UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "PROTOCOL_VERSION"})
_ALERTS: Mapping[str, int] = {
    **{alert.name.removeprefix("ALERT_DESCRIPTION_"): int(alert) for alert in ssl.AlertDescription},
    "MISSING_EXTENSION": 109,
    "CERTIFICATE_REQUIRED": 116,
    "NO_APPLICATION_PROTOCOL": 120,
}
_PROTOCOL_VERSION = 70
_REASON = re.compile(r"(?:SSLV3|TLSV13?)_(?:ALERT_)?(\w+)")


def of_verification(number: int) -> FailureCode | None:
    """The word for OpenSSL's reason to reject a certificate."""
    return _OF_VERIFICATION.get(number)


def of_alert(number: int) -> Coded:
    """The word for a TLS alert, received or sent (RFC 8446, section 6)."""
    return (FailureCode.VERSION, None) if number == _PROTOCOL_VERSION else (FailureCode.ALERT, number)


def of_tls(reason: str | None) -> Coded:
    """The word for OpenSSL's name of an error, e.g. SSLV3_ALERT_HANDSHAKE_FAILURE; for the others we send an alert."""
    name = (reason or "").upper().replace(" ", "_")
    alert = _REASON.fullmatch(name)
    plain = alert[1] if alert else name
    if plain in _NOT_TLS:
        return FailureCode.NOT_TLS, None
    if plain in _VERSION:
        return FailureCode.VERSION, None
    return FailureCode.ALERT, _ALERTS.get(plain) if alert else None


_ALERT_REASON = 1000
"""SSL_AD_REASON_OFFSET (include/openssl/ssl.h): a received alert is an error with this number plus its own."""

_REASONS = {
    267: "WRONG_VERSION_NUMBER",
    198: "PACKET_LENGTH_TOO_LONG",
    156: "HTTP_REQUEST",
    258: "UNSUPPORTED_PROTOCOL",
}
_REASONS |= {443: "BAD_RECORD_TYPE", 313: "RECORD_LAYER_FAILURE"}
"""SSL_R_* (include/openssl/sslerr.h) -> name."""


def of_tls_number(reason: int) -> Coded:
    """The word for OpenSSL's number of an error of TLS (SSL_R_*)."""
    return of_alert(reason - _ALERT_REASON) if reason > _ALERT_REASON else of_tls(_REASONS.get(reason))


def of_ssl_error(error: ssl.SSLError) -> Coded:
    """The word for an exception of Python's ssl."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return of_verification(error.verify_code), None
    return of_tls(error.reason)


def of_message(message: str) -> FailureCode:
    """The word for an HTTP message that a library refuses, by what it says of it."""
    text = message.lower()
    if "content-length" in text:
        return FailureCode.BAD_LENGTH
    return FailureCode.UPGRADE if ":status" in text and re.search(r"\b101\b", text) else FailureCode.HTTP_SYNTAX


@dataclass(frozen=True, slots=True)
class Icmp:
    """An ICMP message that the kernel related to a socket."""

    version: int
    type: int
    code: int
    is_ours: bool
    """It came from an address of this host, which is not the one that was contacted: this host made it itself."""


_ERROR = struct.Struct("=IBBBBII")
"""struct sock_extended_err (include/uapi/linux/errqueue.h), which the sender's address follows."""

_ORIGINS = {2: 4, 3: 6}
"""SO_EE_ORIGIN_ICMP and _ICMP6 -> IP version."""


def hear_icmp(sock: socket.socket, on: bool) -> None:
    """Makes the kernel report ICMP errors to the socket and keep them for `heard`: until the handshake is complete.

    Afterwards it is off: an unreachable host is then no reason to give up (RFC 1122, section 4.2.3.9). What is in their
    queue then goes, time stamps of further packets, too: select(2) and poll(2) return at once as long as there is any.
    """
    over_ipv6 = sock.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, IPV6_RECVERR) if over_ipv6 else (socket.IPPROTO_IP, IP_RECVERR)
    sock.setsockopt(level, option, int(on))
    with contextlib.suppress(OSError):
        while not on:
            sock.recvmsg(0, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


def heard(sock: socket.socket) -> Icmp | None:
    """The ICMP message that the kernel keeps for a socket, if there is one."""
    for _ in range(8):  # time stamps are in the same queue
        try:
            _, control, _, peer = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except OSError:
            return None
        for _, kind, data in control:
            if kind in (IP_RECVERR, IPV6_RECVERR) and len(data) >= _ERROR.size:
                _, origin, kind_of_icmp, code, *_ = _ERROR.unpack_from(data)
                if origin in _ORIGINS:
                    sender = _address(data[_ERROR.size :], _ORIGINS[origin])
                    ours = bool(sender and peer and sender != peer[0] and _is_ours(sender, sock.family))
                    return Icmp(_ORIGINS[origin], kind_of_icmp, code, ours)
    return None


def _is_ours(address: str, family: int) -> bool:
    """Whether it is one of this host's: a socket can be bound to such a one. The failed one has forgotten its own."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address(sockaddr: bytes, version: int) -> str | None:
    part, family = (sockaddr[4:8], socket.AF_INET) if version == 4 else (sockaddr[8:24], socket.AF_INET6)
    return socket.inet_ntop(family, part) if len(part) in (4, 16) else None


_UNREACHABLE: Mapping[tuple[int, int], FailureCode] = {
    **dict.fromkeys(((4, 3), (6, 4)), FailureCode.ICMP_PORT),
    **dict.fromkeys(((4, 0), (4, 6), (4, 9), (4, 11), (6, 0), (6, 2), (6, 6)), FailureCode.ICMP_NET),
    **dict.fromkeys(((4, code) for code in (1, 2, 7, 8, 10, 12, 13)), FailureCode.ICMP_HOST),
    **dict.fromkeys(((6, code) for code in (1, 3, 5)), FailureCode.ICMP_HOST),
}
"""(IP version, code of destination unreachable: RFC 792, RFC 1812 section 5.2.7.1, RFC 4443 section 3.1) -> word."""

_LINK_FAILED = {(4, 1), (6, 3)}
"""What this host says itself where nobody on the link has the next hop's address."""


def of_network(number: int | None, icmp: Icmp | None, *, over_tcp: bool) -> FailureCode | None:
    """The word for an error of the system while connecting, and the ICMP message behind it, if there was one."""
    if icmp is not None and icmp.type == (3 if icmp.version == 4 else 1):
        at = (icmp.version, icmp.code)
        return FailureCode.HOST_FIREWALL if icmp.is_ours and at not in _LINK_FAILED else _UNREACHABLE.get(at)
    if number in (errno.EPERM, errno.EACCES):
        return FailureCode.HOST_FIREWALL
    if number == errno.ECONNREFUSED:
        return FailureCode.RST if over_tcp else FailureCode.ICMP_PORT
    return FailureCode.NO_ROUTE if number in _NO_ROUTE else None


def of_os_error(error: OSError, icmp: Icmp | None, *, connected: bool, over_tcp: bool) -> Ending:
    """How a download ended with an error of the system or of TLS."""
    failure = classify_os_error(error, connected=connected)
    code, number = of_ssl_error(error) if isinstance(error, ssl.SSLError) else (None, None)
    if failure in (Failure.CONNECTION_REFUSED, Failure.NETWORK_UNREACHABLE):
        code = of_network(error.errno, icmp, over_tcp=over_tcp)
        if code is FailureCode.HOST_FIREWALL:  # an ICMP message of ours looks like a server's, which was never asked
            failure = Failure.NETWORK_UNREACHABLE
    return failure or Failure.UNKNOWN, str(error), code, number


def classify_os_error(error: OSError, *, connected: bool) -> Failure | None:
    """The cause of an error of the system or of TLS; None if unknown. Specific before generic."""
    match error:
        case ssl.SSLCertVerificationError():
            return Failure.TLS_CERTIFICATE
        case ssl.SSLError():
            return Failure.TLS_ERROR
        case TimeoutError():
            return (
                Failure.CONNECTION_RESET if connected else Failure.CONNECT_TIMEOUT
            )  # the kernel gave up retransmitting
        case ConnectionRefusedError():
            return Failure.CONNECTION_RESET if connected else Failure.CONNECTION_REFUSED
        case ConnectionError():
            return Failure.CONNECTION_RESET
    if error.errno in _NETWORK_ERRORS and not (connected and error.errno == errno.EINVAL):
        return Failure.NETWORK_UNREACHABLE
    return Failure.CONNECTION_RESET if error.errno in _RESET_ERRORS else None
