"""Both words on a failure, from what the kernel tells."""

from __future__ import annotations

import os
import select
import socket
import ssl
from errno import ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENONET, ENOPROTOOPT, ENOTCONN
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from core.domain import Failure, FailureCode
from downloader.programs import requests_get
from downloader.programs.codes import Icmp, hear_icmp, of_os_error
from downloader.programs.kernel import first_packet_at, note_first_packet


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
