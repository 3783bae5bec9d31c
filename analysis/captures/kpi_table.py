"""The table of KPIs in the documentation: `python -m analysis.captures.kpi_table` writes it."""

from __future__ import annotations

from pathlib import Path

from analysis.captures.kpis import ALL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "kpi-engine.md"
BEGIN, END = "<!-- kpis -->\n", "<!-- /kpis -->"


def table() -> str:
    """One line per KPI: name, unit, meaning, source."""
    lines = ["| KPI | unit | meaning | source |", "|---|---|---|---|"]
    for kpi in ALL.values():
        lines.append(f"| `{kpi.name}` | {kpi.unit} | {kpi.meaning} | {kpi.source} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with the current table."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
