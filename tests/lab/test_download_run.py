"""Whole campaigns against real servers, in a network namespace that has nothing but its own loopback."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from core.domain import Download, Failure, Outcome
from core.errors import UsageError
from core.files import campaign_json
from core.files.journal import environment, open_journals
from core.system import process
from core.system.confine import landlock_version, user_of
from downloader import clients
from downloader.campaign.campaign import Campaign, from_document
from downloader.execution import attempt, calls
from downloader.execution.run import RunSummary
from tests.campaigns import Silent, run_in
from tests.cells import Repeats
from tests.journaled import recorded, superseded
from tests.lab import _loopback as loopback
from tests.plain_captures import plain

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]

HERE = Path(__file__).parent
SIZE = 200_000


@dataclass
class World:
    namespace: str
    ca: Path
    port: int
    folder: Path
    placed: list[Any]

    def place(self, name: str = "A") -> Any:
        self.placed.append(loopback.LoopbackPlace(name, self.namespace, self.ca))
        return self.placed[-1]

    def targets(self, *names: str) -> list[Any]:
        found: list[Any] = loopback.targets_of(self.port, names)
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("world"), f"updl{os.getpid()}") as made:
        yield made


@contextmanager
def open_world(
    folder: Path, namespace: str, *, site: str | None = None, programs: Sequence[Sequence[str]] = ()
) -> Iterator[World]:
    """A namespace with a web server and a DNS server on its loopback.

    Args:
        site: what the web server does, in the words of a Caddyfile; None: it has the files of `www`.
        programs: run there besides, and say `ready`; the certificate is in `folder`.
    """
    site = site or f" root * {folder}/www\n redir /moved /file\n file_server\n"
    process.run(["ip", "netns", "add", namespace]).check(doing="making a namespace")
    try:
        inside = ["nsenter", f"--net=/run/netns/{namespace}"]
        process.run([*inside, "ip", "link", "set", "lo", "up"]).check(doing="setting lo up")
        ca = trustme.CA()
        ca.cert_pem.write_to_path(folder / "ca.pem")
        certificate = ca.issue_cert(*(f"{name}.example" for name in ("a", "b", "c", "d", "alias")))
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(folder / "cert.pem", append=True)
        (folder / "www").mkdir()
        (folder / "www" / "file").write_bytes(random.Random(1).randbytes(SIZE))
        (folder / "Caddyfile").write_text(
            "{\n admin off\n auto_https off\n servers {\n protocols h1 h2 h3\n }\n}\n"
            f"https://*.example:4430 {{\n bind 127.0.0.1\n tls {folder}/cert.pem {folder}/key.pem\n"
            f"{site}}}\n"
        )
        env = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        caddy = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
        dns = [sys.executable, str(HERE / "_dns_server.py")]
        with ExitStack() as stack:
            stack.enter_context(process.start(caddy, prefix=inside, stderr=folder / "caddy.log", env=env))
            for argv in (dns, *programs):
                child = stack.enter_context(process.start(argv, prefix=inside, stdout=True))
                assert child.stdout is not None and child.stdout.readline() == "ready\n"
            until = time.monotonic() + 20
            while process.run([*inside, "ss", "-Hltun", "sport = :4430"]).stdout.count("\n") < 2:  # TCP and UDP
                assert time.monotonic() < until, (folder / "caddy.log").read_text()
                time.sleep(0.05)
            yield World(namespace, folder / "ca.pem", 4430, folder, [])
    finally:
        process.run(["ip", "netns", "del", namespace]).check(doing="removing the namespace")


BASE: dict[str, Any] = {
    "name": "test",
    "lab": "none",
    "targets": "lab",
    "budget": 10,
    "configurations": [
        {"name": "BL", "client": "requests"},
        {"name": "WS", "client": "requests", "levels": {"window_scaling": 14, "ecn": True}},
        {"name": "aioquic", "client": "aioquic"},
        {"name": "quiche", "client": "quiche", "options": {"max_data": 1_000_000}},
    ],
}


@pytest.fixture(autouse=True, scope="module")
def all_clients() -> None:
    """Fails where a client is missing: `make setup` brings all."""
    faults = [fault for client in clients.ALL.values() if (fault := client.missing()) is not None]
    assert not faults, faults


def campaign(**changes: Any) -> Campaign:
    return from_document({**BASE, **changes}, Path("test.toml"))


def run(
    world: World, plan: Campaign, targets: list[Any], out: Path, *places: Any, run_as: tuple[int, int] | None = None
) -> RunSummary:
    chosen = places or (world.place(),)
    return run_in(plan, targets, {p.name: p for p in chosen}, out, progress=Silent(), run_as=run_as)


def test_a_mapped_address_is_the_ipv4_address_to_which_its_packets_go(world: World, tmp_path: Path) -> None:
    """A literal one, or that of a wrong AAAA record: the capture, and with it the account of bytes, was empty."""
    [target] = world.targets("a.example")
    mapped = replace(target, url=f"https://[::ffff:127.0.0.1]:{world.port}/file")
    run(world, campaign(address_family="ipv6"), [mapped], tmp_path)
    row = next(row for row in recorded(tmp_path) if row.configuration == "BL")
    assert (row.server_ip, row.failure) == ("127.0.0.1", Failure.TLS_ERROR)
    assert "Flags [S]" in syns(tmp_path, row)


def syns(out: Path, download: Download) -> str:
    """What tcpdump says of a download's SYN."""
    assert download.capture is not None
    shown = process.run(
        ["tcpdump", "-nr", str(plain(out / download.capture)), f"tcp port {download.local_port}", "-c", "1"]
    )
    return shown.stdout


