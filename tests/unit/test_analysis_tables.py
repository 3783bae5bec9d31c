"""Campaign folders in, tables out: counts, files, widths, and the sentences for wrong input."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from analysis import api
from analysis.measures import ceilings, costs, dataset, pair_table, tables
from analysis.measures.rows import BIN_NAMES, Grouping, Metric, Verdict
from analysis.measures.selection import Selection, identity
from analysis.report import checks, figures, findings, render, report
from core.domain import Comparison, Download, Role
from core.errors import UsageError
from core.files import campaign_json, store
from tests.terminals import on_terminal
from tests.unit.analysis_factory import (
    LEVELS,
    make_download,
    make_kpis,
    make_superseded,
    realistic,
    write_campaign,
    write_downloads,
    write_superseded,
)
from upshift.cli import app
from upshift.commands import tables as cli


def downloads_of(data: dataset.Dataset) -> list[Download]:
    return [record.download for record in data.records]


def two_configurations(**by_configuration: float) -> list[Download]:
    """One run on each of 12 domains; the download time of each configuration."""
    return [
        make_download(domain=f"d{index}.example", configuration=name, last_byte_s=time_s, vantage="MUC")
        for index in range(12)
        for name, time_s in by_configuration.items()
    ]


def command(name: str, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [name, *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def text_of(made: api.Tables) -> str:
    """What is printed where there is no terminal."""
    out = io.StringIO()
    made.show(out)
    return out.getvalue()


def test_table1_counts_by_place_and_cause(tmp_path: Path) -> None:
    downloads = [
        make_download(),
        make_download(configuration="warmup"),
        make_download(configuration="WS", outcome="failed", failure="http_status", http_status=404),
        make_download(configuration="ALL", outcome="censored", failure="time_budget"),
        make_download(configuration="quiche", provider="akamai"),
        make_download(vantage="SFO", provider="other"),
        make_download(vantage="SFO", provider="google", domain="g.example", outcome="failed", failure=None),
    ]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    rows = {(r.vantage, r.transport, r.provider): r for r in tables.table1(data)}
    assert list(rows) == [
        ("MUC", "tcp", "akamai"),
        ("MUC", "quic", "akamai"),
        ("SFO", "tcp", "google"),
        ("SFO", "tcp", "other"),
    ]
    row = rows["MUC", "tcp", "akamai"]
    assert (row.planned, row.ok, row.failed, row.censored) == (3, 1, 1, 1)
    assert row.causes == {"http_status": 1, "time_budget": 1}
    assert rows["SFO", "tcp", "google"].causes == {"unknown": 1}
    wide = render.table1_wide(tables.table1(data))
    assert wide[0][:5] == ["vantage", "transport", "akamai", "google", "other"]
    assert wide[-2] == ["all", "TCP", "1", "0", "1", "2", "5", "40.0", "2", "1"]


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_configurations_tell_voids_mismatches_and_cpu(tmp_path: Path) -> None:
    downloads = [
        make_download(transfer_cpu_s=0.8),
        make_download(configuration="ECN", treatment_ok=False, treatment_reason="bleached", treatment_detail="no ECT"),
        make_download(configuration="SACK", void_reason="emulator_late", void_detail="late", treatment_ok=True),
        make_download(configuration="quiche", treatment_ok=None),
        make_download(configuration="WS", host_disturbance="client_late", treatment_ok=False, treatment_reason="x"),
        make_download(configuration="WS", domain="b", host_disturbance="client_late", void_reason="emulator_late"),
    ]
    # What was interrupted says nothing about the place: it is no void attempt.
    thrown = [make_superseded()] * 3 + [make_superseded(reason="interrupted", detail=None)]
    data = dataset.load([write_campaign(tmp_path / "c", downloads, superseded=thrown)])
    rows = {row.configuration: row for row in tables.configurations(data)}
    assert list(rows) == ["BL", "ECN", "SACK", "WS", "quiche"]
    assert (rows["WS"].disturbed, rows["WS"].mismatched, rows["WS"].proven, rows["BL"].disturbed) == (1, 0, 0, 0)
    assert (rows["BL"].void, rows["BL"].void_share, rows["BL"].cpu_bound) == (3, 0.75, 1)
    assert (rows["BL"].starved, rows["BL"].cpu_unknown) == (0, 0)
    assert (rows["ECN"].mismatched, rows["SACK"].mismatched, rows["quiche"].unproven) == (1, 0, 1)
    assert (rows["SACK"].unusable, rows["SACK"].void_reasons) == (1, {"emulator_late": 1})
    assert (rows["WS"].unusable, rows["WS"].unproven, rows["WS"].planned) == (1, 0, 2), "each is one of these"
    listed = {title: [line[3] for line in lines] for title, _, lines, _ in checks.lists(data)}
    assert (listed["Disturbed by the host"], listed["Treatment not accepted"]) == (["WS"], ["ECN"])
    assert listed["Void to the end"] == ["SACK", "WS"]
    cells = render.configuration_cells(list(rows.values()))
    shown = {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:]}
    assert (shown["SACK"]["void"], shown["SACK"]["mismatch"], shown["SACK"]["why"]) == (
        "1",
        "0",
        "void: emulator late 1",
    )
    sentence = findings.treatment_sentence(list(rows.values()), unproven=False)
    assert "not accepted for 1 (ECN: bleached 1)" in sentence
    assert sentence.endswith("In void measurement runs, and left out: 2 (emulator late).")
    assert [dict(row.reasons) for row in rows.values()] == [{}, {"bleached": 1}, {}, {}, {}]
    assert "bleached: no ECT" in report.build(data, report.ReportOptions())
    assert [row.reason for row in data.superseded] == ["emulator_late"] * 3 + ["interrupted"]


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_a_client_that_waited_for_a_cpu_is_flagged_and_unknown_is_not_zero(tmp_path: Path) -> None:
    downloads = [
        make_download(configuration="aioquic", transfer_cpu_s=0.12, run_delay_s=0.6),
        make_download(configuration="quiche", transfer_cpu_s=0.8, run_delay_s=None),
        make_download(configuration="BL", transfer_cpu_s=None, run_delay_s=None),
        make_download(configuration="WS", outcome="failed", failure="tls_error", transfer_cpu_s=None, run_delay_s=None),
    ]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    rows = tables.configurations(data)
    counts = {row.configuration: (row.cpu_bound, row.starved, row.cpu_unknown) for row in rows}
    assert counts == {"BL": (0, 0, 1), "WS": (0, 0, 0), "aioquic": (0, 1, 0), "quiche": (1, 0, 1)}
    heading, *cells = render.configuration_cells(rows)
    shown = {line[0]: (line[heading.index("CPU-bound")], line[heading.index("starved")]) for line in cells}
    assert shown == {"BL": ("?", "?"), "WS": ("0", "0"), "aioquic": ("0", "1"), "quiche": ("1", "?")}
    assert "In 1 the client waited for a CPU for more than 25 % of the transfer" in findings.outcome_sentence(rows)
    assert "waited for a CPU for 60% of the transfer" in report.build(data, report.ReportOptions())


@pytest.mark.parametrize("failure", [None, "byte_budget", "time_budget"])
def test_a_busy_host_is_seen_in_downloads_that_a_budget_ended(tmp_path: Path, failure: str | None) -> None:
    end = {"outcome": "ok" if failure is None else "censored", "failure": failure, "budget_s": 2.0}
    fast = {} if failure == "time_budget" else end
    downloads = [
        make_download(domain=f"d{at}.example", **changes)
        for at in range(20)
        for changes in (fast, {**end, "configuration": "aioquic", "last_byte_s": 1.6, "run_delay_s": 0.9})
    ]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    (row,) = tables.table2(data)
    assert (row.verdict, row.starved, row.n) == (Verdict.HOST_BUSY, 20, 20)
    assert [(one.starved, one.cpu_unknown) for one in tables.configurations(data)] == [(0, 0), (20, 0)]
    share = "45%" if failure == "time_budget" else "56%"  # of the time until the budget ended it
    assert f"waited for a CPU for {share} of the transfer" in report.build(data, report.ReportOptions())


@pytest.mark.parametrize(
    ("run_delay_s", "last_byte_s", "flag"),
    [(0.25, 1.0, False), (0.26, 1.0, True), (0.005, 0.006, False), (0.0051, 0.006, True), (None, 1.0, None)],
)
def test_a_wait_counts_from_a_quarter_of_the_transfer_and_five_milliseconds(
    run_delay_s: float | None, last_byte_s: float, flag: bool | None
) -> None:
    delay_s = np.array([math.nan if run_delay_s is None else run_delay_s])
    [found] = ceilings.starved(np.array([True]), np.array([last_byte_s]), delay_s)
    assert found == (-1 if flag is None else flag)


def test_table2_knows_the_answer(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, BL2=2.0, WS=1.0, ALL=2.5, mine=1.6))
    data = dataset.load([folder])
    rows = {row.comparison.name: row for row in tables.table2(data)}
    assert list(rows) == ["BL2 vs BL", "WS vs BL", "ALL vs BL", "ALL vs WS"]
    assert rows["BL2 vs BL"].tie.share == 1.0 and rows["BL2 vs BL"].comparison.role is Role.NOISE_FLOOR
    assert (rows["WS vs BL"].faster.share, rows["WS vs BL"].bins[-1].share) == (1.0, 1.0)
    assert (rows["ALL vs BL"].slower.share, rows["ALL vs BL"].median.value) == (1.0, pytest.approx(0.8))
    assert rows["WS vs BL"].median.low == pytest.approx(2.0)
    assert not data.notes


def test_rows_are_what_the_campaign_declares(tmp_path: Path) -> None:
    declared = [
        Comparison.of("again", "mine", Role.NOISE_FLOOR),
        Comparison(name="ours against theirs", config="mine", vs="theirs"),
        Comparison.of("theirs", "gone"),
    ]
    downloads = two_configurations(mine=1.0, again=1.0, theirs=1.5)
    described = two_configurations(gone=1.0)
    folder = write_campaign(tmp_path / "c", [*downloads, *described], comparisons=declared)
    write_downloads(folder / "downloads.parquet", downloads)
    data = dataset.load([folder])
    rows = tables.table2(data)
    assert [row.comparison for row in rows] == declared
    assert [row.n for row in rows] == [12, 12, 0] and rows[2].excluded == {"gone not in the run": 12}
    assert [f.name for f in findings.findings(rows)] == ["ours against theirs"]
    grouped = tables.table2(data, by=Grouping.VANTAGE)
    assert [row.comparison for row in grouped] == declared[:2], "a group has rows that it has both sides of"
    made = api.make_tables(data)
    assert "ours against theirs" in text_of(made) and "Noise floor: again vs mine." in text_of(made)
    assert "ours against theirs,effect,mine,theirs,12,1,0," in made.csv("table2")
    shown = "| ours against theirs | faster, at least 2 % | 1.50 [1.50–1.50] | 1.50 | 100 [71–100] | 0 [0–29] |"
    assert shown in made.markdown("table2")
    checks = "| faster, at least 2 % | – | – (1) | 1.50 [1.50–1.50] of 12 | 0:0 | 1.00 |"
    assert checks in made.markdown("table2"), "its AS is unknown, and there is one vantage point"
    assert [row["configuration"] for row in made.document()["configurations"]] == ["again", "mine", "theirs"]


def test_what_was_not_planned_over_quic_is_told_and_fails_nothing(tmp_path: Path) -> None:
    declared = [Comparison.of("q", "BL"), Comparison.of("r", "q")]
    downloads = [one for one in two_configurations(BL=1.0) if one.configuration == "BL"]
    over_quic = [
        dataclasses.replace(one, configuration=name, client="quiche", transport="quic")
        for one in downloads
        for name in ("q", "r")
        if one.domain != downloads[0].domain
    ]
    folder = write_campaign(tmp_path / "c", [*downloads, *over_quic], comparisons=declared)
    described = dataclasses.replace(
        campaign_json.read(folder), without_http3=(downloads[0].domain, "elsewhere.example")
    )
    campaign_json.write(folder, described)
    data = dataset.load([folder])
    rows = tables.table2(data)
    assert [row.n for row in rows] == [11, 11]
    assert rows[0].excluded == {"q not planned, known to be without HTTP/3": 1} and not rows[1].excluded
    made = api.make_tables(data)
    assert [(row.planned, row.ok) for row in made.table1 if row.transport == "quic"] == [(22, 22)]
    assert "Not planned over QUIC: 1 of 12 domains, known to be without HTTP/3" in text_of(made)
    assert pair_table.all_pairs(data)["excluded"].to_pylist().count("not planned, known to be without HTTP/3") == 1


def test_a_domain_that_another_folder_measured_over_quic_is_not_told(tmp_path: Path) -> None:
    over_quic = two_configurations(BL=1.0, quiche=1.0)
    over_tcp = [dataclasses.replace(one, vantage="SFO") for one in over_quic if one.configuration == "BL"]
    folders = [write_campaign(tmp_path / "a", over_tcp), write_campaign(tmp_path / "b", over_quic)]
    described = dataclasses.replace(campaign_json.read(folders[0]), without_http3=(over_quic[0].domain,))
    campaign_json.write(folders[0], described)
    assert any(note.startswith("Not planned over QUIC: 1 of 12") for note in dataset.load(folders[:1]).notes)
    assert not any(note.startswith("Not planned over QUIC") for note in dataset.load(folders).notes)


def test_downloads_that_are_made_anew_meanwhile_are_not_mixed_with_those_that_were_counted(tmp_path: Path) -> None:
    """`upshift inspect` puts a new file there: rows are known by their indices."""
    downloads = two_configurations(BL=1.0, WS=1.0)
    folder = write_campaign(tmp_path / "c", downloads)
    data = dataset.load([folder])
    assert data.records_of(np.array([3]))[0].download.domain == downloads[3].domain
    more = write_campaign(tmp_path / "d", [make_download(domain="a.example", vantage="MUC"), *downloads])
    (more / "downloads.parquet").replace(folder / "downloads.parquet")
    for read in (
        lambda: data.records_of(np.array([3])),
        lambda: data.texts("outcome"),
        lambda: data.kpi("goodput"),
        lambda: next(data.kpi_numbers("goodput")),
        lambda: costs.samples(data, metric=Metric.THROUGHPUT),
    ):
        with pytest.raises(UsageError, match=r"downloads\.parquet: it was rebuilt meanwhile; run the same command"):
            read()
    assert len(dataset.load([folder]).texts("outcome")) == len(downloads) + 1


def test_folders_bring_their_comparisons_together(tmp_path: Path) -> None:
    one = write_campaign(tmp_path / "one", two_configurations(BL=2.0, WS=1.0))
    others = [dataclasses.replace(d, vantage="SFO") for d in two_configurations(BL=2.0, quinn=1.0)]
    new = [Comparison.of("quinn", "BL")]
    two = write_campaign(tmp_path / "two", others, comparisons=new)
    rows = tables.table2(dataset.load([one, two]))
    assert [(row.comparison.name, row.n) for row in rows] == [("WS vs BL", 12), ("quinn vs BL", 12)]

    def refused(**changes: Any) -> str:
        other = Comparison(**{"name": "quinn vs BL", "config": "quinn", "vs": "BL", **changes})
        third = [dataclasses.replace(d, vantage="SGP") for d in others]
        path = write_campaign(tmp_path / "three", third, comparisons=[other])
        with pytest.raises(UsageError) as caught:
            dataset.load([two, path])
        return caught.value.sentence()

    said = refused(config="BL", vs="quinn")
    assert str(tmp_path / "three") in said and str(two) in said
    assert "the comparison 'quinn vs BL' is not the one of" in said and "quinn vs BL (effect) and BL vs quinn" in said
    assert "(effect) and quinn vs BL (noise_floor)" in refused(role=Role.NOISE_FLOOR, config="quinn")


def test_one_name_for_two_configurations_is_refused(tmp_path: Path) -> None:
    """Also in folders that are older than campaign.json: the levels stand with each download."""
    one = write_campaign(tmp_path / "one", two_configurations(BL=2.0, WS=1.0))
    changed = json.dumps(LEVELS["WS"] | {"window_scaling": "4"})
    others = [dataclasses.replace(d, vantage="SFO", levels=changed) for d in two_configurations(WS=1.0)]
    two = write_campaign(tmp_path / "two", others)
    with pytest.raises(
        UsageError, match=r"the configuration 'WS' is not the one of .*one: they differ in window_scaling"
    ):
        dataset.load([one, two])


def test_unproven_downloads_are_left_out_and_counted(tmp_path: Path) -> None:
    downloads = two_configurations(BL=2.0, WS=1.0)
    downloads[1] = dataclasses.replace(downloads[1], treatment_ok=None)
    downloads[3] = dataclasses.replace(downloads[3], treatment_ok=None, outcome="censored", failure="stalled")
    downloads[5] = dataclasses.replace(downloads[5], treatment_ok=None, outcome="failed", failure="stalled")
    downloads[7] = dataclasses.replace(downloads[7], treatment_ok=False)
    folder = write_campaign(tmp_path / "c", downloads)
    data = dataset.load([folder])
    (row,) = tables.table2(data)
    assert row.n == 8
    assert row.excluded == {"WS failed": 1, "WS treatment not accepted": 1, "WS treatment unproven": 2}
    (row,) = tables.table2(data, selection=Selection(unproven=True))
    assert (row.n, row.excluded) == (10, {"WS failed": 1, "WS treatment not accepted": 1})

    first = (
        "Treatment: proven for 20 downloads, unproven for 2 (left out of Table 2 and figures; --unproven includes them"
    )
    _, out = command("tables", folder)
    assert out.startswith(first) and "WS treatment unproven (2): WS vs BL" in " ".join(out.split())
    _, out = command("tables", folder, "--unproven")
    assert out.startswith(
        "Treatment: proven for 20 downloads, unproven for 2 (included by --unproven), not accepted for 1."
    )
    _, out = command("tables", folder, "--json")
    told = {"proven": 20, "unproven": 2, "not_accepted": 1, "disturbed": 0, "void": 0, "unproven_let_in": False}
    assert json.loads(out)["treatment"] == told
    done = CliRunner().invoke(app, ["tables", str(folder), "--format", "csv"])
    assert done.stderr.startswith(first) and not done.stdout.startswith("Treatment")


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_only_hits_keeps_runs_from_the_cache_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    downloads = [
        dataclasses.replace(d, cache_state="hit", identity_flags="[]") for d in two_configurations(BL=2.0, WS=1.0)
    ]
    downloads[1] = dataclasses.replace(
        downloads[1], cache_state="miss", identity_flags='["cache_miss"]', identity_detail="cache_miss: <after>"
    )
    downloads[3] = dataclasses.replace(downloads[3], cache_state="unknown")
    flags = '["edge_differs", "of a newer version"]'
    downloads[5] = dataclasses.replace(downloads[5], identity_flags=flags)
    downloads[7] = dataclasses.replace(downloads[7], outcome="failed", failure="stalled", cache_state=None)
    warm = dataclasses.replace(downloads[8], configuration="warmup", position=0, cache_state="miss")
    data = dataset.load([write_campaign(tmp_path / "c", [*downloads, dataclasses.replace(warm, identity_flags=None)])])
    rows = {row.comparison.name: row for row in tables.table2(data)}
    assert rows["WS vs BL"].n == 11
    only = Selection(only_hits=True)
    rows = {row.comparison.name: row for row in tables.table2(data, selection=only)}
    assert (rows["WS vs BL"].n, rows["WS vs BL"].excluded) == (
        9,
        {"WS failed": 1, "WS in a run with a cache miss": 1, "WS in a run with an unknown cache state": 1},
    )
    drawn = [sum(map(len, figures.plan(data, selection=one)[0].lines.values())) for one in (Selection(), only)]
    assert drawn == [23, 19] and "cache hits only; warm-ups" in figures.members_sentence(only)
    same = (
        "Same object, same server: 10 of 12 measurement runs have no flag; flagged runs: cache_miss 1, edge_differs 1."
    )
    kept = "Only cache hits (--only-hits): 10 measurement runs are kept; left out are 1 with a cache miss after the "
    _, out = command("tables", tmp_path / "c")
    assert same in " ".join(out.split()) and "Only cache hits" not in out
    _, out = command("tables", tmp_path / "c", "--only-hits")
    assert same in " ".join(out.split()) and kept in " ".join(out.split())
    _, out = command("tables", tmp_path / "c", "--only-hits", "--json")
    assert json.loads(out)["identity"] == {
        "runs": 12,
        "flagged": 2,
        "by_flag": {"cache_miss": 1, "edge_differs": 1},
        "hit_runs": 10,
        "missed_runs": 1,
        "unknown_runs": 1,
        "only_hits": True,
    }
    html = report.build(data, report.ReportOptions(selection=only))
    assert same in html and kept in html and "cache_miss: &lt;after&gt;" in html


def test_a_run_of_failures_is_none_of_cache_hits(tmp_path: Path) -> None:
    hit = {"cache_state": "hit", "identity_flags": "[]"}
    failed = {"outcome": "failed", "failure": "stalled", "cache_state": None, "identity_flags": "[]"}
    downloads = [
        make_download(domain=domain, configuration=name, **changes)
        for domain, changes in (("a", hit), ("b", failed))
        for name in ("BL", "WS")
    ]
    counted = identity(dataset.load([write_campaign(tmp_path / "c", downloads)]).downloads)
    assert (counted.runs, counted.hit_runs, counted.missed_runs, counted.unknown_runs) == (2, 1, 0, 0)
    kept = findings.identity_sentences(counted, only_hits=True)[1]
    assert kept.endswith("0 with an unknown cache state; in 1 every download failed.")


def test_a_folder_of_an_older_version_has_no_cache_states(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, WS=1.0))
    file = folder / "downloads.parquet"
    table = store.read_table(file, "downloads")
    new = ("prefix", "cache_state", "edge", "age_s", "etag", "identity_flags", "identity_detail")
    store.write_table(file, "downloads", table.drop_columns(list(new)))
    _, out = command("tables", folder)
    assert "Same object" not in out
    _, out = command("tables", folder, "--only-hits")
    assert "no cache state is known here; `upshift inspect` reads it" in " ".join(out.split())
    [row] = tables.table2(dataset.load([folder]), selection=Selection(only_hits=True))
    assert (row.n, row.excluded) == (0, {"WS in a run with an unknown cache state": 12})


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_few_pairs_are_counted_and_give_no_percentages(tmp_path: Path) -> None:
    downloads = two_configurations(BL=2.0, WS=1.0)[:16]
    downloads[1] = dataclasses.replace(downloads[1], last_byte_s=3.0)
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    made = api.make_tables(data)
    heading, row = render.table2_cells(made.table2)
    shown = dict(zip(heading, row, strict=True))
    assert (shown["runs"], shown["faster %"], shown["slower %"], shown[">2"], shown["<=0.7"]) == (
        "8",
        "7/8",
        "1/8",
        "7/8",
        "1/8",
    )
    assert "Counts (3/8: 3 of 8) instead of percentages where n is below 10." in text_of(made)
    (finding,) = findings.findings(made.table2)
    assert finding.sentence.startswith(
        "WS was faster than BL: typically 2.00 times as fast, by how much is open with fewer than 10 domains (q = "
        "0.016; 8 domains, 8 runs). Of the domains, 7 of 8 are at least 2 % faster and 1 of 8 at least 2 % slower"
    )
    html = report.build(data, report.ReportOptions())
    table2 = html[html.index('id="speedups"') :].partition("</table>")[0].replace("perhaps less than 2 %", "")
    assert ">7/8<" in table2 and "7 of 8 runs" in table2 and not re.search(r"\d %", table2)
    (row_csv,) = csv.DictReader(io.StringIO(made.csv("table2")))
    assert float(row_csv["faster"]) == 7 / 8 and row_csv["n"] == "8"


def test_mismatched_and_failed_downloads_stay_out(tmp_path: Path) -> None:
    downloads = two_configurations(BL=2.0, WS=1.0)
    downloads[1] = dataclasses.replace(downloads[1], treatment_ok=False)
    downloads[7] = dataclasses.replace(downloads[7], void_reason="host_dropped")
    downloads[2] = dataclasses.replace(downloads[2], outcome="failed", failure="stalled")
    downloads[9] = dataclasses.replace(downloads[9], host_disturbance="client_late")
    downloads[5] = dataclasses.replace(downloads[5], last_byte_s=None)
    (row,) = tables.table2(dataset.load([write_campaign(tmp_path / "c", downloads)]))
    assert row.n == 7
    assert row.excluded == {
        "BL failed": 1,
        "WS disturbed by the host (client_late)": 1,
        "WS treatment not accepted": 1,
        "WS void measurement run": 1,
        "WS without a time": 1,
    }


def test_censored_downloads_are_bounds(tmp_path: Path) -> None:
    downloads = two_configurations(BL=9.0, WS=1.0)
    late = {"outcome": "censored", "failure": "stalled", "last_byte_s": 0.5, "budget_s": 10.0}
    downloads[0] = dataclasses.replace(downloads[0], **late)  # type: ignore[arg-type]
    large = {"outcome": "censored", "failure": "byte_budget", "last_byte_s": 0.5}
    downloads[3] = dataclasses.replace(downloads[3], **large)  # type: ignore[arg-type]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    (row,) = tables.table2(data)
    # The stalled reference took more than 10 s: over 10. The byte budget ended WS at 0.5 s: under 18, so anything.
    assert (row.n, row.bounds, row.faster.count, row.undecided.count) == (12, 2, 11, 1)
    (row,) = tables.table2(data, metric=Metric.THROUGHPUT)
    assert (row.n, row.bounds, row.undecided.count) == (12, 2, 2)


def test_throughput_metric_is_the_papers_ratio(tmp_path: Path) -> None:
    downloads = two_configurations(BL=1.0, WS=1.0)
    folder = write_campaign(
        tmp_path / "c",
        downloads,
        kpis=lambda d: make_kpis(d, mean_throughput=10.0 if d.configuration == "BL" else 12.5),
    )
    data = dataset.load([folder])
    (row,) = tables.table2(data, metric=Metric.THROUGHPUT)
    assert row.median.value == pytest.approx(1.25)
    assert row.bins[BIN_NAMES.index("1.2-1.3")].share == 1.0


def test_without_kpis_time_works_and_throughput_says_why(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=1.0, WS=1.0), kpis=False)
    data = dataset.load([folder])
    assert "has no KPIs" in data.notes[0] and "upshift inspect" in data.notes[0]
    assert tables.table2(data)[0].n == 12
    with pytest.raises(UsageError, match="mean_throughput"):
        tables.table2(data, metric=Metric.THROUGHPUT)


def test_groups_are_in_their_order(tmp_path: Path) -> None:
    downloads = [
        make_download(domain=f"d{i}", iteration=iteration, configuration=c, provider=p)
        for i, p in enumerate(("other", "google", "akamai"))
        for iteration in (1, 2, 10)
        for c in ("BL", "WS")
    ]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    assert [row.group for row in tables.table2(data, by=Grouping.ITERATION)] == ["1", "2", "10"]
    assert [row.group for row in tables.table2(data, by=Grouping.PROVIDER)] == ["akamai", "google", "other"]
    assert [row.n for row in tables.table2(data, by=Grouping.VANTAGE)] == [9]


def test_folders_are_pooled_and_never_counted_twice(tmp_path: Path) -> None:
    downloads = two_configurations(BL=2.0, WS=1.0)
    one = write_campaign(tmp_path / "one", downloads)
    later = [dataclasses.replace(d, started_at=d.started_at + 1e5) for d in downloads]
    two = write_campaign(tmp_path / "two", later)
    copy = write_campaign(tmp_path / "copy", downloads)
    assert tables.table2(dataset.load([one, two]))[0].n == 24
    with pytest.raises(UsageError, match="is also in"):
        dataset.load([one, copy])
    with pytest.raises(UsageError, match="named twice"):
        dataset.load([one, tmp_path / "two" / ".." / "one"])
    with pytest.raises(UsageError, match="is listed twice"):
        dataset.load([write_campaign(tmp_path / "double", [downloads[0], downloads[0]], kpis=False)])


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        dataset.load([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no downloads\.parquet; name the --out folder .* finish there"):
        dataset.load([tmp_path / "empty"])
    (tmp_path / "empty" / "vantage" / "A").mkdir(parents=True)
    (tmp_path / "empty" / "vantage" / "A" / "journal.sqlite").touch()
    with pytest.raises(UsageError, match=r"no downloads\.parquet; run: upshift inspect .*/empty$"):
        dataset.load([tmp_path / "empty"])
    with pytest.raises(UsageError, match="this is a file, not a folder; name the --out folder"):
        dataset.load([tmp_path / "empty" / "vantage" / "A" / "journal.sqlite"])
    with pytest.raises(UsageError, match="it has no downloads"):
        dataset.load([write_campaign(tmp_path / "none planned", [], kpis=False)])
    good = write_campaign(tmp_path / "good", [make_download()])
    (good / "lab.json").write_text("{")
    with pytest.raises(UsageError, match=r"lab\.json: this is not valid JSON"):
        dataset.load([good])
    (good / "lab.json").write_text("[]")
    with pytest.raises(UsageError, match="not a JSON object"):
        dataset.load([good])
    (good / "lab.json").unlink()
    (good / "superseded.parquet").write_text("no")
    with pytest.raises(UsageError, match="not a readable Parquet"):
        dataset.load([good])
    write_superseded(good / "superseded.parquet", [])
    table = store.read_table(good / "downloads.parquet", "downloads")
    others = [
        make_download(domain="other.example", configuration=name, iteration=n) for n, name in ((2, "WS"), (1, "BL"))
    ]
    other = write_campaign(tmp_path / "other", others)
    read = store.read_table(other / "downloads.parquet", "downloads")
    both = pa.concat_tables([table, read.slice(1), read.slice(0, 1)])
    store.write_table(good / "downloads.parquet", "downloads", both)
    with pytest.raises(UsageError, match="rows of two measurement runs have the number 0"):
        dataset.load([good])
    at = table.schema.get_field_index("run")
    for changed in (table.drop_columns(["run"]), table.set_column(at, "run", pa.nulls(1, pa.int64()))):
        store.write_table(good / "downloads.parquet", "downloads", changed)
        with pytest.raises(UsageError, match="the column run has empty cells"):
            dataset.load([good])
    (good / "campaign.json").unlink()
    with pytest.raises(UsageError, match=r"campaign\.json: file not found; run the same `upshift run` again"):
        dataset.load([good])


def test_kpis_that_do_not_match_are_told(tmp_path: Path) -> None:
    rows = [make_download(), make_download(configuration="WS")]
    folder = write_campaign(tmp_path / "c", rows, kpis=lambda d: make_kpis(d) if d.configuration == "BL" else None)
    assert "1 of 2 downloads" in dataset.load([folder]).notes[0]


def test_csv_has_the_promised_columns(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, BL2=2.1, WS=1.0))
    code, out = command("tables", folder, "--format", "csv", "--table", "2")
    assert code == 0
    assert out.startswith(
        "comparison,role,config,vs,n,faster,slower,<=0.7,0.7-0.8,0.8-0.9,0.9-1.0,1.0-1.1,1.1-1.2,1.2-1.3,1.3-1.5,1.5-2,>2,"
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    told = [(row["comparison"], row["role"], row["n"], row[">2"], row["0.9-1.0"]) for row in rows]
    assert told == [("BL2 vs BL", "noise_floor", "12", "0", "1"), ("WS vs BL", "effect", "12", "1", "0")]
    for row in rows:
        sides = sum(float(row[name]) for name in ("faster", "slower", "tie", "undecided"))
        bins = sum(float(row[name]) for name in (*BIN_NAMES, "bin_undecided"))
        assert sides == bins == pytest.approx(1)
    assert (folder / "tables" / "table2.csv").read_text() == out
    files = [f"{name}.{suffix}" for name in api.TABLES for suffix in ("csv", "md")]
    assert sorted(p.name for p in (folder / "tables").iterdir()) == sorted([*files, "pairs.parquet"])
    code, out = command("tables", folder, "--latex", "--table", "2")
    assert code == 0 and out.startswith("\\begin{tabular}{lr") and out.count("\\end{tabular}") == 2
    assert "WS vs BL & faster, at least 5 \\% & 2.00 [2.00--2.00] &" in out and "\\textless{}=0.7" in out


def test_a_name_of_a_strangers_folder_is_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, provider="=1+1") for row in two_configurations(BL=2.0, WS=1.0)]
    _, out = command("tables", write_campaign(tmp_path / "c", rows), "--format", "csv", "--table", "1")
    assert {row["provider"] for row in csv.DictReader(io.StringIO(out))} == {" =1+1"}


def test_groups_stand_before_the_other_columns(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, WS=1.0))
    _, out = command("tables", folder, "--format", "csv", "--table", "2", "--by", "vantage")
    assert out.splitlines()[0].startswith("vantage,comparison,role,config,vs,n,faster,slower,<=0.7,")
    assert out.splitlines()[1].startswith("MUC,WS vs BL,effect,WS,BL,12,1,0,")


def test_only_one_table_is_in_the_document_too(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, WS=1.0))
    _, out = command("tables", folder, "--json", "--table", "2")
    assert {*api.TABLES} & {*json.loads(out)} == {"table2"}


def test_pairs_of_other_downloads_are_not_left_beside_new_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_campaign(tmp_path / "c", two_configurations(BL=2.0, WS=1.0))
    command("tables", folder)
    assert (folder / "tables/pairs.parquet").exists()
    monkeypatch.setattr(dataset, "MOST_RECORDS", 1)
    said = CliRunner().invoke(app, ["tables", str(folder)]).stderr
    assert not (folder / "tables/pairs.parquet").exists() and "Without pairs.parquet, of more than 1 downloads" in said
    command("tables", folder, "--pairs")
    assert (folder / "tables/pairs.parquet").exists()


def test_json_is_one_document(tmp_path: Path) -> None:
    downloads = two_configurations(BL=2.0, WS=1.0)
    downloads[0] = dataclasses.replace(downloads[0], outcome="censored", failure="stalled")
    folder = write_campaign(tmp_path / "c", downloads)
    code, out = command("tables", folder, "--json")
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (code, document["schema"], document["metric"]) == (0, 1, "time")
    assert document["table2"][0]["faster"] == 1.0
    assert document["table1"][0]["causes"] == {"stalled": 1}


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    downloads, _ = realistic(domains=12)
    one = tables.table2(dataset.load([write_campaign(tmp_path / "one", downloads)]))
    assert one == tables.table2(dataset.load([write_campaign(tmp_path / "other", downloads[::-1])]))
    assert {row.verdict for row in one if row.comparison.role is Role.EFFECT} <= set(Verdict)


@pytest.fixture(scope="module")
def one_failed(tmp_path_factory: pytest.TempPathFactory) -> api.Tables:
    """The tables of a realistic campaign in which one download failed."""
    downloads, _ = realistic(domains=12)
    downloads[3] = dataclasses.replace(downloads[3], outcome="failed", failure="connect_timeout")
    return api.make_tables(dataset.load([write_campaign(tmp_path_factory.mktemp("one-failed") / "c", downloads)]))


@pytest.mark.thorough
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200, 240])
def test_every_table_fits_the_terminal(one_failed: api.Tables, width: int) -> None:
    lines = on_terminal(one_failed.show, width)
    assert max(map(len, lines)) <= width
    row, *split = [line for line in lines if line.startswith(f"quiche vs {'aioquic' if width > 60 else 'BL'} ")]
    assert not split, "no capture, so no limiter"
    assert re.search(r"(faster|slower|equivalent|undecided).* [01]\.\d\d \[[^]]*\] .* 12 +36", row), "with its verdict"
    assert [line for line in lines if line.startswith("MUC") and " TCP " in line]
    text = "\n".join(lines)
    assert len(re.findall(r" (?:<0\.001|0\.\d\d\d?|1\.00)(?= )", row)) == (width > 80) + (width > 200), "q, and p"
    assert bool(re.search(r"\] +(?:\d\.\d\d +)?\d+ .* 12 +36", row)) == (width > 80), "shares of domains"
    assert ("handshake" in text) == (width >= 120) and ("1.0-" in text) == (width >= 200), "bins where there is room"
    assert ("in a wider terminal" in " ".join(text.split())) == (width < 240)
    assert re.search(r"ECN.* connect_timeout 1|ECN: connect_timeout 1", text)


def test_a_file_is_as_wide_whatever_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads, _ = realistic(domains=12)
    made = api.make_tables(dataset.load([write_campaign(tmp_path / "c", downloads)]))
    texts = []
    for width in (40, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        texts.append(text_of(made))
    assert texts[0] == texts[1] and 100 < max(map(len, texts[0].splitlines())) <= 120


def test_text_is_whole_and_has_no_control_characters(tmp_path: Path) -> None:
    hostile = "evil\x1b[31m|<b>\r"
    downloads = [make_download(provider=hostile, configuration=name, vantage=hostile) for name in ("BL", hostile)]
    declared = [Comparison(name="evil|<b> row", config=hostile, vs="BL")]
    data = dataset.load([write_campaign(tmp_path / "c", downloads, comparisons=declared)])
    made = api.make_tables(data, by=Grouping.PROVIDER)
    assert not set(text_of(made)) & set("\x1b\r\a")
    assert "evil" in text_of(made)
    markdown = made.files("md")
    assert "<b>" not in markdown and "\\|" in markdown and "\x1b" not in markdown
    assert "Table 1" in text_of(made) and "No interval if n comes from fewer than 10 domains" in text_of(made)


def test_several_folders_write_beside_the_first(tmp_path: Path) -> None:
    one = write_campaign(tmp_path / "one", two_configurations(BL=2.0, WS=1.0))
    two = write_campaign(tmp_path / "two", [dataclasses.replace(d, vantage="SFO") for d in two_configurations(BL=1.0)])
    assert command("tables", one, two)[0] == 0
    assert (one / "combined" / "tables" / "table2.csv").is_file()
    assert command("tables", one, two, "--out", tmp_path / "here")[0] == 0
    assert (tmp_path / "here" / "tables" / "table1.md").is_file()
    with pytest.raises(UsageError, match="--out"):
        command("tables", one, "--out", one / "downloads.parquet")


def test_medians_in_words() -> None:
    def text(value: float | None, least: float | None, most: float | None) -> str:
        return render.median_text(render.Median(value=value, least=least, most=most))

    assert text(1.234, 1.234, 1.234) == "1.23"
    assert text(None, None, None) == "–"
    assert text(None, 0.0, 0.61) == "<0.61"
    assert text(None, 2.1, math.inf) == ">2.10"
    assert text(None, 0.0, math.inf) == "?"
    assert text(None, 0.5, 1.5) == "0.50…1.50"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, upshift.commands.tables;"
        "heavy = {'numpy', 'scipy', 'pyarrow', 'matplotlib', 'jinja2', 'rich.table'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for name in ("tables", "figures", "report"):
        exit_code, out = command(name, "--help")
        assert exit_code == 0 and "--out" in out
    with pytest.raises(AttributeError):
        cli.nothing  # noqa: B018


def test_factory_has_the_papers_configurations() -> None:
    assert {"BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche", "warmup"} == set(LEVELS)
