"""What every server kind does that a topology may name as `web_server`: whole files, pages that are missing, several
requests in one segment (a survey puts four there), and the end of a connection where the client asks for it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.lab._probe import Probe, get, probes
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab
from vantage.server_kind import ServerRole
from vantage.servers import ALL

pytestmark = pytest.mark.lab

KINDS = [kind.name for kind in ALL.values() if kind.can_be_chosen]
PIPELINE = """
import socket, sys
host, path = sys.argv[1:]
with socket.create_connection((host, 80), timeout=10) as connection:
    request = f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n"
    connection.sendall(((request + "\\r\\n") * 3 + request + "Connection: close\\r\\n\\r\\n").encode())
    received = b""
    while part := connection.recv(65536):
        received += part
print(received.count(b"HTTP/1.1 200"), len(received))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("kinds") / "kinds.toml"
    servers = [
        server(kind, f"www.{kind}.example", more=f'web_server = "{kind}"\nplain_http = true', size="300 kB")
        for kind in KINDS
    ]
    path.write_text(topology("kinds", *servers))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ul-", dir="/tmp") as state:
        patch.setenv("UPSHIFT_STATE_DIR", state)  # the path of a socket is short
        with open_lab(path) as found:
            yield found


def test_there_are_four() -> None:
    assert sorted(KINDS) == ["caddy", "nginx", "sender", "smoltcp"]
    assert all(ServerRole.WEB in ALL[kind].roles for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_whole_over_both_families(lab: Lab, kind: str) -> None:
    [target] = [target for target in lab.targets() if target.domain == f"www.{kind}.example"]
    assert target.url.startswith("https://" if ALL[kind].tls else "http://")
    for family in ("-4", "-6"):
        ask = f"curl -sS --fail --cacert {lab.ca_file} {family} {target.url} | sha256sum"
        done = lab.place("V").run(["sh", "-c", ask])
        assert done.stdout.split()[:1] == [lab.sha256(target.domain)], (family, done)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_page_is_404_over_plain_http(lab: Lab, kind: str) -> None:
    ask = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}"]
    if kind != "caddy":  # which leads to HTTPS where it has no file
        assert lab.place("V").run([*ask, f"http://www.{kind}.example/none.bin"]).stdout == "404"
    assert lab.place("V").run([*ask, f"http://www.{kind}.example/a.bin"]).stdout == "200"


@pytest.mark.parametrize("kind", KINDS)
def test_four_requests_in_one_segment_get_four_answers(lab: Lab, kind: str) -> None:
    done = lab.place("V").run([sys.executable, "-c", PIPELINE, f"www.{kind}.example", "/a.bin"])
    answers, received = map(int, done.check(doing="asking").stdout.split())
    assert answers == 4 and received > 4 * 300_000, done


ONE_BY_ONE = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], 80, timeout=20)
for _ in range(300):
    connection.request("GET", "/none.bin")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 404 and not answer.will_close, answer.status
"""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"caddy", "sender"}])
def test_a_connection_serves_hundreds_of_requests(lab: Lab, kind: str) -> None:
    """More than a buffer of requests: each must be read where it goes round the buffer's end, too."""
    lab.place("V").run([sys.executable, "-c", ONE_BY_ONE, f"www.{kind}.example"]).check(doing="asking")


def test_smoltcp_has_addresses_that_are_not_its_nodes_kernels(lab: Lab) -> None:
    """Another make of TCP, without TLS and QUIC."""
    assert lab.plan.addresses["smoltcp"].ipv4 not in lab.place("smoltcp").run(["ip", "address"]).stdout
    [target] = [target for target in lab.targets() if target.domain == "www.smoltcp.example"]
    assert (target.url, target.quic) == ("http://www.smoltcp.example/a.bin", False)


def test_smoltcp_starts_with_2048_bytes_at_any_segment_size(lab: Lab) -> None:
    own = lab.plan.addresses["smoltcp"]
    cells = [(target, mss) for target in (own.ipv4, own.ipv6) for mss in (64, 128, 536, 1200)]
    asked = [Probe(target=target, request=get("/a.bin", "www.smoltcp.example"), mss=mss) for target, mss in cells]
    for (target, mss), flight in zip(cells, probes(lab.place("V"), asked), strict=True):
        assert flight.ended_s is not None and flight.more and not flight.reset, (target, mss, flight)
        assert (flight.size, flight.largest) == (2048, mss), (target, mss, flight)
    [path] = [path for path in lab.truth()["paths"] if path["domain"] == "www.smoltcp.example"]
    assert (path["initial_window"], path["initial_window_unit"]) == (2048, "bytes")
