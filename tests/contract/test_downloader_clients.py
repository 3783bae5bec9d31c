"""Every client of the registry against real servers on loopback: the same file, the same causes of failure."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme
from aioquic.tls import Group

from analysis.evidence.proof import QUIC_V1
from core.domain import Failure, FailureCode, Outcome, Transport
from core.errors import UsageError
from downloader import clients
from downloader.client import Client, ClientResult, DownloadRequest, with_setup
from tests.cells import cells
from tests.contract._client_hello import Hello, from_quic, from_tcp
from tests.contract._programs import Programs, require
from tests.contract.conftest import LARGE, Faulty, Server

CLIENTS = list(clients.ALL.values())
ALPN = {"1.1": "http/1.1", "2": "h2", "3": "h3"}
"""HTTP version -> its name in TLS (RFC 7301's registry)."""
X25519_MLKEM768 = 0x11EC


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


PROGRAMS = Programs()


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """Interpreters are kept from test to test, as the downloader keeps them."""
    with PROGRAMS:
        yield


def call(client: Client, request: DownloadRequest) -> ClientResult:
    """One download, called as the downloader does it."""
    return PROGRAMS.call(client, request)


def call_alone(client: Client, request: DownloadRequest) -> ClientResult:
    """Runs the client's program alone, as a person could."""
    command = [*require(client), *client.arguments(request)]
    called_at = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return with_setup(client.parse(done.stdout), called_at=called_at)


def ask(server: Any, path: str = "/file", **changes: Any) -> DownloadRequest:
    values: dict[str, Any] = {
        "url": server.url(path),
        "address": "127.0.0.1",
        "port": server.port,
        "ca_file": server.ca,
        "budget_s": 20.0,
        "max_bytes": None,
        "user_agent": "upshift-test",
        "allowed": ("127.0.0.0/8",),
    }
    return DownloadRequest(**{**values, **changes})


def test_gets_the_file(client: Client, caddy: Any) -> None:
    began = time.monotonic()
    result = call_alone(client, ask(caddy))
    took_s = time.monotonic() - began
    assert (result.outcome, result.failure_detail) == (Outcome.OK, None)
    assert (result.body_bytes, result.content_length, result.body_sha256) == (3_000_000, 3_000_000, caddy.sha256)
    assert (result.server_ip, result.server_port, result.local_ip) == ("127.0.0.1", caddy.port, "127.0.0.1")
    assert result.connect_s is not None and result.first_byte_s is not None and result.last_byte_s is not None
    assert 0 < result.connect_s <= (result.tls_s or result.connect_s) <= result.first_byte_s <= result.last_byte_s < 20
    assert result.setup_s is not None and result.setup_s > 0 and result.setup_s + result.last_byte_s < took_s
    assert result.client_cpu_s is not None and result.transfer_cpu_s is not None and result.run_delay_s is not None
    assert 0 < result.transfer_cpu_s <= result.client_cpu_s and result.run_delay_s >= 0
    assert result.local_port and result.client_version and result.tls_version == "TLSv1.3" and result.tls_cipher
    assert result.response_headers["server"] == "Caddy"
    assert client.http is not None and (result.http_version, result.alpn) == (client.http, ALPN[client.http])
    if client.transport is Transport.TCP:
        assert result.quic is None and result.tcp is not None
        assert result.tcp["congestion_control"] and result.tcp["rtt_us"] > 0 and result.tcp["rcv_mss"] > 500
    else:
        assert result.tcp is None and result.quic is not None and result.socket_drops is not None
        # In a buffer that is smaller than the file, a client that waits for a processor loses some.
        assert result.socket_drops == 0 or result.quic["rcvbuf_bytes"] < 2 * 3_000_000
        assert result.quic.get("version") in (None, QUIC_V1), "None: inspection reads it from the capture"
        if (parameters := result.quic.get("transport_parameters")) is not None:
            assert parameters["peer"] is None or parameters["peer"]["initial_max_data"] > 0
            assert parameters["local"]["initial_max_data"] == window(client)


def window(client: Client) -> int:
    """What a QUIC client lets a server send ahead: by its options, or fixed."""
    options = {option.name: option.default for option in client.options}
    least = client.window_bytes or min(options["max_data"], options["max_stream_data"])
    assert isinstance(least, int)
    return least


@cells("client", every=CLIENTS, quick=[clients.ALL["requests"], clients.ALL["quiche"]], ids=lambda client: client.name)
def test_a_body_too_large_to_be_kept(client: Client, caddy: Any) -> None:
    """It is hashed by a second thread, whose CPU time does not count: one thread uses at most the wall clock's."""
    result = call(client, ask(caddy, "/large", budget_s=60.0))
    assert (result.outcome, result.failure_detail, result.body_bytes) == (Outcome.OK, None, LARGE)
    assert result.body_sha256 == hashlib.sha256(bytes(LARGE)).hexdigest()
    assert result.transfer_cpu_s is not None and result.last_byte_s is not None
    assert 0 < result.transfer_cpu_s < result.last_byte_s + 0.01


def hello_of(client: Client, caddy: Any, **changes: Any) -> Hello:
    kind = socket.SOCK_STREAM if client.transport is Transport.TCP else socket.SOCK_DGRAM
    with socket.socket(type=kind) as server, ThreadPoolExecutor(1) as thread:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)
        if kind is socket.SOCK_STREAM:
            server.listen()
        download = thread.submit(call, client, ask(caddy, port=server.getsockname()[1], budget_s=0.8, **changes))
        hello = from_tcp(server) if kind is socket.SOCK_STREAM else from_quic(server)
        assert download.result().failure in {Failure.CONNECTION_RESET, Failure.CONNECT_TIMEOUT}
    return hello


