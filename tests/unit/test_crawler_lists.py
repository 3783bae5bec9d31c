"""Top lists and the ledger."""

from __future__ import annotations

import gzip
import io
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.ledger import Ledger, Result, in_shard
from crawler.lists import TopList, domain_of
from upshift.errors import UsageError

RANKED = "1,google.com\r\n2,Example.ORG\r\n3,b.example\r\n"
WANT = [(1, "google.com"), (2, "example.org"), (3, "b.example")]
CRUX = "origin,rank\nhttps://google.com,1000\nhttps://www.example.org:8443,1000\nhttp://b.example,5000\n"
MAJESTIC = (
    "GlobalRank,TldRank,Domain,TLD,RefSubNets,RefIPs,IDN_Domain,IDN_TLD\n"
    "1,1,google.com,com,1,1,google.com,com\n2,1,example.org,org,1,1,example.org,org\n3,1,b.example,example,1,1,b,example\n"
)


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top-1m.csv", data)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zipped])
@pytest.mark.parametrize(
    ("text", "form", "want"),
    [
        (RANKED, "ranked", WANT),
        ("\ufeff" + RANKED.replace("\r\n", "\n"), "ranked", WANT),
        (CRUX, "crux", [(1000, "google.com"), (1000, "www.example.org"), (5000, "b.example")]),
        (MAJESTIC, "majestic", WANT),
        ("google.com\nExample.ORG.\n\n# words\nb.example", "bare", WANT),
        ("rank,domain\n1,google.com\n", "ranked", WANT[:1]),
        ('1,"google.com"\n', "ranked", WANT[:1]),
        ("bücher.example\n", "bare", [(1, "xn--bcher-kva.example")]),
    ],
)
def test_every_form_is_read(tmp_path: Path, pack, text: str, form: str, want: list[tuple[int, str]]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "list"
    path.write_bytes(pack(text.encode()))
    found = TopList(path)
    assert [(row.rank, row.domain) for row in found] == want
    assert found.form == form
    assert not found.broken


def test_broken_rows_are_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "list"
    rows = ["1,a.example", ",", "x,b.example", "3,com", "4,192.0.2.1", "5", "6,-bad-.example", "0,c.example", "7,d e.f"]
    path.write_text("\n".join([*rows, "8," + "a" * 5000 + ".example", "9,z.example"]))
    found = TopList(path)
    assert [row.domain for row in found] == ["a.example", "z.example"]
    assert found.broken["the rank is no number"] == 2
    assert found.broken["a bare top-level name"] == 1
    assert found.broken["an IP address"] == 1
    assert found.broken["empty fields"] == 1
    assert found.broken["too few fields"] == 1
    assert found.broken["line too long"] == 1
    assert [(fault.line, fault.text, fault.reason) for fault in found.faults][:2] == [
        (2, ",", "empty fields"),
        (3, "x,b.example", "the rank is no number"),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the list is empty"),
        (b"\n\n", "the list is empty"),
        (b"a.example;b\tc,d.example,5\n", "is of no known list; give Tranco"),
        (gzip.compress(b"1,a.example\n" * 1000)[:-12], "cut after line"),
        (zipped(b"1,a.example\n")[:-30], "the zip file is damaged or cut"),
    ],
)
def test_malformed_files_are_one_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "list"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said) as caught:
        list(TopList(path))
    assert str(path) in caught.value.sentence()
    assert caught.value.remedy


def test_a_zip_with_two_files_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "list.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("b", "x")
    with pytest.raises(UsageError, match="holds 2 files"):
        list(TopList(path))
    with pytest.raises(UsageError, match="there is no such file"):
        list(TopList(tmp_path / "none"))


