"""Figures of objects: shares at the four lines with intervals over domains, flights, the CDF, and wrong input."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from typer.testing import CliRunner

from core.domain import PageObject
from core.errors import UsageError
from core.files import store
from survey.figures import as_document, clustered, wilson
from survey.iw.record import IwRecord
from survey.objects import FLIGHTS, LINES, OBJECTS, figures, flights_of, groups, with_flights
from upshift.commands.survey import app

MEAN, SHARED, OWN = 9.2, 0.7, 1.2
"""Of the logarithm of a size [bytes], and its spread between pages and within one."""


def draw(rng: random.Random, pages: int) -> list[list[float]]:
    """Sizes of the objects of pages; those of a page are alike."""
    every = []
    for _ in range(pages):
        shared, n = rng.gauss(MEAN, SHARED), 1 + min(99, int(rng.lognormvariate(2.3, 0.8)))
        every.append([math.exp(rng.gauss(shared, OWN)) for _ in range(n)])
    return every


@pytest.mark.thorough
def test_shares_are_in_their_intervals_in_95_of_100_draws() -> None:
    """Of 200 pages. An interval that takes objects as independent holds the share far less often."""
    truth = {line: NormalDist(MEAN, math.hypot(SHARED, OWN)).cdf(math.log(most)) for line, most in LINES.items()}
    held, naive, draws = dict.fromkeys(LINES, 0), 0, 200
    for seed in range(draws):
        pages = draw(random.Random(seed), 200)
        for line, most in LINES.items():
            counts = [(sum(size <= most for size in page), len(page)) for page in pages]
            share = clustered(counts)
            held[line] += share.low <= truth[line] <= share.high
            plain = wilson(share.count, share.n)
            naive += plain.low <= truth[line] <= plain.high
    # Seeds are fixed. 95 % of 200 draws have a spread of 3.
    assert all(0.95 * draws - 6 <= count for count in held.values()), held
    assert sum(held.values()) >= 0.95 * 4 * draws - 10, held
    assert naive < 0.8 * 4 * draws


def test_an_interval_knows_no_more_than_its_domains() -> None:
    assert clustered([(10, 10), (0, 0), (7, 7)]).n == 17
    assert clustered([(50, 50)] * 3).low < 0.45  # all count: a domain is one record
    assert clustered([(0, 9)]).high == 1.0 or clustered([(0, 9)]).high > 0.75
    assert math.isnan(clustered([]).share)
    alone = clustered([(1, 1)] * 30 + [(0, 1)] * 10)
    assert (alone.count, alone.n) == (30, 40)
    assert alone.low == pytest.approx(wilson(30, 40).low, abs=0.02)
    assert alone.high == pytest.approx(wilson(30, 40).high, abs=0.02)


def rows(
    *, rank: int, provider: str | None = None, sizes: dict[str, int | None], page: int = 4_000
) -> list[PageObject]:
    """A domain's rows: its page, and objects of these kinds."""
    domain, kind = f"d{rank}.example", "document"
    every = [PageObject(domain=domain, rank=rank, provider=provider, url="/", is_page=True, kind=kind, size_bytes=page)]
    for name, size in sizes.items():
        every.append(
            PageObject(
                domain=domain,
                rank=rank,
                provider=provider,
                url=f"/{name}",
                kind=name.rstrip("0123456789") if size is not None else None,
                size_bytes=size,
                size_is_lower_bound=(size or 0) >= 5_000_000,
                failure=None if size is not None else "off_domain",
            )
        )
    return every


SOME = [
    *rows(rank=50, provider="akamai", sizes={"image1": 4_380, "image2": 4_381, "script1": 14_600}),
    *rows(rank=300, sizes={"image1": 46_721, "other1": 5_000_000}, page=100),
    *rows(rank=9_000, sizes={"font1": 9_000, "gone": None}, page=14_601),
    PageObject(domain="down.example", rank=20, is_page=True, failure="timeout"),
]


def test_sizes_count_where_they_belong() -> None:
    found = figures(SOME)
    counts = {name: [share.count for share in shares.values()] for name, shares in found.shares.items()}
    ns = {name: next(iter(shares.values())).n for name, shares in found.shares.items()}
    assert counts["objects, all"] == [3, 4, 6, 7] and ns["objects, all"] == 9
    assert counts["objects, top 100"] == [2, 3, 4, 4] and ns["objects, top 500"] == 7
    # 4000 + 4380 + 4381 + 14600; a bound; 14601 + 9000
    assert counts["pages, all"] == [0, 0, 0, 2] and ns["pages, all"] == 3
    assert counts["kind image"] == [1, 2, 2, 2] and counts["at akamai"] == counts["objects, top 100"]
    assert found.counts == {
        "domains": 4, "pages": 3, "objects": 9, "lower_bounds": 1, "skipped": 0, "larger_pages": 1
    }  # fmt: skip
    assert found.counts.items() <= as_document(found).items()
    assert found.breakdowns["not_measured"].shares["off_domain"].count == 1
    assert found.paper == {"10 segments": 90.0}


def test_a_page_of_two_files_is_two_pages_of_its_size() -> None:
    once, twice = groups(SOME)["pages, all"], groups(SOME + SOME)["pages, all"]
    assert sorted(twice) == sorted(once + once)
    broken = [
        PageObject(domain="off.example", is_page=True, failure="protocol_error"),
        replace(SOME[-2], domain="off.example"),
    ]
    assert [figures(many).counts["larger_pages"] for many in (SOME, SOME + SOME, broken)] == [1, 2, 0]  # of 3, 6 and 0
    assert {s.bytes for s in once} == {4_000 + 4_380 + 4_381 + 14_600, 100 + 46_721 + 5_000_000, 14_601 + 9_000}


