"""`upshift survey iw` in the lab `cdn-iw` gives back the table of CDNs that it plants, from each vantage point."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.files import store
from survey.iw import figures
from survey.iw.figures import window
from survey.iw.record import IwRecord
from tests.cells import Repeats
from tests.lab import noise
from tests.lab._flight import Flight
from tests.lab._probe import Probe, get, probes
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab

UPSHIFT = (sys.executable, "-P", "-m", "upshift")
MSS = 1200
TAILORED = {"MUC": 64.0, "NRT": 83.0, "MCT": 58.0}
"""Highwinds' window at each vantage point [kB]."""

PACED = {row["cdn"] for row in figures.paper_rows("cdn-initial-windows") if row["pacing"] == "paced"}

TWO = ("--mss", "64", "--mss", "1200")
"""Two MSS are enough for a kind, and quicker."""

CONTROL = "http://www.chinacache-20.example/files/chinacache-20.bin=20"


@pytest.fixture(scope="module")
def lab(lab_host: Path) -> Iterator[Lab]:
    with open_lab("cdn-iw") as found:
        yield found


def survey(lab: Lab, vantage: str, folder: Path, *more: str) -> tuple[Path, list[IwRecord]]:
    source, out = folder / f"{vantage}.csv", folder / f"{vantage}.parquet"
    urls = [(each.domain, each.url.replace("https://", "http://")) for each in lab.targets()]
    source.write_text("domain,url\n" + "".join(f"{domain},{url}\n" for domain, url in urls))
    arguments = [str(source), "-o", str(out), "--contact", "lab@example.org", "--control", CONTROL, "--json"]
    argv = [*UPSHIFT, "survey", "iw", *arguments, "--vantage", f"{vantage}, 64500, Lab, Nowhere, emulated", *more]
    done = lab.place(vantage).run(argv, timeout_s=300)
    assert done.returncode == 0, done.stderr
    return out, store.read_rows(out, "survey_iw", IwRecord)


def planted(highwinds_kb: float) -> set[tuple[str, float, str]]:
    """(CDN, window, unit) of each row of the table; Highwinds' window as tailored."""
    found = set()
    for row in figures.paper_rows("cdn-initial-windows"):
        value, unit = float(row["iw"]), row["unit"]
        value, unit = (value / 1000, "kB") if unit == "bytes" else (value, unit)
        found.add((row["cdn"], highwinds_kb if row["cdn"] == "Highwinds" else value, unit))
    return found


def figure(name: str, *files: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*UPSHIFT, "survey", "figures", *map(str, files), "--figure", name, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def test_every_row_from_every_vantage_point_and_the_unfit_one_is_marked(
    lab: Lab, tmp_path: Path, repeats: Repeats
) -> None:
    files = []
    chosen = dict([*TAILORED.items()][: repeats(quick=2, soak=3)])
    with ThreadPoolExecutor() as threads:  # each from a network of its own, and mostly waiting
        unfit = threads.submit(survey, lab, "SYD", tmp_path, *TWO, "--limit", "4")
        fit = [threads.submit(survey, lab, name, tmp_path, *(() if name == "MUC" else TWO)) for name in chosen]
    for vantage, surveyed in zip(chosen, fit, strict=True):
        out, found = surveyed.result()
        files.append(out)
        assert all(record.vantage_fit and record.verdict == "limited" for record in found)
        seen = {(record.cdn, *(window(record) or (0, ""))) for record in found}
        assert seen == planted(chosen[vantage]), vantage
    out, found = unfit.result()
    assert {record.vantage_fit for record in found} == {False}
    # A window that is paced over several round trips passes with more than its first packet.
    seen_there = [record.iw_segments for record in found if record.cdn not in PACED]
    assert set(seen_there) - {None} == {1} and seen_there.count(None) <= 1, "on a busy host votes may be undecided"
    drawn = {(row["cdn"], row["window"], row["unit"]) for row in figure("cdns", files[0], out)}
    assert drawn == planted(TAILORED["MUC"])
    rows = figure("vantage-points", *files, out)
    assert {row["vantage"] for row in rows} == set(chosen)
    tailored = {row["vantage"]: (row["low"], row["high"]) for row in rows if row["cdn"] == "Highwinds"}
    assert tailored == {vantage: (size, size) for vantage, size in chosen.items()}


def asked(lab: Lab) -> list[Probe]:
    targets = lab.targets()
    assert len(targets) == 12 and all(target.server_ip for target in targets)
    requests = [get(target.url.partition(target.domain)[2], target.domain) for target in targets]
    pairs = zip(targets, requests, strict=True)
    return [Probe(target=target.server_ip or "", request=request, mss=MSS) for target, request in pairs]


def test_every_window_is_there(lab: Lab) -> None:
    """Counted by raw packets."""
    planted = {path["domain"]: path for path in lab.truth()["paths"] if path["vantage"] == "MUC"}
    for target, flight in zip(lab.targets(), probes(lab.place("MUC"), asked(lab)), strict=True):
        path = planted[target.domain]
        size = path["initial_window"] * (MSS if path["initial_window_unit"] == "segments" else 1)
        assert (flight.size, flight.more, flight.fin) == (size, True, False), (target.domain, flight)


@pytest.mark.soak  # the survey above sees it, too
def test_the_unfit_vantage_point_sees_one_segment_of_each(lab: Lab) -> None:
    """Counted by raw packets; where a busy host lets a server answer only a round trip later, two pass."""

    def measure() -> tuple[list[Flight], list[noise.Noise]]:
        with noise.host_noise() as noises:
            return probes(lab.place("SYD"), asked(lab)), noises

    def wrong(measured: tuple[list[Flight], list[noise.Noise]]) -> list[str]:
        return [str(flight) for flight in measured[0] if (len(flight.segments), flight.more) != (1, True)]

    noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)


@pytest.mark.measures
@pytest.mark.soak
def test_pacing_of_every_row(lab: Lab, tmp_path: Path) -> None:
    _, found = survey(lab, "MCT", tmp_path, "--pacing")
    expected = {(row["cdn"], row["iw"]): row for row in figures.paper_rows("cdn-initial-windows")}
    for record in found:
        value, unit = window(record) or (0, "")
        key = (record.cdn or "", "64000" if record.cdn == "Highwinds" else f"{value * (1000 if unit == 'kB' else 1):g}")
        row = expected[key]
        wanted = "cannot_tell" if unit == "segments" and value <= 10 else row["pacing"] or "burst"
        assert record.pace == wanted, record
        if row["spread_rtt"]:
            assert record.spread_rtt == pytest.approx(float(row["spread_rtt"]), rel=0.15), record
