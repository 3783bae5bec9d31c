"""Figures of initial windows: the data of each named figure, the paper's beside it, and that each can be drawn."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.domain import Target
from core.errors import UsageError
from core.files import store, targets
from survey.engine import fill_targets, known
from survey.figures import clustered
from survey.iw.charts import ALL
from survey.iw.charts.cdns import _cell
from survey.iw.figures import IN_THE_WILD, bucket, figures, label, segments, window
from survey.iw.record import OF_TARGETS, IwRecord, arrivals_text, windows_text
from survey.iw.votes import Vote, fit, rfc3390_bytes
from survey.iw.wire import Arrival, ProbeVerdict
from survey.surveys.iw import IW
from tests.cells import Repeats
from upshift.commands.survey import app

DAY = 86_400.0
T0 = 1_780_000_000.0


def record(number: int, count: int | None, **values: Any) -> IwRecord:
    """A server with a window of `count` segments; None: too little data."""
    known: dict[str, Any] = {"domain": f"d{number}.example", "scheme": "http", "surveyed_at": T0, "rtt_s": 0.1}
    if count is None:
        return IwRecord(**{**known, "verdict": str(ProbeVerdict.LOWER_BOUND), **values})
    known |= {
        "verdict": str(ProbeVerdict.LIMITED),
        "iw_kind": "segments",
        "iw_segments": count,
        "iw_bytes": count * 1460,
    }
    return IwRecord(**{**known, **values})


def in_bytes(number: int, size: int, **values: Any) -> IwRecord:
    return record(number, 1, **{"iw_kind": "bytes", "iw_segments": None, "iw_bytes": size, **values})


def written(path: Path, records: list[IwRecord]) -> str:
    store.write_rows(path, "survey_iw", records, IwRecord)
    return str(path)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["figures", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--json"))["rows"]
    return found


def test_windows_have_names() -> None:
    assert [bucket(record(1, n)) for n in (1, 2, 4, 10, 3, 32)] == ["1", "2", "4", "10", "others", "others"]
    assert (bucket(in_bytes(1, 64_000)), bucket(record(1, None))) == ("others", None)
    assert (window(in_bytes(1, 64_000)), label(64.0, "kB")) == ((64.0, "kB"), "64 kB")
    assert (window(record(1, 10)), label(10, "segments")) == ((10, "segments"), "10")
    assert (window(record(1, 0)), window(in_bytes(1, 0))) == (None, None)  # a file of anybody; sizes are divided by it
    votes = {
        64: Vote(verdict=ProbeVerdict.LIMITED, segments=10, bytes=640),
        1200: Vote(verdict=ProbeVerdict.LOWER_BOUND),
    }
    one = record(1, None, windows=windows_text(votes))
    assert (segments(one), bucket(one)) == (10, "10")


def test_shares_leave_unfit_vantage_points_out_and_tell_who_had_too_little() -> None:
    found = figures([
        *(record(n, 10, within_rfc6928=True) for n in range(6)),
        *(record(n, 4) for n in range(6, 8)),
        *(record(n, None) for n in range(8, 10)),
        record(10, 1, vantage_fit=False),
    ])  # fmt: skip
    assert (found.counts["decided"], found.counts["unfit"]) == (8, 1)
    shares = found.shares["all servers"]
    assert (shares["10"].share, shares["4"].share, shares["1"].count) == (0.75, 0.25, 0)
    assert found.values["too_little"] == {"http": 0.2, "https": None}
    assert any("Too little data from 20.0" in note and "47.6 %" in note for note in found.notes)


def test_windows_that_differ_by_a_byte_are_counted_apart(tmp_path: Path) -> None:
    scan = [in_bytes(n, 14_600, mime_type="image/png") for n in range(3)] + [in_bytes(9, 14_601, mime_type="image/png")]
    windows = figures(scan).breakdowns["windows"].shares
    assert {name: share.count for name, share in windows.items()} == {"14.6 kB": 3, "14.601 kB": 1}
    found = rows(written(tmp_path / "s.parquet", scan), "--figure", "mime-types")
    assert [(row["window"], row["count"]) for row in found] == [("14.6 kB", 3), ("14.601 kB", 1)]


def test_targets_get_no_window_from_an_unfit_vantage_point() -> None:
    scan = [record(1, 10), record(2, 10, vantage_fit=True), record(3, 10, vantage_fit=False)]
    assert known(IW, scan)["iw_segments"] == {"d1.example": 10, "d2.example": 10}


def test_a_target_surveyed_again_has_nothing_of_its_former_window(tmp_path: Path) -> None:
    """Segments of the first survey stayed beside bytes of the second, and the report said the segments."""
    source, once, again = (tmp_path / f"{n}.parquet" for n in range(3))
    store.write_rows(source, "targets", [Target(domain=f"d{n}.example", url=f"https://d{n}.example/") for n in (1, 2)])
    fill_targets(source, once, known(IW, [record(n, 10, paced=False) for n in (1, 2)]))
    fill_targets(once, again, known(IW, [in_bytes(1, 64_000), record(2, None, paced=True)]))
    found = [tuple(row[name] for name in OF_TARGETS) for row in targets.values(again, ("domain", *OF_TARGETS))]
    assert found == [(None, 64_000, "bytes", None), (10, 14_600, "segments", False)]


def test_who_is_known_to_be_above_rfc_6928_counts_without_a_window() -> None:
    short = [record(10 + n, None, within_rfc6928=False) for n in range(5)]  # 1,300 bytes at MSS 64, and the page ends
    found = figures([*(record(n, 10, within_rfc6928=True) for n in range(5)), *short, record(20, None)])
    within = found.shares["all servers"]["within_rfc6928"]
    assert (found.counts["decided"], within.count, within.n) == (5, 5, 10)
    assert found.notes[-1] == "<= RFC 6928: of the 10 of which it is known; a lower bound above it is enough."


def test_who_is_above_rfc_6928_with_a_small_mss_alone_is_said() -> None:
    """4 kB are 64 segments at MSS 64, where RFC 6928 has 640 bytes, and three at 1460, where it has 14,600."""
    scan = [in_bytes(n, size, within_rfc6928=False) for n, size in enumerate((4_096, 14_600, 65_536))]
    found = figures([*scan, record(3, 10, within_rfc6928=True), record(4, 32, within_rfc6928=False)])
    within = found.shares["all servers"]["within_rfc6928"]
    assert (within.count, within.n) == (1, 5)
    assert found.notes[-1] == "<= RFC 6928: 2 are above it with a small MSS alone, not with 1460 bytes."


@pytest.mark.parametrize("page", [3_000, 20_000])
def test_a_window_of_rfc_3390_has_one_name_whatever_the_page(page: int) -> None:
    """With a short page its three large segments are not decided, and it is a window of four."""
    votes = {}
    for mss in (64, 128, 536, 1200):
        count = rfc3390_bytes(mss) // mss
        verdict, size = (ProbeVerdict.LIMITED, count * mss) if page > count * mss else (ProbeVerdict.LOWER_BOUND, page)
        votes[mss] = Vote(verdict=verdict, segments=-(-size // mss), bytes=size, payload_bytes=mss)
    found = fit(votes)
    assert found is not None and found.kind == ("segments" if page == 3_000 else "rfc3390")
    assert bucket(record(1, 4, iw_kind=str(found.kind), iw_segments=found.segments, iw_bytes=found.bytes)) == "4"


def test_results_of_one_server_are_not_independent(tmp_path: Path) -> None:
    """A list of objects has it once per MIME type."""
    types = ("image/png", "text/html", "video/mp2t", "text/css")
    scan = [record(n, 10 if n < 10 else 32, mime_type=kind, cdn="A") for n in range(20) for kind in types]
    expected = clustered([(4, 4)] * 10 + [(0, 4)] * 10)
    found = figures(scan)
    assert found.shares["all servers"]["10"] == found.breakdowns["windows"].shares["10"] == expected
    path = written(tmp_path / "s.parquet", scan)
    for figure in ("cdns", "over-time", "samples"):
        (ten,) = (row for row in rows(path, "--figure", figure) if str(row["window"]) == "10")
        assert (ten["n"], ten["low"], ten["high"]) == (80, expected.low, expected.high)


def test_a_server_that_counts_more_than_once_is_told() -> None:
    types = [record(1, 10, mime_type=kind) for kind in ("image/png", "text/html", "video/mp2t")]
    found = figures([*types, record(2, 4)])
    assert found.title.startswith("4 of 4 results of 2 servers (one counts once per MIME type and file) have a decided")
    assert (found.counts["servers"], found.counts["domains"]) == (2, 4)
    assert figures(types[:1]).title.startswith("1 of 1 servers have a decided window.")


def test_over_time_shows_the_crossing(tmp_path: Path) -> None:
    files = []
    for number, (http, tls) in enumerate(((54, 40), (60, 50), (67, 60))):
        at = T0 + number * 7 * DAY
        scan = [record(n, 10 if n < http else 4, surveyed_at=at) for n in range(100)]
        scan += [record(1000 + n, 10 if n < tls else 4, surveyed_at=at, scheme="https") for n in range(100)]
        files.append(written(tmp_path / f"{number}.parquet", scan))
    found = rows(*reversed(files), "--figure", "over-time", "--beside", IN_THE_WILD)
    measured = [row for row in found if row["source"] == "measured"]
    tens = [(row["date"], row["share"]) for row in measured if row["window"] == "10" and row["scheme"] == "http"]
    assert [share for _, share in tens] == [0.54, 0.6, 0.67]
    assert [day for day, _ in tens] == sorted({day for day, _ in tens})
    assert all(row["low"] < row["share"] < row["high"] for row in measured if 0 < row["share"] < 1)
    assert [row["share"] for row in found if row["source"] == IN_THE_WILD] == [0.54, 0.67]


def test_shards_of_one_day_are_one_scan(tmp_path: Path) -> None:
    shards = [written(tmp_path / f"{n}.parquet", [record(n, 4), record(2 + n, 10)]) for n in range(2)]
    again = written(tmp_path / "again.parquet", [record(0, 10, surveyed_at=T0 + 60)])
    for files in ((*shards, again), (again, *shards)):
        found = {row["window"]: (row["count"], row["n"]) for row in rows(*files, "--figure", "over-time")}
        assert (found["10"], found["4"]) == ((3, 4), (1, 4))


@pytest.mark.parametrize(
    ("values", "figure", "said"),
    [
        ({"windows": '{"64": {"verdict": "limited", "of": 1}}'}, "cdns", "the column windows of d1.example"),
        ({"windows": "[1]"}, "over-time", "the column windows of d1.example"),
        ({"arrivals": "[[1]]", "iw_segments": 10}, "arrivals", "the column arrivals of d1.example"),
        ({"surveyed_at": math.nan, "iw_segments": 10}, "over-time", "these results have no dates"),
        ({"surveyed_at": 1e20, "iw_segments": 10}, "over-time", "these results have no dates"),
    ],
)
def test_a_file_of_anybody_is_one_sentence(tmp_path: Path, values: dict[str, Any], figure: str, said: str) -> None:
    path = written(tmp_path / "theirs.parquet", [record(1, None, cdn="A", **values)])
    with pytest.raises(UsageError, match=said):
        run(path, "--figure", figure)


def test_a_full_scan_beside_its_samples(tmp_path: Path) -> None:
    full = [record(n, 10 if n % 2 else 4) for n in range(1000)]
    first, second = written(tmp_path / "full.parquet", full), written(tmp_path / "s.parquet", full[:50])
    found = rows(first, second, "--figure", "samples")
    assert {(row["scan"], row["role"]) for row in found} == {("full.parquet", "full"), ("s.parquet", "sample")}
    (ten,) = [row for row in found if row["role"] == "sample" and row["window"] == "10"]
    assert (ten["count"], ten["n"], ten["share"]) == (25, 50, 0.5)


def test_samples_of_one_name(tmp_path: Path) -> None:
    files = []
    for at, folder in enumerate(("a", "b", "c")):
        (tmp_path / folder).mkdir()
        files.append(written(tmp_path / folder / "s.parquet", [record(n, 10) for n in range(9 - at)]))
    picture = tmp_path / "s.svg"
    found = rows(*files, files[2], "--figure", "samples", "--picture", str(picture))
    assert [(r["scan"], r["n"]) for r in found if r["window"] == "10"] == [
        *zip(files, (9, 8, 7), strict=True),
        (files[2], 7),
    ]
    assert all(f"{folder}/s.parquet" in picture.read_text() for folder in ("a", "b", "c"))


def test_windows_per_cdn(tmp_path: Path) -> None:
    scan = [record(n, 16, cdn="Akamai", pace="burst") for n in range(3)] + [record(9, 32, cdn="Akamai")]
    scan += [in_bytes(10, 105_000, cdn="Cachefly", pace="paced"), record(11, 10)]
    found = rows(written(tmp_path / "s.parquet", scan), "--figure", "cdns", "--beside", IN_THE_WILD)
    measured = {
        (r["cdn"], r["window"], r["unit"]): (r["pacing"], r["share"]) for r in found if r["source"] == "measured"
    }
    assert measured == {
        ("Akamai", 16, "segments"): ("burst", 0.75),
        ("Akamai", 32, "segments"): (None, 0.25),
        ("Cachefly", 105, "kB"): ("paced", 1.0),
    }
    published = [(row["cdn"], row["window"], row["unit"]) for row in found if row["source"] == IN_THE_WILD]
    assert len(published) == 12 and ("Highwinds", 64, "kB") in published


def test_windows_per_mime_type(tmp_path: Path) -> None:
    scan = [record(n, 32 if n < 4 else 16, mime_type="image/png") for n in range(10)]
    scan += [record(20, 32, mime_type="text/html")]
    found = rows(written(tmp_path / "s.parquet", scan), "--figure", "mime-types", "--beside", IN_THE_WILD)
    measured = [(r["mime_type"], r["window"], r["share"]) for r in found if r["source"] == "measured"]
    assert measured == [("image/png", "16", 0.6), ("image/png", "32", 0.4)]
    assert {r["mime_type"]: r["share"] for r in found if r["source"] == IN_THE_WILD}["image/png"] == 0.4


def test_a_type_with_several_names_is_one(tmp_path: Path) -> None:
    names = ("text/javascript", "application/x-javascript", "application/javascript", "video/mp2t", "text/html")
    scan = [record(n, 32 if n % 5 == 4 else 10, mime_type=name) for n, name in enumerate(names)]
    document = json.loads(run(written(tmp_path / "s.parquet", scan), "--figure", "mime-types", "--json"))
    assert [(row["mime_type"], row["window"], row["n"]) for row in document["rows"]] == [
        ("application/mp2t", "10", 1),
        ("application/javascript", "10", 3),
    ]
    assert "Objects of other types are left out: 1." in document["notes"]


def test_vantage_points(tmp_path: Path) -> None:
    home = [record(n, 30, cdn="Azure", vantage="campus") for n in range(5)]
    home += [in_bytes(9, 64_000, cdn="Highwinds", vantage="campus")]
    away = [record(n, 30 if n else 20, cdn="Azure", vantage="VP, 64500, Net, Land, consumer") for n in range(5)]
    away += [in_bytes(9, 64_000, cdn="Highwinds", losses=2, vantage="VP, 64500, Net, Land, consumer")]
    unfit = [record(n, 1, cdn="Azure", vantage="bad", vantage_fit=False) for n in range(5)]
    files = [written(tmp_path / f"{n}.parquet", scan) for n, scan in enumerate((home, away, unfit))]
    document = json.loads(run(*files, "--figure", "vantage-points", "--json"))
    found = {(row["vantage"], row["cdn"]): row for row in document["rows"]}
    assert set(found) == {("campus", "Azure"), ("campus", "Highwinds"), ("VP", "Azure"), ("VP", "Highwinds")}
    azure, highwinds = found["VP", "Azure"], found["VP", "Highwinds"]
    assert (azure["low"], azure["high"], azure["mark"], azure["reference"]) == (20, 30, None, "30")
    assert (highwinds["low"], highwinds["unit"], highwinds["mark"]) == (64, "kB", "*")
    assert (azure["asn"], azure["network"], azure["country"], azure["link"]) == ("64500", "Net", "Land", "consumer")
    assert any("5 results of unfit vantage points are left out: bad" in note for note in document["notes"])
    published = [
        r for r in rows(*files, "--figure", "vantage-points", "--beside", IN_THE_WILD) if r["source"] == IN_THE_WILD
    ]
    assert len({row["vantage"] for row in published}) == 14


def test_losses_of_a_server_whose_window_is_not_known_are_no_mark(tmp_path: Path) -> None:
    home = [record(n, 30, cdn="Azure", vantage="campus") for n in range(5)]
    away = [record(n, 30, cdn="Azure", vantage="VP") for n in range(4)]
    for losses, mark in ((0, None), (1, "*")):
        there = [replace(away[0], losses=losses), *away[1:], record(4, None, cdn="Azure", vantage="VP", losses=9)]
        files = [written(tmp_path / f"{n}.parquet", scan) for n, scan in enumerate((home, there))]
        assert rows(*files, "--figure", "vantage-points")[1]["mark"] == mark


def test_servers_whose_window_there_is_of_another_kind_are_told(tmp_path: Path) -> None:
    """The row of a cell in which all differ was left out, as were the servers that differ in any other."""
    home = [record(n, 30, cdn="Azure", vantage="campus") for n in range(5)]
    home += [in_bytes(9, 64_000, cdn="Highwinds", vantage="campus")]
    away = [record(0, 30, cdn="Azure", vantage="VP"), *(in_bytes(n, 14_600, cdn="Azure", vantage="VP") for n in (1, 2))]
    away += [record(n, None, cdn="Azure", vantage="VP") for n in (3, 4)] + [
        record(9, 20, cdn="Highwinds", vantage="VP")
    ]
    files = [written(tmp_path / f"{n}.parquet", scan) for n, scan in enumerate((home, away))]
    document = json.loads(run(*files, "--figure", "vantage-points", "--json"))
    found = [
        (row["low"], row["high"], row["servers"], row["others"], _cell(row))
        for row in document["rows"]
        if row["vantage"] == "VP"
    ]
    assert found == [(30, 30, 1, 4, "30 (+4)"), (None, None, 0, 1, "-")]
    assert document["notes"][-1].startswith("others: servers whose window there is counted in another unit")


@pytest.mark.parametrize("figure", ["samples", "vantage-points"])
def test_no_other_file_takes_the_place_of_the_first(tmp_path: Path, figure: str) -> None:
    """A sample was called the full scan."""
    second = written(tmp_path / "second.parquet", [record(1, 10, vantage="VP")])
    for name, scan in (("unfit", [record(1, 10, vantage_fit=False)]), ("empty", [])):
        with pytest.raises(
            UsageError, match=rf"{name}\.parquet: its results are from an unfit vantage point, or there"
        ):
            run(written(tmp_path / f"{name}.parquet", scan), second, second, "--figure", figure)


@pytest.mark.parametrize("vantage", [None, "campus, 64500"])
def test_files_of_one_name_and_of_one_vantage_point_have_lines_of_their_own(
    tmp_path: Path, vantage: str | None
) -> None:
    files = []
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        scan = [record(1, 30, cdn="Azure", vantage=vantage), record(2, 30, cdn="Azure", vantage="campus")]
        files.append(written(tmp_path / day / "iw.parquet", scan))
    called = "iw.parquet" if vantage is None else "campus"
    names = [row["vantage"] for row in rows(*files, "--figure", "vantage-points")]
    assert names == [f"{called} ({file})" for file in files]


def arrived(count: int) -> str:
    return arrivals_text([Arrival(at_us=n * 100, end=(n + 1) * 1200) for n in range(count)])


@pytest.mark.thorough
def test_every_figure_can_be_drawn_twice_the_same(tmp_path: Path, repeats: Repeats) -> None:
    """Twice and as PNG too: in `make test` one with bars and one with curves, in `make soak` all."""
    both = repeats(quick=0, soak=1)
    facts = {"cdn": "Akamai", "vantage": "campus", "mime_type": "image/png", "pace": "burst"}
    scan = [record(n, 10 if n % 3 else 16, arrivals=arrived(10), **facts) for n in range(9)]
    file = written(tmp_path / "s.parquet", scan)
    assert set(ALL) == {"over-time", "samples", "cdns", "mime-types", "arrivals", "vantage-points"}
    for name in ALL:
        beside = () if name == "arrivals" else ("--beside", IN_THE_WILD)
        ends = ("1.svg", "2.svg", "png") if both or name in ("over-time", "cdns") else ("1.svg",)
        pictures = [tmp_path / f"{name}.{end}" for end in ends]
        printed = run(file, file, "--figure", name, *beside, *(f"--picture={path}" for path in pictures))
        assert ALL[name].table.__module__.startswith("survey.iw.charts") and printed
        first, *more = (path.read_bytes() for path in pictures)
        assert first.startswith(b"<?xml")
        assert not more or (more[0] == first and more[1].startswith(b"\x89PNG"))
        table = list(csv.reader(io.StringIO(run(file, "--figure", name, *beside, "--csv"))))
        assert len(table) > 1 and all(len(row) == len(table[0]) for row in table)


def test_figures_that_cannot_be_made(tmp_path: Path) -> None:
    from core.errors import UsageError

    file = written(tmp_path / "s.parquet", [record(1, 10)])
    for arguments, said in (
        (("--figure", "none"), "upshift survey iw has no figure 'none'"),
        (("--figure", "arrivals"), "no arrivals in these results"),
        (("--figure", "vantage-points"), "name no vantage point"),
        (("--figure", "mime-types"), "have nothing for this figure"),
        (("--beside", "iw-in-the-wild"), "--beside needs a figure"),
        (("--figure", "cdns", "--beside", "x"), "'x' is not known"),
    ):
        with pytest.raises(UsageError, match=said):
            run(file, *arguments)
    bad = written(tmp_path / "bad.parquet", [record(1, 10, vantage_fit=False)])
    with pytest.raises(UsageError, match="all results are from unfit vantage points"):
        run(bad, "--figure", "cdns")
    assert "over-time: Shares of windows" in run(file, "--figure", "list")


def test_windows_that_do_not_fit_into_clients(tmp_path: Path, shared_data: Path) -> None:
    def asked(*arguments: str) -> dict[str, tuple[int, list[str]]]:
        done = CliRunner().invoke(app, ["client-windows", *arguments, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        return {row["client"]: (row["segments"], [one["window"] for one in row["too_large"]]) for row in found}

    published = asked()
    assert len(published) == 8
    assert published["Linux 4.4"] == (20, ["25", "30", "32", "64 kB", "105 kB", "100"])
    assert published["Windows 8.1 / 10"] == (179, [])
    scan = written(tmp_path / "s.parquet", [record(1, 10), record(2, 50), in_bytes(3, 30_000), record(4, 200)])
    capture = shared_data / "captures" / "ndpi_weibo.pcap"
    measured = asked(str(capture), "--scan", scan)
    assert measured["Linux 4.4"] == (20, ["30 kB", "50", "200"])
    assert set(measured) - set(published) and all("ndpi_weibo.pcap" in name for name in set(measured) - set(published))
