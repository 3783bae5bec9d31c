"""What journals and ledgers have while their command runs, for tests of what comes before its results."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from core.domain import Download, Superseded
from core.files.journal import open_journals


def recorded(out: Path) -> list[Download]:
    """The recorded downloads, vantage point by vantage point in the order of the plan."""
    with open_journals(out) as journals:
        return [download for journal in journals.values() for download in journal.downloads()]


def superseded(out: Path) -> list[Superseded]:
    """The downloads of void and interrupted attempts."""
    with open_journals(out) as journals:
        return [attempt for journal in journals.values() for attempt in journal.superseded()]


def surveyed(ledger: Path) -> int:
    """How many domains a survey has finished; 0 as long as it has no ledger."""
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10)) as db:
        try:
            (count,) = db.execute("SELECT count(*) FROM domains WHERE outcome IS NOT NULL").fetchone()
        except sqlite3.OperationalError:  # not made yet
            return 0
    return int(count)
