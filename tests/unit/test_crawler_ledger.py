"""The ledger of a crawl."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import UsageError
from core.outreach.lists import TopList, in_shard
from crawler.ledger import CrawlLedger, DomainResult
from tests.cells import Repeats


def fill(ledger: CrawlLedger, path: Path, **options: object) -> object:
    return ledger.fill(TopList(path), **options)  # type: ignore[arg-type]


def test_the_ledger_gives_each_domain_once_and_finished_ones_never_again(tmp_path: Path) -> None:
    source = tmp_path / "list"
    source.write_text("".join(f"{n},d{n % 2500}.example\n" for n in range(1, 3001)))
    ledger = CrawlLedger(tmp_path / "deep" / "l.sqlite", {"a": 1})
    assert not ledger.filled
    assert ledger.fill(TopList(source)) == 500
    assert ledger.counts()[0] == 2500
    taken = list(ledger.take())
    assert len(taken) == len(set(taken)) == 2500
    assert taken[0] == "d1.example"
    ledger.finish(DomainResult(domain="d1.example", outcome="found", url="https://d1.example/f", size_bytes=5, depth=1))
    ledger.finish(DomainResult(domain="d2.example", outcome="dns_error"))
    with pytest.raises(UsageError, match="another crawl is using this ledger"):
        CrawlLedger(tmp_path / "deep" / "l.sqlite", {"a": 1})
    ledger.close()
    again = CrawlLedger(tmp_path / "deep" / "l.sqlite", {"a": 1})
    assert again.filled
    assert next(again.take()) == "d3.example"
    assert again.counts() == (2500, {"found": 1, "dns_error": 1})
    (target,) = again.targets()
    assert (target.domain, target.rank, target.size_bytes, target.alt_svc) == ("d1.example", 1, 5, None)
    again.close()


def test_a_ledger_of_another_plan_or_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    CrawlLedger(path, {"min_size": 1}).close()
    with pytest.raises(UsageError, match="another crawl: min_size changed; use the options of the first start"):
        CrawlLedger(path, {"min_size": 2})
    path.write_bytes(b"hello, this is no database at all" * 40)
    for no_ledger in (path, tmp_path):
        with pytest.raises(UsageError, match="not a valid ledger of a crawl"):
            CrawlLedger(no_ledger, {})


def test_shards_are_disjoint_complete_and_even(tmp_path: Path) -> None:
    domains = [f"d{n}.example" for n in range(3000)]
    shards = [[d for d in domains if in_shard(d, number, 3)] for number in (1, 2, 3)]
    assert sorted(domain for shard in shards for domain in shard) == sorted(domains)
    assert all(900 < len(shard) < 1100 for shard in shards)
    source = tmp_path / "list"
    source.write_text("\n".join(domains))
    ledger = CrawlLedger(tmp_path / "l.sqlite", {})
    ledger.fill(TopList(source), shard=(2, 3), limit=100)
    assert list(ledger.take()) == shards[1][:100]
    ledger.close()


WORKER = """
import sys, time
from pathlib import Path
from crawler.ledger import CrawlLedger, DomainResult
ledger = CrawlLedger(Path(sys.argv[1]), {})
for domain in ledger.take():
    print(domain, flush=True)
    time.sleep(0.001)
    ledger.finish(DomainResult(domain=domain, outcome="found", url="https://x/", size_bytes=1))
"""


@pytest.mark.thorough
def test_killed_again_and_again_no_finished_domain_is_given_again(tmp_path: Path, repeats: Repeats) -> None:
    source, path = tmp_path / "list", tmp_path / "l.sqlite"
    kills = repeats(quick=3, soak=50)
    count = 150 * kills
    source.write_text("\n".join(f"d{n}.example" for n in range(count)))
    first = CrawlLedger(path, {})
    first.fill(TopList(source))
    first.close()
    generator = random.Random(1)
    given_out: list[str] = []
    done: set[str] = set()
    repository = str(Path(__file__).resolve().parents[2])
    for round_number in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": repository},
        )
        assert child.stdout is not None
        # Empty lines: a worker that ran ahead of this test has ended already.
        lines = [line for _ in range(generator.randrange(1, 130)) if (line := child.stdout.readline().strip())]
        if round_number < kills:
            child.send_signal(signal.SIGKILL)
        with child:
            lines += child.stdout.read().split()  # communicate() passes over what readline() has buffered
        assert not done & set(lines), "a finished domain was given again"
        given_out += lines
        check = CrawlLedger(path, {})
        done = {target.domain for target in check.targets()}
        check.close()
    assert len(done) == count
    assert set(given_out) == done
    assert len(given_out) <= count + kills
