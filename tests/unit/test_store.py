"""The files between the stages."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from upshift.domain import Target
from upshift.errors import UsageError
from upshift.files import store

TARGETS = [
    Target(domain="a.example", url="https://a.example/f", rank=1, size_bytes=1_000_000, provider="google"),
    Target(domain="b.example", url="https://b.example/f", ecn=True),
]


@dataclass(eq=False, kw_only=True)
class Row:
    """A row that can be watched."""

    domain: str
    rank: int


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)
    assert store.read_rows(path, "targets", Target) == TARGETS


def test_rows_are_taken_batch_by_batch_and_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 10)
    path = tmp_path / "targets.parquet"
    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    most = 0

    def rows() -> Iterator[Row]:
        nonlocal most
        for rank in range(1, 96):
            row = Row(domain=f"{rank}.example", rank=rank)
            alive.add(row)
            most = max(most, len(alive))
            yield row

    store.write_rows(path, "targets", rows(), Row)
    assert store.read_table(path, "targets").column("rank").to_pylist() == list(range(1, 96))
    assert most <= 21, "more than the batch being made and the one being written were held"


@pytest.mark.parametrize("count", [0, 1, 10, 20])
def test_any_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 10)
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS[:1] * count)
    assert store.read_rows(path, "targets", Target) == TARGETS[:1] * count
    assert store.kind_of(path) == "targets"


def test_rows_that_break_off_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 1)
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)

    def rows() -> Iterator[Target]:
        yield TARGETS[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.write_rows(path, "targets", rows())
    assert store.read_rows(path, "targets", Target) == TARGETS
    assert [p.name for p in tmp_path.iterdir()] == ["targets.parquet"]


def test_units_stand_in_the_schema() -> None:
    assert store.row_schema("downloads").field("connect_s").metadata == {b"unit": b"s"}


def test_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)
    with pytest.raises(UsageError, match="not downloads"):
        store.read_table(path, "downloads")


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "targets.parquet"
    monkeypatch.setattr(store, "SCHEMA_VERSIONS", {"targets": 99})
    store.write_rows(path, "targets", TARGETS)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="newer than this Upshift"):
        store.read_table(path, "targets")


@pytest.mark.parametrize("content", [b"", b"PAR1 nonsense"])
def test_garbage_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "targets.parquet"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a readable Parquet"):
        store.read_table(path, "targets")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    store.write_text(path, "old")
    with pytest.raises(RuntimeError), store.whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("rank", ["first", "second"], "the column rank holds string, not int64"),
        ("size_bytes", [1.5, 2.5], "the column size_bytes holds double, not int64"),
        ("ecn", [1, 0], "the column ecn holds int64, not bool"),
        ("url", [1, 2], "the column url holds int64, not string"),
        ("provider", [[1], [2]], "the column provider holds list<element: int64>, not string"),
        ("domain", ["a.example", None], "the column domain has empty cells"),
    ],
)
def test_columns_of_another_type_are_told(tmp_path: Path, name: str, values: list[object], said: str) -> None:
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)
    table = store.read_table(path, "targets")
    at = table.schema.get_field_index(name)
    store.write_table(path, "targets", table.set_column(at, name, pa.array(values)))
    for read in (lambda: store.read_rows(path, "targets", Target), lambda: store.read_table(path, "targets")):
        with pytest.raises(UsageError) as caught:
            read()
        assert said in caught.value.sentence() and str(path) in caught.value.sentence()


def test_columns_of_a_narrower_type_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)
    table = store.read_table(path, "targets")
    for name, kind in (
        ("rank", pa.int32()),
        ("domain", pa.large_string()),
        ("provider", pa.dictionary(pa.int8(), pa.string())),
    ):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    store.write_table(path, "targets", table)
    assert store.read_rows(path, "targets", Target) == TARGETS