@pytest.mark.parametrize("name", ["curl-h1", "curl-h2"])
def test_a_post_quantum_hello_has_a_share_for_other_servers_too(name: str, caddy: Any) -> None:
    """One without would cost a round trip with them, for a HelloRetryRequest (RFC 8446, section 4.1.4)."""
    hello = hello_of(clients.ALL[name], caddy, options={"post_quantum": 1})
    assert hello.key_shares == [X25519_MLKEM768, Group.X25519]


def test_the_client_hello_is_one_packet_with_one_key_share(client: Client, caddy: Any) -> None:
    """What a server answers at once: a hello in two packets costs some of them round trips (docs/design/h3get.md)."""
    hello = hello_of(client, caddy)
    assert hello.key_shares == [Group.X25519] and hello.size < 1300, hello
    # One that would send a share for each group that it lists can list but one.
    assert hello.groups in ([Group.X25519], [Group.X25519, Group.SECP256R1, Group.SECP384R1])
    if (told := hello.parameters) is not None:
        # A library may open the stream's window with the request; the connection's has to be there by then.
        assert (told.initial_max_stream_data_bidi_local or 0) <= window(client) <= (told.initial_max_data or 0)
        # Where version 2 is offered, too, a server may change to it (RFC 9368, section 2.3).
        assert told.version_information is None or told.version_information.available_versions == [1]


@pytest.mark.parametrize("client", [c for c in CLIENTS if c.transport is Transport.QUIC], ids=lambda c: c.name)
def test_what_a_server_may_send_ahead(client: Client, faulty: Faulty) -> None:
    port = faulty.ports["answers"]
    server = Server(faulty.host, port, faulty.ca, faulty.ca)
    assert call(client, ask(server, "/window")).response_headers["etag"] == str(window(client))


@pytest.mark.parametrize(
    "path", ["/echo/a%7Eb%c3%a4", "/echo/../c/./d//e", "/echo/|^{}\"\\?a=|&b='", "/echo/?", "/echo/%#f"]
)
def test_the_path_is_asked_for_as_given(client: Client, faulty: Faulty, path: str) -> None:
    port = faulty.ports["answers"]
    result = call(client, ask(Server(faulty.host, port, faulty.ca, faulty.ca), path))
    assert result.response_headers["etag"] == path.partition("#")[0], result.failure_detail


def test_byte_budget(client: Client, caddy: Any) -> None:
    result = call(client, ask(caddy, max_bytes=100_000))
    assert (result.outcome, result.failure, result.body_sha256) == (Outcome.CENSORED, Failure.BYTE_BUDGET, None)
    assert result.last_byte_s is not None and result.body_bytes >= 100_000


def test_certificates(client: Client, caddy: Any) -> None:
    assert call(client, ask(caddy, ca_file=caddy.other_ca)).failure is Failure.TLS_CERTIFICATE
    wrong_name = f"https://other.example:{caddy.port}/file"
    refused = {Failure.TLS_CERTIFICATE, Failure.TLS_ERROR, client.hides.get(Failure.TLS_ERROR)}
    assert call(client, ask(caddy, url=wrong_name)).failure in refused - {None}


