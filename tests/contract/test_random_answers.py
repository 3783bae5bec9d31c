"""Random bytes in place of TLS, of QUIC, of HTTP, and of DNS: every client ends with a cause, whatever comes.

`make soak` tries 400 answers per client; with UPSHIFT_RANDOM_ANSWERS=N any number, and what came of them:

    UPSHIFT_RANDOM_ANSWERS=500 pytest -s -n0 tests/contract/test_random_answers.py
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dns.message
import dns.rrset
import hypothesis
import pytest
from hypothesis import strategies as st

from core.domain import FAILURE_CODES, Failure, Outcome, Transport
from downloader import clients
from downloader.client import Client, DownloadRequest
from downloader.programs import resolve
from tests.cells import Repeats, cells
from tests.contract._programs import Programs, require
from tests.contract.conftest import Faulty

CAUSES = set(Failure) - {Failure.UNKNOWN, Failure.CLIENT_CRASHED}

SILENCE_S, BUDGET_S = 0.4, 3.0
"""A QUIC client takes no notice of what is no packet of its connection, and waits until its budget ends. All else ends
at once; a busy host may take long for the handshake before it."""

UNTOLD = {("curl-h3", Failure.PROTOCOL_ERROR)}
"""No failure code, as libcurl does not tell it: `OTHERWISE` in test_downloader_faults.py."""

AT_ONCE = (16, 4, 2)
"""Downloads at once: the first of these that makes a hundred rounds, else the last. A Python client needs an
interpreter for each."""

HEADS = (b"\x16\x03\x03\0\x40\x02", b"\x15\x03\x03\0\x02", b"\xc3\0\0\0\1\x08", b"\0\0\x10\1\5\0\0\0\1", b"\1\x10")
"""Two records of TLS (RFC 8446, section 5.1), a packet of QUIC with a long header, frames of HTTP/2 and HTTP/3."""

BYTES = (
    st.binary(min_size=1, max_size=1000)  # mostly some bytes
    | st.builds(lambda size, seed: random.Random(seed).randbytes(size), st.integers(1, 1000), st.integers(0, 1 << 32))
    | st.builds(lambda head, body: head + body, st.sampled_from(HEADS), st.binary(max_size=1000))
)


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


def answers(usual: int) -> int:
    return int(os.environ.get("UPSHIFT_RANDOM_ANSWERS", usual))


@pytest.mark.parametrize("client", clients.ALL.values(), ids=lambda client: client.name)
def test_random_bytes_have_a_cause(client: Client, faulty: Faulty, repeats: Repeats) -> None:
    count, seen, began = answers(repeats(quick=6, soak=400)), Counter[str](), time.monotonic()
    at_once = next((number for number in AT_ONCE if count >= 100 * number), AT_ONCE[-1])

    def ends(noise: Noise, own: Programs, answer: bytes, in_http: bool) -> None:
        noise.answer = answer
        port = faulty.ports["answers"] if in_http else noise.port(client)
        request = DownloadRequest(
            url=f"https://{faulty.host}:{port}" + (f"/bytes/{answer.hex()}" if in_http else "/ok"),
            address="127.0.0.1",
            port=port,
            ca_file=faulty.ca,
            budget_s=BUDGET_S if in_http or client.transport is Transport.TCP else SILENCE_S,
            max_bytes=None,
            user_agent="upshift-test",
            allowed=("127.0.0.0/8",),
            expected_bytes=len(answer),
        )
        result = own.call(client, request)
        said = (result.failure, result.failure_code, result.failure_detail, answer, in_http)
        assert result.outcome is not Outcome.OK and result.failure in CAUSES, said
        tells = result.failure_code is not None or result.failure not in FAILURE_CODES
        assert tells or (client.name, result.failure) in UNTOLD, said
        seen[f"{result.failure} {result.failure_code or '-'}"] += 1

    with contextlib.ExitStack() as stack:
        noises = [stack.enter_context(contextlib.closing(Noise())) for _ in range(at_once)]
        programs = [stack.enter_context(Programs()) for _ in range(at_once)]
        pool = stack.enter_context(ThreadPoolExecutor(at_once))

        @hypothesis.settings(max_examples=-(-count // at_once))
        @hypothesis.given(st.lists(st.tuples(BYTES, st.booleans()), min_size=at_once, max_size=at_once))
        def all_end(given: list[tuple[bytes, bool]]) -> None:
            for _ in pool.map(ends, noises, programs, *zip(*given, strict=True)):
                pass

        all_end()
    causes = ", ".join(f"{cause} {count}" for cause, count in seen.most_common())
    took_ms = 1000 * (time.monotonic() - began) / seen.total()
    print(f"{client.name}: {seen.total():,} random answers, {took_ms:.0f} ms each: {causes}")


@cells("name", every=["curl-h1", "curl-h3"], quick=["curl-h1"])
def test_a_client_that_was_stopped_for_longer_than_its_budget(name: str, faulty: Faulty) -> None:
    """As by a host that sleeps: libcurl's own limit is over, too, and is no unknown cause."""
    client = clients.ALL[name]
    over_tcp = client.transport is Transport.TCP
    kind = socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM
    with socket.socket(type=kind) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30.0)
        request = DownloadRequest(
            url=f"https://{faulty.host}/ok",
            address="127.0.0.1",
            port=server.getsockname()[1],
            ca_file=faulty.ca,
            budget_s=0.5,
            max_bytes=None,
            user_agent="upshift-test",
            allowed=("127.0.0.0/8",),
            expected_bytes=1,
        )
        if over_tcp:
            server.listen()
        child = subprocess.Popen([*require(client), *client.arguments(request)], stdout=subprocess.PIPE, text=True)
        with contextlib.ExitStack() as stack:
            stack.callback(child.kill)
            if over_tcp:
                stack.enter_context(server.accept()[0])
            else:
                server.recv(2048)
            child.send_signal(signal.SIGSTOP)
            time.sleep(request.budget_s + 5.5)
            child.send_signal(signal.SIGCONT)
            result = client.result(child.communicate(timeout=30)[0])
    assert result.failure is Failure.CONNECT_TIMEOUT, result.failure_detail


