"""Both words on a failure, from what the kernel tells."""

from __future__ import annotations

import os
import select
import socket
import ssl
from dataclasses import replace
from errno import ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENONET, ENOPROTOOPT, ENOTCONN
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import urllib3.util.ssl_

from core.domain import Failure, FailureCode
from core.system.this_host import system_bundle
from downloader.programs import curl_get, requests_get
from downloader.programs.codes import Icmp, hear_icmp, of_os_error
from downloader.programs.common import Document
from downloader.programs.kernel import first_packet_at, note_first_packet
from tests.unit.test_wget2_get import OPTIONS


@pytest.mark.parametrize(
    ("code", "number", "word"),
    [
        (0, ENETUNREACH, FailureCode.ICMP_NET),
        (1, EHOSTUNREACH, FailureCode.ICMP_HOST),
        (2, ENOPROTOOPT, FailureCode.ICMP_HOST),
        (3, ECONNREFUSED, FailureCode.ICMP_PORT),
        (7, EHOSTDOWN, FailureCode.ICMP_HOST),
        (8, ENONET, FailureCode.ICMP_HOST),
        (13, EHOSTUNREACH, FailureCode.ICMP_HOST),
    ],
)
def test_an_icmp_message_has_both_words(code: int, number: int, word: FailureCode) -> None:
    """`number` is what the kernel makes of the code (icmp_err_convert in net/ipv4/icmp.c)."""
    error = OSError(number, os.strerror(number))
    failure, _, second, _ = of_os_error(error, Icmp(4, 3, code, False), connected=False, over_tcp=True)
    refused = word is FailureCode.ICMP_PORT
    assert (failure, second) == (Failure.CONNECTION_REFUSED if refused else Failure.NETWORK_UNREACHABLE, word)


def test_time_stamps_of_further_packets_do_not_wake_a_client_after_the_handshake() -> None:
    """A ClientHello with a post-quantum key takes two datagrams, each with a time stamp."""
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        hear_icmp(client, True)
        note_first_packet(client)
        client.send(b"first")
        client.send(b"second")
        assert first_packet_at(client) is not None
        assert select.select([client], [], [], 0)[0], "the second one's is there"
        hear_icmp(client, False)
        assert not select.select([client], [], [], 0)[0]


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError])
def test_a_server_that_closes_in_the_tls_handshake_has_one_cause_whatever_python_calls_it(kind: type[OSError]) -> None:
    error = requests.exceptions.SSLError(kind("TLS/SSL connection has been closed (EOF)"))
    document: Any = SimpleNamespace(values={"connect_s": 0.1, "body_bytes": 0, "content_length": None})
    failure, detail, *_ = requests_get.classify(error, document)
    assert (failure, detail) == (Failure.CONNECTION_RESET, "the server closed the connection during the TLS handshake")


def test_a_reset_that_comes_before_the_address_was_asked_for_is_one() -> None:
    error = requests.exceptions.ConnectionError(OSError(ENOTCONN, os.strerror(ENOTCONN)))
    document: Any = SimpleNamespace(values={"connect_s": 0.1, "body_bytes": 0, "content_length": None})
    assert requests_get.classify(error, document)[0] is Failure.CONNECTION_RESET


def test_every_python_takes_the_chains_that_other_clients_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 has 3.13 and newer refuse what RFC 5280 asks of authorities and many lack, e.g. a key identifier."""
    monkeypatch.setattr(urllib3.util.ssl_, "sys", SimpleNamespace(version_info=(3, 13)))
    context = requests_get.tls_context(replace(OPTIONS, ca=str(system_bundle())))
    assert not context.verify_flags & (ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)


def over_quic(*said: str) -> curl_get._Download:
    """A download by curl-h3 during its handshake, and what libcurl has said."""
    options = replace(OPTIONS, host="a.tests.invalid", ca="")
    download = curl_get._Download(Document("curl-h3", "pycurl", options), "3", post_quantum=False, receive_buffer=0)
    download._said += said
    return download


def words(download: curl_get._Download) -> tuple[Any, ...]:
    return tuple(download.document.values[name] for name in ("failure", "failure_code", "failure_number"))


def test_a_port_that_closes_in_mid_body_over_quic_is_a_reset() -> None:
    text = "QUIC: recvmmsg() unexpectedly returned -1 (errno=111; Connection refused)"
    download = over_quic(text)
    download.document.values |= {"connect_s": 0.1, "http_status": 200, "body_bytes": 5000, "content_length": 102_400}
    download._take_result(56, text)
    assert words(download) == (Failure.CONNECTION_RESET, None, None), "in_body is what the caller adds"
    before = over_quic()
    before._take_result(7, "QUIC: connection to 127.0.0.1 port 443 refused")
    assert words(before)[0] is Failure.CONNECTION_REFUSED


def test_a_second_connection_of_curl_is_after_a_refusal_if_the_handshake_was_not_complete() -> None:
    address = (socket.AF_INET, socket.SOCK_DGRAM, 0, ("127.0.0.1", 443))
    with socket.socket(type=socket.SOCK_DGRAM) as first:
        refused, left = over_quic(), over_quic()
        refused._socket = left._socket = first
        left._shaken = True
        refused._on_socket(0, address)
        left._on_socket(0, address)
    assert words(refused) == (Failure.CONNECTION_REFUSED, FailureCode.QUIC_TRANSPORT, 2)
    assert words(left) == (Failure.CONNECTION_RESET, None, None)


def test_a_full_queue_of_this_host_is_no_reset_by_the_server() -> None:
    """libcurl gives up where a datagram of the handshake found no room (ENOBUFS)."""
    download = over_quic("sendmsg() returned -1 (errno 105)\n")
    download._take_result(55, "Failed to connect to a.test:443 after 13 ms: Failed sending data to the peer")
    assert words(download) == (Failure.NETWORK_UNREACHABLE, None, None)


@pytest.mark.parametrize(
    ("length", "body", "expected"),
    [("3", b"abcde", ("ok", None, 5)), ("30", b"abc", ("ok", None, 3))],
)
def test_chunks_end_a_body_whatever_its_length_says(length: str, body: bytes, expected: tuple[Any, ...]) -> None:
    """RFC 9112, section 6.3: Transfer-Encoding overrides Content-Length."""
    document = Document("requests", "requests", OPTIONS, handshake="tls_s", confined=False)
    document.start()
    document.take_headers(200, [("Content-Length", length), ("Transfer-Encoding", "chunked")])
    for part in (body[:3], body[3:]):
        if not document.is_whole:
            document.take_body(part)
    document.end_of_body()
    assert tuple(document.values[name] for name in ("outcome", "failure", "body_bytes")) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("SSL: no alternative certificate subject name matches target hostname 'a.tests.invalid'\n", True),
        ("SSL: certificate subject name 'b' does not match target hostname 'a.tests.invalid'\n", True),
        ("SSL: unable to obtain common name from peer certificate\n", True),
        ("  Trying 127.0.0.1:443...\n", False),
    ],
)
def test_curl_over_quic_says_of_a_name_when_it_is_wrong(sentence: str, expected: bool) -> None:
    text = "Failed to connect to a.tests.invalid:443 after 5 ms: SSL peer certificate or SSH remote key was not OK"
    download = over_quic(sentence, f"{text}\n", "closing connection #1\n")
    download._take_result(60, text)
    wrong_name = (Failure.TLS_CERTIFICATE, FailureCode.WRONG_NAME, None)
    assert words(download) == (wrong_name if expected else (Failure.TLS_ERROR, FailureCode.ALERT, None))
