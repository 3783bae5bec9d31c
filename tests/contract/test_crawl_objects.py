"""The crawl for objects of pages against real HTTP servers on loopback, nginx among them, as a program of its own."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.domain import PageObject
from core.files import store
from core.system import process
from tests.contract.test_crawler_visit import ADDRESSES, REPOSITORY, Site, World, address_of
from vantage.server_kind import MEDIA_TYPES

STYLE = "@font-face { src: url('/f.woff2') } .x { background: url(data:image/png;base64,AA) } .y { color: red }"
PAGE = """<html><head><link rel="stylesheet" href="/s.css"><link rel="canonical" href="/other">
<style>body { background: url("/back.png?v=2") }</style><script src="/a.js"></script><script>var x = 1;</script></head>
<body><img src="/i.png?visitor=7#top"><img src="/i.png?visitor=7"><img srcset="/small.jpg 1x, /large.jpg 2x">
<img src="data:image/gif;base64,R0lGOD"><img src="blob:http://objects.example/1"><img src="/gone.png">
<img src="http://plain1.example/away.png"><img src="http://elsewhere.objects.example:{port}/away.png">
<img src="/secret/x.png"><img src="/unsized.webp"><img src="/endless.avif">
<a href="/page2.html">not shown</a></body></html>
"""


def objects(site: Site, host: str) -> None:
    """Something of everything."""
    sizes = {"/i.png": 20_000, "/back.png": 3_000, "/small.jpg": 400, "/f.woff2": 9_000}
    path = site.path.partition("?")[0]
    if path == "/robots.txt":
        site.give(200, b"User-agent: upshift\nDisallow: /secret\n", "text/plain")
    elif path == "/":
        site.give(200, PAGE.replace("{port}", str(site.port())).encode())
    elif path == "/s.css":
        site.give(200, gzip.compress(STYLE.encode()), "text/css", Content_Encoding="gzip")
    elif path == "/a.js":
        # As nginx does: a HEAD is not compressed.
        body = b"// a script\n" * 5_000
        if site.command == "HEAD":
            site.give(200, body, "text/javascript")
        else:
            site.give(200, gzip.compress(body), "text/javascript", length=False, Content_Encoding="gzip")
    elif path == "/unsized.webp":
        site.give(200, 70_001, "image/webp", length=False)
    elif path == "/endless.avif":
        site.give(200, 10**12, "image/avif", length=False)
    elif path in sizes:
        site.give(200, sizes[path], "font/woff2" if path.endswith("2") else "image/png")
    else:
        site.give(404, b"")


def many(site: Site, host: str) -> None:
    """More than anybody wants."""
    body = "".join(f"<img src='/{n}.png'>" for n in range(10_000)).encode()
    site.give(200, body if site.path == "/" else 10, "text/html" if site.path == "/" else "image/png")


def notext(site: Site, host: str) -> None:
    site.give(200, 123_456, "application/pdf")


def based(site: Site, host: str) -> None:
    """All that it shows is elsewhere."""
    site.give(200, b"<base href='http://plain1.example/'><img src='a.png'><script src='b.js'></script>")


def bomb(site: Site, host: str) -> None:
    site.give(200, gzip.compress(bytes(50_000_000)), Content_Encoding="gzip")


def brotli(site: Site, host: str) -> None:
    """Packed by something that was not asked for."""
    site.give(200, b"\x8b\x03\x80abc\x03", Content_Encoding="br")


def broken(site: Site, host: str) -> None:
    site.give(200, b"<<<img src=/x.png <p <img src='/i.png'> \xff\xfe <script src=\"http://[::1/x.js\">")


def huge(site: Site, host: str) -> None:
    """Numbers that no table holds, and a body that breaks off."""
    if site.path == "/":
        site.give(200, b"<img src=/length.png><img src=/status.png><img src=/broken.webp>")
    elif site.path == "/broken.webp":
        site.give(200, b"1000\r\nabc", "image/webp", length=False, Transfer_Encoding="chunked")
    elif site.path == "/length.png":
        told = {"Content_Length": "9" * 20} if site.command == "HEAD" else {}
        site.give(200, 12, "image/png", length=False, **told)
    else:
        site.give(int("9" * 20), b"", "image/png")


KINDS = {site.__name__: site for site in (objects, many, notext, based, bomb, brotli, broken, huge)}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("tests.contract.test_crawler_visit.OWN_ROBOTS", {"objects"})
    made = World(KINDS)
    yield made
    made.close()


def crawl(world: World, source: Path, out: Path, port: int, *more: str) -> dict[str, object]:
    options = ["--nameserver", "127.0.0.1", "--nameserver-port", str(world.dns_port), "--contact", "me@example.org"]
    pace = ["--rate", "300", "--per-address", "4", "--timeout", "10", "--start", f"http://{{domain}}:{port}/"]
    program = [sys.executable, "-c", "from upshift.cli import main; main()", "crawl", "objects", str(source)]
    done = subprocess.run(
        [*program, "-o", str(out), *options, *pace, "--json", *more],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def test_each_object_has_its_size_or_a_cause(world: World, tmp_path: Path) -> None:
    source, out = tmp_path / "list.csv", tmp_path / "o.parquet"
    names = [*KINDS, "missing"]
    lines = ["domain,url,provider,rank", *(f"{name}.example,,akamai,{rank}" for rank, name in enumerate(names, 1))]
    source.write_text("\n".join(lines))
    said = crawl(world, source, out, world.port)
    rows = store.read_rows(out, "objects", PageObject)
    of = {name: [row for row in rows if row.domain == f"{name}.example"] for name in names}
    assert {row.provider for row in rows} == {"akamai"}
    assert [row.rank for row in rows] == sorted(row.rank or 0 for row in rows)
    page, *shown = of["objects"]
    assert (page.is_page, page.kind, page.size_bytes) == (
        True,
        "document",
        len(PAGE.replace("{port}", str(world.port))),
    )
    assert page.skipped == 3  # two data URLs and a blob
    start = f"http://objects.example:{world.port}"
    facts = {
        (r.url or "").removeprefix(start): (r.kind, r.size_bytes, r.size_is_lower_bound, r.http_status, r.failure)
        for r in shown
    }
    endless = facts.pop("/endless.avif")
    assert endless[0] == "image" and 5_000_000 <= (endless[1] or 0) < 20_000_000 and endless[2:] == (True, 200, None)
    script, sheet = gzip.compress(b"// a script\n" * 5_000), gzip.compress(STYLE.encode())
    assert facts == {
        "/s.css": ("style", len(sheet), False, 200, None),
        "/back.png": ("image", 3_000, False, 200, None),
        "/a.js": ("script", len(script), False, 200, None),
        "/i.png": ("image", 20_000, False, 200, None),
        "/small.jpg": ("image", 400, False, 200, None),
        "/gone.png": (None, None, False, 404, "http_status"),
        "http://plain1.example/away.png": (None, None, False, None, "off_domain"),
        f"http://elsewhere.objects.example:{world.port}/away.png": (None, None, False, None, "other_address"),
        "/secret/x.png": (None, None, False, None, "robots_disallowed"),
        "/unsized.webp": ("image", 70_001, False, 200, None),
        "/f.woff2": ("font", 9_000, False, 200, None),
    }
    asked = world.log.of("objects.example")
    assert asked.count(("GET", "/robots.txt")) == 1 and not [path for _, path in asked if path.startswith("/secret")]
    assert ("HEAD", "/i.png?visitor=7") in asked and ("GET", "/i.png?visitor=7") not in asked
    assert ("HEAD", "/s.css") not in asked
    assert len(of["many"]) == 101 and of["many"][0].skipped == 9_900
    assert [(r.kind, r.size_bytes, r.is_page) for r in of["notext"]] == [("other", 123_456, True)]
    assert [r.failure for r in of["based"]] == [None, "off_domain", "off_domain"]
    assert [(r.failure, r.size_bytes) for r in of["bomb"]] == [("protocol_error", None)]
    assert [(r.failure, r.size_bytes) for r in of["brotli"]] == [("protocol_error", None)]
    assert [r.failure for r in of["missing"]] == ["dns_error"]
    assert of["broken"][0].size_bytes and of["broken"][0].skipped == 1
    assert [(r.size_bytes, r.failure) for r in of["huge"][1:]] == [
        (12, None),
        (None, "protocol_error"),
        (None, "protocol_error"),
    ]
    assert said["objects"] == {
        "measured": sum(r.size_bytes is not None for r in rows),
        "skipped": 9_904,
        "off_domain": 3,
        "http_status": 1,
        "protocol_error": 2,
        "other_address": 1,
        "robots_disallowed": 1,
        "lower bounds": 1,
    }
    again = crawl(world, source, out, world.port)  # resumed: nothing is left
    assert len(world.log.of("objects.example")) == len(asked) and again["outcomes"] == said["outcomes"]


def test_nginx_with_gzip_is_told_right(world: World, tmp_path: Path) -> None:
    """It gives the length of what is not compressed to a HEAD, and no length of what is to a GET."""
    nginx = process.require("nginx", package="nginx-light")
    root = tmp_path / "www"
    root.mkdir()
    script, picture = b"function f() { return 1; }\n" * 2_000, os.urandom(30_000)
    (root / "a.js").write_bytes(script)
    (root / "i.png").write_bytes(picture)
    (root / "index.html").write_text("<img src=/i.png><script src=/a.js></script>" + "<p>text</p>" * 500)
    address = address_of("zipped.example")
    assert address in ADDRESSES
    port = world.port + 1 if world.port < 65_000 else world.port - 1
    types = "".join(f'"{media.partition(";")[0]}" {ending};' for ending, media in MEDIA_TYPES.items())
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;"
        f" client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p; fastcgi_temp_path {tmp_path}/f;"
        f" uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s; types {{ {types} }} gzip on; gzip_types"
        f" text/javascript; server {{ listen {address}:{port}; root {root}; }} }}"
    )
    argv = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        wire = {}
        for path in ("/", "/a.js", "/i.png"):
            wire[path] = _received(f"http://{address}:{port}{path}")
        assert wire["/a.js"] < len(script) / 10  # compressed on the wire
        (tmp_path / "list").write_text("zipped.example\n")
        crawl(world, tmp_path / "list", tmp_path / "o.parquet", port)
    finally:
        server.terminate()
        server.wait(10)
    rows = store.read_rows(tmp_path / "o.parquet", "objects", PageObject)
    sizes = {(r.url or "").rpartition(f":{port}")[2]: (r.size_bytes, r.size_is_lower_bound, r.kind) for r in rows}
    assert sizes == {
        "/": (wire["/"], False, "document"),
        "/a.js": (wire["/a.js"], False, "script"),
        "/i.png": (len(picture), False, "image"),
    }


def _received(url: str) -> int:
    """Bytes of a body as curl counts them on the wire."""
    curl = shutil.which("curl")
    assert curl is not None
    for _ in range(50):
        argv = [curl, "-s", "-H", "Accept-Encoding: gzip", "-o", "/dev/null", "-w", "%{size_download}", url]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            return int(done.stdout)
        time.sleep(0.1)
    pytest.fail("nginx did not start")
