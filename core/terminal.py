"""Printed tables: as wide as the terminal, `PIPE_COLUMNS` otherwise, in the most detailed form that fits.

Strings may be untrusted (domains, error texts): markup and control characters in them have no effect.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TextIO, TypeVar

from core.scrub import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
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
