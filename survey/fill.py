"""Copies a targets file, with columns filled in from a survey."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from core.errors import UsageError
from core.files import targets
from survey.subjects import Source


def check_targets_out(subjects: Source, out: Path, targets_out: Path | None) -> None:
    """Raises UsageError for an input without targets, or files that would overwrite each other."""
    if targets_out is None:
        return
    if not subjects.is_targets:
        raise UsageError(
            "this list has no targets to fill in", where="--targets-out", remedy="give a targets file, or leave it out"
        )
    if targets_out.resolve() in (subjects.path.resolve(), out.resolve()):
        raise UsageError("already used for the input or the results", where="--targets-out", remedy="give another file")


def fill_targets(source: Path, out: Path, found: Mapping[str, Mapping[str, bool | int | str]]) -> None:
    """Writes the targets of `source`, all columns kept.

    Args:
        source: a targets file.
        out: the file to write, atomically.
        found: column -> domain -> value; other domains keep their values.
    """
    table = targets.read(source, needs=("domain",))
    domains = table.column("domain").to_pylist()
    columns = {}
    for name, values in found.items():
        before = table.column(name).to_pylist()
        columns[name] = [values.get(domain, value) for domain, value in zip(domains, before, strict=True)]
    targets.write(out, targets.with_columns(table, columns))
