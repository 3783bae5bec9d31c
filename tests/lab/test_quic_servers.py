"""QUIC servers of the lab: h3serve (`quic_server = "quiche"`) gives what Caddy gives, and takes settings while up."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.measures import truth
from core.domain import Target
from core.files import store
from core.system import process
from survey.quic.record import QuicRecord
from tests.cells import cells
from tests.lab._h3serve_settings import h3serve_settings, settings_file
from tests.lab._sites import logged_requests
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, site_kinds, topology
from vantage.lab.lab import Lab, open_lab
from vantage.lab.place import LabPlace

pytestmark = pytest.mark.lab

H3GET = process.find_program("h3get") or "h3get"
H3_ASK = str(Path(__file__).with_name("_h3_ask.py"))
PATH = "rtt_ms = 6, rate_mbit = 100"
FASTER = "rtt_ms = 2, rate_mbit = 300"
SITES = "".join(
    f'\n[[site]]\nkind = "{kind}"\ndomain = "{kind.replace("_", "-")}.example"\nserver = "s"\n'
    for kind in ("plain", "no_head", "www", "error", "loop", "robots_error")
)
TOPOLOGY = (
    topology(
        "quic-servers",
        server("s", "www.s.example", size="1 MB", path=PATH),
        server("edge", "www.edge.example", size="40 MB", path=FASTER, more="edge = { rtt_ms = 2, rate_mbit = 400 }"),
        server("old", "www.old.example", size="1 MB", path=PATH, more='quic_server = "caddy"'),
        server("reno", "www.reno.example", path=PATH, more='quic_congestion_control = "reno"'),
        server("none", "www.none.example", path=PATH, more="quic = false"),
    ).replace("\n[[vantage]]", '\nquic_server = "quiche"\n[[vantage]]', 1)
    + SITES
    + site_kinds("no_head", "www", "loop", "robots_error")
)

OF_THE_PROGRAM = {"server", "alt-svc", "date"}
"""Headers in which HTTP/1.1 by Caddy and HTTP/3 by h3serve differ on purpose (docs/design/h3serve.md)."""


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("quic-servers") / "quic-servers.toml"
    path.write_text(TOPOLOGY)
    with open_lab(path) as lab:
        yield lab


@pytest.fixture
def here(lab: Lab) -> Iterator[LabPlace]:
    place = lab.place("V")
    yield place
    place.close()


def target_of(lab: Lab, domain: str) -> Target:
    return next(target for target in lab.targets() if target.domain == domain)


def download(place: LabPlace, target: Target, *program: str) -> dict[str, Any]:
    """The document of one of our QUIC clients, h3get if no other is given."""
    common = ["--url", target.url, "--address", str(target.server_ip), "--ca", str(place.ca_file)]
    argv = [*(program or (H3GET,)), *common, "--budget-s", "30", "--allow", "198.18.0.0/15"]
    found: dict[str, Any] = json.loads(place.run(argv, timeout_s=60).check(doing="downloading").stdout)
    return found


def request(host: str, path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    return {"host": host, "method": method, "path": path, "headers": {"user-agent": "test", **headers}}


def ask_h3(place: LabPlace, address: str, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    argv = [sys.executable, H3_ASK, str(place.ca_file), address]
    done = place.run(argv, stdin=json.dumps(requests), timeout_s=120).check(doing="asking over HTTP/3")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def ask_tcp(place: LabPlace, address: str, requests: Sequence[Mapping[str, Any]], body: Path) -> list[dict[str, Any]]:
    """The same of Caddy over HTTP/1.1."""
    answers = []
    for one in requests:
        argv = ["curl", "-sS", "--http1.1", "--cacert", str(place.ca_file), "-o", str(body), "-D", "-"]
        argv += ["--resolve", f"{one['host']}:443:{address}", *(["-I"] if one["method"] == "HEAD" else [])]
        for name, value in one["headers"].items():
            argv += ["-H", f"{name}: {value}"]
        body.write_bytes(b"")
        head = place.run([*argv, f"https://{one['host']}{one['path']}"]).check(doing="asking Caddy").stdout
        lines = head.strip().splitlines()
        data = b"" if one["method"] == "HEAD" else body.read_bytes()
        headers = [line.partition(": ")[::2] for line in lines[1:]]
        answers.append(
            {
                "status": int(lines[0].split()[1]),
                "headers": [[name.lower(), value] for name, value in headers],
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    return answers


def comparable(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal. A length of zero may be said, or left to the end of the stream."""
    headers = sorted((name, value) for name, value in answer["headers"] if name not in OF_THE_PROGRAM)
    told = [pair for pair in headers if pair != ("content-length", "0")]
    return {"status": answer["status"], "headers": told, "size": answer["size"], "sha256": answer["sha256"]}


