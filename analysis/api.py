"""Analysis as used by the command line and `upshift`: tables, figures and report of campaign folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from analysis.measures import dataset, pair_table
from analysis.measures.dataset import Dataset
from analysis.measures.folders import output_folder, writing
from analysis.measures.pairs import Samples
from analysis.measures.quirks import ReadingQuirk, with_quirks
from analysis.measures.results import Results, results
from analysis.measures.rows import Grouping, Metric, SpeedupRow
from analysis.measures.selection import DEFAULT, Selection, client_limits, identity
from analysis.report import campaign, figures, findings, published, records, render, report
from analysis.report.plots import FirstScreen
from analysis.report.published import CongestionRow, congestion
from core import terminal
from core.domain import Role
from core.files import disk, store

if TYPE_CHECKING:
    from rich.console import Console

TABLES = tuple(records.FLAT)
"""Stems of the files in `tables/`."""

_CELLS: Mapping[str, Callable[[Sequence[Any]], render.Cells]] = {
    "table1": render.table1_wide,
    "configurations": render.configuration_cells,
    "client_effects": render.client_effect_cells,
    "limiters": render.limiter_cells,
    "dose": render.dose_cells,
    "congestion": published.congestion_cells,
}
"""Tables of one part."""

_WORDS = (
    *("vantage", "transport", "provider", "configuration", "comparison", "why", "dose", "verdict"),
    *("reference", "differs in", "what differs", "time of", "over that of"),
)
"""Headings of the text columns."""

_TITLES = {
    "table1": "Table 1: successful downloads per vantage point and provider (warm-ups left out)",
    "splits": "Table 2 by what limited the reference: median speed-up (runs)",
    "dose": "Table 2 by dose: runs in which the option took effect, and those in which it did not",
    "client_effects": findings.CLIENT_EFFECTS_TITLE,
    "limiters": "What limited the downloads: share of those of each configuration and provider",
    "congestion": published.CONGESTION_TITLE,
}
"""Of the tables that are printed as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(Results):
    """The tables, and how they are printed and written."""

    data: Dataset
    metric: Metric
    by: Grouping | None
    selection: Selection
    """Which downloads are in Table 2."""
    quirks: tuple[ReadingQuirk, ...] = ()
    """Quirks of the published pipeline with which the tables were made; none of them changes `configurations`."""
    congestion: tuple[CongestionRow, ...] = ()
    """Signs of loss and congestion, shown beside quirks only."""

    def groups(self) -> list[tuple[str, list[SpeedupRow]]]:
        """Rows of Table 2 per group; without grouping, one group with an empty name."""
        groups: dict[str, list[SpeedupRow]] = {}
        for row in self.table2:
            groups.setdefault(row.group, []).append(row)
        return list(groups.items())

    def head(self) -> str:
        """How many downloads have a proven treatment; printed first."""
        return findings.treatment_sentence(self.configurations, unproven=self.selection.unproven)

    def ceilings(self) -> str:
        """How many downloads the client itself may have limited, and which rows to read; it stands below `head`."""
        limits = client_limits(self.data.downloads)
        sentence = findings.ceiling_sentence(limits, unlimited_only=self.selection.unlimited_only)
        return " ".join(filter(None, (sentence, findings.tcp_row_sentence(self.data.design, limits))))

    def csv(self, name: str) -> str:
        """One table as CSV, shares 0 to 1."""
        table = published.CONGESTION if name == "congestion" else records.FLAT[name]
        return table.csv(self.rows(name), self.by and self.by.value)

    def parts(self, name: str) -> list[tuple[str, render.Cells]]:
        """Heading (empty if there is one part) and cells of each part of a table, shares in per cent."""
        if name in _CELLS:
            return [("", _CELLS[name](self.rows(name)))]
        by_group = []
        for group, rows in self.groups():
            heading = f"{self.by.value}: {group}" if self.by else ""
            if name == "splits":
                cells = render.by_limiter_cells(rows)
                by_group += [(heading, cells)] if cells else []
            else:
                by_group += [(heading, render.table2_cells(rows)), ("", render.evidence_cells(rows))]
        return by_group

    def markdown(self, name: str) -> str:
        """One table as Markdown."""
        return "\n".join(
            (f"**{render.escape_markdown(heading)}**\n\n" if heading else "") + render.markdown(cells)
            for heading, cells in self.parts(name)
        )

    def latex(self, name: str) -> str:
        """One table as LaTeX, for the packages booktabs and fontspec (or inputenc)."""
        return "\n".join(
            (f"% {render.escape_latex(heading)}\n" if heading else "") + render.latex(cells)
            for heading, cells in self.parts(name)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Stems of the files that are written."""
        return (*TABLES, "congestion") if self.quirks else TABLES

    def files(self, suffix: str, names: Sequence[str] = TABLES) -> str:
        """Tables as `csv`, `md` or `tex`, separated by empty lines."""
        make = {"csv": self.csv, "md": self.markdown, "tex": self.latex}[suffix]
        return "\n".join(make(name) for name in names)

    def document(self, names: Sequence[str] = TABLES) -> dict[str, Any]:
        """All of it, or these tables of it, as plain data for JSON (schema 1); a bound at infinity is null."""
        by = self.by.value if self.by else None
        document = {
            "schema": 1,
            "metric": self.metric.value,
            "by": by,
            "treatment": {
                "proven": sum(row.proven for row in self.configurations),
                "unproven": sum(row.unproven for row in self.configurations),
                "not_accepted": sum(row.mismatched for row in self.configurations),
                "disturbed": sum(row.disturbed for row in self.configurations),
                "void": sum(row.unusable for row in self.configurations),
                "unproven_let_in": self.selection.unproven,
            },
            "identity": dataclasses.asdict(identity(self.data.downloads)) | {"only_hits": self.selection.only_hits},
            "client_ceilings": dataclasses.asdict(client_limits(self.data.downloads))
            | {"unlimited_only": self.selection.unlimited_only},
            **{name: records.FLAT[name].records(self.rows(name), by) for name in TABLES if name in names},
            "order": dataclasses.asdict(self.order),
            "stopping": [dataclasses.asdict(one) | {"early": one.early} for one in self.stopping],
            "notes": list(self.data.notes),
        }
        if self.quirks:
            document["quirks"] = [one.name for one in self.quirks]
            document["congestion"] = published.CONGESTION.records(self.congestion)
        return {str(key): value for key, value in records.finite(document).items()}

    def write(self, folder: Path, *, pairs: bool = False) -> list[Path]:
        """Writes each table as .csv and .md, atomically, and `pairs.parquet`; returns what was written.

        Args:
            pairs: also of more than `dataset.MOST_RECORDS` downloads, which takes longer than all tables. Where they
                are not written, an earlier file of pairs, which may be of other downloads, is removed.
        """
        written = []
        with writing(folder):
            for name in self.names:
                for suffix in ("csv", "md"):
                    path = folder / f"{name}.{suffix}"
                    disk.write_text(path, self.files(suffix, [name]))
                    written.append(path)
            if not self.quirks and (pairs or len(self.data.downloads) <= dataset.MOST_RECORDS):
                written.append(folder / "pairs.parquet")
                table = pair_table.all_pairs(self.data, metric=self.metric, selection=self.selection)
                store.write_table(written[-1], "pairs", table)
            else:
                (folder / "pairs.parquet").unlink(missing_ok=True)
        return written

    def show(self, stream: TextIO, names: Sequence[str] = TABLES) -> None:
        """Prints the tables in the terminal's width (120 columns without a terminal)."""
        to = terminal.console(stream)
        terminal.print_line(to, self.head())
        terminal.print_line(to, self.ceilings())
        if self.quirks:
            chosen = ", ".join(one.name for one in self.quirks)
            terminal.print_line(to, f"Read as the published pipeline would, with its quirks {chosen}.")
        to.print()
        for name in names:
            if name == "configurations":
                self._show_configurations(to)
            elif name == "table2":
                self._show_table2(to)
            elif self.rows(name) or name in ("table1", "congestion"):
                self._show_table(to, name)
        only_hits = self.selection.only_hits
        for sentence in findings.identity_sentences(identity(self.data.downloads), only_hits=only_hits):
            terminal.print_line(to, sentence, indent=2)
        for sentence in (campaign.order_sentence(self.order), *campaign.stopping_sentences(self.stopping)):
            terminal.print_line(to, sentence, indent=2)
        if self.stopping:
            cells = campaign.stopping_cells(self.stopping)
            terminal.print_table(to, (cells,), title="Intervals that are valid at every look", words=_WORDS)
        for note in self.data.notes:
            terminal.print_line(to, note, indent=2)

    def _show_table(self, to: Console, name: str) -> None:
        """Prints one of `_TITLES`, narrower where the terminal is."""
        title = _TITLES[name]
        if name == "table1" and published.split(self.quirks)[0]:
            title = "Table 1: domains of the first iteration per vantage point and provider"
        for heading, cells in self.parts(name):
            forms = [cells]
            forms += [render.table1_long(self.table1)] if name == "table1" else []
            forms += [[[line[0], *line[2:]] for line in cells]] if name == "dose" else []
            whose = f", {heading.replace(':', '', 1)}" if heading else ""
            terminal.print_table(to, forms, title=title + whose, words=_WORDS)
        if name == "client_effects":
            terminal.print_line(to, findings.client_effect_sentence(self.client_effects), indent=2)
            to.print()

    def _show_configurations(self, to: Console) -> None:
        full = render.configuration_cells(self.configurations)
        causes, rare = full[0].index("why"), full[0].index("CPU-bound")
        forms = (full, [line[:causes] for line in full], [line[:rare] for line in full])
        title = "Outcomes of the downloads of each configuration"
        if terminal.print_table(to, forms, title=title, words=_WORDS):
            for line in full[1:]:
                if line[-1]:
                    terminal.print_line(to, f"{line[0]}: {line[-1]}", indent=2)
            to.print()

    def _show_table2(self, to: Console) -> None:
        for group, rows in self.groups():
            suffix = f", {self.by.value} {group}" if self.by else ""
            title = f"Table 2: speed-ups; gain and lose: of domains, faster and slower: of runs{suffix}"
            forms = [render.table2_cells(rows, detail=detail) for detail in render.TABLE2_DETAILS]
            notes = render.table2_notes(rows)
            if terminal.print_table(to, forms, title=title, words=_WORDS):
                notes.append("More (intervals, bins, tests) in table2.csv, or in a wider terminal.")
            for note in notes:
                terminal.print_line(to, note, indent=2)
            if notes:
                to.print()
        words = render.METRIC_WORDS[self.metric]
        terminal.print_line(to, f"Speed-up: {words}. [ ]: 95 % interval.", indent=2)
        for sentence in findings.method_sentences(self.table2):
            terminal.print_line(to, sentence, indent=2)
        noise = [c.name for c in self.data.design.comparisons if c.role is Role.NOISE_FLOOR]
        if noise:
            terminal.print_line(to, f"Noise floor: {', '.join(noise)}.", indent=2)


def make_tables(
    data: Dataset,
    *,
    metric: Metric = Metric.TIME,
    by: Grouping | None = None,
    selection: Selection = DEFAULT,
    quirks: Sequence[ReadingQuirk] = (),
) -> Tables:
    """Computes the tables; see `tables.table2` for the arguments.

    Args:
        quirks: read the data as the published pipeline would.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    return _tables(data, metric, by, selection, quirks)[0]


def _tables(
    data: Dataset, metric: Metric, by: Grouping | None, selection: Selection, quirks: Sequence[ReadingQuirk]
) -> tuple[Tables, Samples]:
    """The tables, and the samples that speed-ups are made from."""
    of_table1, others = published.split(quirks)
    read, first = with_quirks(data, others), with_quirks(data, of_table1)
    computed, samples = results(data, metric=metric, selection=selection, by=by, read=read, of_table1=first)
    made = Tables(
        **{field.name: getattr(computed, field.name) for field in dataclasses.fields(computed)},
        data=data,
        metric=metric,
        by=by,
        selection=selection,
        quirks=tuple(quirks),
        congestion=tuple(congestion(read)) if quirks else (),
    )
    return made, samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The result of `make_all`."""

    tables: Tables
    figures: tuple[Path, ...]
    report: Path
    summary: FirstScreen
    """The report's first screen, for the terminal."""


def make_all(folders: Sequence[Path]) -> Made:
    """Tables, figures and report of campaign folders, written into `tables/`, `figures/` and `report/`."""
    data = dataset.load(folders)
    target = output_folder(folders, None)
    made, samples = _tables(data, Metric.TIME, None, DEFAULT, ())
    made.write(target / "tables")
    drawn = figures.write(data, target / "figures")
    page = target / "report" / "index.html"
    summary = report.write(data, page, made=(made, samples))
    return Made(tables=made, figures=tuple(drawn), report=page, summary=summary)
