"""What differs between two campaigns, beside what they measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from analysis.measures.dataset import Dataset
from analysis.measures.folders import DOWNLOADS
from core.files import store
from core.files.description import DescribedConfiguration

if TYPE_CHECKING:
    import pyarrow as pa

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
    contents = [_Contents.of(data) for data in sides]
    rows = [
        ("dates (UTC)", contents[0].dates, contents[1].dates),
        ("downloads", str(len(a.downloads)), str(len(b.downloads))),
    ]
    for what, members in (
        ("targets", [content.targets for content in contents]),
        ("vantage points", [data.downloads.runs.vantage.present() for data in sides]),
        ("configurations", [data.downloads.configuration.present() for data in sides]),
        ("comparisons", [{f"{c.config} vs {c.vs}" for c in data.design.comparisons} for data in sides]),
    ):
        rows += _only(what, *members)
    rows += _versions(contents[0].versions, contents[1].versions)
    rows += _levels(a, b)
    rows += _environments(a.folders[0].environment, b.folders[0].environment)
    return [Difference(what=what, a=_short(one), b=_short(other)) for what, one, other in rows if one != other]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """What the files of a campaign hold, beside the columns that tables need."""

    dates: str
    """Start of the first and of the last download."""
    targets: set[tuple[str, str]]
    """Domains and URLs."""
    versions: Mapping[str, set[str]]
    """Client -> its versions."""

    @classmethod
    def of(cls, data: Dataset) -> _Contents:
        import pyarrow.compute as pc

        times: list[float] = []
        targets: set[tuple[str, str]] = set()
        versions: dict[str, set[str]] = {}
        names = ("started_at", "domain", "url", "client", "client_version")
        for folder in data.folders:
            for batch in store.scan(folder.path / DOWNLOADS, "downloads", names):
                times += pc.min_max(batch["started_at"]).as_py().values()
                targets |= _different(batch, "domain", "url")
                for client, version in _different(batch, "client", "client_version"):
                    if version is not None:
                        versions.setdefault(client, set()).add(version)
        first, last = (datetime.fromtimestamp(t, tz=UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
        return cls(dates=f"{first} to {last}", targets=targets, versions=versions)


def _different(batch: pa.RecordBatch, *names: str) -> set[Any]:
    """The different rows of these columns."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch.select(names)]).group_by(list(names)).aggregate([])
    return set(zip(*(table.column(name).to_pylist() for name in names), strict=True))


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
    yield from _pairs(*(dict(_flat(rest)) for rest in rests))
    common = [name for name in places[0] if name in places[1]]
    at = {name: set(_pairs(*(dict(_flat(part[name])) for part in places))) for name in common}
    everywhere = set.intersection(*at.values()) if at else set()
    yield from sorted(everywhere)
    for name in common:
        yield from ((f"{name}: {what}", one, other) for what, one, other in sorted(at[name] - everywhere))


def _places(document: Mapping[str, Any]) -> dict[str, Any]:
    places = document.get("vantage_points")
    return places if isinstance(places, dict) else {}


def _flat(part: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name not in _SKIPPED:
                yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, part if isinstance(part, str) else json.dumps(part, sort_keys=True)


def _pairs(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name, "missing"), b.get(name, "missing")
        if one != other:
            yield name, one, other


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
