"""Locks that the kernel releases with the process that holds them (flock(2)), and the one of a campaign's folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from core.errors import PlaceError, UsageError

_FILE_NAME = ".lock"

_RETRY_S = 0.25
"""How long a second process tries: `is_running` holds the lock for an instant."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Locks a campaign's folder for one process.

    Raises:
        PlaceError: another process holds it, or the disk is full.
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / _FILE_NAME).open("a")
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise (PlaceError if full else UsageError)(
            f"results cannot be written here ({error.strerror})",
            where=str(folder),
            remedy="free some space there" if full else "use another --out",
        ) from None
    with handle:
        deadline = time.monotonic() + _RETRY_S
        while not take_lock(handle.fileno()):
            if time.monotonic() > deadline:
                raise _in_use(folder)
            time.sleep(0.02)
        yield


def check_free(folder: Path) -> None:
    """Raises PlaceError if another process works in a folder; for a look before anything is changed."""
    deadline = time.monotonic() + _RETRY_S
    while is_running(folder):
        if time.monotonic() > deadline:
            raise _in_use(folder)
        time.sleep(0.02)


def _in_use(folder: Path) -> PlaceError:
    remedy = "wait for it, or use another --out"
    return PlaceError("another upshift run is working in this folder", where=str(folder), remedy=remedy)


def is_running(folder: Path) -> bool:
    """Whether a process works in this folder."""
    try:
        handle = (folder / _FILE_NAME).open("r")
    except OSError:
        return False
    with handle:
        return not take_lock(handle.fileno(), shared=True)


def take_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Takes the lock of an open file (flock(2)) until it is closed by all who have it; False if another process has it.

    Args:
        shared: others may have it shared, too.
        wait: until it is free.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
