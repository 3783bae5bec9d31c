"""What wget2 says in its debug log, over HTTP/1.1 and HTTP/2; how the program itself behaves is tried in the lab."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from downloader.programs.common import Document, Options
from downloader.programs.wget2_get import _Log, _readable, command

OPTIONS = Options(
    url="https://a.example/r",
    host="a.example",
    path="/r",
    address="127.0.0.1",
    port=4430,
    ca="ca.pem",
    budget_s=10.0,
    max_bytes=None,
    user_agent="tests",
    allowed=(ipaddress.ip_network("127.0.0.0/8"),),
)
HANDSHAKE = b"""22.152708.912 has 127.0.0.1:4430
22.152708.912 trying 127.0.0.1:4430...
22.152708.946 ALPN: Server accepted protocol '%s'
Ephemeral ECDH using curve X25519
Protocol: TLS1.3
Cipher: AES-128-GCM
22.152708.946 Handshake completed
"""
OVER_1 = b"""22.152708.948 # got header 106 bytes:
HTTP/1.1 302 Found
Location: /file
Content-Length: 0

22.152708.948 trying 127.0.0.1:4430...
22.152708.953 # got header 181 bytes:
HTTP/1.1 200 OK
Content-Length: 30
Server: Caddy

"""
OVER_2 = b"""22.152601.924 :status: 302
22.152601.924 location: /file
22.152601.924 content-length: 0
22.152601.924 [FRAME 1] < HEADERS
22.152601.936 :status: 200
22.152601.936 server: Caddy
22.152601.936 content-length: 30
22.152601.936 [FRAME 3] < HEADERS
# got header 204 bytes:
:status: 200
server: Caddy
content-length: 30

"""


def read(*pieces: bytes) -> Document:
    document = Document("wget2", "wget2", OPTIONS, handshake="tls_s", confined=False)
    log = _Log(document)
    for piece in pieces:
        log.take(piece)
    if log.causes:
        document.fail(*log.causes[0])
    return document


@pytest.mark.parametrize(("protocol", "text"), [(b"http/1.1", OVER_1), (b"h2", OVER_2)])
def test_the_last_response_counts_and_not_the_redirect(protocol: bytes, text: bytes) -> None:
    whole = HANDSHAKE % protocol + text
    # However the pipe cuts it.
    for size in (7, 64, len(whole)):
        values = read(*(whole[at : at + size] for at in range(0, len(whole), size))).values
        assert (values["http_status"], values["content_length"]) == (200, 30)
        assert values["http_version"] == ("1.1" if protocol == b"http/1.1" else "2")
        assert values["response_headers"]["server"] == "Caddy"
        assert (values["alpn"], values["tls_version"]) == (protocol.decode(), "TLSv1.3")
        assert (values["tls_cipher"], values["tls_group"]) == ("AES-128-GCM", "X25519")
        assert (values["server_ip"], values["server_port"]) == ("127.0.0.1", 4430)
        assert 0 <= values["tls_s"] <= values["headers_s"]


def test_a_compressed_body_has_no_announced_length() -> None:
    text = OVER_1.replace(b"Server: Caddy", b"Content-Encoding: gzip")
    assert read(HANDSHAKE % b"http/1.1", text).values["content_length"] is None


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (b"Failed to resolve missing.example (Name or service not known)\n", "dns_error"),
        (b"gnutls_handshake: (-53) Error in the push function. (errno=111)\n", "connection_refused"),
        (b"ERROR: The certificate is NOT trusted. The certificate issuer is unknown. \n", "tls_certificate"),
        (b"gnutls_handshake: (-110) The TLS connection was non-properly terminated.\n", "tls_error"),
    ],
)
def test_causes_of_failure(line: bytes, failure: str) -> None:
    values = read(b"22.152708.912 trying 127.0.0.1:4430...\n", line).values
    assert (values["outcome"], values["failure"]) == ("failed", failure)


def test_it_is_called_as_published_with_our_certificates() -> None:
    words = command(OPTIONS, log=5, home=Path("/home"))
    assert words[:4] == ["wget2", "--https-enforce=hard", "--no-cache", "-S"]
    assert {"--output-file=/proc/self/fd/5", "--ca-certificate=ca.pem", "--user-agent=tests"} <= set(words)
    assert words[-1] == "https://a.example:4430/r"


@pytest.mark.parametrize(
    ("end", "read_as"),
    [("0100007F:AC74", ("127.0.0.1", 44148)), ("B80D01FD000000000000000001000000:01BB", ("fd01:db8::1", 443))],
)
def test_ends_of_connections(end: str, read_as: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("downloader.programs.wget2_get.sys.byteorder", "little")
    assert _readable(end) == read_as
