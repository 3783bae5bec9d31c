"""What is written from the capture engine: the table of KPIs in its page, and its fields in `connection.py`.

A field is added in `rust/pcapscan/src/record/` alone: one entry with its meaning, its type and its value. After
`make setup` this module writes it into the class that Python's type checker, readers and KPIs see.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import upshift_native

from analysis.captures.kpis import ALL as KPIS
from scripts.pages import commands

_KPIS = ("<!-- kpis -->\n", "<!-- /kpis -->")

_TYPES = {
    "bool": "bool",
    "f64": "float",
    "String": "str",
    "&'static str": "str",
    "SideRecord": "Side",
    "SeriesRecord": "Mapping[str, Any]",
}
"""Names of types in Python by those in Rust, integers apart."""


def kpi_page(repository: Path) -> str:
    """`docs/design/kpi-engine.md` with a line per KPI: name, unit, meaning, source."""
    text = (repository / "docs/design/kpi-engine.md").read_text(encoding="utf-8")
    rows = ((f"`{kpi.name}`", kpi.unit, kpi.meaning, kpi.source) for kpi in KPIS.values())
    return _between(text, *_KPIS, commands.table(("KPI", "unit", "meaning", "source"), rows))


def connection_module(repository: Path) -> str:
    """`analysis/captures/connection.py` with the engine's fields, each with its meaning below it."""
    text = (repository / "analysis/captures/connection.py").read_text(encoding="utf-8")
    for name in ("side", "connection"):
        begin = f"    # The engine's fields, from rust/pcapscan/src/record/{name}.rs\n"
        text = _between(text, begin, "    # End of the engine's fields\n", _fields(name))
    return text


def _between(text: str, begin: str, end: str, middle: str) -> str:
    before, rest = text.split(begin)
    _, after = rest.split(end, 1)
    return before + begin + middle + end + after


def _fields(name: str) -> str:
    lines = []
    for field, kind, meaning in upshift_native.FIELDS[name]:
        lines.append(f"    {field}: {annotation(kind)}")
        if meaning:
            words = f'"""{" ".join(meaning.split())}"""'
            lines += textwrap.wrap(words, width=120, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def annotation(kind: str) -> str:
    """The annotation for a type in Rust. Raises KeyError for one that is not known here."""
    if match := re.fullmatch(r"Option\s*<(.*)>", kind):
        return f"{annotation(match[1])} | None"
    if match := re.fullmatch(r"Vec\s*<(.*)>", kind):
        return f"Sequence[{annotation(match[1])}]"
    return "int" if re.fullmatch(r"[iu]\d+", kind) else _TYPES[kind]
