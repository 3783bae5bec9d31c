"""What classes say of their attributes: the text that stands below each, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    annotation: str
    """As the source has it; empty for a member of an enumeration."""
    text: str
    """The text below it, in one line; empty if missing."""


def attributes(cls: type) -> dict[str, Attribute]:
    """Name -> attribute, in order; those of base classes first."""
    found: dict[str, Attribute] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__ in ("enum", "builtins", "typing"):
            continue
        (definition,) = ast.parse(inspect.getsource(base).lstrip()).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name, annotation = statement.target.id, ast.unparse(statement.annotation)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name, annotation = statement.targets[0].id, ""
            else:
                continue
            found[name] = Attribute(annotation, text_of(following))
    return found


def text_of(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""