def test_a_page_with_data_urls_alone_has_no_objects_elsewhere() -> None:
    page, *own = rows(rank=1, sizes={"image1": 100})
    assert figures([replace(page, skipped=1), *own]).notes == [
        "A page is its document with the objects at its own address: what one server sends. 1 of 1 pages name others, "
        "too: elsewhere, without a size, or not asked for.",
        "Not asked for (data and blob URLs, more than the most per page): 1.",
    ]


@pytest.mark.thorough
def test_the_cdf_ends_where_sizes_are_bounds() -> None:
    from survey.charts import Scan, draw_chart

    chart = OBJECTS.charts["sizes"]
    table = chart.table([Scan(path=Path("x"), records=SOME)], False)
    curve = {row[2]: row[3] for row in table.rows if row[0] == "objects, all"}
    assert curve[0.01] == 100 and curve[0.5] == 4_381 + 4_619 and max(curve.values()) == 46_721
    assert 0.88 in curve and 0.89 not in curve  # 8 of 9 are known
    assert draw_chart(chart, table, "png").startswith(b"\x89PNG")


def test_the_cdf_has_the_smallest_size_that_so_many_have_at_most() -> None:
    from survey.charts import Scan

    records = [replace(SOME[0], is_page=False, size_bytes=n, size_is_lower_bound=False) for n in range(1, 101)]
    table = OBJECTS.charts["sizes"].table([Scan(path=Path("x"), records=records)], False)
    assert [row[3] for row in table.rows if row[0] == "objects, all"] == list(range(1, 101))


@pytest.mark.parametrize(
    ("size", "window", "flights"),
    [(0, 14_600, "1"), (14_600, 14_600, "1"), (14_601, 14_600, "2"), (43_800, 14_600, "2"), (43_801, 14_600, "3"),
     (102_200, 14_600, "3"), (102_201, 14_600, "more"), (4_380, 4_380, "1"), (14_600, 4_380, "3")],
)  # fmt: skip
def test_flights_double(size: int, window: int, flights: str) -> None:
    assert flights_of(size, window) == flights


def test_flights_are_those_of_each_server() -> None:
    surveyed = [
        IwRecord(domain="d50.example", scheme="http", iw_kind="segments", iw_segments=4, iw_bytes=5_840),
        IwRecord(domain="d50.example", scheme="https", iw_kind="segments", iw_segments=3, iw_bytes=4_380),
        IwRecord(domain="d300.example", scheme="https", iw_kind="bytes", iw_bytes=64_000),
        IwRecord(domain="d9000.example", scheme="https", verdict="late"),
    ]
    shares = with_flights(figures(SOME), SOME, surveyed).breakdowns["flights"].shares
    # d50 with 4,380: 4000, 4380 | 4381 | 14600; d300 with 64,000: 100, 46721 and one of unknown size
    assert {name: shares[name].count for name in FLIGHTS} == {"1": 4, "2": 1, "3": 1, "more": 1}


def test_an_object_has_the_window_of_its_kind_else_the_smallest() -> None:
    """The largest window of a server counted for all its objects."""
    served: dict[str, Any] = {"iw_kind": "segments", "domain": "d1.example", "scheme": "https"}
    sizes = [("application/javascript", 16), ("image/png", 32)]
    surveyed = [IwRecord(**served, mime_type=kind, iw_segments=n, iw_bytes=n * 1_460) for kind, n in sizes]
    some = rows(rank=1, sizes={"script1": 40_000, "image1": 40_000, "font1": 40_000}, page=20_000)
    found = with_flights(figures(some), some, surveyed)
    assert {name: found.breakdowns["flights"].shares[name].count for name in FLIGHTS} == {
        "1": 2,  # the image and the page
        "2": 2,
        "3": 0,
        "more": 0,
    }
    assert found.notes[-1] == "Of a server with several windows, that of the object's kind counts, else the smallest."


@pytest.mark.thorough
def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    run = CliRunner()
    iw, found, other = tmp_path / "iw.parquet", tmp_path / "objects.parquet", tmp_path / "other.parquet"
    store.write_rows(iw, "survey_iw", [IwRecord(domain="d50.example", scheme="http", iw_segments=4)], IwRecord)
    store.write_rows(other, "survey_iw", [IwRecord(domain="else.example", scheme="http", iw_segments=4)], IwRecord)
    store.write_rows(found, "objects", SOME)
    for words, part in (
        ([str(iw), "--windows", str(iw)], "--windows: it needs the shares of objects"),
        ([str(found), "--windows", str(other)], "it has none of these domains; survey the same list"),
        ([str(found), "--windows", str(found)], "this holds objects records of Upshift, not survey_iw"),
        ([str(found), str(iw)], "this holds survey_iw records of Upshift, not objects"),
    ):
        error = run.invoke(app, ["figures", *words]).exception
        assert isinstance(error, UsageError) and part in error.sentence()
    picture = tmp_path / "p.svg"
    done = run.invoke(app, ["figures", str(found), "--windows", str(iw), "--json", "--picture", str(picture)])
    document = json.loads(done.stdout)
    assert document["flights"]["1"]["count"] == 3 and document["shares"]["objects, all"]["10 segments"]["n"] == 9
    assert b"<svg" in picture.read_bytes()
    text = run.invoke(app, ["figures", str(found)]).stdout
    assert "objects in 2010 (Dukkipati et al.)" in text and "90.0" in text and len(groups(SOME)) == 12
