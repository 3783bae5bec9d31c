"""What `uv export` says that `uv.lock` has: packages of ours, and pinned packages of others with hashes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement

_HASH = " --hash="


@dataclass(frozen=True, slots=True)
class Pinned:
    """A package of others, in one version."""

    requirement: Requirement
    hashes: tuple[str, ...]
    """Of all its files, such as `sha256:...`."""

    def applies_to(self, python: str) -> bool:
        """Whether CPython of this version on Linux (x86_64) needs it."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(cast("dict[str, Any]", target_environment(python)))

    def line(self) -> str:
        """A line of a requirements file, without the marker, as pip would evaluate that for the Python it runs on."""
        return "".join(
            (f"{self.requirement.name}{self.requirement.specifier}", *(f"{_HASH}{one}" for one in self.hashes))
        )


@dataclass(frozen=True, slots=True)
class Locked:
    """What an extra or a group needs."""

    ours: tuple[str, ...]
    """Folders in the checkout, relative to it."""
    others: tuple[Pinned, ...]


def parse(exported: str) -> Locked:
    """Reads the output of `uv export --format requirements.txt`."""
    ours, others = [], []
    for line in _logical_lines(exported):
        if line.startswith("-e "):
            ours.append(line.removeprefix("-e ").strip())
            continue
        named, *hashes = line.split(_HASH)
        others.append(Pinned(Requirement(named.strip()), tuple(one.strip() for one in hashes)))
    return Locked(tuple(ours), tuple(others))


def _logical_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", "").splitlines():
        if (told := " ".join(line.split())) and not told.startswith("#"):
            yield told


def target_environment(python: str) -> Environment:
    """Values of markers on a vantage point (https://packaging.python.org/specifications/dependency-specifiers/)."""
    return {
        **default_environment(),
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
