"""Random bytes in place of TLS, of QUIC, and of HTTP: every client ends with a cause, whatever comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

from core.domain import Failure, Outcome, Transport
from downloader import clients
from downloader.client import Client, DownloadRequest
from tests.cells import Repeats
from tests.contract._programs import Programs
from tests.contract.conftest import Faulty

BUDGET_S = 0.4
CAUSES = set(Failure) - {Failure.UNKNOWN, Failure.CLIENT_CRASHED}

BYTES = st.binary(min_size=1, max_size=1000) | st.builds(
    # A record of TLS (RFC 8446, section 5.1), a packet of QUIC with a long header, frames of HTTP/2 and HTTP/3.
    lambda head, body: head + body,
    st.sampled_from(
        [b"\x16\x03\x03\x00\x40\x02", b"\x15\x03\x03\x00\x02", b"\xc3\0\0\0\1\x08", b"\0\0\x10\1\5\0\0\0\1", b"\1\x10"]
    ),
    st.binary(max_size=1000),
)


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs() as found:
        yield found


class Noise:
    """A server on TCP and UDP that answers with its bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(type=socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        for serve in (self._streams, self._datagrams):
            threading.Thread(target=serve, daemon=True).start()

    def port(self, client: Client) -> int:
        over_tcp = client.transport is Transport.TCP
        number: int = (self._tcp if over_tcp else self._udp).getsockname()[1]
        return number

    def _streams(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._tcp.accept()
                with contextlib.suppress(OSError), sock:
                    sock.recv(65535)
                    sock.sendall(self.answer)

    def _datagrams(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                _, peer = self._udp.recvfrom(65535)
                self._udp.sendto(self.answer, peer)

    def close(self) -> None:
        for sock in (self._tcp, self._udp):
            sock.close()


@pytest.mark.parametrize("client", clients.ALL.values(), ids=lambda client: client.name)
def test_random_bytes_have_a_cause(client: Client, faulty: Faulty, programs: Programs, repeats: Repeats) -> None:
    noise = Noise()

    @hypothesis.settings(max_examples=repeats(quick=6, soak=10_000))
    @hypothesis.given(BYTES, st.booleans())
    def ends(answer: bytes, in_http: bool) -> None:
        noise.answer = answer
        port = faulty.ports["answers"] if in_http else noise.port(client)
        request = DownloadRequest(
            url=f"https://{faulty.host}:{port}" + (f"/bytes/{answer.hex()}" if in_http else "/ok"),
            address="127.0.0.1",
            port=port,
            ca_file=faulty.ca,
            budget_s=BUDGET_S,
            max_bytes=None,
            user_agent="upshift-test",
            allowed=("127.0.0.0/8",),
        )
        result = programs.call(client, request)
        assert result.outcome is not Outcome.OK and result.failure in CAUSES, (result.failure, result.failure_detail)

    try:
        ends()
    finally:
        noise.close()
