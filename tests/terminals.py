"""What is printed on a terminal of some width."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
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


def command_on_terminal(arguments: Sequence[str | Path], *, columns: int = 80) -> tuple[int, list[str]]:
    """Exit code of `upshift`, and the lines that its terminal showed, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(
        [sys.executable, "-m", "upshift", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 65_536):
            output += data
    except OSError:  # EIO: the other end is closed
        pass
    os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode())
    return child.wait(60), [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]
