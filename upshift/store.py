"""The versioned files that the stages exchange: Parquet (zstd), one schema per kind of table.

Every file carries `upshift.kind` and `upshift.schema_version` in its metadata, and the unit of each column in the
column's. A file of an older version is converted, one of another kind or a newer version is refused with a sentence.
Files appear whole or not at all: they are written beside their place, flushed to disk, and renamed.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import json
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from upshift.domain import Download, Target
from upshift.errors import UsageError

if typing.TYPE_CHECKING:
    import pyarrow as pa

Row = TypeVar("Row")

SCHEMA_VERSIONS: Mapping[str, int] = {
    "targets": 1,
    "downloads": 1,
    "superseded": 1,
    "kpis": 1,
    "survey_options": 1,
    "survey_quic": 1,
    "connections": 1,
    "packets": 1,
}
"""Kind of table -> newest schema version. Raise the number when a column changes meaning, and convert in `_convert`."""

_ROW_TYPES: Mapping[str, type] = {"targets": Target, "downloads": Download, "superseded": Download}

DOWNLOAD_KEY = ("campaign", "vantage", "iteration", "domain", "url", "configuration")
"""The columns that name a download; `kpis` has them too."""

ROWS_AT_ONCE = 10_000
"""Rows of a dataclass that are in memory while they are written."""

_UNIT_SUFFIXES = {"_s": "s", "_ms": "ms", "_at": "s since 1970-01-01 UTC", "_bytes": "B"}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_remains(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_remains(path: Path) -> None:
    """Removes what processes that were killed while they wrote this file have left of it."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        owner = part.name.split(".")[-2]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_rows(path: Path, kind: str, rows: Iterable[object], row_type: type | None = None) -> None:
    """Writes rows of one dataclass as one table; kinds of the spine's (`Target`, `Download`) need no `row_type`.

    They are taken `ROWS_AT_ONCE` at a time, so `rows` may be an iterator over a ledger of any length.
    """
    import pyarrow as pa

    schema = schema_of(row_type or _ROW_TYPES[kind])
    batches = (
        pa.table({name: [getattr(row, name) for row in batch] for name in schema.names}, schema=schema)
        for batch in _batches(rows)
    )
    _write(path, kind, schema, batches)


def _batches(rows: Iterable[object]) -> Iterator[list[object]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, ROWS_AT_ONCE)):
        yield batch


def read_rows(path: Path, kind: str, row_type: type[Row]) -> list[Row]:
    """Rows of a table as dataclass values; columns that the dataclass lacks are ignored."""
    table = read_table(path, kind)
    names = [f.name for f in dataclasses.fields(row_type) if f.name in table.column_names]  # type: ignore[arg-type]
    return [row_type(**row) for row in table.select(names).to_pylist()]


def write_table(path: Path, kind: str, table: pa.Table) -> None:
    """Writes a pyarrow table with the kind's version in its metadata."""
    _write(path, kind, table.schema, [table])


def _write(path: Path, kind: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    import pyarrow.parquet as pq

    metadata = {
        **(schema.metadata or {}),
        b"upshift.kind": kind.encode(),
        b"upshift.schema_version": str(SCHEMA_VERSIONS[kind]).encode(),
    }
    with (
        whole_file(path) as temporary,
        pq.ParquetWriter(temporary, schema.with_metadata(metadata), compression="zstd") as writer,
    ):
        for table in tables:
            writer.write_table(table)


def read_table(path: Path, kind: str) -> pa.Table:
    """Reads a table. Raises UsageError for a missing or broken file, another kind, or a version that is too new."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), remedy=f"name a {kind} file of Upshift's") from None
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()[0]
        raise UsageError(
            f"this is no readable Parquet file ({said})", where=str(path), remedy="make it again"
        ) from None
    metadata = table.schema.metadata or {}
    found = metadata.get(b"upshift.kind", b"").decode()
    if found != kind:
        raise UsageError(
            f"this holds {found or 'no'} records of Upshift's, not {kind}",
            where=str(path),
            remedy=f"name a {kind} file",
        )
    version = int(metadata.get(b"upshift.schema_version", b"0"))
    if version > SCHEMA_VERSIONS[kind]:
        raise UsageError(
            f"schema version {version} of {kind} is newer than this Upshift knows ({SCHEMA_VERSIONS[kind]})",
            where=str(path),
            remedy="update Upshift",
        )
    return table


def kind_of(path: Path) -> str | None:
    """The kind of a file of ours; None where it is none, or cannot be read (`read_table` says why)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    kind = metadata.get(b"upshift.kind")
    return None if kind is None else kind.decode()


def row_schema(kind: str) -> pa.Schema:
    """The pyarrow schema of a kind whose dataclass is the spine's."""
    return schema_of(_ROW_TYPES[kind])


def schema_of(row_type: type) -> pa.Schema:
    """The pyarrow schema of a dataclass: types from its annotations, units from the names."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    hints = typing.get_type_hints(row_type)
    fields = []
    for entry in dataclasses.fields(row_type):
        hint: Any = hints[entry.name]
        nullable = isinstance(hint, types.UnionType)
        if nullable:
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        unit = next((u for suffix, u in _UNIT_SUFFIXES.items() if entry.name.endswith(suffix)), None)
        fields.append(pa.field(entry.name, arrow[hint], nullable=nullable, metadata={"unit": unit} if unit else None))
    return pa.schema(fields)
