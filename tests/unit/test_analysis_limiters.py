"""The table of limiters: shares of downloads and of time, per configuration and provider."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.captures.limiter import Limiter
from analysis.measures import dataset
from analysis.measures.limiters import limiters
from core.domain import Comparison
from tests.unit.analysis_factory import make_download, write_campaign

KPIS = {
    ("BL", "a.example"): ("receive_window", {"receive_window": 0.8, "slow_start": 0.2}),
    ("BL", "b.example"): ("slow_start", {"slow_start": 1.0}),
    ("BL", "c.example"): (None, None),
    ("WS", "a.example"): ("path_rate", {"path_rate": 0.9, "slow_start": 0.1}),
    ("WS", "b.example"): ("path_rate", {"path_rate": 0.7, "slow_start": 0.3}),
    ("WS", "c.example"): ("of a newer version", {}),
}


@pytest.fixture
def data(tmp_path: Path) -> dataset.Dataset:
    rows = [make_download(configuration=name, domain=domain) for name, domain in KPIS]
    values = [KPIS[row.configuration, row.domain] for row in rows]
    texts = {
        "limiter": [limiter for limiter, _ in values],
        "limiter_shares": [None if shares is None else json.dumps(shares) for _, shares in values],
    }
    folder = write_campaign(tmp_path / "c", rows, comparisons=[Comparison.of("WS", "BL")], texts=texts)
    return dataset.load([folder])


def test_shares_of_downloads_and_of_time(data: dataset.Dataset) -> None:
    before, after = limiters(data)
    assert (before.configuration, before.provider, before.n, before.missing) == ("BL", "akamai", 2, 1)
    assert before.downloads[Limiter.RECEIVE_WINDOW] == before.downloads[Limiter.SLOW_START] == 0.5
    assert before.time[Limiter.SLOW_START] == pytest.approx(0.6)
    assert sum(before.downloads.values()) == sum(filter(None, before.time.values())) == pytest.approx(1)
    assert (after.n, after.downloads[Limiter.PATH_RATE], after.missing) == (2, 1.0, 1)


def test_what_was_not_treated_as_asked_or_void_counts_nowhere(tmp_path: Path) -> None:
    """A late client is no such case: it may be slow because it limits."""
    changes: list[dict[str, Any]] = [{}, {"treatment_ok": None}, {"host_disturbance": "client_late"}]
    changes += [{"treatment_ok": False}, {"void_reason": "emulator_late"}]
    rows = [make_download(domain=f"d{number}", **change) for number, change in enumerate(changes)]
    names = ["path_rate", "path_rate", "client_cpu", "congestion", "congestion"]
    texts = {"limiter": names, "limiter_shares": ["{}"] * len(rows)}
    (row,) = limiters(dataset.load([write_campaign(tmp_path / "c", rows, texts=texts)]))
    assert (row.n, row.missing, row.downloads[Limiter.CONGESTION]) == (3, 0, 0.0)


def test_the_table_is_printed_and_written(data: dataset.Dataset, tmp_path: Path) -> None:
    made = api.make_tables(data)
    rows = list(csv.DictReader(io.StringIO(made.csv("limiters"))))
    assert [row["configuration"] for row in rows] == ["BL", "WS"]
    assert (rows[0]["receive_window"], rows[0]["receive_window_time"], rows[1]["path_rate_time"]) == (
        "0.5",
        "0.4",
        "0.8",
    )
    screen = io.StringIO()
    made.show(screen, ["limiters"])
    assert "limited the downloads" in screen.getvalue() and "window" in screen.getvalue()
    assert made.markdown("limiters").startswith("| configuration | provider | n | receive window % | path rate % |")
    assert {path.name for path in made.write(tmp_path / "out")} >= {"limiters.csv", "limiters.md"}
    assert made.document()["limiters"][1]["path_rate"] == 1.0


def test_the_time_of_no_answer_is_no_share(tmp_path: Path) -> None:
    texts: dict[str, list[str | None]] = {"limiter": ["client_cpu"], "limiter_shares": ["{}"]}
    data = dataset.load([write_campaign(tmp_path / "c", [make_download()], texts=texts)])
    (row,) = limiters(data)
    assert row.downloads[Limiter.CLIENT_CPU] == 1.0 and set(row.time.values()) == {None}
    (line,) = csv.DictReader(io.StringIO(api.make_tables(data).csv("limiters")))
    assert (line["client_cpu"], line["client_cpu_time"], line["sender_time"]) == ("1", "", "")


def test_folders_without_the_kpi_have_no_rows(tmp_path: Path) -> None:
    data = dataset.load([write_campaign(tmp_path / "c", [make_download()])])
    assert limiters(data) == []
    assert "limited" not in api.make_tables(data).markdown("limiters")
