"""From older versions of files to the newest, row by row. Pure: `core.files.store` and the journals call it.

Rows are mappings of column names to values. A nullable column that an older version lacks is None; other changes of a
version are here, one function per kind and step.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from core.domain import VoidReason

Row = TypeVar("Row")

Values = Mapping[str, Any]

_VOID = "void: "


def _downloads_2(row: Values) -> Values:
    """Version 1 marked a void run by a false treatment and a text."""
    detail = row.get("treatment_detail") or ""
    if row.get("treatment_ok") is not False or not detail.startswith(_VOID):
        return row
    void = {"void_reason": VoidReason.UNKNOWN.value, "void_detail": detail.removeprefix(_VOID)}
    return {**row, **void, "treatment_ok": None, "treatment_detail": None}


def _superseded_2(row: Values) -> Values:
    """Version 1 had the columns of `downloads` and the reason as a text in `treatment_detail`."""
    reason, detail = void_reason(row.get("treatment_detail") or "")
    return {**row, "attempt": row["attempts"], "reason": reason.value, "detail": detail}


def void_reason(text: str) -> tuple[VoidReason, str | None]:
    """Reason and detail from a text of version 1: `interrupted`, or `void: ...`."""
    if text == VoidReason.INTERRUPTED:
        return VoidReason.INTERRUPTED, None
    return VoidReason.UNKNOWN, text.removeprefix(_VOID) or None


_STEPS: Mapping[str, Mapping[int, Callable[[Values], Values]]] = {
    "downloads": {1: _downloads_2},
    "superseded": {1: _superseded_2},
}
"""Kind -> version -> function that converts to the next version. Steps that only add nullable columns are not here."""


def converted(kind: str, version: int, newest: int, row: Values) -> Values:
    """Converts a row of an older version to the newest; columns that only the older one has are kept."""
    for step in range(version, newest):
        row = _STEPS.get(kind, {}).get(step, _same)(row)
    return row


def _same(row: Values) -> Values:
    return row


def build(row_type: type[Row], values: Values) -> Row:
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
