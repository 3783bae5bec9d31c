"""The model of slow start: what can be counted by hand, and the table that `byte-counting` expects."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.unit import slow_start

TABLE = Path(__file__).resolve().parents[2] / "upshift" / "studies" / "study-byte-counting.csv"


@pytest.mark.thorough
def test_the_studys_table_is_the_models() -> None:
    with TABLE.open(newline="", encoding="utf-8") as file:
        assert [tuple(row) for row in csv.reader(file)] == list(slow_start.rows())


@pytest.mark.parametrize(
    ("grow", "rounds"),
    [
        ("kernel", 1 + 3 + 1 + 1),  # the HTML's 14 segments: 3, 6, 5
        ("two", 1 + 3 + 1 + 1),
        ("acks", 1 + 3 + 1 + 1),  # the first ACKs are one a segment
    ],
)
def test_a_page_of_one_small_object(grow: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "OBJECTS", (2_000,))
    assert slow_start.page_rounds(3, 1, grow, pipelined=False) == pytest.approx(rounds, abs=0.01)
