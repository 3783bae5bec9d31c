"""Progress display: bars with rate and ETA on a terminal, otherwise plain or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

NAME_COLUMNS, BAR_COLUMNS, DONE_COLUMNS, FAILED_COLUMNS, SPEED_COLUMNS, LEFT_COLUMNS = 18, 16, 13, 9, 9, 5
"""Widths of a bar's columns, the same for every command, so that bars are aligned and fit 80 columns. The rest of the
line is for the note.
"""


class Progress(Protocol):
    """Receives the progress of several tasks; a task is created when it is first named."""

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        """Reports that `done` of `total` items of the task are finished, and that `failed` of these failed."""


class _Lines:
    """At most one line per task and interval, and always the last one."""

    def __init__(self, stream: TextIO, *, as_json: bool, interval_s: float = 5.0) -> None:
        self._stream = stream
        self._as_json = as_json
        self._interval_s = interval_s
        self._printed: dict[str, float] = {}
        self._first: dict[str, tuple[float, int]] = {}

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        now = time.monotonic()
        # A resumed task begins with items already done: only items since then count for the rate.
        started, before = self._first.setdefault(task, (now, done))
        if done < total and now - self._printed.get(task, -self._interval_s) < self._interval_s:
            return
        self._printed[task] = now
        elapsed = now - started
        rate = (done - before) / elapsed if elapsed > 0 else 0.0
        eta = (total - done) / rate if rate > 0 else None
        if self._as_json:
            record = {"task": task, "done": done, "total": total, "failed": failed, "rate_per_s": round(rate, 3)}
            record |= {"eta_s": None if eta is None else round(eta, 1), "note": note}
            print(json.dumps(record), file=self._stream, flush=True)
            return
        left = "" if eta is None else f", {eta:.0f} s left"
        bad = f", {failed} failed" if failed else ""
        print(f"{task}: {done}/{total}{bad}, {rate:.2f}/s{left} {note}".rstrip(), file=self._stream, flush=True)


class _Bars:
    """One bar per task, by rich."""

    def __init__(self, progress: object) -> None:
        from rich.progress import Progress as RichProgress
        from rich.progress import TaskID

        assert isinstance(progress, RichProgress)  # noqa: S101 - narrows the type for the lazy import
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, total=total, completed=done, failed=0, note="")
        self._progress.update(self._tasks[task], completed=done, total=total, failed=failed, note=note)


@contextmanager
def show(*, as_json: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """A progress display on standard error during the block."""
    stream = stream or sys.stderr
    if as_json or not stream.isatty():
        yield _Lines(stream, as_json=as_json)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column
    from rich.text import Text

    class Speed(ProgressColumn):
        """Items per second."""

        def render(self, task: Task) -> Text:
            return Text("-/s" if task.speed is None else f"{task.speed:.2f}/s")

    def fixed(width: int) -> Column:
        return Column(width=width, no_wrap=True, overflow="ellipsis")

    columns = (
        TextColumn("{task.description}", markup=False, table_column=fixed(NAME_COLUMNS)),
        BarColumn(bar_width=BAR_COLUMNS),
        MofNCompleteColumn(table_column=fixed(DONE_COLUMNS)),
        TextColumn("{task.fields[failed]} failed", table_column=fixed(FAILED_COLUMNS)),
        Speed(table_column=fixed(SPEED_COLUMNS)),
        TimeRemainingColumn(compact=True, table_column=fixed(LEFT_COLUMNS)),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with RichProgress(*columns, console=Console(file=stream)) as progress:
        yield _Bars(progress)
