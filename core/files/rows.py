"""Rows of files as dataclass values."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar, cast

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
