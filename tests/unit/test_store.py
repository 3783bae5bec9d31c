"""The files between the stages."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.domain import Download, Target
from core.errors import UsageError
from core.files import disk, schemas, store
from tests.unit.analysis_factory import make_download

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
    assert schemas.kind_in(pq.read_schema(path)) == "targets"


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
    assert schemas.row_schema("downloads").field("connect_s").metadata == {b"unit": b"s"}


def test_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "targets.parquet"
    store.write_rows(path, "targets", TARGETS)
    with pytest.raises(UsageError, match="not downloads"):
        store.read_table(path, "downloads")


@pytest.mark.parametrize(("version", "remedy"), [(99, "update Upshift"), (0, "make it again")])
def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, remedy: str) -> None:
    path = tmp_path / "targets.parquet"
    monkeypatch.setattr(schemas, "SCHEMA_VERSIONS", {"targets": version})
    store.write_rows(path, "targets", TARGETS)
    monkeypatch.undo()
    for read in (lambda: store.read_table(path, "targets"), lambda: list(store.scan(path, "targets", ["domain"]))):
        with pytest.raises(UsageError, match=f"schema version {version} of targets") as refused:
            read()
        assert refused.value.remedy == remedy


@pytest.mark.parametrize("content", [b"", b"PAR1 nonsense"])
def test_garbage_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "targets.parquet"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a readable Parquet"):
        store.read_table(path, "targets")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    disk.write_text(path, "old")
    with pytest.raises(UsageError, match=r"^\.: this is a folder"), disk.whole_file(Path()):
        pass
    with pytest.raises(RuntimeError), disk.whole_file(path) as temporary:
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


def campaign_rows(runs: int, of_each: int) -> list[Download]:
    """Downloads run by run."""
    names = [f"c{number}" for number in range(of_each)]
    return [
        make_download(run=run, domain=f"{run}.example", configuration=name, cache_state=None if run % 2 else "hit")
        for run in range(runs)
        for name in names
    ]


def test_row_groups_hold_whole_measurement_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 10)
    path = tmp_path / "downloads.parquet"
    rows = campaign_rows(20, 7)
    store.write_rows(path, "downloads", rows)
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    assert sizes == [14] * 10
    assert store.read_rows(path, "downloads", Download) == rows


@pytest.mark.parametrize("at_once", [1, 30, 1_000])
def test_a_scan_gives_the_asked_columns_in_whole_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(store, "ROWS_SCANNED_AT_ONCE", at_once)
    path = tmp_path / "downloads.parquet"
    rows = campaign_rows(20, 7)
    store.write_rows(path, "downloads", rows)
    names = ("domain", "last_byte_s", "cache_state", "treatment_ok")
    batches = list(store.scan(path, "downloads", names))
    assert [batch.num_rows for batch in batches] == {1: [14] * 10, 30: [42] * 3 + [14], 1_000: [140]}[at_once]
    assert all(tuple(batch.schema.names) == names for batch in batches)
    assert pa.types.is_dictionary(batches[0].column("domain").type)
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert found == [tuple(getattr(row, name) for name in names) for row in rows]


def test_a_scan_reads_other_encodings_and_files_with_fewer_columns(tmp_path: Path) -> None:
    path = tmp_path / "downloads.parquet"
    rows = [dataclasses.replace(row, tls_s=1.0) for row in campaign_rows(3, 2)]
    store.write_rows(path, "downloads", rows)
    table = store.read_table(path, "downloads")
    narrow = {"iteration": pa.int32(), "body_bytes": pa.int32(), "last_byte_s": pa.float32(), "tls_s": pa.int8()}
    texts = {"domain": pa.large_string(), "provider": pa.dictionary(pa.int8(), pa.large_string())}
    for name, kind in (narrow | texts).items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    table = table.set_column(table.schema.get_field_index("etag"), "etag", pa.nulls(len(rows)))
    store.write_table(path, "downloads", table.drop_columns(["age_s", "edge"]))
    names = (*narrow, *texts, "etag", "age_s", "edge")
    [batch] = store.scan(path, "downloads", names)
    assert batch.to_pylist() == [{name: getattr(row, name) for name in names} for row in rows]
    plain = {"iteration": pa.int64(), "body_bytes": pa.int64(), "last_byte_s": pa.float64(), "age_s": pa.int64()}
    assert {name: batch.column(name).type for name in plain} == plain


def test_a_scan_refuses_what_it_cannot_give(tmp_path: Path) -> None:
    path = tmp_path / "downloads.parquet"
    store.write_rows(path, "downloads", campaign_rows(3, 2))
    table = store.read_table(path, "downloads")

    def said(changed: pa.Table, *names: str) -> str:
        store.write_table(path, "downloads", changed)
        with pytest.raises(UsageError) as caught:
            list(store.scan(path, "downloads", names))
        return caught.value.sentence()

    assert "the column domain is missing" in said(table.drop_columns(["domain"]), "domain")
    assert "the column colour is missing" in said(table, "colour")
    texts = table.set_column(table.schema.get_field_index("last_byte_s"), "last_byte_s", [["fast"] * 6])
    assert "the column last_byte_s holds string, not double" in said(texts, "last_byte_s")
    holes = table.set_column(table.schema.get_field_index("domain"), "domain", [["a.example", *[None] * 5]])
    assert "the column domain has empty cells" in said(holes, "domain")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UsageError, match="not a readable Parquet file"):
        list(store.scan(path, "downloads", ["domain"]))
    with pytest.raises(UsageError, match="not superseded"):
        store.write_rows(path, "downloads", campaign_rows(1, 1))
        list(store.scan(path, "superseded", ["domain"]))
