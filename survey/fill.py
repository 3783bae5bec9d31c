"""A targets file again, with columns filled in from a survey."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from survey.subjects import read_subjects
from upshift.errors import UsageError
from upshift.files import store


def check_targets_out(source: Path, out: Path, targets_out: Path | None) -> None:
    """Raises UsageError for an input that has no targets, or files that would overwrite each other."""
    subjects = read_subjects(source)
    if targets_out is None:
        return
    if not subjects.is_targets:
        raise UsageError(
            "a top list has no targets to fill in", where="--targets-out", remedy="give a targets file, or leave it out"
        )
    if targets_out.resolve() in (source.resolve(), out.resolve()):
        raise UsageError("it is the file of something else", where="--targets-out", remedy="name another file")


def fill_targets(source: Path, out: Path, found: Mapping[str, Mapping[str, bool]]) -> None:
    """Writes the targets of `source`, all columns kept.

    Args:
        source: a targets file.
        out: the file to write, whole or not at all.
        found: column -> domain -> value; other domains keep what they had.
    """
    import pyarrow as pa

    table = store.read_table(source, "targets")
    domains = table.column("domain").to_pylist()
    for name, values in found.items():
        at = table.schema.get_field_index(name)
        before = table.column(at).to_pylist() if at >= 0 else [None] * len(domains)
        field = pa.field(name, pa.bool_())
        column = pa.array([values.get(d, b) for d, b in zip(domains, before, strict=True)], pa.bool_())
        table = table.append_column(field, column) if at < 0 else table.set_column(at, field, column)
    store.write_table(out, "targets", table)
