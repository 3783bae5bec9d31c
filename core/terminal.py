"""What commands print: tables and progress.

Tables are as wide as the terminal, `PIPE_COLUMNS` otherwise, in the most detailed form that fits. Progress is bars with
rate and ETA on a terminal, otherwise plain or JSON lines. Strings may be untrusted (domains, error texts): markup and
control characters in them have no effect.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

from core.untrusted import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table


State = TypeVar("State")

Cells = Sequence[Sequence[str]]
"""Rows of a table; the first one is the heading."""

PIPE_COLUMNS = 120
"""Width if the output is not a terminal, so that files do not depend on the terminal."""

_HEADING_BREAK = re.compile(r" |(?<=\d-)(?=\d)")
"""Where headings break: at spaces, and after the dash of a range."""

_READABLE = 24
"""Least width of a text column; below it, a terser form is used."""


def console(stream: TextIO) -> Console:
    """A console for text and tables, as wide as the stream's terminal."""
    from rich.console import Console

    made = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


def print_line(to: Console, text: str, *, indent: int = 0) -> None:
    """One paragraph, wrapped between words; a path that is longer than the line is not broken."""
    import textwrap

    from rich.text import Text

    margin = " " * indent
    lines = textwrap.wrap(
        plain(text),
        to.width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    to.print(Text("\n".join(lines)), soft_wrap=True)


def print_table(to: Console, forms: Sequence[Cells], *, title: str, words: Collection[str]) -> int:
    """Prints the first of several forms of a table that fits, the most detailed first; its index.

    Args:
        words: headings of the text columns: left-aligned, wrapped if needed. The other columns are numbers.
    """
    for index, cells in enumerate(forms):  # noqa: B007 - the index of the last one is returned
        made = table(cells, words=words)
        if to.measure(made, options=to.options.update(width=10_000)).minimum <= to.width:
            break
    else:
        made = table(forms[-1], words=words, least=1)
    print_line(to, title)
    to.print(made)
    to.print()
    return index


def table(cells: Cells, *, words: Collection[str], least: int = _READABLE) -> Table:
    """A rich table. Headings break at spaces and within ranges; text columns may shrink to a width of `least`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # The box's own divider is a space, so no padding is needed.
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for index, name in enumerate(cells[0]):
        lines = _HEADING_BREAK.sub("\n", plain(name))
        natural = max(len(plain(text)) for row in cells[1:] for text in row[index : index + 1]) if cells[1:] else 0
        natural = max(natural, *(len(line) for line in lines.split("\n")))
        if name in words:
            made.add_column(Text(lines), vertical="top", min_width=min(natural, least), overflow="fold")
        else:
            made.add_column(Text(lines), justify="right", vertical="top", no_wrap=True, min_width=natural)
    for row in cells[1:]:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made


def watch(
    state: State,
    look: Callable[[], State],
    *,
    picture: Callable[[State], RenderableType],
    ended: Callable[[State], bool],
    every_s: float,
) -> State:
    """Shows a state on standard output's terminal, in place, until it has ended; returns the last one.

    Args:
        state: the state now.
        look: gives the state at its time.
        every_s: between two looks [s].
    """
    from rich.live import Live

    with Live(picture(state), console=console(sys.stdout), auto_refresh=False) as live:
        while not ended(state):
            time.sleep(every_s)
            state = look()
            live.update(picture(state), refresh=True)
    return state


NAME_COLUMNS, BAR_COLUMNS, DONE_COLUMNS, FAILED_COLUMNS, SPEED_COLUMNS, LEFT_COLUMNS = 18, 12, 13, 9, 9, 9
"""Widths of a bar's columns, the same for every command, so that bars are aligned and fit 80 columns. The rest of the
line is for the note. The time left is up to 99:59:59.
"""


class Progress(Protocol):
    """Receives the progress of several tasks; a task is created when it is first named."""

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        """Reports that `done` of `total` items of the task are finished, and that `failed` of these failed.

        Where fewer are done than before, the note says why, and is shown in a line of its own.
        """


class _Lines:
    """At most one line per task and interval, and always the last one."""

    def __init__(self, stream: TextIO, *, as_json: bool, interval_s: float = 5.0) -> None:
        self._stream = stream
        self._as_json = as_json
        self._interval_s = interval_s
        self._printed: dict[str, float] = {}
        self._done: dict[str, int] = {}
        self._first: dict[str, tuple[float, int]] = {}

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        now = time.monotonic()
        # A resumed task begins with items already done: only items since then count for the rate.
        started, before = self._first.setdefault(task, (now, done))
        went_back = done < self._done.get(task, 0)
        self._done[task] = done
        if not went_back and done < total and now - self._printed.get(task, -self._interval_s) < self._interval_s:
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

    def __init__(self, progress: RichProgress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        if task in self._tasks and done < self._progress.tasks[self._tasks[task]].completed:
            print_line(self._progress.console, f"{task}: {note}")
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, total=total, completed=done, failed=0, note="")
        self._progress.update(self._tasks[task], completed=done, total=total, failed=failed, note=note)


@contextmanager
def show_progress(*, as_json: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
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
