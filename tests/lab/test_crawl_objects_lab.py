"""A crawl for objects in the lab: pages of planted sizes, in soak 200, judged by the plan and by the servers' logs."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.domain import PageObject
from core.files import store
from survey.objects import LINES, figures
from tests.cells import Repeats
from tests.lab._sites import LoggedRequest, logged_requests
from vantage.lab.files import write_files
from vantage.lab.lab import open_lab
from vantage.lab.site_kinds import page

pytestmark = pytest.mark.lab

SERVERS = 4
RATE = 50
"""Requests per second and address: a crawl outside has 2."""
ENDINGS = ("png", "jpg", "js")
FORBIDDEN = "User-agent: *\nDisallow: /private/\n"


@dataclass(frozen=True)
class Crawled:
    rows: list[PageObject]
    access: list[LoggedRequest]
    planted: Mapping[str, Mapping[str, int]]
    """Domain -> path -> size, of all that may be fetched."""


def plant(seed: int, pages: int) -> tuple[dict[str, dict[str, int]], str]:
    """What is planted, and the topology: log-normal sizes, with a part that all objects of a page share."""
    rng = random.Random(seed)
    servers = [f"web-{number}" for number in range(SERVERS)]
    text = 'schema = 1\nname = "objects"\nseed = 7\n[[vantage]]\nname = "V"\nuplink_mbit = 300\n'
    text += '[[organisation]]\nname = "o"\ntitle = "O"\nasn = 3000001\n'
    for name in servers:
        text += f'[[server]]\nname = "{name}"\norganisation = "o"\nquic = false\n'
        text += "paths = { V = { rtt_ms = 4, rate_mbit = 300 } }\n"
    planted: dict[str, dict[str, int]] = {}
    for number in range(pages):
        domain, shared = f"page-{number}.example", rng.gauss(0, 0.7)
        paths = [f"/{n}.{rng.choice(ENDINGS)}" for n in range(rng.randint(1, 6))]
        sizes = {path: round(math.exp(9.2 + shared + rng.gauss(0, 1.2))) for path in paths}
        links = [*paths, "/private/no.png"] if number % 5 == 0 else paths
        planted[domain] = {"/": len(page(links).replace("{domain}", domain)), **sizes}
        # What the last server has comes without a length, so its answers are counted.
        unsized = number % SERVERS >= SERVERS - 1
        text += f'[[site]]\nkind = "page{number}"\ndomain = "{domain}"\nserver = "{servers[number % SERVERS]}"\n'
        text += f'[site_kind.page{number}.pages."/"]\nlinks = {json.dumps(links)}\n'
        text += f'[site_kind.page{number}.pages."/robots.txt"]\ntext = {json.dumps(FORBIDDEN)}\n'
        for path, size in sizes.items():
            length = "length = false\n" if unsized else ""
            text += f'[site_kind.page{number}.pages."{path}"]\nsize = {size}\n{length}'
    return planted, text


@pytest.fixture(scope="module")
def crawled(lab_host: Path, tmp_path_factory: pytest.TempPathFactory, repeats: Repeats) -> Iterator[Crawled]:
    folder = tmp_path_factory.mktemp("objects")
    planted, text = plant(20, repeats(quick=40, soak=200))
    topology, out = folder / "objects.toml", folder / "objects.parquet"
    topology.write_text(text)
    with open_lab(topology) as lab:
        source = write_files(lab.topology, folder).top_list
        program = [sys.executable, "-c", "from upshift.cli import main; main()", "crawl", "objects", str(source)]
        options = ["-o", str(out), "--contact", "me@example.org", "--rate", str(RATE), "--per-address", "2"]
        began = time.monotonic()
        done = lab.place("V").run([*program, *options, "--ca", str(lab.ca_file)], timeout_s=120)
        print(f"crawled in {time.monotonic() - began:.1f} s")
        assert done.returncode == 0, done.stderr
        yield Crawled(rows=store.read_rows(out, "objects", PageObject), access=logged_requests(lab), planted=planted)


def test_each_size_and_each_share_is_what_was_planted(crawled: Crawled) -> None:
    sizes: dict[str, dict[str, int | None]] = defaultdict(dict)
    for row in crawled.rows:
        if row.size_bytes is not None:
            assert not row.size_is_lower_bound
            sizes[row.domain][(row.url or "").removeprefix(f"https://{row.domain}")] = row.size_bytes
    assert sizes == crawled.planted
    assert {row.failure for row in crawled.rows if row.size_bytes is None} == {"robots_disallowed"}
    shares = figures(crawled.rows).shares
    objects = [size for page in crawled.planted.values() for size in page.values()]
    pages = [sum(page.values()) for page in crawled.planted.values()]
    for group, true in (("objects, all", objects), ("pages, all", pages)):
        for line, most in LINES.items():
            share = shares[group][line]
            assert share.n == len(true)
            assert abs(share.share - sum(size <= most for size in true) / len(true)) < 0.01, (group, line)
    assert ("objects, top 100" in shares) == (len(pages) > 100)


def test_the_logs_have_nothing_forbidden_and_the_promised_rate(crawled: Crawled) -> None:
    assert not [access.path for access in crawled.access if access.path.startswith("/private/")]
    first: dict[str, str] = {}
    times: dict[str, list[float]] = defaultdict(list)
    for access in crawled.access:
        first.setdefault(access.host, access.path)
        times[access.server].append(access.at)
    assert set(first) == set(crawled.planted) and set(first.values()) == {"/robots.txt"}
    for server, moments in times.items():
        for step in (3 * RATE, len(moments) - 1):
            for begin, end in zip(moments, moments[step:], strict=False):
                # The first may arrive late by its handshake, which takes a moment on a busy machine.
                assert end - begin > step / RATE - 0.6, server
