"""What reports say of campaigns with a rule to stop early."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.measures import dataset
from analysis.measures.stopping import StoppingOutcome, stoppings
from analysis.report import report
from analysis.report.campaign import stopping_cells, stopping_sentences
from core.domain import Comparison, Download
from core.sequential import Interval, Quantity
from downloader.campaign.limits import Stopping
from tests.unit.analysis_factory import make_download, write_campaign


def rows(domains: int, **changes: Any) -> list[Download]:
    found = []
    for number in range(domains):
        for iteration in (1, 2):
            common = {"domain": f"d{number}.example", "iteration": iteration, "started_at": 1e9 * iteration + number}
            found.append(make_download(configuration="BL", last_byte_s=1.0, **common))
            speed = 2.0 if iteration == 1 else 9.0
            found.append(make_download(configuration="WS", last_byte_s=1.0 / speed, **(common | changes)))
    return found


def told(folder: Path, downloads: list[Download], **entry: Any) -> list[StoppingOutcome]:
    """What is said of such a folder; `counted_runs` of None: as an older Upshift wrote it."""
    state: dict[str, Any] = {"rule": {"median": 0.05}, "reached": True, "recorded_runs": 20, "planned_runs": 90}
    state |= {"counted_runs": state["planned_runs"]} | entry
    if state["counted_runs"] is None:
        del state["counted_runs"]
    environment = {"schema": 1, "stopping": {"MUC": state}}
    declared = [Comparison.of("WS", "BL")]
    write_campaign(folder, downloads, environment=environment, comparisons=declared)
    return stoppings(dataset.load([folder]), unproven=False)


def test_an_early_stop_is_said_with_the_intervals_that_hold(tmp_path: Path) -> None:
    (found,) = told(tmp_path, rows(20))
    assert found.rule == {Quantity.MEDIAN: 0.05} and found.early
    first, warning = stopping_sentences([found])
    assert first == (
        "MUC stopped early, after 20 of 90 planned measurement runs: all intervals were within median 0.05 (until_ci)."
    )
    assert "the intervals of Table 2 do not hold at 95 %" in warning
    assert stopping_cells([found])[1] == ["MUC", "WS vs BL", "20", "[2.000, 2.000]", "[0.78, 1.00]", "yes"]


def test_campaign_and_analysis_know_the_time_to_the_same_byte(tmp_path: Path) -> None:
    """Where the byte budget ended both sides, the speed-up is known; beside a time budget, its bound is."""
    cut = {"outcome": "censored", "failure": "byte_budget"}
    late = {"outcome": "censored", "failure": "time_budget", "budget_s": 4.0, "last_byte_s": 1.0}
    downloads = [
        make_download(configuration=name, domain=f"d{number:02}", started_at=1e9 + number, **changes)
        for number in range(40)
        for name, changes in (
            ("BL", {"last_byte_s": 1.0} | cut | (late if number < 2 else {})),
            ("WS", {"last_byte_s": 0.5} | cut),
        )
    ]
    ((row,),) = (one.rows for one in told(tmp_path, downloads))
    runs = enumerate(zip(downloads[::2], downloads[1::2], strict=True))
    campaign = Stopping({Quantity.MEDIAN: 0.05}, [Comparison.of("WS", "BL")], runs).state()["comparisons"][0]
    assert (row.domains, row.median, row.meets) == (40, Interval(2.0, 2.0), True)
    assert (campaign["domains"], campaign["median"], campaign["reached"]) == (40, (2.0, 2.0), True)
    assert campaign["share"] == (row.share.low, row.share.high) and row.share.low > 0.5


def test_rejected_downloads_are_no_steps(tmp_path: Path) -> None:
    (found,) = told(tmp_path, rows(20, treatment_ok=False))
    assert found.rows[0].domains == 0
    assert "Without the downloads that inspection rejected, WS vs BL would be wider." in stopping_sentences([found])[0]
    assert stopping_cells([found])[1][3:] == ["[0.000, ∞]", "[0.00, 1.00]", "no"]


def test_comparisons_of_another_folder_are_no_part_of_the_rule(tmp_path: Path) -> None:
    told(tmp_path / "a", rows(20), comparisons=[{"name": "WS vs BL"}])
    others = [make_download(configuration=name, vantage="SFO") for name in ("BL", "ECN")]
    write_campaign(tmp_path / "b", others, comparisons=[Comparison.of("ECN", "BL")])
    (found,) = stoppings(dataset.load([tmp_path / "a", tmp_path / "b"]), unproven=False)
    assert [row.comparison for row in found.rows] == ["WS vs BL"]
    assert "would be wider" not in stopping_sentences([found])[0]


def test_a_plan_that_ended_first(tmp_path: Path) -> None:
    (found,) = told(tmp_path, rows(9), reached=False, recorded_runs=90)
    assert stopping_sentences([found]) == [
        "MUC did not reach intervals within median 0.05 (until_ci) in 90 of 90 planned measurement runs; "
        "wider: WS vs BL."
    ]
    (found,) = told(tmp_path / "b", rows(20), recorded_runs=90)
    assert not found.early and len(stopping_sentences([found])) == 1


def test_only_the_runs_that_counted_are_steps(tmp_path: Path) -> None:
    """In the order of the plan, whenever they were measured; an older Upshift counted all."""
    downloads = [download for number in range(30) for download in pair_of(number, started_at=1e9 - number)]
    for counted, domains in ((18, 18), (0, 0), (None, 30)):
        (found,) = told(tmp_path / str(counted), downloads, counted_runs=counted)
        assert found.rows[0].domains == domains
        assert found.rows[0].median.low == (0.0 if domains == 0 else 2.0)


def test_sentences_say_which_runs_counted(tmp_path: Path) -> None:
    for reached, words in ((True, "MUC stopped early, after"), (False, "median 0.05 (until_ci) in")):
        entry = {"reached": reached, "recorded_runs": 80, "counted_runs": 18}
        (found,) = told(tmp_path / f"{reached}", rows(40), **entry)
        sentence = stopping_sentences([found])[0]
        assert f"{words} 80 of 90 planned measurement runs, of which the first 18 of the plan count" in sentence
        assert "order of time" not in sentence
        (found,) = told(tmp_path / f"{reached} older", rows(40), **entry | {"counted_runs": None})
        sentence = stopping_sentences([found])[0]
        assert (
            "An older Upshift counted in the order of time: with slots or budgets its intervals may miss." in sentence
        )
        assert "of which" not in sentence


def pair_of(number: int, *, started_at: float) -> list[Download]:
    """A run whose speed-up is 2 in the first 18 of the plan, and 3 in those that follow."""
    common = {"domain": f"d{number:02}.example", "started_at": started_at}
    speed = 2.0 if number < 18 else 3.0
    return [make_download(configuration=name, last_byte_s=t, **common) for name, t in (("BL", 1.0), ("WS", 1 / speed))]


@pytest.mark.parametrize(
    "damage",
    [
        {"rule": {"mean": 1}},
        {"rule": 5},
        {"recorded_runs": "x"},
        {"counted_runs": "x"},
        {"reached": None},
        {"comparisons": 1},
    ],
)
def test_a_damaged_environment_is_no_traceback(tmp_path: Path, damage: dict[str, Any]) -> None:
    found = told(tmp_path, rows(3), **damage)
    assert found == [] or not found[0].reached


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_tables_and_report_say_so(tmp_path: Path) -> None:
    told(tmp_path, rows(20))
    data = dataset.load([tmp_path])
    tables = api.make_tables(data)
    shown = io.StringIO()
    tables.show(shown)
    printed = " ".join(shown.getvalue().split())
    page = report.build(data, report.ReportOptions())
    for text in (printed, page):
        assert "MUC stopped early, after 20 of 90 planned measurement runs" in text
        assert "[2.000, 2.000]" in text
        assert "Order, tested in 40 measurement runs: " in text
    document = json.loads(json.dumps(tables.document()))
    (entry,) = document["stopping"]
    assert (entry["early"], entry["rule"], entry["rows"][0]["domains"]) == (True, {"median": 0.05}, 20)
    assert document["order"]["runs"] == 40 and set(document["order"]["position"]) == {"p", "medians", "counts"}


def test_without_a_rule_there_is_nothing_to_say(tmp_path: Path) -> None:
    write_campaign(tmp_path, rows(3), environment={"schema": 1})
    assert stoppings(dataset.load([tmp_path]), unproven=False) == []
    assert stopping_sentences([]) == []
