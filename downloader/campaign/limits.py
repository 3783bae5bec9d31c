"""The fields `budgets` and `disk` of a campaign file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from core.errors import UsageError, nearest
from core.files.disk import parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Most IP bytes per UTC day, both directions, of all vantage points of a campaign together."""

    domain: int = 1_000_000_000
    """From and to one domain."""
    network: int = 50_000_000_000
    """From and to one AS (field `as`); where it is not known, one /24 or /48."""
    campaign: int = 500_000_000_000


class Captures(StrEnum):
    """Which captures are kept once their KPIs and proof are in the journal."""

    ALL = "all"
    SAMPLE = "sample"
    """A share of the measurement runs, chosen by seed."""
    FAILURES = "failures"
    """Those of runs in which a download is not ok, or not proven to have had its options."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a campaign's folder may use of this host's disk."""

    captures: Captures = Captures.ALL
    sample: float = 0.01
    """Share of runs whose captures are kept with `sample`."""
    limit: int = 20_000_000_000
    """Most bytes of the folder: journals, captures and tables."""
    reserve: int = 1_000_000_000
    """Bytes of the disk that stay free."""


_AS = "as"
"""Name of `Budgets.network` in a file: a keyword in Python."""


def read_budgets(value: object, where: str) -> Budgets:
    """The field `budgets`. Raises UsageError: one sentence with field and remedy."""
    names = {_AS if field.name == "network" else field.name: field.name for field in fields(Budgets)}
    entries = _table(value, names, where, 'write domain = "1 GB", as = "50 GB", campaign = "500 GB"')
    sizes = {names[name]: _size(size, f"{where}.{name}", least=1) for name, size in entries.items()}
    return Budgets(**sizes)


def read_disk(value: object, where: str) -> Disk:
    """The field `disk`. Raises UsageError: one sentence with field and remedy."""
    entries = _table(value, {field.name for field in fields(Disk)}, where, 'write captures = "all", limit = "20 GB"')
    changed: dict[str, Any] = {
        name: _size(entries[name], f"{where}.{name}", least=least)
        for name, least in (("limit", 1), ("reserve", 0))
        if name in entries
    }
    if "captures" in entries:
        if entries["captures"] not in tuple(Captures):
            known = ", ".join(Captures)
            raise UsageError(
                f"{entries['captures']!r} is unknown", where=f"{where}.captures", remedy=f"use one of {known}"
            )
        changed["captures"] = Captures(str(entries["captures"]))
    if "sample" in entries:
        share = entries["sample"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"{share!r} is not a share", where=f"{where}.sample", remedy="write a number from 0 to 1")
        changed["sample"] = float(share)
    return Disk(**changed)


def _table(value: object, names: Mapping[str, str] | set[str], where: str, remedy: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UsageError("it is not a table", where=where, remedy=remedy)
    for name in value:
        if name not in names:
            meant = nearest(str(name), names)
            raise UsageError(
                "unknown field", where=f"{where}.{name}", remedy=f"did you mean {meant}?" if meant else remedy
            )
    return value


def _size(value: object, where: str, *, least: int) -> int:
    remedy = 'write a number of bytes, or a size such as "20 GB"'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError("it is not a size", where=where, remedy=remedy)
    try:
        size = parse_size(value)
    except ValueError as error:
        raise UsageError(str(error), where=where, remedy=remedy) from None
    if size < least:
        raise UsageError(f"it must be at least {least}", where=where, remedy=remedy)
    return size
