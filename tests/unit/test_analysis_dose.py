"""Rows of Table 2 by dose: runs in which an option took effect, and runs in which it did not."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import api
from analysis.measures import costs, dataset, tables
from analysis.measures.folders import read_design
from analysis.measures.rows import Metric, SplitBy
from analysis.report import findings, report
from core.domain import Comparison, Dose, Download, Role
from core.errors import UsageError
from tests.unit.analysis_factory import make_download, make_kpis, write_campaign

MARKS = Dose(kpi="ce_packets", above=0, words="CE seen")
FLIGHT = Dose(kpi="flight_lower_max", above=65_535, words="flight above 65,535 B")
DOSES = {"ecn": MARKS, "window_scaling": FLIGHT}

RUNS: Mapping[str, tuple[float, float | None, float]] = {
    # domain -> (time with ECN where without it takes 1 s, CE, largest flight)
    **{f"marked{n}.example": (0.7, 12.0, 40_000.0) for n in range(6)},
    **{f"quiet{n}.example": (1.0 + 0.001 * (-1) ** n, 0.0, 40_000.0) for n in range(42)},
    "unseen.example": (0.5, None, 40_000.0),
}


def folder(path: Path, comparisons: Sequence[Comparison], doses: Mapping[str, Dose] | None) -> Path:
    """48 runs with BL, ECN and WS, and one of which nothing tells."""
    rows = [
        make_download(domain=domain, configuration=name, last_byte_s=time if name == "ECN" else 1.0)
        for domain, (time, _, _) in RUNS.items()
        for name in ("BL", "ECN", "WS", "quiche")
    ]

    def kpis(row: Download) -> Mapping[str, Any]:
        _, marks, flight = RUNS[row.domain]
        return make_kpis(row, ce_packets=marks if row.configuration == "ECN" else 0.0, flight_lower_max=flight)

    return write_campaign(path, rows, kpis=kpis, comparisons=comparisons, doses=doses)


ECN_BL = Comparison.of("ECN", "BL")


def test_a_row_is_split_by_what_the_option_did(tmp_path: Path) -> None:
    others = [Comparison.of("WS", "BL"), Comparison.of("quiche", "BL"), Comparison.of("WS", "ECN")]
    data = dataset.load([folder(tmp_path / "c", [ECN_BL, *others], DOSES)])
    rows = {row.comparison.name: row for row in tables.dose_rows(data, costs.samples(data, metric=Metric.TIME))}
    assert list(rows) == ["ECN vs BL", "WS vs BL", "WS vs ECN"], "nothing tells of QUIC against TCP"
    ecn = rows["ECN vs BL"]
    assert (ecn.acted.n, ecn.idle.n, ecn.unknown.n) == (6, 42, 1)
    assert ecn.acted.median.value == pytest.approx(1 / 0.7) and ecn.acted.faster.count == 6
    assert ecn.idle.median.value == pytest.approx(1.0, abs=0.002)
    assert (rows["WS vs BL"].acted.n, rows["WS vs BL"].idle.n) == (0, 49), "no flight was above 65,535 bytes"
    both = rows["WS vs ECN"]
    assert both.words == "CE seen or flight above 65,535 B"
    assert (both.acted.n, both.idle.n, both.unknown.n) == (6, 42, 1), "the option may be on either side"


def test_a_limiter_that_is_unknown_says_nothing_of_the_option() -> None:
    """It counted as an option that did not act."""
    column = pa.array(["receive_window", "sender", "unknown", None])
    scaling = Dose(kpi="limiter", above=0, words="receive window limiting", equals="receive_window")
    assert costs.dose_flags(column, scaling).tolist() == [1, 0, -1, -1]
    assert costs.dose_flags(column.dictionary_encode(), scaling).tolist() == [1, 0, -1, -1]


def test_the_parts_are_the_row(tmp_path: Path) -> None:
    data = dataset.load([folder(tmp_path / "c", [ECN_BL], DOSES)])
    made = api.make_tables(data)
    (row,), (whole,) = made.dose, made.table2
    assert sum(part.n for _, part in row.parts) == whole.n == 49


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_files_terminal_and_report_have_it(tmp_path: Path) -> None:
    data = dataset.load([folder(tmp_path / "c", [ECN_BL], DOSES)])
    made = api.make_tables(data)
    lines = list(csv.DictReader(io.StringIO(made.csv("dose"))))
    assert [(line["comparison"], line["dose"], line["acted"], line["n"]) for line in lines] == [
        ("ECN vs BL", "CE seen", "yes", "6"),
        ("ECN vs BL", "CE seen", "no", "42"),
        ("ECN vs BL", "CE seen", "unknown", "1"),
    ]
    assert "| ECN vs BL | CE seen | 6 | 6/6 | 1.43 | 42 |" in made.markdown("dose")
    out = io.StringIO()
    made.show(out)
    assert "Table 2 by dose" in out.getvalue()
    (finding,) = findings.findings(made.table2, made.dose)
    assert "Median by dose, runs: 1.43 in 6 with CE seen, 1.00 [1.00–1.00] in 42 without" in finding.sentence
    (dose,) = (split for split in made.table2[0].splits if split.by is SplitBy.DOSE)
    assert dose.p is None and made.table2[0].split is None, "only the treated download can have a mark: not tested"
    html = report.build(data, report.ReportOptions())
    assert "By dose" in html and "CE seen" in html


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_a_folder_without_doses_has_no_such_rows(tmp_path: Path) -> None:
    data = dataset.load([folder(tmp_path / "c", [ECN_BL], None)])
    made = api.make_tables(data)
    assert made.dose == ()
    out = io.StringIO()
    made.show(out)
    assert "by dose" not in out.getvalue() and "By dose" not in report.build(data, report.ReportOptions())


def test_a_difference_of_which_nothing_tells_gives_no_row(tmp_path: Path) -> None:
    """ALL against BL differs in SACK as well: that it did nothing cannot be said."""
    rows = [make_download(configuration=name) for name in ("BL", "ALL")]
    comparisons = [Comparison.of("ALL", "BL"), Comparison.of("BL", "ALL", Role.EFFECT)]
    data = dataset.load([write_campaign(tmp_path / "c", rows, comparisons=comparisons, doses=DOSES)])
    assert tables.dose_rows(data, costs.samples(data, metric=Metric.TIME)) == []


def test_folders_with_other_doses_are_refused(tmp_path: Path) -> None:
    one = folder(tmp_path / "a", [ECN_BL], DOSES)
    two = folder(tmp_path / "b", [ECN_BL], DOSES | {"ecn": Dose(kpi="ce_packets", above=5, words="CE seen")})
    with pytest.raises(UsageError, match="ce_packets above 0 and ce_packets above 5"):
        read_design([one, two])
