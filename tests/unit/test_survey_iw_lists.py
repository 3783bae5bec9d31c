"""What an initial-window survey can be given: prefixes to sample, archives of objects; and the names of CDNs."""

from __future__ import annotations

import csv
import ipaddress
import tracemalloc
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UsageError
from survey.engine import SurveyLedger
from survey.figures import wilson
from survey.iw.sources import (
    MOST_WITHOUT_BLOCK_LIST,
    Archive,
    Permutation,
    PrefixSample,
    check_block_list,
    is_archive,
    our_names,
    parse_names,
    read_names,
    read_prefixes,
)
from survey.subjects import Subject


@given(st.integers(1, 3000), st.integers(0, 2**64))
@settings(max_examples=60)
def test_a_permutation_has_each_value_once(size: int, seed: int) -> None:
    permutation = Permutation(size, seed)
    assert sorted(permutation[index] for index in range(size)) == list(range(size))


def test_a_permutation_depends_on_its_seed_and_puts_neighbours_far_apart() -> None:
    size = 1 << 16
    first, second = ([Permutation(size, seed)[i] for i in range(2000)] for seed in (7, 8))
    assert first != second
    assert first == [Permutation(size, 7)[i] for i in range(2000)]
    steps = [abs(after - before) for before, after in pairwise(first)]
    # Two independent values of 0 to n-1 are n/3 apart on average, and fewer than 1 % are closer than n/200.
    assert abs(sum(steps) / len(steps) / size - 1 / 3) < 0.03
    assert sum(step < size / 200 for step in steps) < 0.03 * len(steps)
    assert Permutation(1 << 100, 1)[5] < 1 << 100


