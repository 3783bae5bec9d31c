"""A campaign's folder: a journal per vantage point."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import UsageError, not_found
from downloader.execution.journal_reader import FILE_NAME, JournalReader


@contextlib.contextmanager
def open_journals(folder: Path) -> Iterator[Mapping[str, JournalReader]]:
    """Vantage point -> its journal, open for reading, in order of name.

    Raises:
        UsageError: the folder holds no journal, or one that cannot be read.
    """
    paths = sorted(folder.glob(f"vantage/*/{FILE_NAME}"))
    if not paths:
        remedy = "name the --out of an upshift run"
        if not folder.is_dir():
            raise not_found(folder, "folder", remedy=remedy)
        raise UsageError("this folder holds no campaign", where=str(folder), remedy=remedy)
    with contextlib.ExitStack() as stack:
        journals: dict[str, JournalReader] = {}
        try:
            for path in paths:
                journals[path.parent.name] = JournalReader(path)
                stack.callback(journals[path.parent.name].close)
            yield journals
        except sqlite3.Error as error:
            raise UsageError(
                f"a journal cannot be read ({error})", where=str(folder), remedy="copy the whole folder again"
            ) from None


def environment(journals: Mapping[str, JournalReader]) -> dict[str, Any]:
    """The document `environment.json`: the campaign, its plan, and the environment of each vantage point."""
    document: dict[str, Any] = {"schema": 1}
    for journal in journals.values():
        document |= {"campaign": json.loads(journal.meta("campaign") or "{}"), "plan_sha256": journal.meta("plan_hash")}
    places = {name: json.loads(journal.meta("environment") or "{}") for name, journal in journals.items()}
    runs = {
        name: {"recorded_runs": journal.recorded_runs(), "planned_runs": journal.planned_runs()}
        for name, journal in journals.items()
    }
    stopping = {name: json.loads(journal.meta("stopping") or "{}") for name, journal in journals.items()}
    told = {name: {**state, **runs[name]} for name, state in stopping.items() if state.get("rule")}
    return document | {"vantage_points": places} | ({"stopping": told} if told else {})
