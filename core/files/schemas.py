"""Columns, versions and keys of the Parquet tables, and the checks of what a file says about itself.

Every file carries `upshift.kind` and `upshift.schema_version` in its metadata, and the unit of each column in the
column's. A file of another kind or of a newer version is refused with a sentence.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from core.domain import Download, Superseded, Target
from core.errors import UsageError

if typing.TYPE_CHECKING:
    import pyarrow as pa

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

`core.files.conversions` converts older ones."""

ROW_TYPES: Mapping[str, type] = {"targets": Target, "downloads": Download, "superseded": Superseded}
"""Kind of table -> dataclass of its rows, if that is in `core.domain`."""

DOWNLOAD_KEY = ("campaign", "vantage", "iteration", "domain", "url", "configuration")
"""The columns that identify a download; `kpis` has them too."""

RUN_KEY = DOWNLOAD_KEY[:-1]
"""The columns that identify a measurement run within a folder."""

_UNIT_SUFFIXES = {"_s": "s", "_ms": "ms", "_at": "s since 1970-01-01 UTC", "_bytes": "B"}


def newest_version(kind: str) -> int:
    """The newest schema version of a kind of table."""
    return SCHEMA_VERSIONS.get(kind, 1)


@cache
def row_schema(kind: str) -> pa.Schema:
    """The pyarrow schema of a kind whose dataclass is in `core.domain`."""
    return schema_of(ROW_TYPES[kind])


@functools.cache
def schema_of(row_type: type) -> pa.Schema:
    """The pyarrow schema of a dataclass: types from its annotations, units from the names.

    Cached: evaluating the annotations of `Download` takes milliseconds, and files are checked batch by batch.
    """
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


@cache
def known_fields(kind: str) -> tuple[pa.Field, ...]:
    """The columns of a kind whose types are known here; of `kpis`, those that identify the download."""
    if kind == "kpis":
        return tuple(row_schema("downloads").field(name) for name in DOWNLOAD_KEY)
    return tuple(row_schema(kind)) if kind in ROW_TYPES else ()


def with_metadata(schema: pa.Schema, kind: str) -> pa.Schema:
    """The schema with the kind and its newest version in the metadata."""
    version = str(newest_version(kind))
    own = {b"upshift.kind": kind.encode(), b"upshift.schema_version": version.encode()}
    return schema.with_metadata({**(schema.metadata or {}), **own})


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
    if int(version) > newest_version(kind):
        raise UsageError(
            f"schema version {version} of {kind} is newer than this Upshift knows ({newest_version(kind)})",
            where=str(path),
            remedy="update Upshift",
        )
    return int(version)


def kind_in(schema: pa.Schema) -> str | None:
    """The kind in a schema; None if the file is not Upshift's."""
    kind = (schema.metadata or {}).get(b"upshift.kind")
    return None if kind is None else kind.decode("utf-8", "replace")


def check_types(found: pa.Schema, path: Path, kind: str) -> None:
    """Raises UsageError for a column whose type differs from its dataclass, e.g. text for numbers."""
    import pyarrow.types as pt

    good: Mapping[str, Callable[[pa.DataType], bool]] = {
        "int64": pt.is_integer,
        "double": lambda column: pt.is_floating(column) or pt.is_integer(column),
        "string": lambda column: pt.is_string(column) or pt.is_large_string(column),
        "bool": pt.is_boolean,
    }
    for field in known_fields(kind):
        at = found.get_field_index(field.name)
        if at < 0:
            continue
        column = found.field(at).type
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