def prefixes(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prefixes.txt"
    path.write_text(text)
    return path


def test_shards_of_a_sample_are_disjoint_and_complete(tmp_path: Path) -> None:
    path = prefixes(tmp_path, "198.18.0.0/20 # the first\n198.18.8.0/24\n\n198.19.0.0/22\n")
    whole = {s.domain for s in PrefixSample(path, share=1, seed=7)}
    assert len(whole) == 4096 + 1024
    tenth = [s.domain for s in PrefixSample(path, share=0.1, seed=7)]
    assert len(tenth) == len(set(tenth)) == 512
    parts = [{s.domain for s in PrefixSample(path, share=0.1, seed=7, shard=(n, 3))} for n in (1, 2, 3)]
    assert set.union(*parts) == set(tenth)
    assert sum(map(len, parts)) == 512
    assert all(abs(len(part) - 512 / 3) <= 1 for part in parts)
    assert len(list(PrefixSample(path, share=1, seed=7, limit=5))) == 5
    assert {s.domain for s in PrefixSample(path, share=0.1, seed=8)} != set(tenth)
    assert next(iter(PrefixSample(path, share=1, seed=7))).server_ip in whole


def test_a_sample_of_ipv6_needs_no_memory(tmp_path: Path) -> None:
    path = prefixes(tmp_path, "fd00:198:18::/64\n")
    sample = PrefixSample(path, share=0.5, seed=1)
    tracemalloc.start()
    found = [s.domain for s in islice(iter(sample), 1000)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(found)) == 1000
    assert peak < 1 << 20


def test_prefixes_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, said in (
        ("198.18.0.0/15\n198.18.0.1/24\n", "line 2: '198.18.0.1/24' is not a prefix"),
        ("# nothing\n", "there are no prefixes"),
        ("198.18.0.0/16\n192.0.2.0/24\n", "line 2: 192.0.2.0/24 is outside what may be contacted"),
    ):
        with pytest.raises(UsageError, match=said):
            read_prefixes(prefixes(tmp_path, text))
    with pytest.raises(UsageError, match=r"the sample is empty: 0[.]001 of 256 addresses"):
        PrefixSample(prefixes(tmp_path, "198.18.0.0/24"), share=0.001, seed=1)
    # Outside a lab, addresses with a special purpose are passed over and counted.
    monkeypatch.delenv("UPSHIFT_ALLOWED_PREFIXES")
    sample = PrefixSample(prefixes(tmp_path, "192.0.2.0/24\n8.8.8.0/30\n10.0.0.0/30\n"), share=1, seed=1)
    assert sorted(s.domain for s in sample) == ["8.8.8.0", "8.8.8.1", "8.8.8.2", "8.8.8.3"]
    assert sample.broken.total() == 256 + 4


def test_a_large_sample_needs_a_block_list(tmp_path: Path) -> None:
    path = prefixes(tmp_path, "198.18.0.0/15")
    exactly = PrefixSample(path, share=0.5, seed=1)
    assert exactly.count == MOST_WITHOUT_BLOCK_LIST
    check_block_list(exactly, has_block_list=False)
    more = PrefixSample(path, share=0.51, seed=1)
    with pytest.raises(UsageError, match=r"--block-list: a sample of 66,847 addresses \(more than 65,536\)"):
        check_block_list(more, has_block_list=False)
    check_block_list(more, has_block_list=True)


def test_of_an_archive_the_largest_object_per_domain_and_type(tmp_path: Path) -> None:
    path = tmp_path / "objects.csv"
    path.write_text(
        "url,mime_type,size_bytes\n"
        "https://a.example/1.png,image/png,500\n"
        "https://a.example/2.png,image/png,700\n"
        "https://a.example/3.js,application/javascript; charset=utf-8,100\n"
        "http://b.example/v.ts,Application/MP2T,90000\n"
        "ftp://b.example/,image/png,1\n"
        "https://c.example/x,image/png,many\n"
        f"https://d.example/{'x' * 2_048},image/png,100\n"
    )
    assert is_archive(path)
    found = Archive(path)
    assert list(found) == [
        Subject(domain="a.example", url="https://a.example/2.png", mime_type="image/png"),
        Subject(domain="a.example", url="https://a.example/3.js", mime_type="application/javascript"),
        Subject(domain="b.example", url="http://b.example/v.ts", mime_type="application/mp2t"),
    ]
    assert (found.duplicates, found.broken.total(), [f.line for f in found.faults]) == (1, 3, [6, 7, 8])
    parts = [list(Archive(path, shard=(n, 2))) for n in (1, 2)]
    assert sorted(s.key for part in parts for s in part) == sorted(s.key for s in Archive(path))
    assert len(list(Archive(path, limit=2))) == 2


def test_the_ledger_keeps_a_domain_once_per_type(tmp_path: Path) -> None:
    subjects = [
        Subject(domain="a.example", url="https://a.example/2.png", mime_type="image/png"),
        Subject(domain="a.example", url="https://a.example/3.js", mime_type="text/javascript"),
        Subject(domain="b.example"),
    ]
    ledger = SurveyLedger(tmp_path / "l.sqlite", {})
    assert ledger.fill(subjects) == 3
    assert list(ledger.take()) == subjects
    ledger.record([(subject.key, "ok", {}) for subject in subjects])
    assert [(r["domain"], r["rank"]) for r in ledger.records(dict)] == [
        ("a.example", None), ("a.example", None), ("b.example", None)
    ]  # fmt: skip
    ledger.close()


def test_archives_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "objects.csv"
    path.write_text("url,mime_type\nhttps://a.example/,image/png\n")
    with pytest.raises(UsageError, match="line 1: the column size_bytes is missing"):
        list(Archive(path))
    path.write_text("url,mime_type,size_bytes\nnothing,image/png,5\n")
    with pytest.raises(UsageError, match="no usable rows \\(1 rows, line 2: the URL is not https or http"):
        list(Archive(path))
    path.write_text("domain,url,mime_type\n")
    assert not is_archive(path)


def test_names_of_cdns(tmp_path: Path) -> None:
    names = our_names()
    assert names.of("www.example.org", ["www.example.org.edgesuite.net.", "a1.g.akamai.net"]) == "Akamai"
    assert names.of("d111.cloudfront.net") == "Cloudfront"
    assert names.of("notcloudfront.net") is None  # whole labels
    assert names.of("www.example.org", []) is None
    # The last CNAME that is known is closest to the server.
    assert names.of("x.azureedge.net", ["cs1.wpc.v0cdn.net", "cs1.wpc.edgecastcdn.net"]) == "Edgecast"
    seeds = ("Akamai", "Azure", "Cachefly", "Cloudfront", "Edgecast", "Fastly", "Highwinds", "Level 3", "ChinaCache")
    assert set(seeds) <= set(names._patterns.values())

    path = tmp_path / "cdn.h"
    path.write_text(
        "typedef struct { CStringA pattern; CStringA name; } CDN_PROVIDER;\n"
        'CDN_PROVIDER cdnList[] = {\n  {".akamai.net", "Akamai"},\n  // {".old.example", "Old"},\n'
        '  {".footprint.net", "Level 3"},\n  {"END_MARKER", "END_MARKER"}\n};\n'
    )
    read = read_names(path)
    assert (len(read), read.of("a.footprint.net"), read.of("x.old.example")) == (2, "Level 3", None)
    with pytest.raises(UsageError, match="line 2: 'lonely' is not a suffix and a name"):
        parse_names("example.net,Example\nlonely\n", where="f")
    with pytest.raises(UsageError, match="no names of CDNs"):
        parse_names("\n", where="f")


def test_our_list_names_the_cdns_whose_windows_are_shipped() -> None:
    path = Path(__file__).resolve().parents[2] / "survey/data/cdn-names.csv"
    with path.open() as handle:
        rows = list(csv.DictReader(handle))
    assert len({row["suffix"] for row in rows}) == len(rows)


@pytest.mark.thorough
def test_the_truth_is_inside_the_intervals_of_most_samples(tmp_path: Path) -> None:
    """100 draws of 1 % of 65,536 hosts, 54 % of which have a window of ten."""
    path = prefixes(tmp_path, "198.18.0.0/16")
    ten = round(0.54 * (1 << 16))
    inside = 0
    for seed in range(100):
        drawn = [int(ipaddress.ip_address(s.domain)) & 0xFFFF for s in PrefixSample(path, share=0.01, seed=seed)]
        share = wilson(sum(host < ten for host in drawn), len(drawn))  # neighbours have the same window
        inside += share.low <= ten / (1 << 16) <= share.high
    assert inside >= 90
