"""The crawl against real HTTP servers and a real name server, all on loopback, started as a program of its own.

Hundreds of hosts, TLS, the servers' own logs and kills are in tests/lab/test_crawl_lab.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dns.message
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protego import Protego

import core.outreach.pace
from core.domain import Target
from core.errors import UsageError
from core.files import store
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer
from core.untrusted import registered_domain
from crawler import policy
from crawler.exchange import CrawlReply, CrawlRequest
from crawler.ledger import DomainResult
from crawler.links import MAX_LINKS, Embedded, Links, extract, of_style_sheet
from crawler.objects import ObjectVisit
from crawler.policy import MAX_BYTES, Pins, Robots, Throttle, admit, from_reply
from crawler.visit import CrawlLimits, DomainVisit
from tests.cells import cells

REPOSITORY = Path(__file__).resolve().parents[2]
MIN = 50_000
BIG = 100_000_000
OTHERS = ", ".join(f'h2="other-{n}.example:443"' for n in range(30))
"""Alternatives before h3: 800 bytes."""
ADDRESSES = ("127.0.0.11", "127.0.0.12", "127.0.0.13")


class Log:
    """What the servers saw."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[tuple[float, str, str, str, str]] = []  # time, host, method, path, user agent
        self.sent: dict[tuple[str, str], int] = defaultdict(int)

    def of(self, host: str) -> list[tuple[str, str]]:
        return [(method, path) for _, name, method, path, _ in self.requests if name == host]


