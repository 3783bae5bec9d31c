"""What the journals of a campaign's folder have, for tests of what comes before inspection."""

from __future__ import annotations

from pathlib import Path

from downloader.execution.folder import open_journals
from upshift.domain import Download, Superseded


def recorded(out: Path) -> list[Download]:
    """The recorded downloads, vantage point by vantage point in the order of the plan."""
    with open_journals(out) as journals:
        return [download for journal in journals.values() for download in journal.downloads()]


def superseded(out: Path) -> list[Superseded]:
    """The downloads of void and interrupted attempts."""
    with open_journals(out) as journals:
        return [attempt for journal in journals.values() for attempt in journal.superseded()]