def test_refused_port(client: Client, caddy: Any) -> None:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))  # bound, not listening: nobody else takes the port meanwhile
        port = tcp.getsockname()[1] if client.transport is Transport.TCP else udp.getsockname()[1]
        if client.transport is Transport.QUIC:
            udp.close()
        result = call(client, ask(caddy, port=port, budget_s=5))
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.CONNECTION_REFUSED)


def test_nobody_answers(client: Client, caddy: Any) -> None:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(0)
        waiting = [socket.socket() for _ in range(3)]  # fill the backlog, so that SYNs are dropped
        for other in waiting:
            other.setblocking(False)
            other.connect_ex(tcp.getsockname())
        port = tcp.getsockname()[1] if client.transport is Transport.TCP else udp.getsockname()[1]
        result = call(client, ask(caddy, port=port, budget_s=1.0))
        for other in waiting:
            other.close()
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.CONNECT_TIMEOUT)
    if client.transport is Transport.QUIC:  # its packets are in the capture
        assert result.local_ip == "127.0.0.1" and result.local_port


def test_without_a_route_there_is_no_client_port(client: Client, caddy: Any) -> None:
    """Two downloads with one port would void their run, and a capture without packets of a port counts as lost."""
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this host allows no user namespaces")
    command = [*alone, "--", *require(client), *client.arguments(ask(caddy))]  # where the loopback device is down
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = client.result(done.stdout)
    assert (result.failure, result.failure_code) == (Failure.NETWORK_UNREACHABLE, FailureCode.NO_ROUTE)
    assert (result.local_ip, result.local_port) == (None, None)


def test_no_packet_to_an_address_outside(client: Client, caddy: Any) -> None:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(5)
        udp.bind(("127.0.0.1", 0))
        for listener in (tcp, udp):
            listener.settimeout(0.3)
        port = tcp.getsockname()[1] if client.transport is Transport.TCP else udp.getsockname()[1]
        request = ask(caddy, port=port, allowed=("198.18.0.0/15",))
        result = call(client, request)
        with pytest.raises(TimeoutError):
            tcp.accept()
        with pytest.raises(TimeoutError):
            udp.recv(100)
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.ADDRESS_REFUSED)
    assert (result.setup_s, result.client_cpu_s, result.run_delay_s) == (None, None, None), (
        "nothing was sent, so nothing was timed"
    )


def test_the_environment_limits_too(client: Client, caddy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    assert call_alone(client, ask(caddy, allowed=("0.0.0.0/0",))).failure is Failure.ADDRESS_REFUSED


def test_windows_are_settable(client: Client, caddy: Any) -> None:
    """Unless they are the kernel's, or the library's own: then no campaign file can set them."""
    wanted = {"max_data": 300_000, "max_stream_data": 200_000}
    if client.transport is Transport.TCP or client.window_bytes is not None:
        with pytest.raises(UsageError, match="has no option 'max_data'"):
            client.parse_options(wanted)
        return
    options = client.parse_options(wanted)
    result = call(client, ask(caddy, options=options))
    assert result.outcome is Outcome.OK and result.quic is not None
    local = result.quic["transport_parameters"]["local"]
    assert (local["initial_max_data"], local["initial_max_stream_data_bidi_local"]) == (300_000, 200_000)


def test_help_and_wrong_use(client: Client) -> None:
    command = require(client)
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0 and "--budget-s" in shown.stdout
    for wrong in (["--url", "ftp://x/"], ["--url", "https://x/", "--address", "nonsense"], []):
        done = PROGRAMS.run(client, wrong)
        assert done.returncode == 2 and "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("name", ["none.pem", "text.pem", "folder"])
def test_an_unreadable_ca_file_is_wrong_use(client: Client, caddy: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    done = PROGRAMS.run(client, client.arguments(ask(caddy, ca_file=tmp_path / name)))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.endswith(f": {tmp_path / name} is not a readable PEM file with CA certificates\n"), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bundle_of_many(client: Client, caddy: Any, tmp_path: Path) -> None:
    """Only the last authority of the bundle is the server's."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"".join([*(trustme.CA().cert_pem.bytes() for _ in range(5)), caddy.ca.read_bytes()]))
    assert call(client, ask(caddy, ca_file=bundle)).outcome is Outcome.OK
