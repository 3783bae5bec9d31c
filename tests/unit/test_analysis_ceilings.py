"""Downloads near their client's ceiling: flagged, unknown without a calibration, hatched, left out on demand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis.measures import ceilings, dataset, selection, tables
from analysis.measures.selection import Selection
from analysis.report import figures, findings, report
from core.domain import Comparison, Download
from tests.unit.analysis_factory import make_download, write_campaign
from upshift.cli import app

ONLY = Selection(unlimited_only=True)


def environment(**clients: Any) -> dict[str, Any]:
    """`environment.json` of a vantage point with these ceilings [Mbit/s], or entries."""
    entries = {
        name: entry if isinstance(entry, dict) else {"ceiling_mbit_s": entry, "fault": None, "stale": []}
        for name, entry in clients.items()
    }
    return {"schema": 1, "vantage_points": {"MUC": {"client_ceilings": {"clients": entries}}}}


def downloads() -> list[Download]:
    """On each of 12 domains BL (requests, 8.5 Mbit/s from first to last body byte) and quiche (17 Mbit/s)."""
    return [
        make_download(
            domain=f"d{index}.example", configuration=name, body_bytes=body, first_byte_s=0.06, last_byte_s=1.0
        )
        for index in range(12)
        for name, body in (("BL", 1_000_000), ("quiche", 2_000_000))
    ]


@pytest.mark.parametrize(
    ("changes", "ceiling_mbit_s", "near"),
    [
        ({}, 12.2, False),  # 8 Mbit in 0.94 s are 8.51 Mbit/s, 70 % of 12.16
        ({}, 12.1, True),
        ({"outcome": "censored", "failure": "time_budget"}, 12.1, True),
        ({"outcome": "failed", "failure": "truncated_body"}, 12.1, None),
        ({"first_byte_s": None, "last_byte_s": None, "body_bytes": 0}, 12.1, None),
        ({"first_byte_s": 1.0}, 12.1, None),  # it came as one piece: no rate
        ({}, None, None),
    ],
)
def test_above_70_per_cent_is_near(
    tmp_path: Path, changes: dict[str, Any], ceiling_mbit_s: float | None, near: bool | None
) -> None:
    known = environment(**({} if ceiling_mbit_s is None else {"requests": ceiling_mbit_s}))
    folder = write_campaign(tmp_path / "c", [dataclasses.replace(make_download(), **changes)], environment=known)
    assert [record.near_ceiling for record in dataset.load([folder]).records] == [near]


@pytest.mark.parametrize(
    ("found", "mbit_s", "fault"),
    [
        (environment(quiche=900), 900.0, None),
        (environment(requests=900), None, "not calibrated"),
        (
            environment(quiche={"ceiling_mbit_s": 900.0, "stale": ["kernel 6.1 -> 6.2"]}),
            None,
            "stale: kernel 6.1 -> 6.2",
        ),
        (environment(quiche={"ceiling_mbit_s": None, "fault": "h3get is missing"}), None, "h3get is missing"),
        (environment(quiche={"ceiling_mbit_s": "fast"}), None, "not calibrated"),
        (environment(quiche={"ceiling_mbit_s": True}), None, "not calibrated"),
        (environment(quiche=["?"]) | {"vantage_points": ["MUC"]}, None, "not calibrated"),
        ({"vantage_points": {"MUC": {"client_ceilings": None}}}, None, "not calibrated"),
        ({"vantage_points": {"MUC": {"client_ceilings": {"clients": {}, "fault": "old"}}}}, None, "old"),
        (None, None, "not calibrated"),
    ],
)
def test_a_ceiling_out_of_the_environment(found: Any, mbit_s: float | None, fault: str | None) -> None:
    known = ceilings.ceiling(found, vantage="MUC", client="quiche")
    assert (known.mbit_s, known.fault) == (mbit_s, fault)


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_flagged_downloads_are_counted_and_left_out_on_demand(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", downloads(), environment=environment(requests=900, quiche=20))
    data = dataset.load([folder])
    limits = selection.client_limits(data.downloads)
    assert (limits.downloads, limits.near, limits.unknown) == (24, {"quiche": 12}, 0)
    rows = {row.configuration: row for row in tables.configurations(data)}
    assert {name: (row.near_ceiling, row.ceiling_unknown) for name, row in rows.items()} == {
        "BL": (0, 0),
        "quiche": (12, 0),
    }
    [pair] = [row for row in tables.table2(data) if row.comparison.name == "quiche vs BL"]
    [left] = [row for row in tables.table2(data, selection=ONLY) if row.comparison.name == "quiche vs BL"]
    assert pair.n == 12 and (left.n, left.excluded) == (0, {"quiche near the client's ceiling": 12})
    said = "Client ceilings: 12 of 24 downloads were faster than 70 % of what their client can do here (quiche 12); "
    done = CliRunner().invoke(app, ["tables", str(folder)])
    assert said + "--unlimited-only leaves them out." in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["tables", str(folder), "--unlimited-only", "--json"])
    told = json.loads(done.stdout)["client_ceilings"]
    assert told == {
        "downloads": 24,
        "near": {"quiche": 12},
        "doubtful": 0,
        "unknown": 0,
        "reasons": {},
        "unlimited_only": True,
    }
    html = report.build(data, report.ReportOptions(selection=ONLY))
    assert (said + "left out by --unlimited-only.").replace("'", "&#39;") in html
    assert "above 70 % of its client&#39;s ceiling" in html and "near-ceiling" in html


def test_the_tables_of_a_host_that_changed_have_each_calibration() -> None:
    """A download may be near the ceiling of before, of which the report showed nothing."""

    def calibrated(mbit_s: float) -> dict[str, Any]:
        transfer = {"server": "nginx", "mbit_s": mbit_s, "client_core_share": 0.9, "server_core_share": 0.2}
        entry = {"ceiling_mbit_s": mbit_s, "http": "1.1", "family": "curl", "transfers": [transfer]}
        found: dict[str, Any] = environment(**{"curl-h1": entry})["vantage_points"]["MUC"]
        return found

    known = {"vantage_points": {"MUC": calibrated(2000.0)}}
    until = {"until A": {"kernel": "6.1"}, "until B": calibrated(800.0), "until C": {"client_ceilings": None}}
    assert [name for name, _ in ceilings.fixed_rate_tables(known)] == ["MUC"]
    known["vantage_points"]["MUC"]["earlier"] = until | {"until D": None}
    found = dict(ceilings.fixed_rate_tables(known))
    assert list(found) == ["MUC", "MUC until B"]
    assert "800" in found["MUC until B"][1]
    known["vantage_points"]["MUC"]["earlier"] = ["?"]
    assert list(dict(ceilings.fixed_rate_tables(known))) == ["MUC"]


def test_a_ceiling_of_a_busy_host_is_said_to_be_too_low(tmp_path: Path) -> None:
    busy = environment(requests=900, quiche=20)
    busy["vantage_points"]["MUC"]["client_ceilings"]["too_low"] = True
    out = CliRunner().invoke(app, ["tables", str(write_campaign(tmp_path / "c", downloads(), environment=busy))]).stdout
    said = "for 12 of them the ceiling is too low, as other programs used the CPUs when it was measured."
    assert said in " ".join(out.split())


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_without_a_valid_calibration_it_is_unknown_and_nothing_is_left_out(tmp_path: Path) -> None:
    stale = {"ceiling_mbit_s": 1.0, "stale": ["kernel 6.1 -> 6.2"]}
    for name, told, why in (
        ("none", None, "BL: ?"),
        ("stale", environment(requests=stale, quiche=stale), "stale"),
    ):
        data = dataset.load([write_campaign(tmp_path / name, downloads(), environment=told)])
        limits = selection.client_limits(data.downloads)
        assert (limits.near, limits.unknown) == ({}, 24), why
        [row] = [row for row in tables.table2(data, selection=ONLY) if row.comparison.name == "quiche vs BL"]
        assert row.n == 12
    said = "Client ceilings: unknown for 24 of 24 ("
    out = CliRunner().invoke(app, ["tables", str(tmp_path / "none")]).stdout
    assert said + "quiche, requests: not calibrated); before a campaign, run upshift doctor --calibrate." in " ".join(
        out.split()
    )
    assert "quiche, requests: stale: kernel 6.1 -&gt; 6.2" in report.build(data, report.ReportOptions())


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({}, None),
        (
            {"requests": 10},
            "requests was near its ceiling in curl-h3 vs BL, which may measure it; read curl-h3 vs curl-h1.",
        ),
        ({"requests": 10, "curl-h1": 10}, "; none is known to be free of that; one with curl-h1 or curl-h2 may be."),
        ({"requests": 10, "curl-h1": None}, "; none is known to be free of that; one with curl-h1 or curl-h2 may be."),
    ],
)
def test_the_report_says_which_tcp_row_to_read(tmp_path: Path, slow: dict[str, Any], said: str | None) -> None:
    rows = [
        make_download(**quic, domain=f"d{index}.example", configuration=name, client=client, last_byte_s=1.0)
        for index in range(12)
        for name, client, quic in (
            ("BL", "requests", {}),
            ("curl-h1", "curl-h1", {}),
            ("curl-h3", "curl-h3", {"transport": "quic", "tls_s": None}),
        )
    ]
    known = environment(**{"requests": 900, "curl-h1": 900, "curl-h3": 900} | slow)
    entries = known["vantage_points"]["MUC"]["client_ceilings"]["clients"]
    transfer = {"server": "nginx", "mbit_s": 1234.0, "client_core_share": 0.9, "server_core_share": 0.2}
    entries["curl-h1"] |= {"http": "1.1", "family": "curl", "transfers": [transfer]}
    compared = [Comparison.of("curl-h3", "BL"), Comparison.of("curl-h3", "curl-h1"), Comparison.of("curl-h1", "BL")]
    data = dataset.load([write_campaign(tmp_path / "c", rows, environment=known, comparisons=compared)])
    sentence = findings.tcp_row_sentence(data.design, selection.client_limits(data.downloads))
    assert (sentence is None) if said is None else (sentence or "").endswith(said)
    if slow == {"requests": 10}:  # one page is enough: it has what the function says
        html = report.build(data, report.ReportOptions())
        assert sentence and sentence.replace("'", "&#39;") in html
        assert "MUC, as calibrated" in html and "1,234 (?)" in html and "&#39;mbit_s&#39;" not in html


@pytest.mark.thorough
def test_curves_are_hatched_where_the_client_may_be_measured(tmp_path: Path) -> None:
    data = {
        rate: dataset.load(
            [write_campaign(tmp_path / str(rate), downloads(), environment=environment(requests=900, quiche=rate))]
        )
        for rate in (20, 900)
    }
    for rate, is_hatched in ((20, True), (900, False)):
        for figure in figures.plan(data[rate]):
            assert ("<pattern" in figures.inline_svg(figure)) is is_hatched
    for figure in figures.plan(data[20], selection=ONLY):
        assert "<pattern" not in figures.inline_svg(figure)
        rows = np.concatenate([*figure.lines.values()])
        assert data[20].downloads.client[rows].present() == {"requests"}
