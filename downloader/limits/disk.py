"""The limits of a campaign's folder on this host's disk: what goes first, and when the campaign pauses."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from core.domain import Download, Target
from core.errors import UsageError
from core.files.disk import check_room, free_bytes, size_text
from downloader.campaign.campaign import Campaign
from downloader.campaign.expected import capture_bytes, downloads_per_run, planned_downloads
from downloader.campaign.limits import Disk
from downloader.campaign.plan import PlannedRun
from downloader.limits.captures import CaptureStore, CaptureTable
from downloader.schedule.schedule import Gate, State, Wait

WALK_S = 60.0
"""Age at which the size of the folder is taken anew, even where there is room for certain."""

WALK_SHARE = 0.01
"""Most of the time that looks because of the age may take: a folder with a million captures takes seconds."""

LOOK_S = 10.0
"""How often a campaign that is paused for its disk, or waits for something else, looks again."""

FULL_SHARE = 0.9
"""Share of the limit at which captures of clean runs go."""

SPARE_SHARE = 0.01
"""Share of the limit that goes in addition, so that not every run has to look through the folder."""

JOURNAL_BYTES = 400_000
"""What a journal may grow by in a run, its write-ahead log included."""

START_BYTES = 64_000
"""What a campaign needs to begin: a journal without a plan, lock and status."""

RESUME_BYTES = 16_000
"""What a campaign needs to go on: lock, status and a journal's log."""

PLANNED_BYTES = 150
"""What each planned download adds to a journal and its log."""

TABLES_BYTES = 400_000
"""Size of the tables that `upshift inspect` writes, whatever their length: schemas, statistics, environment."""

ROW_BYTES = 800
"""What each download adds to the tables. `downloads.parquet` has 250 to 500, by the captures' variety."""

RECORDED_BYTES = 5_000
"""What each download adds to journal and tables, as expected: 4,700 and 250."""


def needed_bytes(campaign: Campaign, target: Target) -> int:
    """What a measurement run may write at most: its capture plain and packed, and its rows."""
    return 2 * capture_bytes(campaign, target) + JOURNAL_BYTES


def check_disk(campaign: Campaign, targets: Sequence[Target], *, vantage_points: int) -> None:
    """Raises UsageError if the limit can never be met: by one measurement run, or by the journals of the whole plan.

    Captures of clean runs are dropped where there is no room, so their sum may be larger than the limit.

    Args:
        vantage_points: those that write to this folder: all of a lab, else one.
    """
    largest = max(targets, key=lambda target: needed_bytes(campaign, target))
    needed = needed_bytes(campaign, largest) + TABLES_BYTES
    if needed > campaign.disk.limit:
        raise UsageError(
            f"a limit of {size_text(campaign.disk.limit)} has no room for one measurement run of {largest.domain}, "
            f"which may write {size_text(needed)}",
            where=f"{campaign.path}: field disk.limit",
            remedy="raise it",
        )
    downloads = vantage_points * planned_downloads(campaign, targets)
    needed += downloads * RECORDED_BYTES
    if needed > campaign.disk.limit and not campaign.stop_when:
        raise UsageError(
            f"a limit of {size_text(campaign.disk.limit)} can never be met: journal and tables of {downloads:,} "
            f"downloads need {size_text(needed)}, without captures",
            where=f"{campaign.path}: field disk.limit",
            remedy="raise it, or lower iterations",
        )


def check_start(campaign: Campaign, targets: Sequence[Target], vantage_points: int, out: Path) -> None:
    """Raises PlaceError if the disk has no room to begin, or to resume, a campaign in a folder.

    With room for that, but for no measurement run, the campaign begins and is paused.
    """
    downloads = vantage_points * planned_downloads(campaign, targets)
    needed = RESUME_BYTES if out.exists() else START_BYTES + downloads * PLANNED_BYTES
    remedy = "free some space there or use another --out"
    check_room(out, needed, what="the campaign's journals", remedy=remedy)