def test_every_file_is_the_same_with_both_clients_and_over_tcp(lab: Lab, here: LabPlace, tmp_path: Path) -> None:
    aioquic = (sys.executable, "-m", "downloader.programs.aioquic_get")
    for target in lab.targets():
        wanted = lab.sha256(target.domain)
        [tcp] = ask_tcp(here, str(target.server_ip), [request(target.domain, "/a.bin")], tmp_path / "body")
        assert tcp["sha256"] == wanted
        large = target.domain == "www.edge.example"  # 40 MB, with aioquic ten seconds of a processor
        for program in ((H3GET,), *([] if large else [aioquic])) if target.quic else ():
            answer = download(here, target, *program)
            assert (answer["outcome"], answer["body_sha256"]) == ("ok", wanted), (target.domain, program, answer)
            by = dict(answer["response_headers"])["server"] if "response_headers" in answer else ""
            assert ("h3serve" in by) == (target.domain != "www.old.example"), by


def test_headers_and_bodies_are_those_of_caddy(lab: Lab, here: LabPlace, tmp_path: Path) -> None:
    address = lab.plan.addresses["s"].ipv4
    measured = "www.s.example"
    asked = [
        request(measured, "/a.bin"),
        request(measured, "/a.bin?query=1"),
        request(measured, "/a.bin", "HEAD"),
        request(measured, "/"),
        request(measured, "/index.html"),
        request(measured, "/%61.bin"),
        request(measured, "/missing.bin"),
        request(measured, "/missing.bin", "HEAD"),
        request(measured, "/a.bin", range="bytes=10-19"),
        request(measured, "/a.bin", range="bytes=-7"),
        request(measured, "/a.bin", range="bytes=999990-"),
    ]
    hosts = [host for host in lab_hosts(lab) if host[0].endswith(".example")]
    asked += [request(name, path, method) for name, path, large in hosts for method in ("GET", "HEAD")[large:]]
    assert len(asked) > 35

    def over_tcp(number: int) -> dict[str, Any]:
        return ask_tcp(here, address, [asked[number]], tmp_path / f"body-{number}")[0]

    with ThreadPoolExecutor(8) as pool:  # most of the time of each is round trips
        answers = list(pool.map(over_tcp, range(len(asked))))
    for one, quic, tcp in zip(asked, ask_h3(here, address, asked), answers, strict=True):
        assert not quic["error"]
        assert comparable(quic) == comparable(tcp), one
        assert ["server", "h3serve"] in quic["headers"] and ["server", "Caddy"] in tcp["headers"]


def lab_hosts(lab: Lab) -> Iterator[tuple[str, str, bool]]:
    """Host, path, and whether the file is too large to be fetched here, of each answer of a site."""
    from vantage.lab.sites import hosts_of

    for host in hosts_of(lab.topology, lab.topology.server[0]):
        for path, answer in host.answers.items():
            yield host.name, path, (answer.size or 0) > 5_000_000
        yield host.name, "/missing.html", False


