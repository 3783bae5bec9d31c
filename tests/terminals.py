"""What is printed on a terminal of some width."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TextIO

import pytest


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(show: Callable[[TextIO], object], width: int) -> list[str]:
    """The lines that `show` prints on a terminal of so many columns, without their colours."""
    stream = _Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        show(stream)
    return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()
