"""The engine's fields in `connection.py`: `python -m analysis.captures.record_fields` writes them.

A field is added in `rust/pcapscan/src/record/` alone: one entry with its meaning, its type and its value. After
`make setup` this module writes it into the class that Python's type checker, readers and KPIs see.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import upshift_native

MODULE = Path(__file__).with_name("connection.py")
BEGIN, END = "    # The engine's fields, from rust/pcapscan/src/record/{}.rs\n", "    # End of the engine's fields\n"
CLASSES = ("side", "connection")

_NAMES = {
    "bool": "bool",
    "f64": "float",
    "String": "str",
    "&'static str": "str",
    "SideRecord": "Side",
    "SeriesRecord": "Mapping[str, Any]",
}
"""Names of types in Python by those in Rust, integers apart."""


def fields(name: str) -> str:
    """The annotated fields of a class, `side` or `connection`, each with its meaning below it."""
    lines = []
    for field, kind, meaning in upshift_native.FIELDS[name]:
        lines.append(f"    {field}: {annotation(kind)}")
        if meaning:
            lines += textwrap.wrap(
                f'"""{" ".join(meaning.split())}"""', width=120, initial_indent="    ", subsequent_indent="    "
            )
    return "\n".join(lines) + "\n"


def annotation(kind: str) -> str:
    """The annotation for a type in Rust. Raises KeyError for one that is not known here."""
    if match := re.fullmatch(r"Option\s*<(.*)>", kind):
        return f"{annotation(match[1])} | None"
    if match := re.fullmatch(r"Vec\s*<(.*)>", kind):
        return f"Sequence[{annotation(match[1])}]"
    return "int" if re.fullmatch(r"[iu]\d+", kind) else _NAMES[kind]


def module(text: str) -> str:
    """The module with the current fields."""
    for name in CLASSES:
        before, rest = text.split(BEGIN.format(name))
        _, after = rest.split(END, 1)
        text = before + BEGIN.format(name) + fields(name) + END + after
    return text


if __name__ == "__main__":
    MODULE.write_text(module(MODULE.read_text(encoding="utf-8")), encoding="utf-8")
