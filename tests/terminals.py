"""A command on a terminal of a given width, in a pseudo-terminal (pty(7))."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path


def on_terminal(arguments: Sequence[str | Path], *, columns: int = 80) -> tuple[int, list[str]]:
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
