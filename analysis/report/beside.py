"""Our Tables 1 and 2 beside those of a paper, whose cells are data of this package (`data/`).

Table 1 counts domains of the first iteration, as the paper's does (the quirk `first-iteration`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from analysis.measures import quirks, tables
from analysis.measures.dataset import Dataset
from analysis.measures.folders import writing
from analysis.measures.rows import BIN_NAMES, SpeedupRow
from analysis.measures.tables import Table1Row, provider_rank, transport_rank
from analysis.report import records, render
from core import terminal
from core.domain import Provider
from core.files import disk
from core.paper import Paper

_OURS, _THEIRS = "ours", "paper"
_BINS = BIN_NAMES[1:]
"""The paper's bins: the shares below 0.7 are the rest."""

TABLE2_CSV = ("comparison", "of", "n", "faster", "slower", *_BINS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Tables 1 and 2 of a paper, and ours."""

    paper: Paper
    table1: render.Cells
    """Heading and rows: domains of the first iteration; a paper's row has no configuration of ours beside it."""
    table2: tuple[Mapping[str, Any], ...]
    """Rows of `TABLE2_CSV`, shares 0 to 1: ours, then the paper's. Cells that the paper lacks are None."""

    def table2_cells(self, *, bins: bool = True) -> render.Cells:
        """Heading and rows, in per cent."""
        names = _BINS if bins else ()
        cells = [["comparison", "of", "n", "faster %", "slower %", *names]]
        for row in self.table2:
            shares = (row[name] for name in ("faster", "slower", *names))
            n = "" if row["n"] is None else str(row["n"])
            cells.append([row["comparison"], row["of"], n, *("–" if s is None else f"{100 * s:.1f}" for s in shares)])
        return cells

    def files(self, suffix: str) -> str:
        """Both tables as `csv` or `md`, separated by an empty line."""
        if suffix == "csv":
            return records.csv_text(self.table1[0], self._records1) + "\n" + records.csv_text(TABLE2_CSV, self.table2)
        return render.markdown(self.table1) + "\n" + render.markdown(self.table2_cells())

    def document(self) -> dict[str, Any]:
        """All of it as plain data for JSON (schema 1)."""
        table2 = [dict(row) for row in self.table2]
        return {"schema": 1, "paper": self.paper.value, "table1": self._records1, "table2": table2}

    @property
    def _records1(self) -> list[dict[str, str]]:
        """Table 1 as flat records."""
        return [dict(zip(self.table1[0], row, strict=True)) for row in self.table1[1:]]

    def write(self, folder: Path) -> None:
        """Writes PAPER_beside.md, atomically."""
        with writing(folder):
            disk.write_text(folder / f"{self.paper.value}_beside.md", self.files("md"))

    def show(self, stream: TextIO) -> None:
        """Prints both tables in the terminal's width (120 columns without a terminal)."""
        to = terminal.console(stream)
        title = "Table 1: domains of the first iteration with a successful download, ours and the paper's"
        terminal.print_table(to, (self.table1,), title=title, words=("of", "vantage", "transport"))
        title = "Table 2: share of measurement runs by speed-up [%], ours and the paper's"
        forms = (self.table2_cells(), self.table2_cells(bins=False))
        terminal.print_table(to, forms, title=title, words=("comparison", "of"))
        caveat = "The paper does not say n. Shares below 0.7 are the rest. Its servers and paths were others than ours."
        terminal.print_line(to, caveat, indent=2)


def beside(paper_name: Paper, data: Dataset, rows: Sequence[SpeedupRow]) -> Beside:
    """Our tables beside the paper's.

    Args:
        rows: our Table 2 of all groups together.
    """
    first = quirks.with_quirks(data, [quirks.ALL["first-iteration"]])
    return Beside(
        paper=paper_name,
        table1=_table1(paper_name, tables.table1(first)),
        table2=tuple(_table2(paper_name, rows)),
    )


def _table1(paper_name: Paper, rows: Sequence[Table1Row]) -> render.Cells:
    lines = list(_read(paper_name, "table1"))
    providers = sorted({p for p in lines[0] if p not in ("transport", "run", "total", "others")}, key=provider_rank)
    cells = [["of", "vantage", "transport", *providers, Provider.OTHER.value, "total"]]
    places = {(row.vantage, row.transport) for row in rows}
    for vantage, transport in sorted(places, key=lambda place: (place[0], transport_rank(place[1]))):
        members = [row for row in rows if (row.vantage, row.transport) == (vantage, transport)]
        known = [sum(row.ok for row in members if row.provider == provider) for provider in providers]
        total = sum(row.ok for row in members)
        cells.append([_OURS, vantage, transport.upper(), *map(str, [*known, total - sum(known), total])])
    for line in lines:
        counts = [line[provider] for provider in providers]
        cells.append(
            [_THEIRS, line["run"].removesuffix("_Q"), line["transport"], *counts, line["others"], line["total"]]
        )
    return cells


def _table2(paper_name: Paper, rows: Sequence[SpeedupRow]) -> Iterable[dict[str, Any]]:
    known = {(row.comparison.config, row.comparison.vs): row for row in rows}
    ours_of = {line["paper"]: line["ours"] for line in _read(paper_name, "names")}
    for line in _read(paper_name, "table2"):
        config, vs = (ours_of.get(line[name], line[name]) for name in ("config", "vs"))
        row = known.get((config, vs))
        name = row.comparison.name if row else f"{config} vs {vs}"
        if row is not None:
            shares = zip(BIN_NAMES, row.bins, strict=True)
            ours: dict[str, Any] = {"n": row.n, "faster": row.faster.share, "slower": row.slower.share}
            yield {"comparison": name, "of": _OURS} | ours | {bin_name: share.share for bin_name, share in shares}
        theirs = {"n": None, "faster": _share(line["+"]), "slower": _share(line["-"])}
        of_bins = {bin_name: _share(line[bin_name.replace("-", " - ")]) for bin_name in _BINS}
        yield {"comparison": name, "of": _THEIRS} | theirs | of_bins


def _share(percent: str) -> float:
    return float(percent.removesuffix("%")) / 100


def _read(paper_name: Paper, part: str) -> Iterable[dict[str, str]]:
    """Rows of a table, or (`names`) the paper's names of configurations where ours differ."""
    file = resources.files("analysis") / "data" / f"{paper_name.value}-{part}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
