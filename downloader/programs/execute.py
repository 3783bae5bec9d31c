"""Becomes another program: clients that are binaries are forked from a warm interpreter, too.

It is in the place already: no chain of nsenter, env and setpriv per download. Arguments: the program's path, its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Does not return. Raises OSError if it cannot be executed."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and execve(2) keeps that
        signal.signal(number, signal.SIG_DFL)
    os.execv(argv[0], list(argv))  # noqa: S606 - its purpose
