"""TOML and JSON files, read within a size limit, and TOML into dataclasses; each error is one sentence."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import tomllib
import typing
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from core.errors import UsageError, nearest, unreadable

Model = TypeVar("Model")

MOST_TOML_BYTES = 4 << 20
"""Size limit of files written by hand. `tomllib` needs up to 40 times the file's size in memory."""

MOST_JSON_BYTES = 32 << 20
"""Size limit of files written by Upshift, e.g. `lab.json` (300 B per path); `json` needs up to 30 times the size."""


def read_bytes(path: Path, *, most_bytes: int, remedy: str = "check the path") -> bytes:
    """The content of a file. At most `most_bytes` are read, even from a device.

    Raises:
        UsageError: the file is missing, cannot be read, or is larger than `most_bytes`.
    """
    try:
        with path.open("rb") as handle:
            data = handle.read(most_bytes + 1)
    except IsADirectoryError:
        raise UsageError("this is a folder, not a file", where=str(path), remedy="name the file in it") from None
    except OSError as error:
        raise UsageError(unreadable(error), where=str(path), remedy=remedy) from None
    if len(data) > most_bytes:
        what = f"the file is larger than {most_bytes >> 20} MiB, the limit"
        raise UsageError(what, where=str(path), remedy="check that it is the right file")
    return data


def read_text(path: Path, *, most_bytes: int, remedy: str = "check the path") -> str:
    """A UTF-8 file (a byte order mark is dropped). Raises UsageError as `read_bytes`, or if it is not UTF-8."""
    try:
        return read_bytes(path, most_bytes=most_bytes, remedy=remedy).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"this is not UTF-8 text ({error})", where=str(path), remedy="save it as UTF-8") from None


_ZERO = re.compile(r"\\(u|U0000)0000")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary. Raises UsageError with the line of a syntax error."""
    text = read_text(path, most_bytes=MOST_TOML_BYTES)
    if _ZERO.search(text):  # no path or name may have it
        raise UsageError("a text in it has the character \\u0000", where=str(path), remedy="remove it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        what = "its arrays or tables are nested too deeply"
        raise UsageError(what, where=str(path), remedy="check that it is the right file") from None
    except ValueError as error:  # TOMLDecodeError, and a number of more than 4,300 digits
        raise UsageError(f"this is not valid TOML ({error})", where=str(path), remedy="fix that line") from None


def read_json(path: Path, *, remedy: str = "restore the file, or remove it") -> dict[str, Any]:
    """A JSON file that holds one object, as a dictionary. Raises UsageError with the line of a syntax error."""
    return parse_json(read_text(path, most_bytes=MOST_JSON_BYTES, remedy=remedy), where=str(path), remedy=remedy)


def parse_json(text: str, *, where: str, remedy: str) -> dict[str, Any]:
    """A JSON object as a dictionary. Raises UsageError with the line of a syntax error."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise UsageError("its lists or objects are nested too deeply", where=where, remedy=remedy) from None
    except ValueError as error:
        raise UsageError(f"this is not valid JSON ({error})", where=where, remedy=remedy) from None
    if not isinstance(document, dict):
        raise UsageError("this is not a JSON object", where=where, remedy=remedy)
    return document


def load_toml(path: Path, model: type[Model]) -> Model:
    """The file as a value of `model`, a (nested) dataclass.

    Unknown fields, missing fields and wrong types raise UsageError that names the field by its path in the file. A
    dataclass refuses unknown fields only if it is `Strict`.
    """
    return build(read_toml(path), model, where=str(path))


def build(data: object, model: type[Model], *, where: str, beside: Iterable[str] = ()) -> Model:
    """A value of `model` from plain data, with errors as in `load_toml`; the first one is reported.

    Args:
        beside: fields of the file that are read elsewhere; one of them may be what an unknown field means.
    """
    from pydantic import ValidationError

    try:
        return cast("Model", _adapter(cast("Hashable", model)).validate_python(data))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        first = faults[0]
        name = ".".join(str(part) for part in first["loc"])
        is_unknown = first["type"] in _UNKNOWN
        meant = nearest(str(first["loc"][-1]), [*_field_names(model), *sorted(beside)]) if is_unknown else None
        remedy = "fix that field" if meant is None else f"did you mean {meant}?"
        raise UsageError(
            (f"field {name}: " if name else "")
            + _clause(first["type"], first["msg"])
            + (f" ({len(faults)} faults in all)" if faults[1:] else ""),
            where=where,
            remedy=remedy,
        ) from None


@functools.cache
def _adapter(model: Any) -> Any:
    """Making one takes a millisecond, and a study has thousands of cells."""
    from pydantic import TypeAdapter

    return TypeAdapter(model)


_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""Pydantic's error types for an unknown field."""


def _field_names(model: type) -> list[str]:
    """The fields of a dataclass, and those of the dataclasses in them."""
    names: list[str] = []
    waiting: list[Any] = [model]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            names += [field.name for field in dataclasses.fields(hint)]
            waiting += typing.get_type_hints(hint).values()
    return names


def _clause(kind: str, message: str) -> str:
    match kind:
        case _ if kind in _UNKNOWN:
            return "unknown field"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return "it is missing"
        case "dataclass_type":  # Pydantic names the class
            return "it is not a table"
        case _:
            return message[:1].lower() + message[1:].rstrip(".")


_NO_OTHERS: Any = {"extra": "forbid"}


class Strict:
    """The base of dataclasses that a TOML file fills, so that a misspelt field is refused."""

    __slots__ = ()
    __pydantic_config__ = _NO_OTHERS