@pytest.fixture
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux may give two QUIC downloads of a run one port, by chance; such a run is made again, and not here."""
    monkeypatch.setattr(attempt, "reused_port", lambda downloads: None)


@pytest.mark.usefixtures("any_port")
def test_a_whole_campaign(world: World, tmp_path: Path) -> None:
    targets = world.targets("a.example", "alias.example", "missing.example", "outside.example")
    targets[1] = replace(targets[1], url=targets[1].url + "?x")
    nothing = replace(targets[0], domain="404.example", url=f"https://b.example:{world.port}/nothing")
    summary = run(world, campaign(), [*targets, nothing], tmp_path, run_as=user_of("daemon", where="here"))
    assert summary.complete and (summary.planned, summary.recorded) == (30, 30)
    rows = recorded(tmp_path)
    assert Counter((r.domain, r.outcome, r.failure) for r in rows) == {
        ("a.example", "ok", None): 6,
        ("alias.example", "ok", None): 6,
        ("missing.example", "failed", Failure.DNS_ERROR): 6,
        ("outside.example", "failed", Failure.ADDRESS_REFUSED): 6,
        ("404.example", "failed", Failure.HTTP_STATUS): 6,
    }, [r.failure_detail for r in rows]
    assert sorted(r.position for r in rows if r.domain == "a.example") == [-1, 0, 1, 2, 3, 4]
    for row in rows:
        warmups = {-1: ("warmup", "requests"), 0: ("warmup-quic", "aioquic")}
        assert row.is_warmup == ((row.configuration, row.client) == warmups.get(row.position))
        assert json.loads(row.levels)["timestamps"] == "on"
        if row.outcome != Outcome.OK:
            continue
        assert row.capture and (tmp_path / row.capture).is_file()
        assert (row.capture_dropped, row.body_bytes, row.attempts) == (0, SIZE, 1)
        assert row.dns_s and row.last_byte_s and row.client_cpu_s and row.setup_s
        assert row.cnames == ('["edge.example"]' if row.domain == "alias.example" else "[]")
        assert row.connect_s and row.headers_s and row.first_byte_s
        assert row.connect_s < row.headers_s <= row.first_byte_s
        if row.client == "requests":
            shown = syns(tmp_path, row)
            assert ("wscale 14" in shown) == (row.configuration == "WS") and "TS val" in shown
            assert ("[SEW]" in shown) == (row.configuration == "WS") and "sackOK" not in shown
    detail = next(r.transport_detail for r in rows if r.configuration == "quiche" and r.outcome == "ok")
    assert json.loads(detail or "")["transport_parameters"]["local"]["initial_max_data"] == 1_000_000
    with open_journals(tmp_path) as journals:
        document = environment(journals)
    assert document["vantage_points"]["A"]["python_packages"]["aioquic"]
    confinement = {"user": "daemon", "landlock": landlock_version()}
    assert document["vantage_points"]["A"]["confinement"] == confinement, "of the run that downloaded"
    trust = document["vantage_points"]["A"]["trust"]
    assert (trust["path"], trust["certificates"]) == (str(world.ca), 1) and len(trust["sha256"]) == 64
    assert not list(tmp_path.glob("**/.*.part.pcap"))
    again = run(world, campaign(), [*targets, nothing], tmp_path)
    assert again.complete and recorded(tmp_path) == rows, "a finished campaign does nothing again"


def test_all_clients_trust_the_bundle_of_the_campaign(world: World, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    plan = from_document({**BASE, "ca_file": "other.pem"}, tmp_path / "test.toml")
    run(world, plan, world.targets("a.example"), tmp_path / "out")
    rows = recorded(tmp_path / "out")
    assert [row.failure for row in rows] == [Failure.TLS_CERTIFICATE] * 6, [row.failure_detail for row in rows]
    assert all(row.setup_s for row in rows)


def test_the_aliases_of_a_name_are_kept(world: World, tmp_path: Path) -> None:
    run(world, campaign(configurations=BASE["configurations"][:1]), world.targets("alias.example"), tmp_path)
    assert {row.cnames for row in recorded(tmp_path)} == {'["edge.example"]'}


@pytest.fixture(scope="module")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished campaign with one target; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    run(world, campaign(), world.targets("a.example"), folder)
    return folder


def test_captures_hold_whole_connections(world: World, finished: Path) -> None:
    for row in recorded(finished):
        assert row.capture is not None
        protocol = "tcp" if row.client == "requests" else "udp"  # a port may be of one of each
        command = ["tcpdump", "-nr", str(plain(finished / row.capture)), f"{protocol} port {row.local_port}"]
        lines = process.run(command).stdout.splitlines()
        if row.client == "requests":
            assert "Flags [S" in lines[0], lines[0]
            ends = [line for line in lines if "Flags [F" in line]
            assert {line.split(" > ")[0].rsplit(".", 1)[1] for line in ends} == {str(row.local_port), str(world.port)}
            body = sum(int(line.rsplit("length ", 1)[1]) for line in lines if f".{world.port} > " in line)
            assert body > SIZE
        else:
            assert len(lines) > SIZE / 1500


@pytest.mark.usefixtures("any_port")
def test_a_disturbed_run_is_made_again(world: World, tmp_path: Path) -> None:
    place = world.place()
    place.disturbances = ["late", None, "late", "late", "late", None]
    targets = world.targets("a.example", "b.example", "c.example")
    summary = run(world, campaign(), targets, tmp_path, place)
    assert summary.complete and summary.void_runs == 4 and summary.interrupted_runs == 0
    rows = recorded(tmp_path)
    assert len(rows) == 18 and len({(r.domain, r.configuration) for r in rows}) == 18
    attempts = {r.domain: (r.attempts, r.void_reason, r.void_detail, r.accepted) for r in rows}
    void = ("emulator_late", "late")
    assert Counter(attempts.values()) == {
        (2, None, None, None): 1,
        (3, *void, False): 1,
        (1, None, None, None): 1,
    }
    thrown = superseded(tmp_path)
    assert len(thrown) == 18 and {(r.reason, r.detail) for r in thrown} == {void}
    assert all(r.capture and (tmp_path / r.capture).exists() for r in thrown)
    assert len({r.capture for r in rows} | {r.capture for r in thrown}) == 6


def test_what_a_folder_refuses(world: World, finished: Path, tmp_path: Path) -> None:
    targets = world.targets("a.example")
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    for changed, other, places in (
        (campaign(seed=2), targets, ()),
        (campaign(budget=11), targets, ()),
        (campaign(), world.targets("b.example"), ()),
        (campaign(), targets, (world.place("A"), world.place("B"))),
    ):
        with pytest.raises(UsageError, match="another plan"):
            run(world, changed, other, tmp_path, *places)
    with pytest.raises(UsageError, match=r"results of other vantage points \(A\)"):
        run(world, campaign(), targets, tmp_path, world.place("B"))
    assert not (tmp_path / "vantage" / "B").exists()


@pytest.mark.soak
def test_a_campaign_stops_when_its_intervals_are_narrow_enough(world: World, tmp_path: Path) -> None:
    """Resumed with the same rule it downloads nothing, with a stricter one it goes on where it was."""
    configurations = [BASE["configurations"][0], {"name": "ECN", "client": "requests", "levels": {"ecn": True}}]
    (first,) = world.targets("a.example")
    targets = [replace(first, domain=f"d{number}.example") for number in range(10)]

    def measured(**rule: Any) -> tuple[RunSummary, int]:
        summary = run(world, campaign(configurations=configurations, **rule), targets, tmp_path)
        return summary, len(recorded(tmp_path)) // 3

    wide, runs = measured(until_ci={"share": 0.8})
    assert (wide.complete, wide.enough, wide.wide) == (True, ["A"], {}) and 3 <= runs <= 9, wide
    assert "all intervals within share 0.8: A" in wide.sentence(tmp_path)
    rows = recorded(tmp_path)
    assert measured(until_ci={"share": 0.8})[1] == runs and recorded(tmp_path) == rows
    with open_journals(tmp_path) as journals:
        told = environment(journals)["stopping"]["A"]
    assert (told["rule"], told["reached"], told["recorded_runs"]) == ({"share": 0.8}, True, runs)
    assert (told["planned_runs"], told["comparisons"][0]["domains"]) == (10, runs)
    exact, most = measured(until_ci={"share": 0.01})
    assert (exact.complete, exact.enough, most) == (True, [], 10) and exact.wide == {"A": ["ECN vs BL"]}
    assert "A: wider than share 0.01: ECN vs BL" in exact.sentence(tmp_path)
    assert [row for row in recorded(tmp_path) if row in rows] == rows, "nothing was measured again"
    with open_journals(tmp_path) as journals:
        assert not environment(journals)["stopping"]["A"]["reached"]
    measured()
    with open_journals(tmp_path) as journals:
        assert "stopping" not in environment(journals)


def test_comparisons_may_be_added_to_a_finished_campaign(world: World, finished: Path, tmp_path: Path) -> None:
    """They are no part of the plan: the same folder takes them, and downloads nothing again."""
    targets = world.targets("a.example")
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    downloads = recorded(tmp_path)
    before = campaign_json.read(tmp_path)
    assert before is not None and before == campaign().for_analysis()
    assert [one.name for one in before.configurations] == ["warmup", "warmup-quic", "BL", "WS", "aioquic", "quiche"]
    more = campaign(comparisons=[{"config": "quiche", "vs": "WS", "name": "wide"}])
    assert run(world, more, targets, tmp_path).complete
    after = campaign_json.read(tmp_path)
    assert after is not None and [row.name for row in after.comparisons] == ["wide"]
    assert recorded(tmp_path) == downloads
    with pytest.raises(UsageError, match=r"another plan; changed since: seed \(1, now 9\)"):
        run(world, campaign(seed=9, comparisons=[]), targets, tmp_path)
    assert campaign_json.read(tmp_path) == after, "another plan leaves the folder as it is"
    longer = run(world, campaign(iterations=2), targets, tmp_path)
    assert (longer.complete, longer.recorded) == (True, 2 * len(downloads)), "more iterations extend it"
    assert recorded(tmp_path)[: len(downloads)] == downloads


def test_two_vantage_points_never_share_a_target(world: World, tmp_path: Path) -> None:
    places = (world.place("A"), world.place("B"))
    plan = campaign(iterations=2, configurations=BASE["configurations"][:2])
    assert run(world, plan, world.targets("a.example", "b.example", "c.example"), tmp_path, *places).complete
    rows = recorded(tmp_path)
    assert Counter(r.vantage for r in rows) == {"A": 18, "B": 18}
    spans: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        assert row.last_byte_s is not None
        span = spans.setdefault((row.domain, row.vantage, row.iteration), [])
        span += [row.started_at, row.started_at + row.last_byte_s]
    for (domain, vantage, _), times in spans.items():
        for (other_domain, other_vantage, _), other in spans.items():
            if domain == other_domain and vantage != other_vantage:
                assert max(times) <= min(other) or max(other) <= min(times)


def test_published_order(world: World, tmp_path: Path) -> None:
    run(world, campaign(order="published"), world.targets("a.example", "b.example"), tmp_path)
    rows = recorded(tmp_path)
    order = [r.configuration for r in sorted(rows, key=lambda r: r.started_at)]
    assert order == 2 * ["warmup", "warmup-quic", "BL", "WS", "aioquic", "quiche"]
    distinct = len({r.dns_s for r in rows})
    assert distinct > 6, "each download has its own look-up (times are recorded in microseconds: two may be equal)"
    assert all(r.outcome == "ok" for r in rows)


def test_stopped_in_the_middle(world: World, tmp_path: Path) -> None:
    stop = threading.Event()

    class Stopping(Silent):
        def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
            if done >= 8:
                stop.set()

    targets = world.targets("a.example", "b.example", "c.example")
    first = run_in(campaign(), targets, {"A": world.place()}, tmp_path, progress=Stopping(), stop=stop)
    assert first.stopped and first.recorded == 6
    second = run(world, campaign(), targets, tmp_path)
    assert second.complete and second.interrupted_runs == 1
    thrown = superseded(tmp_path)
    assert thrown and {(r.reason, r.detail, r.capture) for r in thrown} == {("interrupted", None, None)}
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("vantage/*/captures/*")}
    assert left == {r.capture for r in recorded(tmp_path)}, "the capture of the attempt that was stopped is removed"


def test_a_client_that_dies_or_hangs_is_a_record(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    programs = {
        "h3get-dies": "echo 'thread panicked at \x1b[31mx' >&2; exit 101",
        "h3get-hangs": "exec sleep 60",
        "h3get-lies": "echo '{\"schema\": 1}'",
        "h3get-killed": "kill -SEGV $$",
    }
    from downloader import clients

    quiche = clients.ALL["quiche"]
    table = dict(clients.ALL)
    for name, script in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        table[name] = replace(quiche, name=name, program=name)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(clients.ALL, "_variants", table)
    monkeypatch.setattr(calls, "GRACE_S", 0.5)
    configurations = [{"name": name, "client": name} for name in programs]
    plan = campaign(configurations=configurations, budget=3)
    assert run(world, plan, world.targets("a.example"), tmp_path / "out").complete
    rows = {r.configuration: r for r in recorded(tmp_path / "out")}
    assert rows["warmup"].outcome == "ok"
    assert all(rows[name].failure == Failure.CLIENT_CRASHED for name in programs)
    details = [rows[name].failure_detail for name in programs]
    assert details == [
        "exit code 101: thread panicked at [31mx",
        "killed 0.5 s after the end of its budget",
        "the answer lacks outcome, failure, failure_detail or started_at",
        "ended by SIGSEGV",
    ]


def kill_and_finish(command: list[str], most: int, moment: Callable[[], float]) -> int:
    """Starts the command until it ends by itself, kills it before that `most` times at most; returns how often."""
    kills = 0
    while True:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            child.communicate(timeout=moment() if kills < most else 120)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            kills += 1
            assert kills <= most, "it hangs"
            continue
        assert child.returncode == 0
        return kills


@pytest.mark.soak
def test_killed_at_random_moments(world: World, tmp_path: Path, repeats: Repeats) -> None:
    """SIGKILL, again and again: the plan is finished, nothing twice, nothing left behind."""
    iterations, most = repeats(quick=1, soak=5), repeats(quick=4, soak=40)
    (tmp_path / "c.toml").write_text(
        f'name = "killed"\nlab = "none"\ntargets = "lab"\nbudget = 10\niterations = {iterations}\n'
        '[[configurations]]\nname = "BL"\nclient = "requests"\n'
        '[[configurations]]\nname = "quiche"\nclient = "quiche"\n'
    )
    out = tmp_path / "out"
    domains = ["a.example", "b.example", "c.example", "d.example"]
    command = [sys.executable, str(HERE / "_loopback.py"), str(tmp_path / "c.toml"), world.namespace]
    command += [str(world.ca), str(world.port), str(out), *domains]
    generator = random.Random(7)
    for longest_s in (3.0, 1.5, 0.8):
        kills = kill_and_finish(command, most, lambda longest_s=longest_s: generator.uniform(0.3, longest_s))
        if kills >= most // 2:
            break
        shutil.rmtree(out)  # a machine so quick that it was finished before: earlier kills
    rows = recorded(out)
    keys = Counter((r.vantage, r.iteration, r.domain, r.configuration) for r in rows)
    assert len(keys) == iterations * 2 * 4 * 4 and set(keys.values()) == {1}
    assert all(r.outcome == "ok" and r.capture and (out / r.capture).stat().st_size > 24 for r in rows)
    inside = process.run(["ip", "netns", "pids", world.namespace]).stdout.split()
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in inside if Path(f"/proc/{pid}").exists()]
    assert "tcpdump" not in names and len(names) <= 2, names
    assert not list(out.glob("**/.*.part.pcap")), "a finished campaign leaves no half capture"
    assert kills >= most // 2
