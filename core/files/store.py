"""The files that the stages exchange: Parquet (zstd), one schema per kind of table (`core.files.schemas`).

Files are written atomically.
"""

from __future__ import annotations

import bisect
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from core.errors import UsageError, not_found
from core.files import schemas
from core.files.disk import whole_file
from core.files.schemas import build

if typing.TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Row = TypeVar("Row")
Item = TypeVar("Item")


ROWS_AT_ONCE = 10_000
"""Rows of a row group. In `downloads`, the group goes on to the end of the measurement run."""

ROWS_READ_AT_ONCE = 1_000

ROWS_SCANNED_AT_ONCE = 250_000


def write_rows(path: Path, kind: str, rows: Iterable[object], row_type: type | None = None) -> None:
    """Writes rows of one dataclass as one table; kinds in `core.domain` (`Target`, `Download`) need no `row_type`.

    They are written `ROWS_AT_ONCE` at a time, so `rows` may be an iterator over a ledger of any length.
    """
    with (
        whole_file(path) as temporary,
        RowWriter(temporary, kind, schemas.schema_of(row_type or schemas.ROW_TYPES[kind])) as table,
    ):
        for row in rows:
            table.add(row)


class RowWriter:
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
        self._has_runs = kind == "downloads"
        self._rows: list[object] = []
        self._writer = pq.ParquetWriter(path, schemas.with_metadata(schema, kind), compression="zstd")

    def __enter__(self) -> RowWriter:
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
        if not self._has_runs:
            return False
        run = _picker(row)("run")
        return bool(run(row) is not None and run(row) == run(self._rows[-1]))

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

    schema = schemas.with_metadata(table.schema, kind)
    with whole_file(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        writer.write_table(table)


def read_rows(path: Path, kind: str, row_type: type[Row]) -> list[Row]:
    """Rows of a table as dataclass values; columns that the dataclass lacks are ignored.

    Raises:
        UsageError: as `read_table`, and for a missing column that must have a value.
    """
    try:
        return [build(row_type, row) for row in each_row(path, kind)]
    except KeyError as error:
        raise UsageError(f"the column {error.args[0]} is missing", where=str(path), remedy="make it again") from None


def each_row(path: Path, kind: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a table as mappings; few are in memory at a time.

    Raises:
        UsageError: as `read_table`.
    """
    with _opened(path, kind) as file:
        for batch in file.iter_batches(batch_size=ROWS_READ_AT_ONCE):
            schemas.check_values(batch, path, kind)
            yield from batch.to_pylist()


def rows_at(path: Path, kind: str, rows: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Some rows of a table as mappings; only row groups that have one are read.

    Args:
        rows: from 0, in ascending order.

    Raises:
        UsageError: as `read_table`.
    """
    with _opened(path, kind) as file:
        first = at = 0
        for index in range(file.num_row_groups):
            last = first + file.metadata.row_group(index).num_rows
            upto = bisect.bisect_left(rows, last, at)
            if upto > at:
                table = file.read_row_group(index)
                schemas.check_values(table, path, kind)
                chosen = table.take([row - first for row in rows[at:upto]])
                for batch in chosen.to_batches(max_chunksize=ROWS_READ_AT_ONCE):
                    yield from batch.to_pylist()
            first, at = last, upto


def count(path: Path, kind: str) -> int:
    """The number of rows of a table, which are not read. Raises UsageError as `read_table`."""
    with _opened(path, kind) as file:
        return int(file.metadata.num_rows)


def columns(path: Path, kind: str) -> Mapping[str, str]:
    """Names of the columns that a table has, with their units (empty: none). Raises UsageError as `read_table`."""
    with _opened(path, kind) as file:
        return {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in file.schema_arrow}


def scan(path: Path, kind: str, columns: Sequence[str], *, all_optional: bool = False) -> Iterator[pa.RecordBatch]:
    """Reads some columns of a table, whole row groups at a time, at least `ROWS_SCANNED_AT_ONCE` rows if there are.

    Row groups of `downloads` that Upshift wrote hold whole measurement runs.

    Args:
        all_optional: no column has to be there.

    Yields:
        Batches with exactly these columns, in this order. Columns with a known type have it, but text is a dictionary
        array. Columns that the file lacks are empty.

    Raises:
        UsageError: as `read_table`, and for a missing column that must have a value.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = {field.name: field for field in schemas.known_fields(kind)}
    with _opened(path, kind) as file:
        present = file.schema_arrow.names
        for name in columns:
            if not all_optional and name not in present and (name not in known or not known[name].nullable):
                raise UsageError(f"the column {name} is missing", where=str(path), remedy="make it again")
        wanted = [name for name in columns if name in present]
        texts = [name for name in wanted if file.schema_arrow.field(name).type == pa.string()]
        with pq.ParquetFile(path, metadata=file.metadata, read_dictionary=texts) as reader:

            def batches() -> Iterator[pa.RecordBatch]:
                for groups in _row_groups(file.metadata):
                    table = reader.read_row_groups(groups, columns=wanted)
                    schemas.check_values(table, path, kind)
                    yield _batch(table, columns, known)

            yield from _read_ahead(batches())


def _read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next one while the caller uses the last one."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


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
        kind = known[name].type if name in known else pa.null()
        if name in table.column_names and name not in known:
            kind = table.schema.field(name).type
        if name not in table.column_names or pa.types.is_null(table.schema.field(name).type):
            column = pa.nulls(table.num_rows, kind)
        else:
            column = table.column(name).unify_dictionaries().combine_chunks()
        if pa.types.is_dictionary(column.type) and column.type.value_type != pa.string():
            column = column.cast(column.type.value_type)
        if not pa.types.is_dictionary(column.type):
            column = column.cast(kind)
            column = column.dictionary_encode() if kind == pa.string() else column
        arrays[name] = column
    return pa.RecordBatch.from_pydict(arrays)


def read_table(path: Path, kind: str) -> pa.Table:
    """Reads a table. Raises UsageError for a missing or broken file, another kind, or another version."""
    with _opened(path, kind) as file:
        table = file.read()
    schemas.check_values(table, path, kind)
    return table


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[pq.ParquetFile]:
    """An open Upshift file of this kind."""
    with parquet(path, kind) as file:
        schemas.check_kind(file.schema_arrow, path, kind)
        schemas.check_types(file.schema_arrow, path, kind)
        yield file


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
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"not a readable Parquet file ({reason})", where=str(path), remedy="make it again") from None
