"""The versioned files that the stages exchange: Parquet (zstd), one schema per kind of table.

Every file carries `upshift.kind` and `upshift.schema_version` in its metadata, and the unit of each column in the
column's. A file of an older version is converted as it is read (`upshift.files.conversions`), one of another kind or a
newer version is refused with a sentence. Files are written atomically: to a temporary file in the same folder,
flushed to disk, and renamed.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from upshift.domain import Download, Superseded, Target
from upshift.errors import UsageError, not_found
from upshift.files import conversions

if typing.TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Row = TypeVar("Row")

SCHEMA_VERSIONS: Mapping[str, int] = {
    "targets": 1,
    "downloads": 2,
    "superseded": 2,
    "kpis": 2,
    "survey_options": 1,
    "survey_quic": 1,
    "connections": 1,
    "packets": 1,
}
"""Kind of table -> newest schema version; 1 for a kind that is not listed, e.g. of a new survey.

`upshift.files.conversions` converts older ones."""


def _newest_version(kind: str) -> int:
    return SCHEMA_VERSIONS.get(kind, 1)


_ROW_TYPES: Mapping[str, type] = {"targets": Target, "downloads": Download, "superseded": Superseded}

DOWNLOAD_KEY = ("campaign", "vantage", "iteration", "domain", "url", "configuration")
"""The columns that identify a download; `kpis` has them too."""

RUN_KEY = DOWNLOAD_KEY[:-1]
"""The columns that identify a measurement run within a folder."""

ROWS_AT_ONCE = 10_000
"""Rows of a row group. In `downloads` and `kpis`, the group goes on to the end of the measurement run."""

ROWS_READ_AT_ONCE = 1_000

ROWS_SCANNED_AT_ONCE = 250_000

_UNIT_SUFFIXES = {"_s": "s", "_ms": "ms", "_at": "s since 1970-01-01 UTC", "_bytes": "B"}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that is renamed to `path` if the block succeeds, else removed."""
    with whole_files(path) as (temporary,):
        yield temporary


