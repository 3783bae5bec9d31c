"""`upshift` within the test's own process: most of what a process of its own takes is the import of modules."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unittest import mock

from upshift import cli


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, named as in `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def upshift(*arguments: str | Path) -> Answer:
    """Runs a command line; what it prints and its exit code are those of a process, errors of ours included.

    Tests of what a process does besides (signals, what it imports, its terminal) start one.
    """
    code, argv = 0, ["upshift", *map(str, arguments)]
    with _file() as out, _file() as errors:
        with mock.patch("sys.argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                cli.answer()
            except SystemExit as end:
                assert not isinstance(end.code, str), end.code
                code = end.code or 0
        out.seek(0)
        errors.seek(0)
        return Answer(code, out.read(), errors.read())


def _file() -> IO[str]:
    """A real one, as some output is written by its number."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")