def used_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk."""
    total, waiting = 0, [str(folder)]
    while waiting:
        # Another thread may have just removed the folder, or one of the files, beside which the others still count.
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


class FolderDisk:
    """A campaign's folder, shared by the vantage points of a process; each may be writing a capture.

    A folder may hold a million captures. Its files are looked through only where what was promised since the last time
    could matter, so that a run's cost does not grow with the campaign.

    Args:
        tell: told how many bytes it takes, whenever that is looked at.
        monotonic: a clock that nobody sets.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        *,
        tell: Callable[[int], object] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.disk, self._tell, self.monotonic = folder, disk, tell, monotonic
        self._lock = threading.Lock()
        self._needed: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._at_most = 0
        """The size at the last look, and what was promised to runs that have ended since [bytes]."""
        self._look_by = -math.inf

    @property
    def is_short(self) -> bool:
        """Whether less than the reserve is free."""
        return free_bytes(self.folder) < self.disk.reserve

    def over(self, vantage: str, needed: int, rows: int, *, most: float) -> tuple[int, str | None]:
        """How many bytes are too many for a further run, and why it must wait; else that run has its room.

        Args:
            needed: what the run may write.
            rows: downloads that the vantage point has recorded; all of them go into tables.
            most: bytes of the folder, at most the limit.
        """
        with self._lock:
            if self._rows.get(vantage) != rows:  # else the run to which it was promised has not started
                self._at_most += self._needed.get(vantage, 0)
            self._rows[vantage], self._needed[vantage] = rows, 0
            promised = needed + sum(self._needed.values())
            tables = TABLES_BYTES + sum(self._rows.values()) * ROW_BYTES
            if self._at_most > min(most, self.disk.limit - promised - tables) or self.monotonic() >= self._look_by:
                self._walk()
            used, free = self._at_most, free_bytes(self.folder)
            too_many = used + promised + tables - self.disk.limit
            why = None
            if too_many > 0:
                why = (
                    f"the folder has {size_text(used)}, and a measurement run and the tables need up to "
                    f"{size_text(promised + tables)} of the limit of {size_text(self.disk.limit)}"
                )
            elif self.disk.reserve and free - promised < self.disk.reserve:
                too_many = self.disk.reserve + promised - free
                why = (
                    f"{size_text(free)} are free on the disk, a measurement run needs up to {size_text(promised)}, "
                    f"and {size_text(self.disk.reserve)} stay free"
                )
            else:
                self._needed[vantage] = needed
            return max(too_many, round(used - most)), why

    def leave(self, vantage: str) -> None:
        """A vantage point makes no further run: what its last one left of its room is the others'."""
        with self._lock:
            self._at_most += self._needed.pop(vantage, 0)

    def look(self) -> None:
        """Tells what the folder takes now."""
        with self._lock:
            self._walk()

    def _walk(self) -> None:
        began = self.monotonic()
        self._at_most = used_bytes(self.folder)
        took = self.monotonic() - began
        self._look_by = self.monotonic() + max(WALK_S, took / WALK_SHARE)
        self._tell(self._at_most)


class DiskGate(Gate):
    """Pauses a vantage point whose next run has no room, after it has dropped what may go."""

    def __init__(
        self,
        campaign: Campaign,
        vantage: str,
        shared: FolderDisk,
        runs: Sequence[PlannedRun],
        store: CaptureStore,
        table: CaptureTable,
        recorded_runs: int,
    ) -> None:
        self._vantage, self._shared, self._store, self._table = vantage, shared, store, table
        self._attempts = recorded_runs
        self._needed = max((needed_bytes(campaign, run.target) for run in runs), default=0)
        self._rows_of_run = downloads_per_run(campaign)
        self._wait: Wait | None = None
        self._again_at = -math.inf
        """Until when the answer stays, if no run ends and the disk is not filled, by the clock that nobody sets."""

    def holds(self, now: float) -> Wait | None:
        if self._shared.monotonic() < self._again_at and (self._wait is not None or not self._shared.is_short):
            return self._wait
        too_many, why = self._look()
        if too_many > 0:
            too_many += round(SPARE_SHARE * self._shared.disk.limit)
            for path, size_bytes in self._table.droppable():
                self._store.drop(self._table, path)
                too_many -= size_bytes
                if too_many <= 0:
                    break
            _, why = self._look()
        self._again_at = self._shared.monotonic() + LOOK_S
        self._wait = None if why is None else Wait(State.PAUSED_FOR_DISK, why, now + LOOK_S)
        return self._wait

    def ended(self, run: PlannedRun, attempt: int, downloads: Sequence[Download], now: float) -> None:  # noqa: ARG002
        self._attempts += 1  # a void or interrupted one has its rows, too, in `superseded`
        self._again_at = -math.inf

    def _look(self) -> tuple[int, str | None]:
        rows = (self._attempts + 1) * self._rows_of_run
        most = FULL_SHARE * self._shared.disk.limit
        return self._shared.over(self._vantage, self._needed, rows, most=most)