def test_what_is_not_a_good_request(lab: Lab, here: LabPlace) -> None:
    address = lab.plan.addresses["s"].ipv4
    asked = [
        request("www.s.example", "/a.bin", "POST"),
        request("www.s.example", "/a.bin", "BREW"),
        request("www.s.example", "/../../../../etc/passwd"),
        request("www.s.example", "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd"),
        request("www.s.example", "/a.bin", range="bytes=1000000-"),
        request("www.old.example", "/a.bin"),
    ]
    post, brew, dots, encoded, beyond, stranger = ask_h3(here, address, asked)
    for refused in (post, brew):
        assert refused["status"] == 405 and ["allow", "GET, HEAD"] in refused["headers"]
    assert [answer["status"] for answer in (dots, encoded)] == [404, 404]
    assert beyond["status"] == 416 and ["content-range", "bytes */1000000"] in beyond["headers"]
    assert stranger["status"] == 0 and stranger["error"], "a certificate for a host of another server"


def test_requests_to_sites_are_logged_whoever_answers(lab: Lab, here: LabPlace) -> None:
    address = lab.plan.addresses["s"].ipv4
    own = {"user-agent": "logged by h3serve"}
    asked = [request("plain.example", "/about.html?x=1"), request("www.s.example", "/a.bin")]
    page, _ = ask_h3(here, address, [one | {"headers": own} for one in asked])
    [seen] = [access for access in logged_requests(lab) if access.user_agent == own["user-agent"]]
    assert (seen.server, seen.host, seen.path, seen.method) == ("s", "plain.example", "/about.html?x=1", "GET")
    assert (seen.status, seen.sent_bytes, seen.client) == (200, page["size"], lab.plan.addresses["V"].ipv4)


def test_an_edge_gives_the_cache_headers_of_caddy(lab: Lab, here: LabPlace, tmp_path: Path) -> None:
    address = lab.plan.addresses["edge"].ipv4

    def cache(answers: Sequence[Mapping[str, Any]]) -> list[str]:
        return [value for answer in answers for name, value in answer["headers"] if name == "x-cache"]

    cold, over_tcp = request("www.edge.example", "/?cold"), request("www.edge.example", "/?warmed-over-tcp")
    assert cache(ask_h3(here, address, [cold, cold])) == ["MISS", "HIT"]
    assert cache(ask_tcp(here, address, [cold, over_tcp], tmp_path / "body")) == ["HIT", "MISS"]
    assert cache(ask_h3(here, address, [over_tcp])) == ["HIT"], "a warm-up over TCP matters to QUIC"
    asked = [
        request("www.edge.example", "/a.bin", "HEAD"),
        request("www.edge.example", "/"),
        request("www.edge.example", "/missing"),
        request("www.edge.example", "/", range="bytes=0-9"),
    ]
    ask_tcp(here, address, asked, tmp_path / "body")
    pairs = zip(ask_h3(here, address, asked), ask_tcp(here, address, asked, tmp_path / "body"), strict=True)
    for quic, tcp in pairs:
        assert comparable(quic) == comparable(tcp)
        assert [pair for pair in quic["headers"] if pair[0] == "server"] == [["server", "h3serve"], ["server", "nginx"]]


def test_what_passes_through_an_edge_is_not_held_in_memory(lab: Lab, here: LabPlace) -> None:
    target = target_of(lab, "www.edge.example")
    for _ in range(2):  # from the origin, and from the cache
        assert download(here, target)["body_bytes"] == 40_000_000
    (process_id,) = pids(lab, "edge")
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    peak_kb = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
    assert peak_kb < 30_000


def pids(lab: Lab, name: str) -> list[int]:
    """Processes of h3serve on a node."""
    marked = f"--hosts {lab.folder.root}/servers/{name}-quic/"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marked in words and "nsenter" not in words and "setpriv" not in words:
                found.append(int(entry.name))
    return found


