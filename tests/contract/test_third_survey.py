"""A third survey, added as one file: it gets ledger, pace, resume, opt-out, figures and `--help` from the engine.

Proven on a copy of the packages through the command line, against real HTTP servers and a name server on loopback.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rrset
import pytest

from core.domain import Target
from core.files import store, targets
from tests.contract._package_copy import copy_packages, several, upshift
from tests.journaled import surveyed

FILE = Path(__file__).with_name("_server_survey.py")


class Handler(BaseHTTPRequestHandler):
    """Its name depends on the host: `d7.apache.example` is Apache."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        host = self.headers["Host"]
        with self.server.lock:  # type: ignore[attr-defined]
            asked = (time.monotonic(), host, self.headers["User-Agent"], self.path)
            self.server.asked.append(asked)  # type: ignore[attr-defined]
        self.send_response_only(204)
        make = host.split(".")[1]
        if make != "nameless":
            self.send_header("Server", {"apache": "Apache/2.4.1", "nginx": "nginx"}[make])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 500

    def __init__(self) -> None:
        super().__init__(("", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[tuple[float, str, str, str]] = []


class World:
    """HTTP on every loopback address, and a name server: `dN.MAKE.example` is 127.0.1.N, `one.*` 127.0.2.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_packages(folder, {"survey/surveys/server.py": FILE.read_text()})
        self.http = HttpServer()
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.threads = [threading.Thread(target=self.http.serve_forever), threading.Thread(target=self._names)]
        for thread in self.threads:
            thread.start()

    def _names(self) -> None:
        while True:
            data, peer = self.udp.recvfrom(4096)
            if not data:
                return
            question = dns.message.from_wire(data)
            reply = dns.message.make_response(question)
            name = question.question[0].name
            label = name.to_text().split(".")[0]
            if label == "missing":
                reply.set_rcode(dns.rcode.NXDOMAIN)
            else:
                address = f"127.0.1.{label[1:]}" if label[1:].isdecimal() else "127.0.2.1"
                reply.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "10.0.0.1" if label == "out" else address))
            self.udp.sendto(reply.to_wire(), peer)

    def arguments(self, source: Path, out: Path, *more: object) -> list[str]:
        port, dns_port = self.http.server_address[1], self.udp.getsockname()[1]
        words = ["survey", "server", source, "-o", out, "--contact", "net@uni.edu", "--port", port, *more]
        return [*map(str, words), "--nameserver", "127.0.0.1", "--nameserver-port", str(dns_port), "--json"]

    def survey(self, source: Path, out: Path, *more: object) -> dict[str, Any]:
        done = upshift(self.folder, *self.arguments(source, out, *more))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def close(self) -> None:
        self.http.shutdown()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", self.udp.getsockname())
        for thread in self.threads:
            thread.join()
        self.http.server_close()
        self.udp.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("copy"))
    yield made
    made.close()


def test_it_is_about_100_lines() -> None:
    code = [line for line in FILE.read_text().splitlines() if line.strip()]
    assert len(code) <= 100


def test_help_has_its_own_options_and_those_that_all_surveys_have(world: World) -> None:
    helped = ("survey", "--help"), ("survey", "server", "--help")
    listed, server, refused = several(
        world.folder, *helped, ("survey", "server", "none.csv", "-o", "x", "--contact", " ")
    )
    assert "Ask every domain's server for its name" in listed.stdout
    said = server.stdout
    for option in ("--port", "--contact", "--ledger", "--shard", "--rate", "--opt-out", "--nameserver", "--json"):
        assert option in said
    assert "--targets-out" not in said and "--isolation" not in said, "it fills no column, and needs no kernel setting"
    assert refused.returncode == 2 and "--contact" in refused.stderr


def test_records_figures_and_files(world: World, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source, out, blocked = tmp_path / "targets.csv", tmp_path / "r.parquet", tmp_path / "blocked"
    names = ["d1.apache", "d2.nginx", "d3.nameless", "missing.nginx", "out.nginx", "d9.nginx", "d5.apache"]
    rows = [
        Target(domain=f"{n}.example", url=f"https://{n}.example/", rank=i, provider="google")
        for i, n in enumerate(names, 1)
    ]
    targets.write_rows(source, rows)
    blocked.write_text("127.0.1.9/32\n")
    elsewhere = tmp_path_factory.mktemp("own") / "path"
    elsewhere.write_text("/about\n")  # of the survey's own options: it is opened after the command gave up its rights
    facts = world.survey(source, out, "--block-list", blocked, "--path-file", elsewhere)
    assert (facts["domains"], facts["answered"]) == (7, 4)
    assert {path for _, _, _, path in world.http.asked} == {"/about"}
    assert {make: share["count"] for make, share in facts["makes"].items()} == {
        "Apache": 2,
        "nginx": 1,
        "(no header)": 1,
    }
    assert {cause: share["count"] for cause, share in facts["failures"].items()} == {
        "no_such_domain": 1,
        "address_refused": 1,
        "blocked": 1,
    }
    table = store.parquet(out, "results")
    with table as file:
        found = {row["domain"]: row for row in file.read().to_pylist()}
    assert list(found) == [row.domain for row in rows]
    assert (found["d1.apache.example"]["server"], found["d1.apache.example"]["status"]) == ("Apache/2.4.1", 204)
    assert (found["d3.nameless.example"]["server"], found["d3.nameless.example"]["provider"]) == (None, "google")
    assert all("net@uni.edu" in agent for *_, agent, _ in world.http.asked)
    assert not {"d9.nginx.example", "out.nginx.example"} & {host for _, host, _, _ in world.http.asked}

    figures = ("survey", "figures", str(out))
    told, as_csv = several(world.folder, figures, (*figures, "--csv"))
    assert told.returncode == 0, told.stderr
    assert "4 of 7 domains answered." in told.stdout and "Apache" in told.stdout and "google" in told.stdout
    rows_csv = as_csv.stdout.splitlines()
    assert any(line.startswith("makes,domains that answered,nginx,1,4,0.25,") for line in rows_csv)


@pytest.mark.parametrize(("hit", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_ended_and_given_again_every_domain_is_asked_once(
    world: World, tmp_path: Path, hit: signal.Signals, code: int
) -> None:
    source, out = tmp_path / "list.csv", tmp_path / "r.parquet"
    domains = [f"d{n}.{make}.example" for make in ("apache", "nginx") for n in range(1, 121)]
    source.write_text("".join(f"{rank},{domain}\n" for rank, domain in enumerate(domains, 1)))
    words = world.arguments(source, out, "--rate", 100)
    start = f"import sys; sys.path.insert(0, {str(world.folder)!r}); import upshift.cli; upshift.cli.main()"
    before = len(world.http.asked)
    child = subprocess.Popen(
        [sys.executable, "-c", start, *words],
        cwd=world.folder,
        env={**os.environ, "PYTHONPATH": str(world.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = out.with_name(out.name + ".ledger.sqlite")
    until = time.monotonic() + 60
    while surveyed(ledger) < 50:
        assert child.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    child.send_signal(hit)
    _, complaints = child.communicate(timeout=60)
    assert child.returncode == code and "Traceback" not in complaints, complaints
    done = surveyed(ledger)
    assert 50 <= done < 240 and not out.exists()
    facts = world.survey(source, out, "--rate", 100)
    assert facts["answered"] == 240
    asked = Counter(host for _, host, *_ in world.http.asked[before:])
    assert set(asked) == set(domains)
    assert sum(asked.values()) - 240 <= 50, "asked again was only what was under way when it was killed"
    changed = upshift(world.folder, *world.arguments(source, out, "--port", 81))
    assert changed.returncode == 2
    assert "this ledger belongs to another survey: port changed; use the options of the first start" in changed.stderr


def test_pace_holds_in_all_and_per_address(world: World, tmp_path: Path) -> None:
    source = tmp_path / "list.txt"
    source.write_text("".join(f"one.nginx.d{n}.example\n" for n in range(21)))
    before = len(world.http.asked)
    world.survey(source, tmp_path / "a.parquet", "--address-rate", 10)
    times = sorted(at for at, *_ in world.http.asked[before:])
    assert len(times) == 21 and times[-1] - times[0] >= 1.8
    source.write_text("".join(f"d{n}.nginx.example\n" for n in range(1, 41)))
    before = len(world.http.asked)
    world.survey(source, tmp_path / "b.parquet", "--rate", 20)
    times = sorted(at for at, *_ in world.http.asked[before:])
    assert len(times) == 40 and times[-1] - times[0] >= 1.75
