"""Columns, versions and keys of the Parquet tables, and the checks of what a file says about itself.

Every file carries `upshift.kind` and `upshift.schema_version` in its metadata, and the unit of each column in the
column's. A file of another kind or version is refused with a sentence."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from core.domain import Download, PageObject, Superseded, Target
from core.errors import UsageError

if typing.TYPE_CHECKING:
    import pyarrow as pa


SCHEMA_VERSIONS: Mapping[str, int] = {
    "targets": 1,
    "objects": 1,
    "downloads": 4,
    "superseded": 2,
    "pairs": 1,
    "survey_options": 1,
    "survey_quic": 1,
    "connections": 1,
    "packets": 1,
}
"""Kind of table -> schema version; 1 for a kind that is not listed, e.g. of a new survey."""

READ_VERSIONS: Mapping[str, frozenset[int]] = {"downloads": frozenset({3})}
"""Kind -> earlier versions that are read as well: the columns that they lack are empty (3: the failure codes)."""

ROW_TYPES: Mapping[str, type] = {
    "targets": Target,
    "objects": PageObject,
    "downloads": Download,
    "superseded": Superseded,
}
"""Kind of table -> dataclass of its rows, if that is in `core.domain`."""

RUN_KEY = ("campaign", "vantage", "iteration", "domain", "url")
"""The columns of `downloads` that identify a measurement run in any folder; within one it has a number, `run`."""

DOWNLOAD_KEY = (*RUN_KEY, "configuration")
"""The columns that identify a download in any folder."""

_UNIT_SUFFIXES = {"_s": "s", "_ms": "ms", "_at": "s since 1970-01-01 UTC", "_bytes": "B"}


def version_of(kind: str) -> int:
    """The schema version of a kind of table."""
    return SCHEMA_VERSIONS.get(kind, 1)


def row_schema(kind: str) -> pa.Schema:
    """The pyarrow schema of a kind whose dataclass is in `core.domain`."""
    return schema_of(ROW_TYPES[kind])


@functools.cache
def schema_of(row_type: type) -> pa.Schema:
    """The pyarrow schema of a dataclass: types from its annotations, units from the names.

    Cached: evaluating the annotations of `Download` takes milliseconds, and files are checked batch by batch.
    """
    import pyarrow as pa

    hints = typing.get_type_hints(row_type)
    fields = []
    for entry in dataclasses.fields(row_type):
        hint: Any = hints[entry.name]
        nullable = isinstance(hint, types.UnionType)
        if nullable:
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        unit = next((u for suffix, u in _UNIT_SUFFIXES.items() if entry.name.endswith(suffix)), None)
        fields.append(column(entry.name, hint, unit, nullable=nullable))
    return pa.schema(fields)


def column(name: str, kind: type, unit: str | None, *, nullable: bool = True) -> pa.Field:
    """A column of values of this type, which is int, float, str or bool."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    return pa.field(name, arrow[kind], nullable=nullable, metadata=None if unit is None else {"unit": unit})


@functools.cache
def known_fields(kind: str) -> tuple[pa.Field, ...]:
    """The columns of a kind whose types are known here; those of KPIs are not."""
    return tuple(row_schema(kind)) if kind in ROW_TYPES else ()


def with_metadata(schema: pa.Schema, kind: str) -> pa.Schema:
    """The schema with the kind and its version in the metadata."""
    version = str(version_of(kind))
    own = {b"upshift.kind": kind.encode(), b"upshift.schema_version": version.encode()}
    return schema.with_metadata({**(schema.metadata or {}), **own})


def check_kind(schema: pa.Schema, path: Path, kind: str) -> None:
    """Raises UsageError unless a file is of this kind, in a version that this Upshift reads."""
    actual = kind_in(schema)
    if actual != kind:
        raise UsageError(
            f"this holds {actual or 'no'} records of Upshift, not {kind}",
            where=str(path),
            remedy=f"name a {kind} file",
        )
    version = (schema.metadata or {}).get(b"upshift.schema_version", b"").decode("ascii", "replace")
    if not version.isdecimal():
        raise UsageError("its schema version is missing", where=str(path), remedy="make it again")
    if int(version) != version_of(kind) and int(version) not in READ_VERSIONS.get(kind, ()):
        is_newer = int(version) > version_of(kind)
        raise UsageError(
            f"it has schema version {version} of {kind}, this Upshift reads version {version_of(kind)}",
            where=str(path),
            remedy="update Upshift" if is_newer else "make it again",
        )


def kind_in(schema: pa.Schema) -> str | None:
    """The kind in a schema; None if the file is not Upshift's."""
    kind = (schema.metadata or {}).get(b"upshift.kind")
    return None if kind is None else kind.decode("utf-8", "replace")


def check_types(schema: pa.Schema, path: Path, kind: str) -> None:
    """Raises UsageError for a column whose type differs from its dataclass, e.g. text for numbers."""
    import pyarrow.types as pt

    good: Mapping[str, Callable[[pa.DataType], bool]] = {
        "int64": pt.is_integer,
        "double": lambda column: pt.is_floating(column) or pt.is_integer(column),
        "string": lambda column: pt.is_string(column) or pt.is_large_string(column),
        "bool": pt.is_boolean,
    }
    for field in known_fields(kind):
        at = schema.get_field_index(field.name)
        if at < 0:
            continue
        column = schema.field(at).type
        if pt.is_dictionary(column):
            column = column.value_type
        if not pt.is_null(column) and not good[str(field.type)](column):
            what = f"the column {field.name} holds {column}, not {field.type}"
            raise UsageError(what, where=str(path), remedy="make it again")


def check_values(rows: pa.Table | pa.RecordBatch, path: Path, kind: str) -> None:
    """Raises UsageError if a column that must have a value has none."""
    for field in known_fields(kind):
        if not field.nullable and field.name in rows.schema.names and rows.column(field.name).null_count:
            raise UsageError(f"the column {field.name} has empty cells", where=str(path), remedy="make it again")


Row = TypeVar("Row")


def build(row_type: type[Row], values: Mapping[str, Any]) -> Row:
    """A dataclass value from a row: columns that the dataclass lacks are ignored, missing ones are None if they may be.

    Raises:
        KeyError: a column that must have a value is missing.
    """
    return row_type(
        **{
            name: values.get(name) if nullable else values[name]
            for name, nullable in _fields(cast("Hashable", row_type))
        }
    )


@functools.cache
def _fields(row_type: Any) -> tuple[tuple[str, bool], ...]:
    """Names of a dataclass's fields, and whether None is allowed."""
    hints = typing.get_type_hints(row_type)
    names = [entry.name for entry in dataclasses.fields(row_type)]
    return tuple((name, types.NoneType in typing.get_args(hints[name])) for name in names)
