"""`campaign.json`: a campaign folder's configurations and comparisons.

`upshift run` writes it, analysis reads it. Comparisons are not part of the plan's hash, as they do not change what is
downloaded: to add one, add it to the campaign file and run the same `upshift run` again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from core import paper
from core.domain import Comparison, Dose, Role, Transport
from core.errors import UsageError, use_one_of
from core.files import disk
from core.files.config import build, read_json

FILE_NAME = "campaign.json"

BESIDE = ("lab.json", "targets/composition.json", "targets/windows.json")
"""What tables and reports read besides it, journals and captures, where it is there."""

SCHEMA = 1
"""Increase it when a field changes its meaning."""

MAX_NAME = 100
"""Most characters of a comparison's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfiguration:
    """A configuration with all defaults filled in."""

    name: str
    """Its name in tables."""
    client: str
    """Name of the client."""
    transport: Transport
    """The client's transport."""
    levels: Mapping[str, str]
    """Factor -> level, defaults included."""
    options: Mapping[str, int]
    """The client's options, defaults included."""
    http: str | None = None
    """The client's HTTP version: 1.1, 2 or 3; None in a file of an older Upshift."""
    family: str | None = None
    """What shares program and libraries with this client; likewise."""

    def same_as(self, other: DescribedConfiguration) -> bool:
        """Whether the two differ only in their names."""
        return not self.differences(other)

    def differences(self, other: DescribedConfiguration) -> list[str]:
        """What differs, e.g. `ecn`. Factors that only one of the two has are ignored: its Upshift was newer."""
        differing = [] if self.client == other.client else ["client"]
        for mine, theirs in ((self.levels, other.levels), (self.options, other.options)):
            differing += [name for name in mine if name in theirs and mine[name] != theirs[name]]
        return differing


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The content of `campaign.json`, beside its `schema`."""

    campaign: str
    """Name of the campaign."""
    configurations: tuple[DescribedConfiguration, ...]
    """In the order of the campaign file, warm-ups first."""
    comparisons: tuple[Comparison, ...]
    """In the order of the rows of Table 2."""
    doses: Mapping[str, Dose] = dataclasses.field(default_factory=dict)
    """Factor -> when it took effect; without factors for which it is unknown."""
    without_http3: tuple[str, ...] = ()
    """Domains that were known to be without HTTP/3, in order of name: nothing was planned over QUIC there."""


def check(
    entry: Comparison, *, known: Sequence[DescribedConfiguration], earlier: Sequence[Comparison], where: str
) -> None:
    """Raises UsageError if a comparison is invalid, or contradicts an earlier one or its role.

    Args:
        known: the campaign's configurations, the warm-up included.
        where: the comparison's place in its file.
    """
    if not entry.name or len(entry.name) > MAX_NAME or not entry.name.isprintable():
        raise fault(f"{entry.name!r} is not a valid name", where, "name", f"use up to {MAX_NAME} printable characters")
    named = {configuration.name: configuration for configuration in known}
    for field, name in (("config", entry.config), ("vs", entry.vs)):
        if name not in named:
            raise fault(f"unknown configuration {name!r}", where, field, use_one_of(name, named))
    if entry.config == entry.vs:
        raise fault(f"{entry.vs} is compared with itself", where, "vs", "name two configurations")
    for other in earlier:
        if other.name == entry.name:
            raise fault(f"there are two named {entry.name!r}", where, "name", "leave one out, or rename it")
        if (other.config, other.vs) == (entry.config, entry.vs):
            raise fault(f"{other.name!r} compares these two already", where, "vs", "leave one out")
    _check_role(entry, named[entry.config], named[entry.vs], where)


def _check_role(entry: Comparison, config: DescribedConfiguration, vs: DescribedConfiguration, where: str) -> None:
    differences = config.differences(vs)
    if entry.role is Role.NOISE_FLOOR and differences:
        raise fault(
            f"a noise floor needs two equal configurations, {config.name} and {vs.name} differ in "
            f"{', '.join(differences)}",
            where,
            "role",
            f'write role = "{Role.EFFECT}"',
        )
    if (entry.role is Role.CACHE) != bool({config.name, vs.name} & set(paper.WARMUPS)):
        raise fault(
            f"{Role.CACHE} is the role of comparisons with {' or '.join(paper.WARMUPS)} only",
            where,
            "role",
            f'write role = "{Role.EFFECT}"' if entry.role is Role.CACHE else f'write role = "{Role.CACHE}"',
        )


def fault(what: str, where: str, name: str, remedy: str) -> UsageError:
    """An error in a field of a file."""
    return UsageError(f"field {name}: {what}", where=where, remedy=remedy)


def write(folder: Path, description: Description) -> None:
    """Writes the folder's `campaign.json` atomically."""
    disk.write_json(folder / FILE_NAME, {"schema": SCHEMA, **asdict(description)})


def read(folder: Path) -> Description:
    """The folder's description of its campaign.

    Raises:
        UsageError: the file is missing or damaged, is of a newer schema, or has an invalid comparison.
    """
    path = folder / FILE_NAME
    document = read_json(path, remedy=_AGAIN)
    schema = document.pop("schema", None)
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise UsageError(
            f"this is not a campaign's description of schema {SCHEMA}",
            where=str(path),
            remedy=f"{_AGAIN}, or update Upshift",
        )
    description = build(document, Description, where=str(path))
    for index, entry in enumerate(description.comparisons):
        where = f"{path}: comparisons[{index}]"
        check(entry, known=description.configurations, earlier=description.comparisons[:index], where=where)
    return description


_AGAIN = "run the same `upshift run` again"