def test_many_connections_at_once(lab: Lab, here: LabPlace) -> None:
    target = target_of(lab, "www.s.example")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: download(here, target), range(24)))
    assert {(answer["outcome"], answer["body_sha256"]) for answer in answers} == {("ok", lab.sha256(target.domain))}


def test_settings_change_while_the_lab_is_up(lab: Lab, here: LabPlace) -> None:
    target = target_of(lab, "www.s.example")
    before = json.loads(settings_file(lab, "s").read_text())
    assert before["congestion_control"] == "cubic"
    for name in ("reno", "bbr2", "cubic"):
        with h3serve_settings(lab, "s", congestion_control=name, initial_window_packets="40"):
            assert download(here, target)["body_sha256"] == lab.sha256(target.domain), name
    assert json.loads(settings_file(lab, "s").read_text()) == before
    # A value that it does not know: the connection has the settings that it was started with, and its log says why.
    with h3serve_settings(lab, "s", congestion_control="vegas"):
        assert download(here, target)["body_sha256"] == lab.sha256(target.domain)
    assert "vegas" in (lab.folder.logs / "s-quic.log").read_text()


def test_lab_json_and_dns_say_who_speaks_quic(lab: Lab, here: LabPlace) -> None:
    paths = {path["domain"]: path for path in lab.truth()["paths"]}
    fields = ("quic_server", "quic_congestion_control", "quic_initial_window_packets", "quic_packet_bytes")
    assert [paths["www.s.example"][name] for name in fields] == ["quiche", "cubic", 10, 1480]
    assert [paths["www.reno.example"][name] for name in fields] == ["quiche", "reno", 10, 1480]
    assert [paths["www.old.example"][name] for name in fields] == ["caddy", "reno", 32, 1280]
    assert "quic_server" not in paths["www.none.example"] and not paths["www.none.example"]["quic"]
    for domain in ("www.s.example", "www.old.example"):
        [record] = here.run(["kdig", f"@{here.nameservers[0]}", "+short", "HTTPS", domain]).stdout.splitlines()
        assert "h3,h2" in record
        head = here.run(["curl", "-sSI", "--cacert", str(here.ca_file), f"https://{domain}/a.bin"]).stdout
        assert 'alt-svc: h3=":443"; ma=2592000' in head.lower()
    for name, program in (("s", "h3serve"), ("old", "caddy")):
        assert f'"{program}"' in lab.place(name).run(["ss", "-Hulnp", "sport", "=", ":443"]).stdout
    assert here.environment()["versions"]["quiche"].startswith("h3serve ")  # type: ignore[index]


def test_the_survey_finds_it(lab: Lab, here: LabPlace, tmp_path: Path) -> None:
    source, out = tmp_path / "targets.parquet", tmp_path / "surveyed.parquet"
    targets = [dataclasses.replace(target, quic=None) for target in lab.targets()]
    store.write_rows(source, "targets", targets)
    details = tmp_path / "survey.parquet"
    argv = [sys.executable, "-m", "upshift", "survey", "quic", str(source), "-o", str(details)]
    argv += [
        "--targets-out",
        str(out),
        "--contact",
        "test@example.org",
        "--ca",
        str(here.ca_file),
        "--nameserver",
        here.nameservers[0],
    ]
    here.run(argv, timeout_s=120).check(doing="the survey")
    found = {row.domain: row.quic for row in store.read_rows(out, "targets", Target)}
    # Nobody has crawled them, so www.none.example might offer it by Alt-Svc: it was not asked.
    assert found == {target.domain: None if target.domain == "www.none.example" else True for target in targets}
    servers = {row.domain: row.server for row in store.read_rows(details, "survey_quic", QuicRecord)}
    assert servers["www.s.example"] == "h3serve" and servers["www.old.example"] == "Caddy"


