"""What a lab serves: DNS, files, caches, faults, kernel settings, addresses of probers, and no way out."""

from __future__ import annotations

import errno
import hashlib
import re
import sys
from pathlib import Path

import pytest

from core.domain import RouteAttribute, Sysctl, Target
from core.errors import LabError, PlaceError, ReachError
from core.files import store
from core.reach import check_address
from survey.options.record import OptionsRecord
from tests.lab._probe import Probe, probes
from vantage.lab.lab import Lab, open_lab
from vantage.lab.place import LabPlace

pytestmark = pytest.mark.lab


@pytest.fixture
def muc(small_lab: Lab) -> LabPlace:
    place = small_lab.place("MUC")
    yield place
    place.close()


WRITE = "%{http_code} %{size_download} %{http_version} %header{x-cache}"


def fetch(place: LabPlace, url: str, *options: str, timeout_s: float = 30) -> list[str]:
    """What curl writes: code, bytes, version, X-Cache; then its exit code."""
    done = place.run(
        ["curl", "-sS", "--cacert", str(place.ca_file), "-o", "/dev/null", *options, "-w", WRITE, url],
        timeout_s=timeout_s,
    )
    return [*done.stdout.split(), f"exit={done.returncode}"]


def test_a_file_comes_whole_over_http1(small_lab: Lab, muc: LabPlace, tmp_path: Path) -> None:
    for target in small_lab.targets():
        file = tmp_path / "body"
        muc.run(["curl", "-sS", "--http1.1", "--cacert", str(muc.ca_file), "-o", str(file), target.url]).check(doing="")
        assert file.stat().st_size == target.size_bytes
        assert hashlib.sha256(file.read_bytes()).hexdigest() == small_lab.sha256(target.domain)


def test_http2_and_ipv6_work(muc: LabPlace) -> None:
    url = "https://www.near.example/files/near.bin"
    assert fetch(muc, url, "--http2", "-6")[:3] == ["200", "1000000", "2"]


def test_headers_are_those_of_an_ordinary_server(small_lab: Lab, muc: LabPlace) -> None:
    for target in small_lab.targets():
        said = muc.run(["curl", "-sS", "--cacert", str(muc.ca_file), "-o", "/dev/null", "-D", "-", target.url]).stdout
        headers = dict(line.lower().split(": ", 1) for line in said.splitlines()[1:] if ": " in line)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-length"] == str(target.size_bytes)
        assert "content-encoding" not in headers


def test_quic_servers_listen_for_http3(small_lab: Lab) -> None:
    for server in small_lab.topology.server:
        listening = small_lab.place(server.name).run(["ss", "-uln"]).stdout
        assert (":443 " in listening) == (server.quic and server.fault is None)


def test_dns_answers_every_kind(small_lab: Lab, muc: LabPlace) -> None:
    def ask(kind: str, name: str) -> str:
        return muc.run(["kdig", f"@{muc.nameservers[0]}", "+short", kind, name]).stdout

    own = small_lab.plan.addresses["cloudflare-1"]
    assert ask("A", "www.near.example").split() == [own.ipv4]
    assert ask("AAAA", "www.near.example").split() == [own.ipv6]
    assert "h3,h2" in ask("HTTPS", "www.near.example")
    plain = ask("HTTPS", "www.plain.example")  # newer versions of kdig put quotation marks around h2
    assert "h2" in plain and "h3" not in plain
    chain = ask("A", "www.edge.example").split()
    assert chain[:-1] == ["www.edge.example.edgesuite.example.", "a1.edge.akamai.example."]
    assert "NXDOMAIN" in muc.run(["kdig", f"@{muc.nameservers[0]}", "example.com"]).stdout


def test_an_edge_serves_the_second_download_from_its_cache(muc: LabPlace) -> None:
    url = "https://www.edge.example/media/edge.bin?fresh"  # no other test asks for this
    assert fetch(muc, url) == ["200", "1000000", "2", "MISS", "exit=0"]
    assert fetch(muc, url) == ["200", "1000000", "2", "HIT", "exit=0"]


