"""The result of `upshift compare`: as terminal text, CSV, Markdown and plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from analysis.compare.changes import Change, ChangedQuantity, ChangeVerdict, changes, units
from analysis.compare.differences import Difference, differences
from analysis.measures import dataset
from analysis.measures.pairs import Metric
from analysis.measures.rows import MINIMUM_DOMAINS
from analysis.measures.selection import DEFAULT, Selection
from analysis.report import records, render
from core import terminal
from core.errors import UsageError

CHANGES_CSV = tuple(field.name for field in dataclasses.fields(Change))
DIFFERENCES_CSV = tuple(field.name for field in dataclasses.fields(Difference))

_DIGITS = {ChangedQuantity.TIME: 3, ChangedQuantity.THROUGHPUT: 2, ChangedQuantity.SPEEDUP: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What moved from campaign A to campaign B, and what differs between them."""

    a: Path
    b: Path
    threshold: float
    """0 to 1, see `changes.changes`."""
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> tuple[Change, ...]:
        """The rows because of which a gate closes."""
        return tuple(change for change in self.changes if change.gates and change.verdict is ChangeVerdict.WORSE)

    @property
    def unmoved(self) -> tuple[Change, ...]:
        """Rows of shares that are the same in both, of too few domains to exclude that they moved."""
        return tuple(
            change
            for change in self.changes
            if change.quantity.is_share
            and change.verdict is ChangeVerdict.UNDECIDED
            and change.a is not None
            and change.a == change.b
        )

    def sentence(self) -> str:
        """The answer."""
        open_ = [change for change in self.changes if change not in self.unmoved]
        undecided = sum(change.gates and change.verdict is ChangeVerdict.UNDECIDED for change in open_)
        limit = f"{100 * self.threshold:g} %"
        if self.worse:
            names = ", ".join(f"{change.name} ({change.quantity})" for change in self.worse)
            answer = f"Worse by more than {limit}: {names}."
        else:
            answer = f"No row got worse by more than {limit}."
        gates = sum(change.gates for change in self.changes)
        return f"{answer} Undecided: {undecided} of {gates} rows." if undecided else answer

    def cells(self) -> render.Cells:
        """Heading and rows of the changes."""
        cells = [["row", "quantity", "domains", "A", "B", "B against A", "q", "verdict"]]
        for change in self.changes:
            if change in self.unmoved:
                continue
            verdict = change.verdict.value if change.gates else f"({change.verdict.value})"
            levels = [_level(value, change.quantity) for value in (change.a, change.b)]
            q = "<0.001" if change.q < 0.001 else f"{change.q:.3f}"
            line = [change.name, change.quantity.value, str(change.domains), *levels, _moved(change), q, verdict]
            cells.append(line)
        return cells

    def _unmoved_notes(self) -> Iterator[str]:
        """One line for all rows of one quantity with one share in both."""
        groups: dict[tuple[ChangedQuantity, float], list[str]] = {}
        for change in self.unmoved:
            groups.setdefault((change.quantity, change.a or 0.0), []).append(change.name)
        for (quantity, share), names in groups.items():
            yield f"The same in both, {quantity} of {100 * share:.1f} %: {', '.join(names)}."

    def difference_cells(self) -> render.Cells:
        """Heading and rows of the differences."""
        return [["what", "A", "B"], *([row.what, row.a, row.b] for row in self.differences)]

    def files(self, suffix: str) -> str:
        """Changes, then differences, as `csv` or `md`, separated by an empty line."""
        if suffix == "md":
            return render.markdown(self.cells()) + "\n" + render.markdown(self.difference_cells())
        first = records.csv_text(CHANGES_CSV, map(dataclasses.asdict, self.changes))
        return first + "\n" + records.csv_text(DIFFERENCES_CSV, map(dataclasses.asdict, self.differences))

    def document(self) -> dict[str, Any]:
        """All of it as plain data for JSON (schema 1); a bound at infinity is null."""
        document = {
            "schema": 1,
            "a": str(self.a),
            "b": str(self.b),
            "threshold": self.threshold,
            "worse": len(self.worse),
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "differences": [dataclasses.asdict(row) for row in self.differences],
            "notes": list(self.notes),
        }
        return {str(key): value for key, value in records.finite(document).items()}

    def show(self, stream: TextIO) -> None:
        """Prints both tables in the terminal's width (120 columns without a terminal)."""
        to = terminal.console(stream)
        terminal.print_line(to, self.sentence())
        to.print()
        words = ("row", "quantity", "verdict", "what", "A", "B")
        title = f"From A, {self.a}, to B, {self.b}: targets that both have"
        terminal.print_table(to, (self.cells(),), title=title, words=("row", "quantity", "verdict"))
        for note in (*self._unmoved_notes(), *_LEGEND, *self.notes):
            terminal.print_line(to, note, indent=2)
        to.print()
        if self.differences:
            terminal.print_table(to, (self.difference_cells(),), title="What differs", words=words)
        else:
            terminal.print_line(to, "Nothing differs: the same plan, targets, dates, kernels and versions.", indent=2)


_LEGEND = (
    "Time in s, throughput in Mbit/s, ok and faster in per cent. B against A: a ratio, above 1 where B is better; of "
    "per cent the difference. [ ]: 95 % interval over domains. In brackets: rows that do not decide the exit code.",
)


def _level(value: float | None, quantity: ChangedQuantity) -> str:
    if value is None:
        return "?"
    return f"{100 * value:.1f}" if quantity.is_share else f"{value:.{_DIGITS[quantity]}f}"


def _moved(change: Change) -> str:
    def text(value: float) -> str:
        if change.quantity.is_share:
            return f"{100 * value:+.1f}"
        return "∞" if math.isinf(value) else f"{value:.3f}"

    middle = "?" if change.change is None else text(change.change)
    if change.low is None or change.high is None:
        return middle
    return f"{middle} [{text(change.low)}–{text(change.high)}]"


def compare(
    a: Path, b: Path, *, threshold: float, metric: Metric = Metric.TIME, selection: Selection = DEFAULT
) -> Result:
    """Compares two campaign folders.

    Raises:
        UsageError: a folder cannot be read, both are the same, or no target is in both.
    """
    if a.resolve() == b.resolve():
        raise UsageError("this folder is A and B", where=str(b), remedy="name two campaigns")
    one, other = (dataset.load([path]) for path in (a, b))
    if not set(units(one)[0]) & set(units(other)[0]):
        what = f"it measured no target from a vantage point of {a}"
        raise UsageError(what, where=str(b), remedy="name campaigns with the same targets and vantage points")
    for path, side in ((a, one), (b, other)):
        if metric is Metric.THROUGHPUT and "mean_throughput" not in side.kpi_units:
            remedy = "finish the campaign with `upshift run`, or use --metric time"
            raise UsageError("no download has the KPI mean_throughput", where=str(path), remedy=remedy)
    moved = changes(one, other, threshold=threshold, metric=metric, selection=selection)
    if not moved:
        what = f"it has no configuration of {a} on the same targets"
        raise UsageError(what, where=str(b), remedy="name campaigns with the same configurations")
    return Result(
        a=a,
        b=b,
        threshold=threshold,
        changes=tuple(moved),
        differences=tuple(differences(one, other)),
        notes=(*_few(moved), *one.notes, *other.notes),
    )


def _few(moved: Sequence[Change]) -> list[str]:
    few = sorted({change.domains for change in moved if change.domains < MINIMUM_DOMAINS})
    if not few:
        return []
    return [f"No interval and no verdict below {MINIMUM_DOMAINS} domains (here: {few[0]} and more)."]