@given(st.binary(max_size=300))
def test_noise_never_crashes(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "list"
    for data in (noise, b"1,a.example\n" + noise, b"origin,rank\n" + noise):
        path.write_bytes(data)
        try:
            for row in TopList(path):
                assert domain_of(row.domain) == row.domain
        except UsageError as error:
            assert str(path) in error.sentence()


def fill(ledger: Ledger, path: Path, **options: object) -> object:
    return ledger.fill(TopList(path), **options)  # type: ignore[arg-type]


def test_the_ledger_gives_each_domain_once_and_finished_ones_never_again(tmp_path: Path) -> None:
    source = tmp_path / "list"
    source.write_text("".join(f"{n},d{n % 2500}.example\n" for n in range(1, 3001)))
    ledger = Ledger(tmp_path / "deep" / "l.sqlite", {"a": 1})
    assert not ledger.filled
    filled = ledger.fill(TopList(source))
    assert (filled.added, filled.duplicates) == (2500, 500)
    assert filled.first_duplicates[0] == (2501, "d1.example")
    taken = list(ledger.take())
    assert len(taken) == len(set(taken)) == 2500
    assert taken[0] == ("d1.example", 1)
    ledger.finish(Result(domain="d1.example", outcome="found", url="https://d1.example/f", size_bytes=5, depth=1))
    ledger.finish(Result(domain="d2.example", outcome="dns_error"))
    ledger.close()
    again = Ledger(tmp_path / "deep" / "l.sqlite", {"a": 1})
    assert again.filled
    assert next(again.take()) == ("d3.example", 3)
    assert again.counts() == (2500, {"found": 1, "dns_error": 1})
    ((target, alt_svc, _),) = again.found()
    assert (target.domain, target.rank, target.size_bytes, alt_svc) == ("d1.example", 1, 5, None)


def test_a_ledger_of_another_plan_or_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    Ledger(path, {"min_size": 1}).close()
    with pytest.raises(UsageError, match="another crawl: min_size changed; give the options of the first start"):
        Ledger(path, {"min_size": 2})
    path.write_bytes(b"hello, this is no database at all" * 40)
    with pytest.raises(UsageError, match="no ledger of a crawl"):
        Ledger(path, {})


def test_shards_are_disjoint_complete_and_even(tmp_path: Path) -> None:
    domains = [f"d{n}.example" for n in range(3000)]
    shards = [[d for d in domains if in_shard(d, number, 3)] for number in (1, 2, 3)]
    assert sorted(domain for shard in shards for domain in shard) == sorted(domains)
    assert all(900 < len(shard) < 1100 for shard in shards)
    source = tmp_path / "list"
    source.write_text("\n".join(domains))
    ledger = Ledger(tmp_path / "l.sqlite", {})
    filled = ledger.fill(TopList(source), shard=(2, 3), limit=100)
    assert (filled.added, [d for d, _ in ledger.take()]) == (100, shards[1][:100])


WORKER = """
import sys, time
from pathlib import Path
from crawler.ledger import Ledger, Result
ledger = Ledger(Path(sys.argv[1]), {})
for domain, _ in ledger.take():
    print(domain, flush=True)
    time.sleep(0.001)
    ledger.finish(Result(domain=domain, outcome="found", url="https://x/", size_bytes=1))
"""


def test_killed_ten_times_no_finished_domain_is_given_again(tmp_path: Path) -> None:
    source, path = tmp_path / "list", tmp_path / "l.sqlite"
    source.write_text("\n".join(f"d{n}.example" for n in range(1500)))
    first = Ledger(path, {})
    first.fill(TopList(source))
    first.close()
    generator = random.Random(1)
    given_out: list[str] = []
    done: set[str] = set()
    repository = str(Path(__file__).resolve().parents[2])
    for round_number in range(11):
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": repository},
        )
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(generator.randrange(1, 130))]
        if round_number < 10:
            child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate(timeout=60)
        lines += rest.split()
        assert not done & set(lines), "a finished domain was given again"
        given_out += lines
        check = Ledger(path, {})
        done = {target.domain for target, _, _ in check.found()}
        check.close()
    assert len(done) == 1500
    assert set(given_out) == done
    assert len(given_out) <= 1510