@pytest.mark.parametrize(
    ("kind", "curl_exit"),
    [("missing", 22), ("reset", 56), ("stall", 28), ("truncate", 18)],
)
def test_fault_servers_fail_as_told(muc: LabPlace, kind: str, curl_exit: int) -> None:
    answer = fetch(muc, f"https://{kind}.fault.example/iso/{kind}.bin", "--fail", "--max-time", "3")
    assert answer[-1] == f"exit={curl_exit}"


def test_servers_use_cubic_the_window_and_the_buffers_of_the_topology(small_lab: Lab, muc: LabPlace) -> None:
    server = small_lab.place("hoster-1")
    assert int(server.run(["sysctl", "-n", "net.ipv4.tcp_wmem"]).stdout.split()[2]) >= 32_000_000
    # Held open without reading much: the server's socket is still there to be looked at.
    url = "https://www.plain.example/iso/plain.bin"
    argv = ["curl", "-sS", "--limit-rate", "200k", "--cacert", str(muc.ca_file), "-o", "/dev/null", url]
    with muc.start(argv):
        for _ in range(100):
            line = server.run(["ss", "-Htin", "sport", "=", ":443"]).stdout
            if found := re.search(r"\bcwnd:(\d+)", line):
                break
    assert found, "no connection was seen"
    assert " cubic " in line
    assert "initcwnd 10" in server.run(["ip", "route"]).stdout


def test_no_address_outside_the_lab_has_a_route(small_lab: Lab) -> None:
    connect = (
        "import socket, sys\n"
        "for family, address in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):\n"
        "    with socket.socket(family) as s:\n"
        "        print(s.connect_ex((address, 443)))\n"
    )
    for node in small_lab.plan.addresses:
        place = small_lab.place(node)
        codes = place.run([sys.executable, "-I", "-c", connect]).stdout.split()
        assert codes == [str(errno.ENETUNREACH)] * 2
        for address in ("192.0.2.1", "2001:db8::1"):
            done = place.run(["ip", "route", "get", address])
            assert done.returncode != 0
            assert "unreachable" in done.stderr


def test_other_addresses_are_refused_before_any_packet(muc: LabPlace) -> None:
    with pytest.raises(ReachError, match=r"192\.0\.2\.1 is outside"):
        check_address("192.0.2.1", muc.allowed_prefixes)
    assert "198.18.0.0/15" in muc.run(["env"]).stdout


def test_settings_are_applied_and_put_back(muc: LabPlace) -> None:
    def look() -> tuple[str, str, str]:
        values = muc.run(["sysctl", "-n", "net.ipv4.tcp_sack", "net.ipv4.tcp_rmem"]).stdout.split()
        return values[0], " ".join(values[1:]), muc.run(["ip", "route"]).stdout.strip()

    before = look()
    for _ in range(2):
        muc.apply(
            [
                Sysctl(name="net.ipv4.tcp_sack", value="0"),
                Sysctl(name="net.ipv4.tcp_rmem", value="536870912", field=2),
                RouteAttribute(name="window", value="131072"),
            ]
        )
    sack, rmem, route = look()
    assert (sack, rmem) == ("0", " ".join([*before[1].split()[:2], "536870912"]))
    assert "window 131072" in route
    assert "congctl cubic" in route
    assert "initcwnd 10" in route
    muc.apply([RouteAttribute(name="window", value=None)])
    assert look()[2] == before[2]
    muc.close()
    assert look() == before
    with pytest.raises(PlaceError, match=r"no setting net\.ipv4\.tcp_nonsense"):
        muc.apply([Sysctl(name="net.ipv4.tcp_nonsense", value="1")])
    with pytest.raises(PlaceError, match="tcp_sack"):
        muc.apply([Sysctl(name="net.ipv4.tcp_sack", value="9999")])


def test_a_watch_accounts_for_every_packet(small_lab: Lab, muc: LabPlace) -> None:
    target = next(target for target in small_lab.targets() if target.domain == "www.lossy.example")
    for _ in range(2):
        watch = muc.watch(str(target.server_ip))
        done = muc.run(
            ["curl", "-4", "-sS", "--cacert", str(muc.ca_file), "-o", "/dev/null", "-w", "%{local_port}", target.url]
        )
        watch.settle()
        verdict = watch.finish()
        (flow,) = [verdict.flows["tcp", int(done.stdout)]]
        assert flow.sent == flow.received + flow.dropped
        assert 700 < flow.sent < 3000
        assert flow.dropped > 0
        assert len(verdict.flows) == 1, "an earlier run was counted again"
        assert verdict.lateness_p99_ms is not None


