"""The first typing error of an inventory in YAML, with its line: Ansible does not tell it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INSIDE = {"hosts": "hosts", "vars": "vars", "children": "groups"}
"""Keys of a group, and what lies there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong where."""

    path: Path
    line: int
    """From 1."""
    what: str


def first(inventory: Path) -> Fault | None:
    """The first fault of a file, or of a folder's files; None: none in its YAML, or it has none."""
    paths = sorted(inventory.iterdir()) if inventory.is_dir() else [inventory]
    faults = (_fault(path) for path in paths if path.suffix in (".yml", ".yaml") and path.is_file())
    return next((fault for fault in faults if fault), None)


def _fault(path: Path) -> Fault | None:
    import yaml

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        root = yaml.compose(text)
    except yaml.MarkedYAMLError as error:
        mark, began = error.problem_mark or error.context_mark, error.context_mark
        what = f"this is not valid YAML: {error.problem}"
        return Fault(path, mark.line + 1, what + (f", in what began in line {began.line + 1}" if began else ""))
    except yaml.reader.ReaderError as error:
        return Fault(path, text.count("\n", 0, error.position) + 1, f"this is not valid YAML: {error.reason}")
    found = _stray(root, "groups")
    return Fault(path, *found) if found else None


def _stray(node: Any, kind: str) -> tuple[int, str] | None:
    """Line of the first text or list where names with values belong, and a clause about it."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        empty = node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"))
        said = repr(node.value.split("\n")[0]) if isinstance(node, yaml.ScalarNode) else "a list"
        return None if empty else (node.start_mark.line + 1, f"{said} is here, where NAME: VALUE belongs")
    for key, value in node.value if kind != "vars" else ():
        inside = {"groups": "group", "hosts": "vars"}.get(kind) or _INSIDE.get(str(key.value))
        if inside and (found := _stray(value, inside)):
            return found
    return None
