"""What the report makes of columns is what it would make download by download."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from typing import Any

import pytest

from analysis.measures import costs, dataset
from analysis.measures.dataset import Dataset
from analysis.measures.rows import Metric, SplitBy
from analysis.measures.speedup import speedup_rows
from analysis.report import campaign, checks, figures, points, targets
from core.domain import Download
from tests.unit import report_reference as reference
from tests.unit.analysis_factory import realistic, write_campaign


def spoilt(d: Download, draw: random.Random) -> Download:
    """The download with something wrong, or with more that its server said."""
    changes: list[dict[str, Any]] = [
        {"outcome": "failed", "failure": "tls_error", "failure_detail": "alert", "last_byte_s": None},
        {"outcome": "censored", "failure": "time_budget", "last_byte_s": 9.0},
        {"treatment_ok": False, "treatment_reason": "stripped", "treatment_detail": "by a middlebox"},
        {"treatment_ok": None},
        {"void_reason": "emulator_late"},
        {"host_disturbance": "late_client", "host_disturbance_detail": "by 20 ms"},
        {"identity_detail": "another edge"},
        {"tls_version": "TLSv1.3", "tls_group": "X25519", "server_ip": "198.18.1.2", "http_version": "HTTP/1.1"},
        {"tls_version": "TLSv1.2", "lab_sent": 9, "lab_received": 8, "lab_dropped": draw.choice([1, 2])},
        {"body_bytes": 2_004_000, "first_byte_s": None},
    ]
    return dataclasses.replace(d, **draw.choice(changes)) if draw.random() < 0.5 else d


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two folders, in any order of rows."""
    draw, folders = random.Random(5), []
    for seed in (1, 2):
        downloads = [spoilt(d, draw) for d in realistic(seed, domains=5, iterations=2)[0]]
        downloads = [dataclasses.replace(d, started_at=d.started_at + 1e6 * seed) for d in downloads]
        draw.shuffle(downloads)
        limiters = [draw.choice([None, "newer", "congestion", "path_rate"]) for _ in downloads]
        folder = tmp_path_factory.mktemp("columns") / str(seed)
        folders.append(write_campaign(folder, downloads, texts={"limiter": limiters}))
    return dataset.load(folders)


def test_lists(data: Dataset) -> None:
    found = [rows for _, _, rows, left_out in checks.lists(data) if not left_out][:-1]
    assert found == reference.lists(data) and all(found)


def test_lists_are_bounded(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_MAX_LISTED", 3)
    for (_, _, rows, left_out), whole in zip(checks.lists(data)[:-1], reference.lists(data), strict=True):
        assert rows == whole[:3] and left_out == len(whole) - 3


def test_servers(data: Dataset) -> None:
    (heading, *rows), left_out = campaign.server_cells(data)
    aside = [heading.index(name) for name in ("initial window", "congestion control")]
    assert [[cell for at, cell in enumerate(row) if at not in aside] for row in rows] == reference.server_rows(data)
    assert left_out == 0


def test_conservation(data: Dataset) -> None:
    whole, counted = reference.whole_downloads(data)
    assert 0 < whole < counted and f" of {whole} of {counted} downloads." in (checks.conservation(data) or "")


def test_points(data: Dataset) -> None:
    found = points.points(data, costs.samples(data, metric=Metric.TIME))
    names = found.document["names"]
    expected = [
        [
            row[0],
            *(names[kind].index(name) if name else None for kind, name in zip(names, row[1:5], strict=True)),
            row[5],
            *map(points._speedup, row[6:8]),
            *(None if value is None else points._short(value) for value in row[8:]),
        ]
        for row in reference.points(data)
    ]
    assert found.document["points"] == expected and len(expected) > 300
    assert [line for _, line in found.part_lines] == reference.part_medians(data)


def test_points_are_split_by_limiter_as_table_2_is(data: Dataset) -> None:
    """By what limited the reference's twin, where it has one; its own luck made equal configurations differ."""
    samples = costs.samples(data, metric=Metric.TIME)
    document = points.points(data, samples).document
    compared, twins = 0, set()
    for index, row in enumerate(speedup_rows({"": samples}, data.design.comparisons)):
        own = [point for point in document["points"] if point[0] == index]
        for split in (split for split in row.splits if split.by is SplitBy.LIMITER):
            twins.add((row.comparison.vs, split.of))
            for part in split.parts:
                members = [point for point in own if point[3] == document["names"]["limiter"].index(part.name)]
                domains: dict[int, list[float]] = {}
                for point in members:
                    domains.setdefault(point[4], []).append(math.log(point[6]) if point[6] else -math.inf)
                assert len(members) == part.n and len(domains) == part.domains
                if part.median.value is not None:
                    least = statistics.median(map(statistics.median, domains.values()))
                    assert math.exp(least) == pytest.approx(part.median.value, rel=1e-5)
                    compared += 1
    assert compared > 10 and {("BL", "BL2"), ("BL", "BL")} < twins


def test_figures(data: Dataset) -> None:
    for figure in figures.plan(data):
        throughput, rtt = figure.panels.values()
        for rows in figure.lines.values():
            records = data.records_of(rows)
            assert all(r.download.outcome == "ok" and r.download.accepted is True for r in records)
            assert not any(r.is_warmup for r in records)
            assert [r.number("mean_throughput") for r in records] == throughput[rows].tolist()
            assert [r.number("handshake_rtt") for r in records] == rtt[rows].tolist()
    rates = figures.body_rates(data).tolist()
    assert [targets.body_rate(r) for r in data.records] == [None if rate != rate else rate for rate in rates]