@contextmanager
def whole_files(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Like `whole_file` for files that belong together: all are complete and on disk before the first is renamed.

    They are renamed in the order of `paths`, so the one that makes the others valid should be last.
    """
    temporaries = tuple(path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths)
    with ExitStack() as stack:
        for path, temporary in zip(paths, temporaries, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_remains(path)
            stack.callback(temporary.unlink, missing_ok=True)
        yield temporaries
        for temporary in temporaries:
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        for path, temporary in zip(paths, temporaries, strict=True):
            temporary.replace(path)


def _remove_remains(path: Path) -> None:
    """Removes temporary files of this file that killed processes left behind."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        owner = part.name.split(".")[-2]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json_text(document))


def json_text(document: object) -> str:
    """A JSON document in the format of our files."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_rows(path: Path, kind: str, rows: Iterable[object], row_type: type | None = None) -> None:
    """Writes rows of one dataclass as one table; kinds in `upshift.domain` (`Target`, `Download`) need no `row_type`.

    They are written `ROWS_AT_ONCE` at a time, so `rows` may be an iterator over a ledger of any length.
    """
    with whole_file(path) as temporary, Table(temporary, kind, schema_of(row_type or _ROW_TYPES[kind])) as table:
        for row in rows:
            table.add(row)


class Table:
    """A table that is written row by row, about `ROWS_AT_ONCE` of them in memory. Use as a context manager.

    The rows of a measurement run that follow each other are in one row group, so that a reader of some row groups has
    whole runs.

    Args:
        path: the temporary path of the file, see `whole_file`.
        schema: its columns. A row has them as attributes, or is a mapping of their names to values.
    """

    def __init__(self, path: Path, kind: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        self._key = RUN_KEY if kind in ("downloads", "kpis") else ()
        self._rows: list[object] = []
        self._writer = pq.ParquetWriter(path, _with_metadata(schema, kind), compression="zstd")

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def add(self, row: object) -> None:
        """Adds a row."""
        if len(self._rows) >= ROWS_AT_ONCE and not self._continues_run(row):
            self._flush()
        self._rows.append(row)

    def _continues_run(self, row: object) -> bool:
        if not self._key:
            return False
        key = _picker(row)(*self._key)
        return bool(key(row) == key(self._rows[-1]))

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        pick = _picker(self._rows[0])
        columns = [pa.array(map(pick(field.name), self._rows), type=field.type) for field in self._schema]
        self._rows = []
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))


def _picker(row: object) -> Any:
    return operator.itemgetter if isinstance(row, Mapping) else operator.attrgetter


def write_table(path: Path, kind: str, table: pa.Table) -> None:
    """Writes a pyarrow table with the kind's version in its metadata."""
    import pyarrow.parquet as pq

    schema = _with_metadata(table.schema, kind)
    with whole_file(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        writer.write_table(table)


def _with_metadata(schema: pa.Schema, kind: str) -> pa.Schema:
    version = str(_newest_version(kind))
    own = {b"upshift.kind": kind.encode(), b"upshift.schema_version": version.encode()}
    return schema.with_metadata({**(schema.metadata or {}), **own})


def read_rows(path: Path, kind: str, row_type: type[Row]) -> list[Row]:
    """Rows of a table as dataclass values; columns that the dataclass lacks are ignored.

    Raises:
        UsageError: as `read_table`, and for a missing column that must have a value.
    """
    try:
        return [conversions.build(row_type, row) for row in each_row(path, kind)]
    except KeyError as error:
        raise UsageError(f"the column {error.args[0]} is missing", where=str(path), remedy="make it again") from None


def each_row(path: Path, kind: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a table as mappings, converted to the newest version; few are in memory at a time.

    Raises:
        UsageError: as `read_table`.
    """
    with _opened(path, kind) as (file, version):
        for batch in file.iter_batches(batch_size=ROWS_READ_AT_ONCE):
            _check_values(batch, path, kind)
            yield from _newest(batch.to_pylist(), path, kind, version)


def columns(path: Path, kind: str) -> Mapping[str, str]:
    """Names of the columns that a table has, with their units (empty: none). Raises UsageError as `read_table`."""
    with _opened(path, kind) as (file, _):
        return {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in file.schema_arrow}


def scan(path: Path, kind: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Reads some columns of a table, whole row groups at a time, at least `ROWS_SCANNED_AT_ONCE` rows if there are.

    Rows are of the newest version. Row groups of `downloads` and `kpis` that Upshift wrote hold whole measurement runs.

    Yields:
        Batches with exactly these columns, in this order. Columns with a known type have it, but text is a dictionary
        array. Columns that the file lacks are empty.

    Raises:
        UsageError: as `read_table`, and for a missing column that must have a value.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = {field.name: field for field in _known_fields(kind)}
    with _opened(path, kind) as (file, version):
        present = file.schema_arrow.names
        for name in columns:
            if name not in present and (name not in known or not known[name].nullable):
                raise UsageError(f"the column {name} is missing", where=str(path), remedy="make it again")
        is_old = version < _newest_version(kind) and kind in _ROW_TYPES
        wanted = None if is_old else [name for name in columns if name in present]
        texts = [name for name in wanted or () if name in known and known[name].type == pa.string()]
        with pq.ParquetFile(path, metadata=file.metadata, read_dictionary=texts) as reader:
            for groups in _row_groups(file.metadata):
                table = reader.read_row_groups(groups, columns=wanted)
                _check_values(table, path, kind)
                if is_old:
                    rows = list(_newest(table.to_pylist(), path, kind, version))
                    table = pa.Table.from_pylist(rows, schema=row_schema(kind))
                yield _batch(table, columns, known)


def _row_groups(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Neighbouring row groups with at least `ROWS_SCANNED_AT_ONCE` rows together; the last ones may have fewer."""
    groups: list[int] = []
    rows = 0
    for index in range(metadata.num_row_groups):
        groups.append(index)
        rows += metadata.row_group(index).num_rows
        if rows >= ROWS_SCANNED_AT_ONCE or index + 1 == metadata.num_row_groups:
            yield groups
            groups, rows = [], 0


def _batch(table: pa.Table, columns: Sequence[str], known: Mapping[str, pa.Field]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays: dict[str, pa.Array] = {}
    for name in columns:
        kind = known[name].type if name in known else table.schema.field(name).type
        if name not in table.column_names or pa.types.is_null(table.schema.field(name).type):
            found = pa.nulls(table.num_rows, kind)
        else:
            found = table.column(name).unify_dictionaries().combine_chunks()
        if pa.types.is_dictionary(found.type) and found.type.value_type != pa.string():
            found = found.cast(found.type.value_type)
        if not pa.types.is_dictionary(found.type):
            found = found.cast(kind)
            found = found.dictionary_encode() if kind == pa.string() else found
        arrays[name] = found
    return pa.RecordBatch.from_pydict(arrays)


def read_table(path: Path, kind: str) -> pa.Table:
    """Reads a table. Raises UsageError for a missing or broken file, another kind, or a version that is too new."""
    import pyarrow as pa

    with _opened(path, kind) as (file, version):
        table = file.read()
    _check_values(table, path, kind)
    if version == _newest_version(kind) or kind not in _ROW_TYPES:
        return table
    schema = row_schema(kind)
    rows = _newest(table.to_pylist(), path, kind, version)
    return pa.Table.from_pylist(list(rows), schema=schema)


def _newest(rows: Iterable[Mapping[str, Any]], path: Path, kind: str, version: int) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        try:
            yield conversions.converted(kind, version, _newest_version(kind), row)
        except KeyError as error:
            raise UsageError(
                f"the column {error.args[0]} is missing", where=str(path), remedy="make it again"
            ) from None


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[tuple[pq.ParquetFile, int]]:
    """An open Upshift file, and its version."""
    with parquet(path, kind) as file:
        version = check_kind(file.schema_arrow, path, kind)
        _check_types(file.schema_arrow, path, kind)
        yield file, version


def _check_types(found: pa.Schema, path: Path, kind: str) -> None:
    """Raises UsageError for a column whose type differs from its dataclass, e.g. text for numbers."""
    import pyarrow.types as pt

    good: Mapping[str, Callable[[pa.DataType], bool]] = {
        "int64": pt.is_integer,
        "double": lambda column: pt.is_floating(column) or pt.is_integer(column),
        "string": lambda column: pt.is_string(column) or pt.is_large_string(column),
        "bool": pt.is_boolean,
    }
    for field in _known_fields(kind):
        at = found.get_field_index(field.name)
        if at < 0:
            continue
        column = found.field(at).type
        if pt.is_dictionary(column):
            column = column.value_type
        if not pt.is_null(column) and not good[str(field.type)](column):
            what = f"the column {field.name} holds {column}, not {field.type}"
            raise UsageError(what, where=str(path), remedy="make it again")


def _check_values(rows: pa.Table | pa.RecordBatch, path: Path, kind: str) -> None:
    """Raises UsageError if a column that must have a value has none."""
    for field in _known_fields(kind):
        if not field.nullable and field.name in rows.schema.names and rows.column(field.name).null_count:
            raise UsageError(f"the column {field.name} has empty cells", where=str(path), remedy="make it again")


@contextmanager
def parquet(path: Path, kind: str) -> Iterator[pq.ParquetFile]:
    """An open Parquet file from any program. Turns pyarrow's errors, also those while it is read, into UsageError.

    Args:
        kind: the expected kind, named in the error.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError:
        raise not_found(path, remedy=f"name an Upshift {kind} file") from None
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()[0]
        raise UsageError(f"not a readable Parquet file ({said})", where=str(path), remedy="make it again") from None


def check_kind(schema: pa.Schema, path: Path, kind: str) -> int:
    """The schema version of a file. Raises UsageError unless it is of this kind, in a version that is known."""
    found = kind_in(schema)
    if found != kind:
        raise UsageError(
            f"this holds {found or 'no'} records of Upshift, not {kind}",
            where=str(path),
            remedy=f"name a {kind} file",
        )
    version = (schema.metadata or {}).get(b"upshift.schema_version", b"").decode("ascii", "replace")
    if not version.isdecimal():
        raise UsageError("its schema version is missing", where=str(path), remedy="make it again")
    if int(version) > _newest_version(kind):
        raise UsageError(
            f"schema version {version} of {kind} is newer than this Upshift knows ({_newest_version(kind)})",
            where=str(path),
            remedy="update Upshift",
        )
    return int(version)


def kind_in(schema: pa.Schema) -> str | None:
    """The kind in a schema; None if the file is not Upshift's."""
    kind = (schema.metadata or {}).get(b"upshift.kind")
    return None if kind is None else kind.decode("utf-8", "replace")


def kind_of(path: Path) -> str | None:
    """The kind of an Upshift file; None if it is not one, or cannot be read (`read_table` says why)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return kind_in(pq.read_schema(path))
    except (pa.ArrowException, OSError):
        return None


def row_schema(kind: str) -> pa.Schema:
    """The pyarrow schema of a kind whose dataclass is in `upshift.domain`."""
    return schema_of(_ROW_TYPES[kind])


def _known_fields(kind: str) -> list[pa.Field]:
    """The columns of a kind whose types are known here; of `kpis`, those that identify the download."""
    if kind == "kpis":
        return [row_schema("downloads").field(name) for name in DOWNLOAD_KEY]
    return list(row_schema(kind)) if kind in _ROW_TYPES else []


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