class Site(BaseHTTPRequestHandler):
    """Virtual hosts by the first label of the Host header; see `KINDS`."""

    protocol_version = "HTTP/1.1"
    log: Log
    kinds: dict[str, Callable[[Site, str], None]]

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # what is sent has nearly arrived
        super().setup()

    def _serve(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        with self.log.lock:
            self.log.requests.append(
                (time.monotonic(), host, self.command, self.path, self.headers.get("User-Agent", ""))
            )
        label = host.split(".")[0].rstrip("0123456789")
        handler: Callable[[Site, str], None] | None = self.kinds.get(label)
        if handler is None or (self.path == "/robots.txt" and label not in OWN_ROBOTS):
            self.give(404, b"")
            return
        handler(self, host)

    do_GET = do_HEAD = _serve  # noqa: N815 - names of http.server

    def give(
        self, status: int, body: bytes | int, kind: str = "text/html", length: bool = True, **headers: str
    ) -> None:
        """Answers; a number as body is that many bytes of a file."""
        size = body if isinstance(body, int) else len(body)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length:
            self.send_header("Content-Length", str(size))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        host = self.headers.get("Host", "").partition(":")[0]
        left = size
        with contextlib.suppress(ConnectionError):
            while left:
                piece = b"x" * min(left, 16_384) if isinstance(body, int) else body
                self.wfile.write(piece)
                left -= len(piece)
                self.log.sent[host, self.path] += len(piece)

    def page(self, *links: str, **headers: str) -> None:
        self.give(200, "".join(f'<a href="{link}">x</a>' for link in links).encode(), **headers)

    def port(self) -> int:
        return int(self.headers["Host"].partition(":")[2])

    def log_message(self, *_: object) -> None:
        pass


def plain(site: Site, host: str) -> None:
    """Two pages deep; the larger of two files."""
    files = {"/small.png": 100, "/a.zip": MIN, "/b.bin": MIN + 7}
    if site.path in files:
        site.give(200, files[site.path], "application/octet-stream")
    elif site.path == "/":
        site.page("/small.png", "/sub", "http://other.example/x.zip", Alt_Svc='h3=":443"; ma=60')
    elif site.path == "/sub":
        site.page("/a.zip", "/b.bin", "/never")
    else:
        site.give(404, b"")


def unsized(site: Site, host: str) -> None:
    """HEAD tells no length; the file is far larger than what may be read."""
    if site.path == "/big.iso":
        site.give(200, BIG, "application/octet-stream", length=False)
    elif site.path == "/less.iso":
        site.give(200, MIN - 1, "application/octet-stream", length=False)
    else:
        site.page("/less.iso", "/big.iso")


def getonly(site: Site, host: str) -> None:
    if site.path == "/f.iso" and site.command == "HEAD":
        site.give(405, b"")
    elif site.path == "/f.iso":
        site.give(200, BIG, "application/octet-stream")
    else:
        site.page("/f.iso")


def robots(site: Site, host: str) -> None:
    if site.path == "/robots.txt":
        site.give(200, b"User-agent: *\nAllow: /\n\nUser-agent: upshift\nDisallow: /secret\n", "text/plain")
    elif site.path == "/":
        site.page("/secret/f.iso", "/open.iso", "/hop.iso")
    elif site.path == "/hop.iso":
        site.give(302, b"", Location="/secret/g.iso")
    else:
        site.give(200, MIN if site.path == "/open.iso" else 9 * MIN, "application/octet-stream")


def farrobots(site: Site, host: str) -> None:
    """robots.txt is a redirect to another host of the domain, which disallows everything."""
    site.give(301, b"", Location=f"http://wwwfar.{host}:{site.port()}/robots.txt")


def wwwfar(site: Site, host: str) -> None:
    site.give(200, b"User-agent: upshift\nDisallow: /\n", "text/plain")


def closed(site: Site, host: str) -> None:
    site.give(200, b"User-agent: *\nDisallow: /\n", "text/plain")


def packed(site: Site, host: str) -> None:
    """Packs its rules unasked."""
    site.give(200, gzip.compress(b"User-agent: *\nDisallow: /\n"), "text/plain", Content_Encoding="gzip")


def marked(site: Site, host: str) -> None:
    """A byte order mark comes before its rules."""
    site.give(200, b"\xef\xbb\xbfUser-agent: *\nDisallow: /\n", "text/plain")


def brokenoff(site: Site, host: str) -> None:
    """robots.txt ends before its rules."""
    if site.path == "/robots.txt":
        site.give(200, b"User-agent: *\n", "text/plain", length=False, Content_Length="1000")
    else:
        site.page("/f.iso")


def outside(site: Site, host: str) -> None:
    """The rules are at another domain."""
    if site.path == "/robots.txt":
        site.give(301, b"", Location=f"http://plain1.example:{site.port()}/robots.txt")
    else:
        site.page("/f.iso")


def fivexx(site: Site, host: str) -> None:
    site.give(503 if site.path == "/robots.txt" else 200, b"")


def slowly(site: Site, host: str) -> None:
    """Asks for a delay between requests."""
    if site.path == "/robots.txt":
        site.give(200, b"User-agent: *\nCrawl-delay: 0.4\n", "text/plain")
    elif site.path == "/":
        site.page("/1.iso", "/2.iso", "/3.iso")
    else:
        site.give(200, MIN, "application/octet-stream")


def leaving(site: Site, host: str) -> None:
    site.give(301, b"", Location=f"http://plain1.example:{site.port()}/")


def private(site: Site, host: str) -> None:
    """Files that redirect to private addresses, other ports, other domains, other servers."""
    away = {
        "/1.iso": "http://10.0.0.1/f.iso",
        "/2.iso": f"http://127.0.0.1:{site.port() + 1}/f.iso",
        "/3.iso": f"http://plain1.example:{site.port()}/b.bin",
        "/4.iso": f"http://elsewhere.{host}:{site.port()}/f.iso",
        "/5.iso": f"https://{host}:{site.port()}/f.iso",
        "/6.iso": "/6.iso",
    }
    if site.path in away:
        site.give(302, b"", Location=away[site.path])
    else:
        site.page(*away)


def wwwhost(site: Site, host: str) -> None:
    site.give(301, b"", Location=f"http://www.{host}:{site.port()}/")


def www(site: Site, host: str) -> None:
    if site.path == "/f.iso":
        site.give(200, MIN + 1, "application/octet-stream")
    else:
        site.page("/f.iso")


def toolarge(site: Site, host: str) -> None:
    if site.path == "/f.iso":
        site.give(200, BIG + 1, "application/octet-stream")
    else:
        site.page("/f.iso")


def gone(site: Site, host: str) -> None:
    site.give(999, b"")  # as a large site answers robots


def hangs(site: Site, host: str) -> None:
    time.sleep(5)
    site.close_connection = True


def otherwise(site: Site, host: str) -> None:
    """No web server."""
    site.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n" if "1" in host else b"\x00\xff 220 hello\r\n\r\n")
    site.close_connection = True


def encoded(site: Site, host: str) -> None:
    if site.path == "/":
        site.page("/f.js")
    else:
        site.give(200, 2 * MIN, "text/javascript", Content_Encoding="gzip")


def zipped(site: Site, host: str) -> None:
    """Packs its pages unasked, and has two lines of Alt-Svc."""
    if site.path == "/f.iso":
        site.give(200, MIN, "application/octet-stream")
    else:
        two = f'{OTHERS}\r\nAlt-Svc: h3=":443"'
        site.give(200, gzip.compress(b"<a href=/f.iso>x</a>"), Content_Encoding="gzip", Alt_Svc=two)


def accented(site: Site, host: str) -> None:
    """Its redirect is UTF-8."""
    if site.path == "/":
        site.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /\xc3\xa9/\r\nContent-Length: 0\r\n\r\n")
    elif site.path == "/%C3%A9/":
        site.page("/f.iso")
    else:
        site.give(200 if site.path == "/f.iso" else 404, MIN, "application/octet-stream")


def busy(site: Site, host: str) -> None:
    """Asks for fewer requests from its second page on."""
    if site.path == "/":
        site.page("/1.iso", "/2.iso", "/sub")
    else:
        site.give(429, b"", Retry_After="3600")


def busyrobots(site: Site, host: str) -> None:
    site.give(429, b"", Retry_After="3600")


KINDS: dict[str, Callable[[Site, str], None]] = {
    name: value for name, value in list(globals().items())
    if callable(value) and getattr(value, "__code__", None) and value.__code__.co_varnames[:2] == ("site", "host")
}  # fmt: skip
OWN_ROBOTS = {
    *("robots", "closed", "packed", "marked", "brokenoff", "outside", "fivexx", "slowly", "hangs", "leaving"),
    *("farrobots", "wwwfar", "otherwise", "busyrobots"),
}


def address_of(name: str) -> str | None:
    """The world's DNS: None for a name that does not exist."""
    labels = name.split(".")
    if labels[0].startswith("elsewhere"):
        return ADDRESSES[2]
    if labels[0].startswith("missing"):
        return None
    if labels[0].startswith("inside"):
        return "10.1.2.3"
    return ADDRESSES[len(name.removeprefix("www.").removeprefix("wwwfar.")) % 2]


class World:
    """Servers on three loopback addresses at one port, and a name server."""

    def __init__(self, kinds: dict[str, Callable[[Site, str], None]] | None = None) -> None:
        self.log = Log()
        handler = type("BoundSite", (Site,), {"log": self.log, "kinds": KINDS if kinds is None else kinds})
        first = ThreadingHTTPServer((ADDRESSES[0], 0), handler)
        self.port = first.server_port
        self._servers = [first, *(ThreadingHTTPServer((a, self.port), handler) for a in ADDRESSES[1:])]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._dns.bind(("127.0.0.1", 0))
        self.dns_port = self._dns.getsockname()[1]
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            data, peer = self._dns.recvfrom(4096)
            if data == b"stop":
                return
            query = dns.message.from_wire(data)
            name = query.question[0].name.to_text(omit_final_dot=True)
            self.asked.append(name)
            answer = dns.message.make_response(query)
            address = address_of(name)
            if address is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            elif name.startswith("plain"):
                answer.answer = [
                    dns.rrset.from_text(f"{name}.", 60, "IN", "CNAME", "edge.cdn.example."),
                    dns.rrset.from_text("edge.cdn.example.", 60, "IN", "A", address),
                ]
            else:
                answer.answer = [dns.rrset.from_text(f"{name}.", 60, "IN", "A", address)]
            self._dns.sendto(answer.to_wire(), peer)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._dns.sendto(b"stop", self._dns.getsockname())
        self._thread.join(5)
        self._dns.close()

    def command(self, source: Path, out: Path, *more: str) -> list[str]:
        options = {
            "--out": str(out),
            "--contact": "mailto:me@example.org",
            "--min-size": str(MIN),
            "--max-size": str(BIG),
            "--nameserver": "127.0.0.1",
            "--nameserver-port": str(self.dns_port),
            "--start": f"http://{{domain}}:{self.port}/",
            "--rate": "200",
            "--per-address": "4",
            "--timeout": "20",
        }
        flat = [part for pair in options.items() for part in pair]
        code = "from upshift.cli import main; main()"
        return [sys.executable, "-c", code, "crawl", str(source), *flat, "--json", *more]

    def start(self, source: Path, out: Path, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(source, out, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def crawl(self, source: Path, out: Path, *more: str) -> dict[str, object]:
        child = self.start(source, out, *more)
        said, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        found: dict[str, object] = json.loads(said.strip().splitlines()[-1])
        return found


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def targets(out: Path) -> dict[str, Target]:
    return {t.domain: t for t in store.read_rows(out, "targets", Target)}


def test_every_planted_file_is_found_and_no_rule_is_broken(world: World, tmp_path: Path) -> None:
    names = [f"{kind}.example" for kind in KINDS if kind not in ("www", "wwwfar")]
    names += ["plain1.example", "missing.example", "inside.example", "blockedsite.example", "otherwise1.example"]
    source, out, block = tmp_path / "list", tmp_path / "o.parquet", tmp_path / "block"
    source.write_text("".join(f"{n},{name}\r\n" for n, name in enumerate(names, 1)) + "99,plain.example\n,\n")
    block.write_text("# left alone\nblockedsite.example\n192.0.2.0/24\n")
    facts = world.crawl(source, out, "--block-list", str(block), "--timeout", "4")
    found = targets(out)
    sizes = {
        t.domain: (t.url.partition(str(world.port))[2], t.size_bytes, t.size_is_lower_bound) for t in found.values()
    }
    unsized_size = sizes.pop("unsized.example")
    assert unsized_size[0] == "/big.iso"
    assert unsized_size[2] is True
    assert MIN <= (unsized_size[1] or 0) < 10 * MIN
    assert sizes == {
        "plain.example": ("/b.bin", MIN + 7, False),
        "plain1.example": ("/b.bin", MIN + 7, False),
        "getonly.example": ("/f.iso", BIG, False),
        "robots.example": ("/open.iso", MIN, False),
        "slowly.example": ("/1.iso", MIN, False),
        "wwwhost.example": ("/f.iso", MIN + 1, False),
        "zipped.example": ("/f.iso", MIN, False),
        "accented.example": ("/f.iso", MIN, False),
    }
    assert found["plain.example"].depth == 1
    assert found["plain.example"].server_ip == address_of("plain.example")
    assert found["wwwhost.example"].url.startswith("http://www.wwwhost.example:")
    assert facts["outcomes"] == {
        "found": 9,
        "no_file": 3,  # private, toolarge, encoded
        "robots_disallowed": 4,
        "robots_unreachable": 2,
        "off_domain": 2,
        "http_status": 1,
        "too_many_requests": 2,
        "protocol_error": 2,
        "timeout": 1,
        "dns_error": 1,
        "address_refused": 1,
        "blocked": 1,
    }
    assert (facts["duplicates"], facts["broken_rows"]) == (1, {"empty fields": 1})
    table = store.read_table(out, "targets")
    extra = {row["domain"]: row for row in table.select(["domain", "alt_svc", "cname_chain"]).to_pylist()}
    assert extra["plain.example"]["alt_svc"] == 'h3=":443"; ma=60'
    assert extra["plain.example"]["cname_chain"] == "edge.cdn.example"
    assert extra["zipped.example"]["alt_svc"] == f'{OTHERS}, h3=":443"'
    check_the_logs(world)


def check_the_logs(world: World) -> None:
    log = world.log
    agents = {agent for *_, agent in log.requests}
    assert len(agents) == 1
    assert "upshift/" in (agent := agents.pop())
    assert "mailto:me@example.org" in agent
    for host in {host for _, host, *_ in log.requests}:
        assert log.of(host)[0] == ("GET", "/robots.txt")
        assert log.of(host).count(("GET", "/robots.txt")) == 1
    assert not [path for _, path in log.of("robots.example") if path.startswith("/secret")]
    assert log.of("busy.example")[1:] == [("GET", "/"), ("HEAD", "/1.iso")]
    for name in ("closed", "packed", "marked", "brokenoff", "outside", "fivexx", "busyrobots"):
        assert log.of(f"{name}.example") == [("GET", "/robots.txt")]
    assert not log.of("blockedsite.example")
    assert not log.of("elsewhere.private.example")
    assert not log.of("10.0.0.1")
    assert ("GET", "/never") not in log.of("plain.example")  # a domain with a file is left alone
    assert "other.example" not in world.asked
    assert world.asked.count("plain.example") == 1
    assert log.sent["unsized.example", "/big.iso"] < BIG / 10
    assert log.sent["getonly.example", "/f.iso"] < BIG / 10
    times = [when for when, host, *_ in log.requests if host == "slowly.example"]
    assert all(later - earlier > 0.35 for earlier, later in itertools.pairwise(times[1:]))


def test_one_pace_for_all_who_ask_for_an_address() -> None:
    async def twelve_turns() -> dict[str, list[float]]:
        pace, begun = Throttle(40.0, 4), defaultdict[str, list[float]](list)

        async def one(address: str) -> None:
            async with pace.turn(address):
                begun[address].append(time.monotonic())

        await asyncio.gather(*(one(address) for _ in range(12) for address in ADDRESSES[:2]))
        return begun

    begun = asyncio.run(twelve_turns())
    for times in begun.values():
        assert times[-1] - times[0] > 11 / 40 - 0.01
    starts = [times[0] for times in begun.values()]
    assert abs(starts[0] - starts[1]) < 0.2  # addresses do not wait for each other


def test_a_hosts_crawl_delay_holds_up_nobody_else_at_its_address() -> None:
    async def requests() -> dict[str, list[float]]:
        pace, begun = Throttle(100.0, 1), defaultdict[str, list[float]](list)

        async def visit(host: str, delay_s: float, count: int) -> None:
            for _ in range(count):
                async with pace.gap(host, delay_s), pace.turn(ADDRESSES[0]):
                    begun[host].append(time.monotonic())

        await asyncio.gather(visit("patient.example", 0.5, 3), *(visit(f"{n}.example", 0.0, 5) for n in range(4)))
        return begun

    begun = asyncio.run(requests())
    patient = begun.pop("patient.example")
    assert all(later - earlier >= 0.49 for earlier, later in itertools.pairwise(patient))
    assert sum(map(len, begun.values())) == 20
    assert max(map(max, begun.values())) < patient[-1]  # they were done before its third request


def test_lanes_out_of_use_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.outreach.pace, "LANES_KEPT", 10)
    monkeypatch.setattr(policy, "MAX_CRAWL_DELAY_S", 0.01)

    async def visits() -> int:
        pace = Throttle(10_000.0, 1)
        async with pace.gap("held.example", 0.0):
            for n in range(200):
                async with pace.gap(f"{n}.example", 0.0):
                    await asyncio.sleep(0.001)
            assert "held.example" in pace._hosts._lanes
        return len(pace._hosts._lanes)

    assert asyncio.run(visits()) < 100


@cells("number", every=[signal.SIGINT, signal.SIGTERM], quick=[signal.SIGINT])
def test_it_has_no_rights_refuses_a_second_one_and_interrupted_it_ends_with_130(
    world: World, tmp_path: Path, number: signal.Signals
) -> None:
    source, out = tmp_path / "list", tmp_path / "o.parquet"
    source.write_text("\n".join(f"plain{n}.example" for n in range(100, 400)))  # more than can be done meanwhile
    child = world.start(source, out, "--rate", "40", "--workers", "2")
    deadline = time.monotonic() + 60
    while len(world.log.requests) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert_no_thread_has_rights(child.pid)
    second = world.start(source, out)
    _, refusal = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "another crawl is using this ledger; wait until it ends, or give another one with --ledger" in refusal
    child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert not out.exists()


def assert_no_thread_has_rights(pid: int) -> None:
    """As docs/design/privilege.md says; what is refused then: tests/unit/test_confine_here.py."""
    seen = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            lines = (task / "status").read_text().splitlines()
            held = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
            assert (held["NoNewPrivs"], held["Seccomp"]) == ("1", "2"), (task, held["Name"])
            assert int(held["CapEff"], 16) & ~0b11 == int(held["CapBnd" if os.geteuid() == 0 else "CapEff"], 16) == 0
            seen += 1
    assert seen


def test_a_visit_has_a_time_budget(world: World, tmp_path: Path) -> None:
    source, out = tmp_path / "list", tmp_path / "o.parquet"
    source.write_text("hangs.example\nplain.example\n")
    facts = world.crawl(source, out, "--domain-time", "5", "--timeout", "30", "--rate", "50")
    assert facts["outcomes"] == {"time_budget": 1, "found": 1}


def test_a_name_server_that_is_away_is_no_result_of_a_domain(world: World, tmp_path: Path) -> None:
    source, out = tmp_path / "list", tmp_path / "o.parquet"
    source.write_text("plain.example\nwwwhost.example\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        child = world.start(source, out, "--nameserver-port", str(nobody.getsockname()[1]))
        nobody.close()
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "upshift: the name server 127.0.0.1 cannot be reached" in errors and "Traceback" not in errors
    assert world.crawl(source, out)["outcomes"] == {"found": 2}, "the same ledger"


def test_too_few_files_are_no_result_of_a_domain(world: World, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("plain.example\n")
    argv = world.command(tmp_path / "list", tmp_path / "o.parquet", "--workers", "600")
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["prlimit", "--nofile=1024:1024", *argv], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 2
    assert "upshift: --workers: this process may open only 1024 files; lower it to 480\n" in done.stderr


def test_waiting_for_a_busy_address_is_not_in_the_budget(world: World, tmp_path: Path) -> None:
    source, out = tmp_path / "list", tmp_path / "o.parquet"
    source.write_text("".join(f"wwwhost{n}.example\n" for n in range(10, 30)))  # all at one address
    begun = time.monotonic()
    facts = world.crawl(source, out, "--domain-time", "4", "--rate", "10", "--per-address", "1", "--workers", "20")
    assert facts["outcomes"] == {"found": 20}
    assert time.monotonic() - begun > 6, "the address was not busy for longer than a visit may last"


def test_whoever_opts_out_while_it_runs_is_left_alone(world: World, tmp_path: Path) -> None:
    source, opt_out = tmp_path / "list", tmp_path / "opt-out"
    source.write_text("\n".join(f"plain{n}.example" for n in range(100, 190)))
    child = world.start(source, tmp_path / "o.parquet", "--opt-out", str(opt_out), "--rate", "12", "--workers", "2")
    deadline = time.monotonic() + 30
    while len(world.log.requests) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    opt_out.write_text("127.0.0.0/8\n")
    said, errors = child.communicate(timeout=100)
    assert child.returncode == 0, errors
    outcomes = json.loads(said.strip().splitlines()[-1])["outcomes"]
    assert outcomes["blocked"] > 20
    assert outcomes["blocked"] + outcomes.get("found", 0) == 90


@pytest.mark.parametrize(
    ("kind", "blocked", "outcome", "kept", "asked_for"),
    [
        (DomainVisit, "a.example", "blocked", None, ["robots.txt", "", "1.iso"]),
        (DomainVisit, "b.a.example", "found", "https://a.example/3.iso", ["robots.txt", "", "1.iso", "2.iso", "3.iso"]),
        (ObjectVisit, "a.example", "blocked", None, ["robots.txt", "", "1.iso"]),
        (ObjectVisit, "b.a.example", "found", 5, ["robots.txt", "", "1.iso", "2.iso", "3.iso"]),
    ],
)
def test_an_opt_out_ends_the_visit_of_its_domain_and_no_other(
    kind: type[DomainVisit], blocked: str, outcome: str, kept: object, asked_for: list[str], tmp_path: Path
) -> None:
    listed = tmp_path / "opt-out"
    listed.touch()

    class World:
        """Resolver, and a server at which an owner opts out while the first file or object is asked for."""

        lists = BlockLists([listed])

        async def addresses(self, _: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            admit(self.lists, urlsplit(ask.url).hostname or "", ask.address)  # as the gate does
            ask.html, ask.length = ask.url.endswith("/"), 2_000_000 + len(asked)
            if ask.url.endswith("/1.iso"):
                listed.write_text(f"{blocked}\n")
                self.lists._looked = -100.0
            body = b"".join(shown % name for name in (b"1.iso", b"//b.a.example/0.iso", b"2.iso", b"3.iso"))
            asked.append(ask.url.rpartition("/")[2])
            status = 404 if ask.url.endswith("robots.txt") else 200
            return CrawlReply(status=status, headers={}, body=body, address="127.0.0.1", stopped=False)

    asked: list[str] = []
    fake: Any = World()
    shown = b"<a href=%s></a>" if kind is DomainVisit else b"<img src=%s>"
    visit = kind(
        domain="a.example", limits=CrawlLimits(objects=9), fetch=fake.fetch, resolver=fake, pins=Pins(None),
        blocks=fake.lists, pace=Throttle(1_000.0, 1),
    )  # fmt: skip
    result = asyncio.run(visit.run())
    rows = result.objects and len(result.objects)
    assert (result.outcome, result.url or rows, list(dict.fromkeys(asked))) == (outcome, kept, asked_for)


def visit_of(domain: str, fake: Any) -> DomainVisit:
    """A visit in a world that answers as the test says."""
    return DomainVisit(
        domain=domain, limits=CrawlLimits(), fetch=fake.fetch, resolver=fake, pins=Pins(None),
        blocks=BlockLists([]), pace=Throttle(1_000.0, 1),
    )  # fmt: skip


def test_other_visits_go_on_while_a_page_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    class World:
        async def addresses(self, _: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            ask.html = True
            status = 404 if ask.url.endswith("robots.txt") else 200
            return CrawlReply(status=status, headers={}, body=b"", address="127.0.0.1", stopped=False)

    def slowly(*_: object, **__: object) -> Links:
        time.sleep(0.3)
        return Links(files=[], pages=[])

    async def turns_of_the_loop() -> int:
        fake: Any = World()
        visit = visit_of("a.example", fake)
        running, turns = asyncio.create_task(visit.run()), 0
        while not running.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert (await running).outcome == "no_file"
        return turns

    monkeypatch.setattr("crawler.visit.extract", slowly)
    assert asyncio.run(turns_of_the_loop()) > 5


def test_a_style_sheet_is_read_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    class World:
        async def addresses(self, _: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            ask.html, status = True, 404 if ask.url.endswith("robots.txt") else 200
            body = b"<link rel=stylesheet href=s.css>"
            return CrawlReply(status=status, headers={}, body=body, address="127.0.0.1", stopped=False)

    def read(*_: object, **__: object) -> Embedded:
        readers.append(threading.current_thread())
        return Embedded(urls={}, unusable=3)

    fake: Any = World()
    visit = ObjectVisit(
        domain="a.example", limits=CrawlLimits(objects=9), fetch=fake.fetch, resolver=fake, pins=Pins(None),
        blocks=BlockLists([]), pace=Throttle(1_000.0, 1),
    )  # fmt: skip
    monkeypatch.setattr("crawler.objects.of_style_sheet", read)
    result = asyncio.run(visit.run())
    assert result.objects is not None and result.objects[0]["skipped"] == 3
    assert len(readers) == 1 and readers[0] is not threading.main_thread()


UMLAUT, UMLAUT_URL = "<img src=\xe4.png>", "%C3%A4.png"
AFTER_LETTER = "<p>{}</p><img src=a.png>"


@pytest.mark.parametrize(
    ("charset", "body", "shown"),
    [
        ("UTF-8", UMLAUT.encode(), UMLAUT_URL),
        ("windows-1252", UMLAUT.encode("cp1252"), UMLAUT_URL),
        *((charset, b"<img src=a.png>", "a.png") for charset in ("nonsense", "\xe4", "undefined", "idna", "base64")),
        # What browsers mean by a label is more than what it says.
        *(
            (charset, AFTER_LETTER.format(letter).encode(codec), "a.png")
            for charset, letter, codec in (
                ("gb2312", "\u9555", "gbk"),
                ("gbk", "\u3400", "gb18030"),
                ("shift_jis", "\u2460", "cp932"),
                ("euc-kr", "\ub620", "cp949"),
                ("big5", "\u5605", "big5hkscs"),
                ("windows-1253", "\u0391", "iso8859-7"),
            )
        ),
        ("windows-1253", b"<p>\xaa</p><img src=a.png>", "a.png"),  # undefined there
        ("utf-8", b"<p>\xff\x81</p><img src=a.png>", "a.png"),
        ("nonsense", f"<meta charset=gb2312>{AFTER_LETTER.format(chr(0x9555))}".encode("gbk"), "a.png"),
        ("UTF-8", f"<meta charset=windows-1251>{UMLAUT}".encode(), UMLAUT_URL),
        ("windows-1251", UMLAUT.encode("utf-8-sig"), UMLAUT_URL),
        ("utf-8", UMLAUT.encode("utf-16"), UMLAUT_URL),
        ("utf-16", UMLAUT.encode("utf-16-le"), UMLAUT_URL),
        ("nonsense", f"<meta charset=utf-16>{UMLAUT}".encode(), UMLAUT_URL),
        ("nonsense", f"<script>{' ' * 5000}</script><meta charset=utf-8>{UMLAUT}".encode(), UMLAUT_URL),
    ],
)
@pytest.mark.parametrize("kind", [DomainVisit, ObjectVisit])
def test_a_page_is_read_in_the_encoding_that_its_answer_states(
    kind: type[DomainVisit], charset: str, body: bytes, shown: str
) -> None:
    """One that nobody knows counts as none, then the page's own word does; a byte order mark counts before both."""
    asked: list[str] = []

    class World:
        async def addresses(self, _: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            asked.append(ask.url.removeprefix("https://a.example/"))
            ask.html = ask.url.endswith("/")
            headers = {"content-type": f'text/html; charset="{charset}"'}
            status = 404 if ask.url.endswith("robots.txt") else 200
            return CrawlReply(status=status, headers=headers, body=body, address="127.0.0.1", stopped=False)

    fake: Any = World()
    visit = kind(
        domain="a.example", limits=CrawlLimits(objects=9), fetch=fake.fetch, resolver=fake, pins=Pins(None),
        blocks=BlockLists([]), pace=Throttle(1_000.0, 1),
    )  # fmt: skip
    asyncio.run(visit.run())
    assert shown in asked


def test_only_a_host_s_own_delay_is_in_the_budget() -> None:
    """Of 30 domains that redirect to one host each waited for those before it, until its time was over."""
    rules = b""

    class World:
        async def addresses(self, _: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            ask.html = ask.url.endswith("/")
            body = rules if ask.url.endswith("robots.txt") else b"<a href=b.html></a>"
            return CrawlReply(status=200, headers={}, body=body, address="127.0.0.1", stopped=False)

    async def visit(held: str | None, domain_s: float = 50.0) -> DomainResult:
        fake: Any = World()
        pace = Throttle(1_000.0, 1)
        lanes, name = (pace._hosts, "a.example") if held == "host" else (pace._addresses, "127.0.0.1")
        one = DomainVisit(
            domain="a.example", limits=CrawlLimits(domain_s=domain_s), fetch=fake.fetch, resolver=fake, pins=Pins(None),
            blocks=BlockLists([]), pace=pace,
        )  # fmt: skip
        if held is None:
            return await one.run()
        async with lanes.turn(name):
            running = asyncio.create_task(one.run())
            while lanes._lanes[name].users < 2:
                await asyncio.sleep(0)
            assert one._budget.when() is None
        return await running

    for held in ("host", "address"):
        result = asyncio.run(visit(held))
        assert (result.outcome, result.requests) == ("no_file", 3), held
    rules = b"User-agent: *\nCrawl-delay: 55"
    result = asyncio.run(visit(None, domain_s=0.5))
    assert (result.outcome, result.requests) == ("time_budget", 1)


IMAGES = "".join(f'<img src="https://static.a-site.com/{number}.jpg">' for number in range(40))
LINKS = "".join(f'<a href="https://shop.a-site.com/{number}/"></a>' for number in range(7))


@pytest.mark.parametrize(
    ("start", "found", "requests"),
    [
        (f'{IMAGES}<img src="/own.jpg">', "/own.jpg", 3),
        (f'{LINKS}<a href="/downloads">', "/big.zip", 4),
        ("".join(f'<img src="https://s{number}.a-site.com/x.jpg">' for number in range(60)), None, 2),
    ],
    ids=["files", "pages", "hosts"],
)
def test_what_is_known_to_be_elsewhere_costs_no_file_and_no_page(start: str, found: str | None, requests: int) -> None:
    """Each host that has to be looked up does."""
    names: list[str] = []

    class World:
        async def addresses(self, host: str) -> Answer:
            names.append(host)
            return Answer(addresses=("127.0.0.1" if host == "a-site.com" else "127.0.0.2",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            path = urlsplit(ask.url).path
            pages = {"/": start, "/downloads": '<a href="/big.zip"></a>'}
            ask.html, ask.length = path in pages, 5_000_000
            status = 404 if path == "/robots.txt" else 200
            body = pages.get(path, "").encode()
            return CrawlReply(status=status, headers={}, body=body, address="127.0.0.1", stopped=False)

    fake: Any = World()
    visit = visit_of("a-site.com", fake)
    result = asyncio.run(visit.run())
    assert (result.url, result.requests) == (found and f"https://a-site.com{found}", requests)
    assert len(names) <= 1 + CrawlLimits().probes


def test_dots_in_a_path_lead_around_no_rule_of_robots_txt() -> None:
    """Servers resolve them before they answer (RFC 3986, section 6.2.2.3); the rules were asked about the text."""
    asked: list[str] = []
    private = ["https://a.example/x/../private/1.iso", "/%2e%2E/private/2.iso", "x\\..\\private\\3.iso", "/moved.iso"]
    same = ["https://a.example:443/open.iso", "https://a.example/x/../open.iso", "/open.iso", "/%2e/open.iso#a"]

    class World:
        async def addresses(self, host: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=())

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            asked.append(ask.url.removeprefix("https://a.example"))
            ask.html, ask.length = asked[-1] == "/", 5_000_000
            body = "".join(f'<a href="{link}"></a>' for link in private + same)
            status, headers = 200, {}
            if asked[-1] == "/robots.txt":
                body = "User-agent: *\nDisallow: /private/"
            elif asked[-1] == "/moved.iso":
                status, headers = 302, {"location": "https://a.example/x/../private/4.iso"}
            return CrawlReply(status=status, headers=headers, body=body.encode(), address="127.0.0.1", stopped=False)

    fake: Any = World()
    visit = visit_of("a.example", fake)
    result = asyncio.run(visit.run())
    assert asked == ["/robots.txt", "/", "/moved.iso", "/open.iso"]
    assert (result.url, result.detail) == ("https://a.example/open.iso", None)


def test_a_scheme_s_own_port_may_be_written() -> None:
    nothing: Any = None
    visit = DomainVisit(
        domain="a.example", limits=CrawlLimits(), fetch=nothing, resolver=nothing, pins=nothing, blocks=nothing,
        pace=nothing,
    )  # fmt: skip
    assert visit._fault("https://www.a.example:443/") is visit._fault("https://a.example/x") is None
    for other in ("https://a.example:80/", "http://a.example/", "http://a.example:443/"):
        assert "has another scheme or port" in str(visit._fault(other))


def test_robots_by_our_own_name() -> None:
    rules = from_reply(200, b"User-agent: *\nDisallow: /\n\nUser-agent: Upshift\nDisallow: /x\nCrawl-delay: 3")
    assert rules.allows("https://a.example/y")
    assert not rules.allows("https://a.example/x/1")
    assert rules.delay_s == 3
    assert from_reply(404, b"").allows("https://a.example/")
    assert not from_reply(500, b"").allows("https://a.example/")
    assert from_reply(200, b"\xff\xfe\x00garbage").allows("https://a.example/")
    assert not from_reply(200, b"User-agent: *\n", is_cut=True).allows("https://a.example/")
    assert from_reply(200, b"#" * MAX_BYTES, is_cut=True).allows("https://a.example/"), "the rest need not be read"
    assert not Robots(None).allows("https://a.example/")
    for name in ("upshift/1.0", "Upshift/0.3 (+mailto:me@example.org)", "upshift/"):
        rules = Robots(f"User-agent: *\r\nDisallow:\r\n\r\nUser-Agent : {name} # bot\rDisallow: /x\nCrawl-delay: 3")
        assert not rules.allows("https://a.example/x") and rules.allows("https://a.example/y"), name
        assert rules.delay_s == 3
    assert Robots("User-agent: upshifted/1.0\nDisallow: /\n").allows("https://a.example/")


MANY_AGENTS = """
import itertools, resource
from crawler.policy import MAX_BYTES, from_reply
numbers = [f"{n:x}" for n in range(16_000)]
stars = ["*" * a + "u" + "*" * b + "p" + "*" * c for a, b, c in itertools.product(range(16), repeat=3)]
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 8, used + 8))
for names in (numbers, stars):
    text = "".join(f"useragent:{name}\\n" for name in names) + "user-agent:*\\ndisallow:/x\\n"
    rules = from_reply(200, (text + "allow:/\\n" * MAX_BYTES).encode()[:MAX_BYTES])
    assert rules.allows("https://a.example/y") and not rules.allows("https://a.example/x")
"""


def test_a_robots_txt_of_many_agents_takes_neither_all_memory_nor_minutes() -> None:
    """Each rule was kept once per agent: thousands of millions of them."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_AGENTS], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


agents = st.sampled_from(
    ["upshift", "UPSHIFT", "up*shift", "*", "**", "u", "u *", "p", "shift", "upshifts", "a", "b", "c: d", ":e", "f:g",
     "", "up#shift"]
)  # fmt: skip
robots_lines = st.one_of(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", " ", "\ufeff", "\xa0"]),
        st.sampled_from(["User-agent", "useragent", "user agent", "user  agent", "user\tagent", "u\u017fer-agent"]),
        st.sampled_from([":", ": ", " : ", " ", " :", ""]),
        agents,
    ),
    st.sampled_from(["Disallow: /x", "Disallow: /y", "Allow: /x", "Disallow: /", "Crawl-delay: 3", "Crawl-delay: 7"]),
    st.sampled_from(["Disallow:", "", "#", "Sitemap: /s", "nonsense", "other: x"]),
)


@given(st.lists(robots_lines, max_size=12).map("\n".join))
@settings(max_examples=500, deadline=None)
def test_agents_of_others_are_one_without_another_answer(text: str) -> None:
    ours, whole = Robots(text), Protego.parse(text)
    for path in ("x", "y", "z"):
        assert ours.allows(f"https://a.example/{path}") == whole.can_fetch(f"https://a.example/{path}", policy.AGENT)
    assert ours.delay_s == (whole.crawl_delay(policy.AGENT) or 0)


def test_links() -> None:
    page = b"""<html><link href="https://[site_url]/">
    <base href="/dir/"><a href="p">p</a><a href="f.PDF#x">f</a><a href="/q?x=1"></a>
    <img srcset="i1.jpg 1x, i2.jpg 2x" src=i0.jpg><video src=v.mp4 poster=p.png></video><script src=s.js></script>
    <a href="mailto:x@y">m</a><a href="javascript:0">j</a><a href="http://u:p@h/">u</a><link rel=canonical href="/me">
    <link rel=stylesheet href=c.css><iframe src=frame.html></iframe><a href="http://[bad/">b</a>
    <a href=" \xc3\xa4.zip ">"""
    found = extract(page, url="https://a.example/here", encoding="utf-8")
    names = [url.removeprefix("https://a.example/dir/") for url in found.files]
    assert names == ["v.mp4", "%C3%A4.zip", "f.PDF", "i0.jpg", "i1.jpg", "i2.jpg", "p.png", "s.js", "c.css"]
    assert found.pages == ["https://a.example/dir/p", "https://a.example/q?x=1", "https://a.example/dir/frame.html"]
    assert extract("<a href='//straße.de/'>".encode(), url="https://a.example/", encoding="utf-8").pages == [
        "https://xn--strae-oqa.de/"  # IDNA 2008, as browsers and the lists; 2003 leads to strasse.de
    ]
    assert extract(b"", url="https://a.example/").files == []
    assert extract(b"\x00\xff<", url="https://a.example/").files == []


def test_addresses_of_a_srcset_and_of_a_style_sheet() -> None:
    page = b"<img srcset='a.jpg 1x,b,c.jpg 100w,, d.jpg, e.jpg 2.5x ,f.jpg'>"
    names = [url.rpartition("/")[2] for url in extract(page, url="https://a.example/").files]
    assert names == ["a.jpg", "b,c.jpg", "d.jpg", "e.jpg", "f.jpg"]
    style = "a { b: url( 'c.png' ) } d { e: URL(f.woff2); g: url(data:x,y) } h: url()"
    found = of_style_sheet(style, url="https://a.example/")
    assert (list(found.urls), found.unusable) == (["https://a.example/c.png", "https://a.example/f.woff2"], 1)


def test_of_a_style_sheet_as_many_references_are_considered_as_of_a_page() -> None:
    begun = time.process_time()
    found = of_style_sheet("".join(f"url({n})" for n in range(100_000)), url="https://a.example/")
    assert (len(found.urls), found.unusable) == (MAX_LINKS, 100_000 - MAX_LINKS)
    assert time.process_time() - begun < 5
    repeated = "url(a) url(#b) url() url(data:,) " * 3_000 + "url(c)"
    found = of_style_sheet(repeated, url="https://a.example/")
    assert ([*found.urls], found.unusable) == (["https://a.example/a", "https://a.example/c"], 1), "each counts once"


def test_no_text_takes_more_than_its_length_of_time() -> None:
    """Backtracking took 15 s and two minutes; all other visits wait meanwhile."""
    begun = time.process_time()
    for value in (" " * 20_000, "a" + " " * 19_000 + "x", "a, " * 6_000):
        extract(f"<img srcset='{value}'>".encode(), url="https://a.example/")
    for style in ("url(" * 400_000, "url( " + " " * 400_000, "url('" * 400_000):
        of_style_sheet(style, url="https://a.example/")
    extract(b"<meta charset=punycode>%s-%s" % (b"x" * 800_000, b"a" * 40_000), url="https://a.example/")
    assert time.process_time() - begun < 5


pieces = st.sampled_from(
    [b"<a href=", b'"', b"'", b">", b"http://[", b"//", b"@:", b"\\", b"%", b"%zz", b":99999999", b"<base href=",
     b"\x00",
     b"\xff", b"<img srcset='", b" 1x,", b"<svg><a xlink:href=", b"&#x110000;", b"<!DOCTYPE ", b"javascript:", b"xn--",
     "\u202e\u2028".encode(), b"<meta charset=utf-7>", b"<?xml encoding='x'?>", b"e.example/"]
)  # fmt: skip


@given(st.lists(st.one_of(pieces, st.binary(max_size=12)), max_size=25).map(b"".join))
@settings(max_examples=400, deadline=None)
def test_hostile_pages_and_rules_never_crash(body: bytes) -> None:
    found = extract(body, url="https://a.example/")
    for link in (*found.files, *found.pages):
        assert link.startswith(("http://", "https://"))
        assert link.isascii()
        assert link.isprintable()
    from_reply(200, body).allows("https://a.example/x")
    from_reply(200, b"User-agent: *\nDisallow: " + body).allows("https://a.example/x?y=%zz")


def test_registered_domains_without_any_network() -> None:
    hosts = {"www.bbc.co.uk": "bbc.co.uk", "a.user.github.io": "user.github.io", "www.a.example": "a.example"}
    assert {host: registered_domain(host) for host in hosts} == hosts


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--shard", "3/2"], "'3/2' is not a valid shard"),
        (["--shard", "\N{SUPERSCRIPT TWO}/3"], "is not a valid shard"),
        (["--max-size", "10"], "smaller than --min-size"),
        (["--start", "ftp://x"], "is not a valid start page"),
        (["--start", "https://{domain}:99999/"], "is not a valid start page"),
        (["--out", "list.csv"], "this is the input, which it would replace"),
        (["--contact", " "], "is empty, or has control characters"),
        (["-o", "o.txt"], "'o.txt' says neither Parquet nor CSV; end it in .parquet or .csv"),
        (["--ca", "none.pem"], "none.pem cannot be read (No such file or directory); name a PEM file of CA"),
        (["--ca", __file__], "is not a PEM file with certificates; name a PEM file of CA certificates"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], said: str) -> None:
    from typer import Typer
    from typer.testing import CliRunner

    from upshift.commands.crawl import crawl

    app = Typer()
    app.command()(crawl)
    source = tmp_path / "list.csv"
    source.write_text("a.example\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [str(source), "-o", str(tmp_path / "o.csv"), "--contact", "x", *more])
    assert isinstance(result.exception, UsageError)
    assert said in result.exception.sentence()


@pytest.mark.parametrize("says", ["", "static."])
@pytest.mark.parametrize(("path", "depth"), [("/f.iso", 0), ("/download", 0), ("/deeper", 1)])
def test_a_file_has_the_depth_of_the_page_that_names_it_and_what_its_own_host_offers(
    says: str, path: str, depth: int
) -> None:
    """A link without an ending was a page, one deeper; Alt-Svc and CNAMEs were those of the start page's host."""

    class World:
        async def addresses(self, host: str) -> Answer:
            return Answer(addresses=("127.0.0.1",), chain=(f"{host}.cdn.example",))

        async def fetch(self, ask: CrawlRequest) -> CrawlReply:
            parts = urlsplit(ask.url)
            pages = {"/": f'<a href="https://static.a-site.com{path}">', "/deeper": "<a href=/download>"}
            ask.html, ask.length = parts.path in pages, 5_000_000
            status = 404 if parts.path == "/robots.txt" else 200
            headers = {"alt-svc": 'h3=":443"'} if parts.hostname == f"{says}a-site.com" else {}
            body = pages.get(parts.path, "").encode()
            return CrawlReply(status=status, headers=headers, body=body, address="127.0.0.1", stopped=False)

    fake: Any = World()
    visit = visit_of("a-site.com", fake)
    result = asyncio.run(visit.run())
    assert (urlsplit(result.url or "").hostname, result.depth) == ("static.a-site.com", depth)
    assert result.alt_svc == ('h3=":443"' if says else None)
    assert result.cname_chain == "static.a-site.com.cdn.example"
