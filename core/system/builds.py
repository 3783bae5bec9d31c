"""Detects debug builds of our own programs, which are too slow for measurements."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from core.errors import PlaceError
from core.system import process

DEBUG_MARK = "debug build"
"""Printed by our Rust programs with `--version` if debug assertions are compiled in."""


def refuse_debug_build(name: str, path: str) -> str | None:
    """Why the program cannot be used, as `what; remedy`; None for a release build, or another program."""
    if not is_debug_build(path):
        return None
    return f"{name} is a debug build, too slow to measure with ({path}); run: make setup"


def is_debug_build(path: str) -> bool:
    """Whether the program is a debug build of ours; False if it is missing."""
    try:
        return _is_debug_build(path, Path(path).stat().st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=32)
def _is_debug_build(path: str, changed_ns: int) -> bool:  # noqa: ARG001 - a rebuilt program is checked again
    try:
        return DEBUG_MARK in process.run((path, "--version"), timeout_s=10).stdout
    except (PlaceError, OSError):
        return False
