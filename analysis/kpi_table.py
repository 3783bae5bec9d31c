"""The table of KPIs in the documentation: `python -m analysis.kpi_table` writes it anew."""

from __future__ import annotations

import importlib
from pathlib import Path

from analysis.kpis import ALL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "design" / "kpi-engine.md"
BEGIN, END = "<!-- kpis -->\n", "<!-- /kpis -->"


def table() -> str:
    """One line per KPI: name, unit, definition, source."""
    lines = ["| KPI | unit | definition | source |", "|---|---|---|---|"]
    for kpi in ALL.values():
        doc = " ".join((importlib.import_module(kpi.compute.__module__).__doc__ or "").split())
        lines.append(f"| `{kpi.name}` | {kpi.unit} | {doc} | {kpi.source} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
