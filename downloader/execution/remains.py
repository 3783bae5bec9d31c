"""What a killed process left behind: attempts whose bytes are still entered with their worst case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from downloader.campaign.campaign import Campaign
from downloader.campaign.plan import PlannedRun
from downloader.execution.capture import part_names
from downloader.execution.journal import Journal
from downloader.limits.spent import Entry, interrupted_bytes
from downloader.limits.traffic import ip_bytes

CapturePath = Callable[[PlannedRun, int], Path]
"""(run, attempt) -> path of its capture."""


def settle(campaign: Campaign, journal: Journal, runs: Mapping[int, PlannedRun], path_of: CapturePath) -> None:
    """Counts killed attempts from their captures, whole or partial; one without keeps its worst case."""
    for entry in journal.spent.unsettled():
        run = runs[entry.run]
        journal.settle(entry, _taken(campaign, journal, entry, run, path_of(run, entry.attempt)))


def _taken(campaign: Campaign, journal: Journal, entry: Entry, run: PlannedRun, path: Path) -> int:
    if entry.address is None:
        return 0
    if path.exists():  # killed between the end of the capture and the record
        return ip_bytes(path)
    parts = [part for part in part_names(path) if part.exists()]
    if not parts:
        return entry.ip_bytes
    finished = journal.attempt(entry.run, entry.attempt)
    return interrupted_bytes(campaign, run.target, sum(map(ip_bytes, parts)), finished)
