"""TOML files that people write, read into dataclasses; every fault is one sentence with file, field and remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from upshift.errors import UsageError

Model = TypeVar("Model")


def read_toml(path: Path) -> dict[str, Any]:
    """The file as a dictionary. Raises UsageError with the line of a syntax error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), remedy="check the path") from None
    except IsADirectoryError:
        raise UsageError("this is a folder, not a TOML file", where=str(path), remedy="name the file in it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"this is not valid TOML ({error})", where=str(path), remedy="mend that line") from None


def load_toml(path: Path, model: type[Model]) -> Model:
    """The file as a value of `model`, a (nested) dataclass.

    Unknown fields, missing fields and wrong types raise UsageError that names the field by its path in the file. A
    dataclass refuses unknown fields only with `__pydantic_config__ = ConfigDict(extra="forbid")` (see `STRICT`).
    """
    return build(read_toml(path), model, where=str(path))


def build(data: object, model: type[Model], *, where: str) -> Model:
    """A value of `model` from plain data, with faults named as in `load_toml`; the first fault is told."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        first = faults[0]
        name = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(
            f"field {name}: {_clause(first['type'], first['msg'])}"
            + (f" ({len(faults)} faults in all)" if faults[1:] else ""),
            where=where,
            remedy="mend that field",
        ) from None


def _clause(kind: str, message: str) -> str:
    match kind:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return "there is no such field"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return "it is missing"
        case _:
            return message[:1].lower() + message[1:].rstrip(".")


STRICT: Any = {"extra": "forbid"}
"""Set `__pydantic_config__ = STRICT` in a dataclass that a TOML file fills, so that a misspelt field is refused."""
