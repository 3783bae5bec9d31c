"""What `upshift compare` tells: what moved, and what differs beside it; as terminal text, CSV, Markdown, plain data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from analysis.compare.changes import Change, ChangedQuantity, ChangeVerdict, busy, changes, units
from analysis.measures import dataset
from analysis.measures.columns import counts
from analysis.measures.dataset import Dataset, dates
from analysis.measures.rows import MINIMUM_DOMAINS, Metric
from analysis.measures.selection import DEFAULT, Selection
from analysis.report import records, render
from core import terminal
from core.errors import UsageError
from core.files.campaign_json import DescribedConfiguration

_SKIPPED = frozenset({"links", "routes", "routes_ipv6", "emulator", "path", "client_ceilings", "schema"})
"""Fields of `environment.json` that differ without meaning: paths on the host, counters, lifetimes."""

_MOST_NAMES = 5
"""Names of a list that are shown."""

_MOST_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs."""

    what: str
    a: str
    b: str


def differences(a: Dataset, b: Dataset) -> list[Difference]:
    """Dates, targets, configurations and comparisons, versions of clients, then what the environments say."""
    sides = (a, b)
    rows = [
        ("dates (UTC)", dates(a.started_at()), dates(b.started_at())),
        ("downloads", str(len(a.downloads)), str(len(b.downloads))),
    ]
    for what, members in (
        ("targets", [_targets_of(data) for data in sides]),
        ("vantage points", [data.downloads.runs.vantage.present() for data in sides]),
        ("configurations", [data.downloads.configuration.present() for data in sides]),
        ("comparisons", [{f"{c.config} vs {c.vs}" for c in data.design.comparisons} for data in sides]),
    ):
        rows += _only(what, *members)
    rows += _versions(*map(_versions_of, sides))
    rows += _levels(a, b)
    rows += _environments(a.folders[0].environment, b.folders[0].environment)
    return [Difference(what=what, a=one, b=other) for what, one, other in rows if one != other]


def _targets_of(data: Dataset) -> set[tuple[str, str]]:
    """Domains and URLs."""
    return {(domain, url) for _, domain, url in units(data)[0]}


def _versions_of(data: Dataset) -> dict[str, set[str]]:
    """Client -> its versions."""
    client, version = data.downloads.client, data.texts("client_version")
    seen = counts((client.codes, len(client.names)), (version.codes, len(version.names)), where=version.codes >= 0)
    versions: dict[str, set[str]] = {}
    for of_client, of_version in np.argwhere(seen).tolist():
        versions.setdefault(client.names[of_client], set()).add(version.names[of_version])
    return versions


def _only(what: str, a: set[Any], b: set[Any]) -> Iterator[tuple[str, str, str]]:
    if a != b:
        mine, theirs = ([_name(one) for one in sorted(x - y)] for x, y in ((a, b), (b, a)))
        yield f"{what} ({len(a & b)} in both)", _listed(mine, len(a)), _listed(theirs, len(b))


def _name(one: Any) -> str:
    return one if isinstance(one, str) else str(one[0])


def _listed(names: Sequence[str], count: int) -> str:
    if not names:
        return f"{count}, no others"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{count}, only here: {', '.join(names[:_MOST_NAMES])}{more}"


def _versions(*known: Mapping[str, set[str]]) -> Iterator[tuple[str, str, str]]:
    for client in sorted(known[0].keys() & known[1].keys()):
        one, other = (", ".join(sorted(versions[client])) for versions in known)
        yield f"client {client}", one, other


def _levels(a: Dataset, b: Dataset) -> Iterator[tuple[str, str, str]]:
    theirs = {one.name: one for one in b.design.configurations}
    for mine in a.design.configurations:
        other = theirs.get(mine.name, mine)
        for name in mine.differences(other):
            yield f"configuration {mine.name}: {name}", _value(mine, name), _value(other, name)


def _value(configuration: DescribedConfiguration, name: str) -> str:
    """Its client, a level or an option."""
    if name == "client":
        return configuration.client
    return str({**configuration.levels, **configuration.options}.get(name))