MEASURED = topology(
    "quic-times",
    server("clean", "www.clean.example", size="2 MB", path="rtt_ms = 50, rate_mbit = 30"),
    server("short", "www.short.example", size="50 kB", path="rtt_ms = 80, rate_mbit = 50"),
    server("lossy", "www.lossy.example", size="2 MB", path="rtt_ms = 60, rate_mbit = 50, loss_percent = 1"),
).replace("\n[[vantage]]", '\nquic_server = "quiche"\n[[vantage]]', 1)


@pytest.fixture(scope="module")
def times(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("quic-times") / "quic-times.toml"
    path.write_text(MEASURED)
    with open_lab(path) as lab:
        yield lab


def seconds(lab: Lab, domain: str, *, times: int, **settings: str) -> float:
    """Median time of downloads with these settings of the server."""
    target = target_of(lab, domain)
    name = next(server.name for server in lab.topology.server if domain in server.domains)
    with closing(lab.place("V")) as here, h3serve_settings(lab, name, **settings):
        answers = [download(here, target) for _ in range(times)]
    assert {answer["outcome"] for answer in answers} == {"ok"}
    found = statistics.median(answer["last_byte_s"] for answer in answers)
    print(f"{domain} {settings}: {found:.3f} s")
    return float(found)


def until_good(measure: Callable[[], list[str]]) -> None:
    """Fails with what is wrong; where the host was busy, only after it has tried again."""

    def once() -> tuple[list[str], Noise]:
        with host_noise() as noise:
            wrong = measure()
        return wrong, noise[0]

    measured(once, lambda found: found[0], excuse=lambda found: found[1].excuse)


@pytest.mark.measures
@cells("algorithm", every=["cubic", "reno", "bbr2"], quick=["cubic"])
def test_download_times_are_those_of_the_model(times: Lab, algorithm: str) -> None:
    """Slow start from the server's own initial window; what paces (BBR) has the same rounds."""
    path = next(path for path in truth.paths(times.truth()) if path.domain == "www.clean.example")
    expected = truth.download_time(
        size_bytes=2_000_000,
        rtt_s=path.rtt_ms / 1e3,
        rate_mbit=path.rate_mbit,
        initial_window=path.quic_initial_window_packets,
        window_bytes=None,
        mtu=path.quic_packet_bytes,
        stack=truth.QUIC,
    )

    def measure() -> list[str]:
        found = seconds(times, "www.clean.example", times=3, congestion_control=algorithm)
        print(f"{algorithm}: model {expected:.3f} s, ratio {found / expected:.3f}")
        good = abs(found / expected - 1) <= truth.TOLERANCE
        return [] if good else [f"{algorithm} took {found:.3f} s, {found / expected:.3f} of the model's time"]

    until_good(measure)


@pytest.mark.measures
def test_the_initial_window_is_obeyed(times: Lab) -> None:
    """50 kB are 39 packets: rounds of 4, 8, 16, then the rest; of 10, 20, then the rest; or one."""

    def measure() -> list[str]:
        found = {
            window: seconds(times, "www.short.example", times=3, initial_window_packets=str(window))
            for window in (4, 10, 45)
        }
        rounds = {window: round((took - 0.010) / 0.080) for window, took in found.items()}
        wanted = {4: 2 + 3, 10: 2 + 2, 45: 2}
        return [] if rounds == wanted else [f"round trips {rounds}, not {wanted} ({found})"]

    until_good(measure)


@pytest.mark.measures
@pytest.mark.soak
def test_algorithms_differ_where_packets_are_lost(times: Lab) -> None:
    """One packet of a hundred lost: Reno's window follows 1/sqrt(p) (Mathis et al. 1997), BBR's the rate."""

    def measure() -> list[str]:
        reno = seconds(times, "www.lossy.example", times=3, congestion_control="reno")
        bbr2 = seconds(times, "www.lossy.example", times=3, congestion_control="bbr2")
        return [] if reno > 1.5 * bbr2 else [f"reno took {reno:.2f} s, bbr2 {bbr2:.2f} s"]

    until_good(measure)