class Muddled:
    """A name server on UDP whose answer is cut, and has some bytes changed or added."""

    def __init__(self) -> None:
        self.cut, self.changes, self.more = 0, dict[int, int](), b""
        self._sock = socket.socket(type=socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = self._sock.recvfrom(4096)
                answer = dns.message.make_response(dns.message.from_wire(data))
                name = answer.question[0].name
                answer.answer = [
                    dns.rrset.from_text(name, 60, "IN", "CNAME", "edge.example."),
                    dns.rrset.from_text("edge.example.", 60, "IN", "A", "198.18.0.1"),
                ]
                wire = bytearray(answer.to_wire())
                for place, value in self.changes.items():
                    wire[2 + place % (len(wire) - 2)] = value  # not the query's number: another one is not read
                self._sock.sendto(wire[: len(wire) - self.cut] + self.more, peer)

    def close(self) -> None:
        self._sock.close()


CHANGES = st.dictionaries(st.integers(0, 200), st.integers(0, 255), max_size=6)


def test_muddled_dns_answers_have_a_word(monkeypatch: pytest.MonkeyPatch, repeats: Repeats) -> None:
    server, seen = Muddled(), Counter[str]()
    monkeypatch.setattr(resolve, "_DNS_PORT", server.port)
    monkeypatch.setattr(resolve, "_are_silent", lambda _: False)  # its answers for the root are muddled, too

    @hypothesis.settings(max_examples=answers(repeats(quick=20, soak=1_000)), deadline=None)
    @hypothesis.given(
        st.integers(0, 60),
        st.dictionaries(st.integers(0, 200), st.integers(0, 255), max_size=6),
        st.binary(max_size=40),
    )
    def ends(cut: int, changes: dict[int, int], more: bytes) -> None:
        server.cut, server.changes, server.more = cut, changes, more
        found = resolve.resolve(
            "a.example", family="ipv4", nameservers=["127.0.0.1"], timeout_s=0.2, allowed=resolve.ANYWHERE
        )
        assert bool(found["addresses"]) != bool(found["error"] and found["code"]), found
        assert all(ipaddress.ip_address(address) for address in found["addresses"])
        seen[found["code"] or "an address"] += 1

    try:
        ends()
    finally:
        server.close()
    print(f"DNS: {seen.total():,} muddled answers: {dict(seen.most_common())}")
