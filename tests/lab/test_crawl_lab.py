"""A crawl in the lab: over 300 hosts of every kind on eight real servers, judged by what was planted and their logs."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.domain import Target
from core.files import store
from core.system.process import Child
from tests.cells import Repeats
from tests.lab._sites import LoggedRequest, logged_requests, planted_sites
from vantage.lab.files import write_files
from vantage.lab.lab import Lab, open_lab
from vantage.lab.site_kinds import MB

pytestmark = pytest.mark.lab

TOPOLOGY = Path(__file__).parent / "topologies" / "crawl.toml"
HUGE = 40 * MB
"""Size of files that should not be downloaded in full: the access logs show how far a GET got."""
RATE = 25
"""Requests per second and address: a crawl outside has 2."""

OUTCOMES = {
    "too_deep": "no_file",
    "disallowed": "robots_disallowed",
    "robots_error": "robots_unreachable",
    "no_file": "no_file",
    "too_small": "no_file",
    "too_large": "no_file",
    "leaves_domain": "off_domain",
    "other_domain": "no_file",
    "leaves_address": "other_address",
    "other_address": "no_file",
    "private_redirect": "no_file",
    "loop": "too_many_redirects",
    "error": "http_status",
    "reset": "connection_failed",
    "nonsense": "protocol_error",
    "hang": "timeout",
    "wrong_certificate": "tls_error",
    "private_address": "address_refused",
    "unresolvable": "dns_error",
}
"""What becomes of the kinds in which no file is to be found."""


@dataclass(frozen=True)
class Crawled:
    """A crawl that ran to its end without interruption."""

    lab: Lab
    top_list: Path
    out: Path
    access: list[LoggedRequest]
    wall_s: float

    @property
    def targets(self) -> dict[str, Target]:
        return read_targets(self.out)


def read_targets(out: Path) -> dict[str, Target]:
    return {target.domain: target for target in store.read_rows(out, "targets", Target)}


def start(lab: Lab, source: Path, out: Path, *more: str, rate: float = RATE) -> Child:
    """The crawl, started in the vantage point as a user would start it by `upshift lab exec`."""
    place = lab.place("MUC")
    program = [sys.executable, "-c", "from upshift.cli import main; main()", "crawl", str(source), "--out", str(out)]
    options = ["--contact", "mailto:me@example.org", "--rate", str(rate), "--per-address", "2", "--timeout", "5"]
    return place.start(
        [*program, *options, "--ca", str(lab.ca_file), "--json", *more], stdout=True, stderr=out.with_suffix(".log")
    )


def finish(child: Child, out: Path) -> dict[str, object]:
    """What a crawl that has run to its end says."""
    with child:
        assert child.stdout is not None
        said = child.stdout.read()
        assert child.wait(60) == 0, out.with_suffix(".log").read_text()
    found: dict[str, object] = json.loads(said.strip().splitlines()[-1])
    return found


def done_in(ledger: Path) -> dict[str, str]:
    """Domain -> outcome, of the domains that a ledger has as finished."""
    if not ledger.exists():
        return {}
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        try:
            return dict(db.execute("SELECT domain, outcome FROM domains WHERE outcome IS NOT NULL"))
        except sqlite3.OperationalError:
            return {}


@pytest.fixture(scope="module")
def crawled(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    folder = tmp_path_factory.mktemp("crawl")
    with open_lab(TOPOLOGY) as lab:
        source = write_files(lab.topology, folder).top_list
        began = time.monotonic()
        finish(start(lab, source, folder / "o.parquet", "--ledger", str(folder / "l.sqlite")), folder / "o.parquet")
        wall_s = time.monotonic() - began
        yield Crawled(lab=lab, top_list=source, out=folder / "o.parquet", access=logged_requests(lab), wall_s=wall_s)


def test_every_planted_file_is_found_and_nothing_else(crawled: Crawled) -> None:
    planted = planted_sites(crawled.lab.topology)
    assert len(planted) >= 300
    assert {site.kind for site in planted} == set(crawled.lab.topology.site_kinds)
    found = crawled.targets
    assert {domain: target.url for domain, target in found.items()} == {s.domain: s.url for s in planted if s.url}
    for site in planted:
        if site.url is None:
            continue
        target = found[site.domain]
        assert target.size_is_lower_bound == (site.kind == "unsized")
        if site.kind == "unsized":
            assert MB <= (target.size_bytes or 0) < HUGE / 4
        else:
            assert target.size_bytes == site.size_bytes
        assert target.depth == {"plain": 1, "deep": 2}.get(site.kind, 0)
    outcomes = done_in(crawled.out.with_name("l.sqlite"))
    assert outcomes == {site.domain: OUTCOMES.get(site.kind, "found") for site in planted}


def test_each_target_is_at_the_address_of_its_server(crawled: Crawled) -> None:
    addresses = {name: own.ipv4 for name, own in crawled.lab.plan.addresses.items()}
    server_of = {domain: site.server for site in crawled.lab.topology.site for domain in site.domains}
    for domain, target in crawled.targets.items():
        assert target.server_ip == addresses[str(server_of[domain])]


def of_kind(crawled: Crawled, kind: str) -> dict[str, list[LoggedRequest]]:
    """Host -> its requests."""
    domains = {site.domain for site in planted_sites(crawled.lab.topology) if site.kind == kind}
    found: dict[str, list[LoggedRequest]] = {domain: [] for domain in domains}
    for access in crawled.access:
        if access.host in found:
            found[access.host].append(access)
    return found


def test_robots_txt_comes_first_and_is_obeyed(crawled: Crawled) -> None:
    hosts: dict[str, list[LoggedRequest]] = defaultdict(list)
    for access in crawled.access:
        hosts[access.host].append(access)
    assert len(hosts) > 250
    for host, requests in hosts.items():
        assert [request.path for request in requests].count("/robots.txt") == 1, host
        assert requests[0].path == "/robots.txt", host
    for kind in ("disallowed", "robots_error"):
        for host, requests in of_kind(crawled, kind).items():
            assert len(requests) == 1, host
    partly = of_kind(crawled, "part_disallowed")
    paths = {request.path for requests in partly.values() for request in requests}
    assert paths == {"/robots.txt", "/", "/hop.iso", "/open.iso"}


def test_every_request_says_who_asks(crawled: Crawled) -> None:
    (agent,) = {access.user_agent for access in crawled.access}
    assert agent.startswith("upshift/")
    assert "mailto:me@example.org" in agent


def test_nobody_was_asked_who_must_not_be(crawled: Crawled) -> None:
    planted = {site.domain for site in planted_sites(crawled.lab.topology)}
    strangers = {access.host for access in crawled.access} - planted
    assert strangers == {f"www.{domain}" for domain in of_kind(crawled, "www")}  # not files., not inside.
    silent = ("wrong_certificate", "private_address", "unresolvable")
    assert not [host for kind in silent for host, requests in of_kind(crawled, kind).items() if requests]
    # Many pages and redirects lead to a file on this domain; all that it saw was its own visit.
    lure = [(access.method, access.path) for access in crawled.access if access.host == "lure.example"]
    assert lure == [
        ("GET", "/robots.txt"),
        ("GET", "/"),
        *(("HEAD", p) for p in ("/trailer.mp4", "/banner.jpg", "/app.js")),
    ]


def test_the_rate_per_address_is_kept(crawled: Crawled) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    for access in crawled.access:
        times[access.server].append(access.at)
    assert len(times) == 8
    for server, moments in times.items():
        moments.sort()
        for step in (3 * RATE, len(moments) - 1):
            for first, last in zip(moments, moments[step:], strict=False):
                # The first may arrive late by its handshake, which takes a moment on a busy machine.
                assert last - first > step / RATE - 0.6, server
    assert max(map(len, times.values())) / RATE < crawled.wall_s


def test_crawl_delay_is_kept(crawled: Crawled) -> None:
    for host, requests in of_kind(crawled, "crawl_delay").items():
        assert [request.path for request in requests] == ["/robots.txt", "/", "/1.iso", "/2.iso"], host
        # The delay is known once robots.txt has been read.
        for earlier, later in itertools.pairwise(requests[1:]):
            assert later.at - earlier.at > 0.7, host  # asked for is 1 s; arrivals wander on a busy machine


def test_gets_are_stopped_early_and_files_of_known_size_not_fetched(crawled: Crawled) -> None:
    gets = [access for access in crawled.access if access.method == "GET" and access.path.endswith((".iso", ".mp4"))]
    by_path = Counter((access.path, access.server.rstrip("123456")) for access in gets)
    assert by_path == {("/image.iso", "sites-"): 12, ("/less.iso", "sites-"): 12, ("/image.iso", "web-"): 12}
    for access in gets:
        if access.path == "/image.iso":
            assert access.sent_bytes < HUGE / 4, access.host
    for requests in of_kind(crawled, "unsized").values():
        (stopped,) = [request for request in requests if (request.method, request.path) == ("GET", "/image.iso")]
        assert stopped.sent_bytes >= MB


@pytest.mark.soak
def test_killed_again_and_again_no_finished_domain_is_fetched_again(
    crawled: Crawled, tmp_path: Path, repeats: Repeats
) -> None:
    chance = random.Random(4)
    source, out, ledger = tmp_path / "list.csv", tmp_path / "o.parquet", tmp_path / "l.sqlite"
    lines = crawled.top_list.read_text().splitlines()[::2]
    source.write_text("\n".join(lines))
    names = [line.partition(",")[2] for line in lines]
    done: dict[str, str] = {}
    growth = []
    kills = repeats(quick=3, soak=20)
    for _ in range(kills):
        began = time.time()
        with start(crawled.lab, source, out, "--ledger", str(ledger), "--workers", "4") as child:
            wanted = len(done) + chance.randrange(9)
            deadline = time.monotonic() + 30
            while (len(done_in(ledger)) < wanted or not ledger.exists()) and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(chance.random() * 0.2)
            assert child.returncode is None, "it ended before it was killed"
            child.stop(signal.SIGKILL)
        again = {access.host for access in logged_requests(crawled.lab) if access.at > began} & set(done)
        assert not again
        growth.append(len(done_in(ledger)) - len(done))
        done = done_in(ledger)
    assert sum(map(bool, growth)) >= kills // 2, "hardly any kill hit a crawl that was getting somewhere"
    assert len(done) < len(names)
    began = time.time()
    finish(start(crawled.lab, source, out, "--ledger", str(ledger)), out)
    assert not {access.host for access in logged_requests(crawled.lab) if access.at > began} & set(done)
    assert done_in(ledger) == {name: outcome for name, outcome in whole_outcomes(crawled).items() if name in set(names)}
    whole = {name: target for name, target in crawled.targets.items() if name in set(names)}
    assert known(read_targets(out).values()) == known(whole.values())


def whole_outcomes(crawled: Crawled) -> dict[str, str]:
    return done_in(crawled.out.with_name("l.sqlite"))


def known(targets: Iterable[Target]) -> set[tuple[object, ...]]:
    """What must be the same in every crawl: all but time, rank, and where a GET happened to be stopped."""
    return {(t.domain, t.url, t.size_is_lower_bound or t.size_bytes, t.server_ip, t.depth) for t in targets}
