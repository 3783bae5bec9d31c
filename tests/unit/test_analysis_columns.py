"""Campaign folders as columns: the same tables as download by download, for any state and order of the rows."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis.captures.limiter import Limiter
from analysis.measures import costs, dataset, limiters, pair_table, selection, stopping, tables
from analysis.measures.dataset import Dataset
from analysis.measures.rows import Grouping, Metric
from analysis.measures.selection import Selection
from core import paper
from core.domain import Comparison, Dose, Download, Role
from core.errors import PlaceError, UsageError
from core.files import store
from core.sequential import Quantity
from core.system import this_host
from tests.cells import examples
from tests.unit import analysis_reference as reference
from tests.unit.analysis_factory import LEVELS, make_download, make_kpis, make_superseded, realistic, write_campaign
from upshift.cli import app

NAMES = ("BL", "BL2", "ECN", "WS", "quiche")
COMPARISONS = (
    *(c for c in paper.COMPARISONS if {c.config, c.vs} <= set(NAMES)),
    Comparison.of("WS", "ECN"),
    Comparison.of("warmup", "BL", Role.CACHE),
)
DOSES = {
    "ecn": Dose(kpi="ce_packets", above=0, words="CE seen"),
    "window_scaling": Dose(kpi="limiter", above=0, words="receive window limiting", equals="receive_window"),
}
CEILINGS: dict[str, Any] = {
    "requests": {"ceiling_mbit_s": 10.0, "fault": None, "stale": []},
    "quiche": {"ceiling_mbit_s": 9.0, "fault": None, "stale": ["kernel"]},
}
STOPPING = {"rule": {"median": 0.05, "share": 0.2}, "reached": True, "recorded_runs": 9, "planned_runs": 12}
STOPPING |= {"counted_runs": 4}
ENVIRONMENT = {
    "vantage_points": {"MUC": {"client_ceilings": {"clients": CEILINGS, "too_low": True}}},
    "stopping": {"MUC": STOPPING},
}

seconds = st.sampled_from([None, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 3.0])
STATES: dict[str, st.SearchStrategy[Any]] = {
    "outcome": st.sampled_from(["ok", "ok", "ok", "ok", "failed", "censored"]),
    "failure": st.sampled_from([None, None, "time_budget", "byte_budget", "tls_error", ""]),
    "failure_code": st.sampled_from([None, "alert", "in_body", ""]),
    "last_byte_s": seconds,
    "first_byte_s": st.sampled_from([None, 0.06, 1.0]),
    "budget_s": st.sampled_from([1.0, 10.0]),
    "transfer_cpu_s": st.sampled_from([None, 0.1, 0.9]),
    "run_delay_s": st.sampled_from([None, 0.004, 0.6]),
    "treatment_ok": st.sampled_from([True, True, True, False, None]),
    "treatment_reason": st.sampled_from([None, "bleached", "stripped"]),
    "void_reason": st.sampled_from([None] * 9 + ["port_reused"]),
    "host_disturbance": st.sampled_from([None] * 9 + ["client_late", "another"]),
    "slow_handshake": st.sampled_from([None, True, False]),
    "cache_state": st.sampled_from(["hit", "hit", "hit", "miss", "unknown", None]),
    "identity_flags": st.sampled_from([None, "[]", "[]", '["cache_miss", "new_one"]', '["age_differs"]', "damaged"]),
    "provider": st.sampled_from(["akamai", "akamai", "other", "google"]),
    "asn": st.sampled_from([64496, 64500, 7]),
}
"""Column -> what a download may have there."""


@st.composite
def campaigns(draw: st.DrawFn) -> list[list[Download]]:
    """Downloads of one or two folders: runs with any configurations, in any order, each column in any state."""
    folders = []
    states = st.fixed_dictionaries({}, optional=STATES)
    for folder in range(draw(st.integers(1, 2))):
        rows = []
        for number in range(draw(st.integers(1, 12))):
            place = {"vantage": draw(st.sampled_from(["MUC", "SFO"])), "iteration": number % 3 + 1}
            place["domain"] = f"d{number // 3 if number < 9 else number}.example"
            for position, name in enumerate(("warmup", *draw(st.permutations(NAMES))[: draw(st.integers(1, 5))])):
                changes = place | {"configuration": name, "position": position, "started_at": 1e9 * (folder + 1)}
                rows.append(make_download(**{"cache_state": "hit", "asn": 64496} | changes | draw(states)))
        draw(st.randoms(use_true_random=False)).shuffle(rows)
        folders.append(rows)
    return folders


def write(folder: Path, rows: list[Download], seed: int) -> Path:
    """A folder whose KPIs lack some values."""
    chance = random.Random(seed)

    def kpis(row: Download) -> dict[str, Any]:
        some = {"ce_packets": 3.0, "flight_lower_max": 70_000.0, "mean_throughput": 8.0}
        return make_kpis(row) | {name: chance.choice([None, 0.0, value, value]) for name, value in some.items()}

    return write_campaign(
        folder,
        rows,
        kpis=kpis if seed % 4 else False,
        environment=ENVIRONMENT if seed % 3 else None,
        comparisons=[c for c in COMPARISONS if {c.config, c.vs} <= {row.configuration for row in rows}],
        doses=DOSES,
        superseded=[make_superseded()],
    )


@pytest.mark.thorough
@settings(
    deadline=None, max_examples=examples(5), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(campaigns(), st.integers(0, 11), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(list(Metric)))
def test_tables_equal_those_made_download_by_download(
    folders: list[list[Download]], seed: int, unproven: bool, only_hits: bool, unlimited_only: bool, metric: Metric
) -> None:
    chosen = Selection(unproven=unproven, only_hits=only_hits, unlimited_only=unlimited_only)
    with tempfile.TemporaryDirectory() as name:
        paths = [write(Path(name, str(number)), rows, seed) for number, rows in enumerate(folders)]
        data = dataset.load(paths)
        check(data, chosen, metric if "mean_throughput" in data.kpi_units else Metric.TIME)
        read = [dataclasses.replace(record.download, run=None, kpi_engine=None) for record in data.records]
        assert read == [row for rows in folders for row in rows]
        again = data.with_records(data.records)
        assert tables.table2(again, selection=chosen) == tables.table2(data, selection=chosen)


def check(data: Dataset, chosen: Selection, metric: Metric) -> None:
    """Everything that is made of columns against the slow way."""
    assert tables.table1(data) == reference.table1(data)
    assert tables.configurations(data) == reference.configurations(data)
    assert selection.client_limits(data.downloads) == reference.client_limits(data)
    assert selection.identity(data.downloads) == reference.identity(data.records)
    rows = tables.table2(data, metric=metric, selection=chosen)
    assert rows == reference.table2(data, metric=metric, by=None, selection=chosen)
    for by in Grouping:
        rows = tables.table2(data, metric=metric, by=by, selection=chosen)
        assert rows == reference.table2(data, metric=metric, by=by, selection=chosen), by
    samples = costs.samples(data, metric=metric, selection=chosen)
    parts = [[part for _, part in row.parts] for row in tables.dose_rows(data, samples)]
    assert parts == reference.dose_parts(data, metric=metric, selection=chosen)
    check_stopping(data, unproven=chosen.unproven)


def check_stopping(data: Dataset, *, unproven: bool) -> None:
    """Intervals of campaigns that may stop early."""
    effects = [comparison for comparison in data.design.comparisons if comparison.role is Role.EFFECT]
    with_rule = [index for index, folder in enumerate(data.folders) if folder.environment]
    found = stopping.stoppings(data, unproven=unproven)
    assert [one.vantage for one in found] == ["MUC"] * len(with_rule)
    for folder, one in zip(with_rule, found, strict=True):
        for comparison, row in zip(effects, one.rows, strict=True):
            steps = reference.steps(data, comparison, "MUC", folder=folder, unproven=unproven, counted=4)
            assert (row.comparison, row.domains) == (comparison.name, len(steps.domains))
            assert (row.median, row.share) == (steps.interval(Quantity.MEDIAN), steps.interval(Quantity.SHARE))
            assert row.meets == steps.meets(one.rule)


@pytest.mark.thorough
@pytest.mark.parametrize("metric", list(Metric))
def test_a_realistic_campaign_has_the_same_tables(tmp_path: Path, metric: Metric) -> None:
    downloads, _ = realistic(iterations=2)
    check(dataset.load([write_campaign(tmp_path / "c", downloads)]), Selection(), metric)


def test_a_download_twice_or_in_two_folders_is_named(tmp_path: Path) -> None:
    rows = [make_download(domain=f"d{n}", configuration=name) for n in range(3) for name in ("BL", "WS")]
    write_campaign(tmp_path / "twice", [*rows, rows[3]])
    with pytest.raises(UsageError, match="download MUC, iteration 1, d1, WS is listed twice"):
        dataset.load([tmp_path / "twice"])
    one = write_campaign(tmp_path / "one", rows)
    late = [dataclasses.replace(row, started_at=row.started_at + 1) for row in rows[:4]]
    assert len(dataset.load([one, write_campaign(tmp_path / "later", late)]).downloads) == 10
    other = write_campaign(tmp_path / "other", [*late, *rows[4:]])
    with pytest.raises(UsageError, match=f"download MUC, iteration 1, d2, BL is also in {one}"):
        dataset.load([one, other])


def test_codes_get_wider_as_more_texts_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(store, "ROWS_SCANNED_AT_ONCE", 50)
    rows = [make_download(domain=f"d{n // 2}", configuration=f"C{n}") for n in range(600)]
    folders = [write_campaign(tmp_path / name, part) for name, part in (("one", rows[:200]), ("two", rows[200:]))]
    found = dataset.load(folders).downloads
    assert [found.configuration.names[code] for code in found.configuration.codes] == [d.configuration for d in rows]
    assert [found.runs.domain.names[code] for code in found.runs.domain.codes[found.run]] == [d.domain for d in rows]


def test_kpis_stand_beside_their_downloads(tmp_path: Path) -> None:
    rows = [make_download(domain=f"d{n}", configuration=name) for n in range(9) for name in ("BL", "WS")]
    order = random.Random(3).sample(range(len(rows)), 12)
    chosen = {rows[index]: {"rtt_min": float(index)} for index in order}
    data = dataset.load([write_campaign(tmp_path / "c", rows, kpis=chosen.get)])
    found = data.kpi("rtt_min")
    assert {row: found[row] for row in order} == {row: float(row) for row in order}
    assert np.isnan(found).sum() == len(rows) - len(order)
    assert [record.number("rtt_min") for record in data.records] == [
        float(row) if row in order else None for row in range(len(rows))
    ]
    assert "6 of 18 downloads are ok and have no KPIs" in " ".join(data.notes)
    assert np.isnan(data.kpi("no_such_kpi")).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_kpi_that_one_of_several_folders_lacks_is_empty_there(tmp_path: Path, order: tuple[int, int]) -> None:
    """A column that is missing has no type, and chunks of two types were a traceback."""
    rows = [[make_download(domain=f"d{n}", configuration=name) for name in ("BL", "WS")] for n in (0, 1)]
    texts = [{"limiter": ["congestion", "path_rate"], "new": ["a", None]}, {}]
    folders = [write_campaign(tmp_path / str(n), rows[n], texts=texts[n]) for n in order]
    data = dataset.load(folders)
    known = {"d0": ["congestion", "path_rate"], "d1": [None, None]}
    assert data.column("limiter").to_pylist() == [value for n in order for value in known[f"d{n}"]]
    assert data.has("new").sum() == 1 and not data.has("no_such_kpi").any()
    pairs = pair_table.all_pairs(data).to_pylist()
    shown = {
        row["domain"]: [row["vs_limiter"], row["config_limiter"]] for row in pairs if row["comparison"] == "WS vs BL"
    }
    assert shown == known


@pytest.mark.thorough
def test_more_records_than_can_be_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MOST_RECORDS", 3)
    data = dataset.load([write_campaign(tmp_path / "c", [make_download(domain=f"d{n}") for n in range(4)])])
    assert tables.table1(data)[0].planned == 4 and len(costs.samples(data, metric=Metric.TIME)) == 4
    with pytest.raises(UsageError, match="4 downloads are more than the 3 that can be changed one by one"):
        _ = data.records
    folder = str(tmp_path / "c")
    assert CliRunner().invoke(app, ["report", folder], catch_exceptions=False).exit_code == 0
    # What changes single ones says so before it reads any.
    monkeypatch.setattr(dataset.store, "scan", None)
    for option in ("--as-published", "--quirk-effects", "--beside=anrw23"):
        with pytest.raises(UsageError, match="4 downloads are more than the 3"):
            CliRunner().invoke(app, ["tables", option, folder], catch_exceptions=False)


def test_more_than_memory_holds_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_campaign(tmp_path / "c", [make_download(domain=f"d{n}") for n in range(4)])
    monkeypatch.setattr(dataset.this_host, "available_memory", lambda: 799)
    monkeypatch.setattr(dataset.store, "scan", None)
    for command in ("tables", "report", "figures"):
        with pytest.raises(
            PlaceError, match="4 downloads take about 800 B of memory, and 799 B are available; name fewer folders"
        ):
            CliRunner().invoke(app, [command, str(folder)], catch_exceptions=False)
    monkeypatch.undo()
    assert this_host.available_memory()
    dataset.load([folder])


@pytest.mark.thorough
@settings(deadline=None, max_examples=examples(5))
@given(st.sets(st.integers(0, 11)), st.integers(1, 5))
def test_some_records_are_those_of_all(rows: set[int], at_once: int) -> None:
    """In one folder and two, whatever the row groups."""
    downloads = [make_download(domain=f"d{n}", iteration=n + 1) for n in range(12)]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset.store, "ROWS_AT_ONCE", at_once)
        paths = []
        for part in (downloads[:7], downloads[7:]):
            paths.append(write_campaign(Path(name) / str(len(paths)), part))
            file = paths[-1] / dataset.DOWNLOADS
            table = dataset.store.read_table(file, "downloads")
            with dataset.store.RowWriter(file, "downloads", table.schema) as writer:
                for row in table.to_pylist():
                    writer.add(row)
        data = dataset.load(paths)
        chosen = np.array(sorted(rows), dtype=np.int64)
        read = data.records_of(chosen)
        assert read == [data.records[row] for row in sorted(rows)] == data.records_of(chosen)
        assert [record.download.iteration for record in read] == [row + 1 for row in sorted(rows)]


def test_no_download_becomes_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_download(configuration=name) for name in LEVELS]
    folder = write_campaign(tmp_path / "c", rows, environment=ENVIRONMENT)

    def refuse(*_: object) -> None:
        raise AssertionError("rows were read one by one")

    monkeypatch.setattr(dataset.store, "rows_at", refuse)
    monkeypatch.setattr(dataset.store, "each_row", refuse)
    monkeypatch.setattr(dataset.store, "read_rows", refuse)
    from analysis import api

    api.make_tables(dataset.load([folder])).write(tmp_path / "tables")


@pytest.mark.thorough
@settings(deadline=None, max_examples=examples(5))
@given(st.data())
def test_limiters_are_counted_as_one_by_one(told: st.DataObject) -> None:
    rows = [
        make_download(domain=f"d{n}", configuration=name, provider=("akamai", "other")[n % 2], outcome=outcome)
        for n in range(told.draw(st.integers(1, 6)))
        for name, outcome in (("warmup", "ok"), ("BL", "ok"), ("WS", "censored"), ("quiche", "failed"))
    ]
    verdict = st.sampled_from([None, "newer", *Limiter])
    share = st.dictionaries(st.sampled_from([*Limiter, "newer"]), st.sampled_from([0, 1, 0.25, 0.333]))
    with tempfile.TemporaryDirectory() as name:
        verdicts = [told.draw(verdict) for _ in rows]
        texts = [json.dumps(told.draw(share)) if told.draw(st.booleans()) else None for _ in rows]
        folder = write_campaign(Path(name), rows, texts={"limiter": verdicts, "limiter_shares": texts})
        data = dataset.load([folder])
        for read in (data, data.with_records(data.records)):
            found, expected = limiters.limiters(read), reference.limiters(data)
            assert [dataclasses.replace(row, time={}) for row in found] == [
                dataclasses.replace(row, time={}) for row in expected
            ]
            assert [row.time for row in found] == [pytest.approx(dict(row.time)) for row in expected]


@pytest.mark.parametrize("text", ["fast", "[1]", '{"sender": "all"}', "{} {}"])
def test_shares_that_are_not_json_objects_are_one_sentence(tmp_path: Path, text: str) -> None:
    texts = {"limiter": ["sender"], "limiter_shares": [text]}
    folder = write_campaign(tmp_path / "c", [make_download()], texts=texts)
    with pytest.raises(UsageError, match="limiter_shares has what is not a JSON object of numbers"):
        limiters.limiters(dataset.load([folder]))
