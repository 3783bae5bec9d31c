"""What the command line and `upshift.compose` ask of analysis: tables, figures and report of campaign folders."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from analysis import dataset, figures, render, report, tables
from analysis.dataset import Dataset
from analysis.speedup import DEFAULT_SEED, Metric, SpeedupRow
from analysis.tables import ConfigurationRow, Grouping, Table1Row
from upshift import store
from upshift.scrub import plain

TABLES = ("table1", "configurations", "table2")
"""Stems of the files in `tables/`."""

TERMINAL_COLUMNS = 120
"""Width where the output is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Table 1, the table of configurations, and Table 2."""

    data: Dataset
    metric: Metric
    by: Grouping | None
    seed: int
    table1: tuple[Table1Row, ...]
    configurations: tuple[ConfigurationRow, ...]
    table2: tuple[SpeedupRow, ...]

    def groups(self) -> list[tuple[str, list[SpeedupRow]]]:
        """Rows of Table 2 per group, one group named `` where there is no grouping."""
        groups: dict[str, list[SpeedupRow]] = {}
        for row in self.table2:
            groups.setdefault(row.group, []).append(row)
        return list(groups.items())

    def csv(self, name: str) -> str:
        """One table as CSV, shares 0 to 1."""
        if name == "table1":
            return render.csv_text(render.TABLE1_CSV, render.table1_rows(self.table1))
        if name == "configurations":
            return render.csv_text(render.CONFIGURATIONS_CSV, render.configuration_rows(self.configurations))
        header = (self.by.value, *render.TABLE2_CSV) if self.by else render.TABLE2_CSV
        return render.csv_text(header, render.table2_rows(self.table2, by=self.by.value if self.by else None))

    def markdown(self, name: str) -> str:
        """One table as Markdown, shares in per cent."""
        if name == "table1":
            return render.markdown(render.table1_wide(self.table1))
        if name == "configurations":
            return render.markdown(render.configuration_cells(self.configurations))
        parts = [
            (f"**{self.by.value}: {render.escape_markdown(group)}**\n\n" if self.by else "")
            + render.markdown(render.table2_cells(rows))
            for group, rows in self.groups()
        ]
        return "\n".join(parts)

    def files(self, suffix: str, names: Sequence[str] = TABLES) -> str:
        """Tables as `csv` or `md`, an empty line between two."""
        return "\n".join(self.csv(name) if suffix == "csv" else self.markdown(name) for name in names)

    def document(self) -> dict[str, Any]:
        """All of it as plain data for JSON (schema 1); a bound at infinity is null."""
        by = self.by.value if self.by else None
        document = {
            "schema": 1,
            "metric": self.metric.value,
            "by": by,
            "seed": self.seed,
            "table1": render.table1_rows(self.table1),
            "configurations": render.configuration_rows(self.configurations),
            "table2": render.table2_rows(self.table2, by=by),
            "notes": list(self.data.notes),
        }
        return {str(key): value for key, value in render.finite(document).items()}

    def write(self, folder: Path) -> list[Path]:
        """Writes each table as .csv and .md, each file whole or not at all."""
        written = []
        with dataset.writing(folder):
            for name in TABLES:
                for suffix in ("csv", "md"):
                    path = folder / f"{name}.{suffix}"
                    store.write_text(path, self.files(suffix, [name]))
                    written.append(path)
        return written

    def show(self, stream: TextIO, names: Sequence[str] = TABLES) -> None:
        """Prints tables for people, as wide as the terminal (120 columns where there is none)."""
        from rich.console import Console

        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = TERMINAL_COLUMNS
        if "table1" in names:
            title = "Table 1: successful downloads per vantage point and provider (warm-ups left out)"
            console.print(render.terminal_table(render.table1_wide(self.table1), title=title, left=2))
        if "configurations" in names:
            title = "What became of the downloads of each configuration"
            console.print(render.terminal_table(render.configuration_cells(self.configurations), title=title))
        if "table2" in names:
            for group, rows in self.groups():
                suffix = f", {self.by.value} {group}" if self.by else ""
                title = f"Table 2: share of measurement runs by speed-up [%]{suffix}"
                table, detail = render.fitting_table2(rows, console, title=title)
                console.print(table)
                notes = render.table2_notes(rows)
                if detail < 2:
                    notes.append("More (intervals, bins) in table2.csv, or in a wider terminal.")
                for note in notes:
                    console.print(f"  {plain(note)}")
            words = render.METRIC_WORDS[self.metric]
            console.print(f"  Speed-up: {words}. [ ]: 95 % interval, bootstrap over domains. BL2 / BL: noise floor.")
        for note in self.data.notes:
            console.print(f"  {plain(note)}")

    def text(self) -> str:
        """All tables for people, 120 columns wide, without colour."""
        out = io.StringIO()
        self.show(out)
        return out.getvalue()


def make_tables(
    data: Dataset,
    *,
    metric: Metric = Metric.TIME,
    by: Grouping | None = None,
    reference: str = "BL",
    seed: int = DEFAULT_SEED,
) -> Tables:
    """Computes the tables. Raises UsageError where the metric needs KPIs that no folder has."""
    return Tables(
        data=data,
        metric=metric,
        by=by,
        seed=seed,
        table1=tuple(tables.table1(data)),
        configurations=tuple(tables.configurations(data)),
        table2=tuple(tables.table2(data, metric=metric, by=by, reference=reference, seed=seed)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What `make_all` made."""

    tables: str
    """Tables 1 and 2 for a terminal."""
    figures: tuple[Path, ...]
    report: Path


def make_all(folders: Sequence[Path], *, out: Path | None = None) -> Made:
    """Tables, figures and report of campaign folders, written into `tables/`, `figures/` and `report/`."""
    data = dataset.load(folders)
    target = dataset.output_folder(folders, out)
    made = make_tables(data)
    made.write(target / "tables")
    drawn = figures.write(data, target / "figures")
    page = target / "report" / "index.html"
    report.write(data, page)
    return Made(tables=made.text(), figures=tuple(drawn), report=page)