def _environments(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    """Fields of the two documents; what differs alike at all vantage points that both have comes once."""
    if a is None or b is None:
        if a is not b:
            yield "environment.json", "missing" if a is None else "present", "missing" if b is None else "present"
        return
    places = [_places(document) for document in (a, b)]
    rests = [{name: part for name, part in document.items() if name != "vantage_points"} for document in (a, b)]
    yield from _pairs(*map(_flat, rests))
    common = [name for name in places[0] if name in places[1]]
    at = {name: set(_pairs(*(_flat(part[name]) for part in places))) for name in common}
    everywhere = set.intersection(*at.values()) if at else set()
    yield from sorted(everywhere)
    for name in common:
        yield from ((f"{name}: {what}", one, other) for what, one, other in sorted(at[name] - everywhere))


def _places(document: Mapping[str, Any]) -> dict[str, Any]:
    places = document.get("vantage_points")
    return places if isinstance(places, dict) else {}


def _flat(part: Any) -> dict[str, str]:
    """Names, joined by dots, and values as text."""
    values = records.flat(part, ".", _SKIPPED)
    return {name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in values}


def _pairs(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name, "missing"), b.get(name, "missing")
        if one != other:
            yield name, one, other


def _short(text: str, other: str) -> str:
    """So much of a text that one sees where it differs from the other one: versions of libraries come late."""
    differing = (at for at, (one, another) in enumerate(zip(text, other, strict=False)) if one != another)
    begin = next(differing, min(len(text), len(other))) - _MOST_CHARACTERS // 2
    if max(len(text), len(other)) > _MOST_CHARACTERS and begin > 0:
        text = "…" + text[begin:]
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


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
        """Rows of shares that none, or all, belong to in both, of too few domains to exclude that they moved."""
        return tuple(
            change
            for change in self.changes
            if change.quantity.is_share
            and change.verdict is ChangeVerdict.UNDECIDED
            and (change.a, change.b) in ((0.0, 0.0), (1.0, 1.0))
        )

    def sentence(self) -> str:
        """The answer."""
        undecided = sum(change.gates and change.verdict is ChangeVerdict.UNDECIDED for change in self.changes)
        limit = f"{100 * self.threshold:g} %"
        if self.worse:
            names = ", ".join(f"{change.name} ({change.quantity})" for change in self.worse)
            answer = f"Worse by more than {limit}: {names}."
        elif aside := sum(change.verdict is ChangeVerdict.WORSE for change in self.changes):
            answer = f"No row that counts got worse by more than {limit}; {aside} in brackets did."
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
            what = f"{quantity} of {100 * share:.1f} % in both, but too few domains to exclude a change"
            yield f"Undecided: {what}: {', '.join(names)}."

    def _words(self) -> tuple[str, ...]:
        """What the cells need to be understood."""
        return (*self._unmoved_notes(), *_LEGEND, *self.notes)

    def difference_cells(self) -> render.Cells:
        """Heading and rows of the differences."""
        shown = ([row.what, _short(row.a, row.b), _short(row.b, row.a)] for row in self.differences)
        return [["what", "A", "B"], *shown]

    def files(self, suffix: str) -> str:
        """Changes, then differences, as `csv` or `md`, separated by an empty line."""
        if suffix == "md":
            words = "\n\n".join(self._words())
            return f"{render.markdown(self.cells())}\n{words}\n\n{render.markdown(self.difference_cells())}"
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
        for note in self._words():
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
        notes=(*_few(moved), *_busy(one, "A"), *_busy(other, "B"), *dict.fromkeys((*one.notes, *other.notes))),
    )


def _busy(side: Dataset, name: str) -> list[str]:
    if not (names := busy(side)):
        return []
    who = ", ".join(known.name for known in side.design.configurations if known.name in names)
    return [
        f"Host of {name} too busy: in more than a tenth of the downloads of {who} the client waited for a CPU for more "
        "than a quarter of the transfer. Their rows do not decide the exit code."
    ]


def _few(moved: Sequence[Change]) -> list[str]:
    few = sorted({change.domains for change in moved if change.domains < MINIMUM_DOMAINS})
    if not few:
        return []
    return [f"No interval and no verdict below {MINIMUM_DOMAINS} domains (here: {few[0]} and more)."]