def test_the_environment_names_what_measurements_depend_on(muc: LabPlace) -> None:
    found = muc.environment()
    assert found["topology"] == "small"
    assert "net.ipv4.tcp_rmem" in found["sysctls"]  # type: ignore[operator]
    assert all(found["versions"].values())  # type: ignore[attr-defined]
    assert found["kernel"]


def test_a_lab_that_is_up_is_used(small_lab: Lab) -> None:
    with open_lab("small") as lab:
        assert lab.state["pid"] == small_lab.state["pid"]
    assert small_lab.folder.alive()


def test_targets_and_truth_agree(small_lab: Lab) -> None:
    truth = {entry["domain"]: entry for entry in small_lab.truth()["paths"]}
    targets = small_lab.targets(faults=True)
    assert [target.domain for target in targets] == list(truth)
    assert len(small_lab.targets()) == len(targets) - 4
    assert truth["www.near.example"]["clean"]
    assert not truth["www.lossy.example"]["clean"]
    assert truth["www.edge.example"]["edge"]


def test_no_kernel_has_a_probers_address_and_none_answers_for_it(small_lab: Lab, muc: LabPlace) -> None:
    """It is routed to its vantage point."""
    prober = muc.prober()
    assert small_lab.truth()["probers"] == {"MUC": {"ipv4": prober.ipv4, "ipv6": prober.ipv6}}
    held = muc.run(["ip", "-oneline", "address"]).stdout
    assert f"{prober.ipv4}/" not in held and f"{prober.ipv6}/" not in held
    assert (prober.device, prober.neighbour, prober.ports) == ("tun0", None, None)
    own = small_lab.plan.addresses["akamai-1"]
    for flight in probes(muc, [Probe(target=at, port=443, request="", end_s=1.5) for at in (own.ipv4, own.ipv6)]):
        # The server waits for a ClientHello: its SYN-ACK came once, as a kernel that answered with RST had ended it.
        assert flight.syn_ack and not flight.reset and not flight.segments


def test_a_server_has_no_prober_address(small_lab: Lab) -> None:
    with pytest.raises(LabError, match="akamai-1 has no prober address"):
        small_lab.place("akamai-1").prober()


@pytest.mark.usefixtures("root")
def test_a_survey_of_options_makes_settings_at_a_node_and_puts_them_back(
    small_lab: Lab, muc: LabPlace, tmp_path: Path
) -> None:
    """From targets to targets."""
    source, out = tmp_path / "t.parquet", tmp_path / "out.parquet"
    targets = small_lab.targets()
    store.write_rows(source, "targets", [*targets, *targets[:1]])
    before = muc.run(["sysctl", "-a", "-r", r"net\.ipv4\.tcp_(ecn|sack|window|timestamps)"]).stdout
    assert "tcp_ecn = 1" not in before
    upshift = [sys.executable, "-c", "from upshift.cli import main; main()"]
    command = [*upshift, "survey", "options", str(source), "-o", str(tmp_path / "r.parquet")]
    done = muc.run([*command, "--targets-out", str(out), "--nameserver", muc.nameservers[0]])
    assert done.returncode == 0, done.stderr
    assert muc.run(["sysctl", "-a", "-r", r"net\.ipv4\.tcp_(ecn|sack|window|timestamps)"]).stdout == before
    filled = store.read_rows(out, "targets", Target)
    assert len(filled) == len(targets) + 1
    assert all(target.sack and target.window_scaling and target.ecn is not None for target in filled)
    records = store.read_rows(tmp_path / "r.parquet", "survey_options", OptionsRecord)
    truth = {path["domain"]: path["rtt_ms"] for path in small_lab.truth()["paths"] if path["vantage"] == "MUC"}
    for record in records:
        assert record.rtt_s is not None
        # 3.996 ms were seen where 4 are programmed.
        assert truth[record.domain] - 0.1 <= record.rtt_s * 1000 < truth[record.domain] + 50
