"""Upshift's exceptions. The command line prints each as one sentence and sets the exit code; no other module does.

UpshiftError                exit 2
├── UsageError              wrong input: names what is wrong, where, and the remedy            exit 2
├── PlaceError              a fault of the host: no permission, a missing program, a full disk exit 75
│   ├── ReachError          an address that may not be contacted from here                     exit 2
│   │   └── BlockedError    its owner opted out, or it is in a block list                      exit 2
│   └── LabError            the lab could not be built, joined or removed                      exit 75
├── IncompleteError         finished, but part of the result is missing                        exit 1
│   └── UnusableError       all is there, and the result cannot be used                        exit 1
├── AskedToStopError        stopped as it was asked, before the work was done                  exit 130
└── NoisyHostError          the host is too busy for a verdict                                 exit 3

A wrong input stays wrong, so 2 must not be retried; a retry may find the host repaired, so 75 (EX_TEMPFAIL of
sysexits.h) may be. A failed download is not an exception: it is a record with a cause (`core.domain.Failure`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


class UpshiftError(Exception):
    """Base of all errors that Upshift raises on purpose.

    Args:
        what: one clause that says what is wrong, without a full stop.
        where: the file, line, field or option concerned.
        remedy: how to fix it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The one sentence that a user reads: `where: what; remedy`."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.remedy}" if self.remedy else text


class UsageError(UpshiftError):
    """Wrong input: a file, a field, an option."""


class PlaceError(UpshiftError):
    """A place cannot do what was asked. A retry may succeed once the host is repaired."""

    exit_code = 75


class ReachError(PlaceError):
    """An address is outside the allowed prefixes of a place."""

    exit_code = 2


class BlockedError(ReachError):
    """A domain or address is in a block list."""


class LabError(PlaceError):
    """The lab could not be built, joined or removed."""


class IncompleteError(UpshiftError):
    """The command finished, but part of its result is missing."""

    exit_code = 1


class UnusableError(IncompleteError):
    """The command finished, and its result cannot be used: the same command again would change nothing."""


class AskedToStopError(UpshiftError):
    """The command ended because it was asked to, before its work was done. Not a failure, and nothing to retry."""

    exit_code = 130


class NoisyHostError(UpshiftError):
    """The host is too busy for a verdict."""

    exit_code = 3


def not_found(path: Path | str, kind: str = "file", *, remedy: str = "check the path") -> UsageError:
    """The error for a path that does not exist; `kind` is what was expected there, `file` or `folder`."""
    return UsageError(f"{kind} not found", where=str(path), remedy=remedy)


def not_installed(module: str, extra: str | None, *, where: str) -> UsageError:
    """The error for a Python module of one of Upshift's extras; None: of several.

    The remedy is the checkout's: on the Python Package Index, `upshift` is somebody else's project.
    """
    extras = f"--extra {extra}" if extra else "--all-extras"
    return UsageError(
        f"the Python module {module} is not installed here",
        where=where,
        remedy=f"in the checkout run: uv sync --locked --inexact {extras} (or: make setup)",
    )


def unreadable(error: OSError) -> str:
    """Why a file cannot be opened or read, as `what` of a UsageError."""
    return "file not found" if isinstance(error, FileNotFoundError) else str(error.strerror).lower()


FREE_SPACE = "free some space there, then run the same command again"
"""The remedy of a full disk."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOST = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""A disk that fails, a remote one that is gone, and limits of the host."""

_REMEDIES = {
    **dict.fromkeys(_FULL, FREE_SPACE),
    **dict.fromkeys(_HOST, "look at this host (dmesg, ulimit -a), then run the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "use another one, or change its permissions"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP), "name another one"),
    errno.EFBIG: "name one on another file system",
}
"""File errors that any command may have -> remedy; any other OSError is a bug of ours."""


def file_error(error: OSError) -> UpshiftError | None:
    """The error for a file that cannot be read or written; some are faults of the host. None: a bug of ours."""
    of_socket = error.errno == errno.ENOTCONN and error.filename is None
    if of_socket or (remedy := _REMEDIES.get(error.errno or 0)) is None:
        return None
    kind = PlaceError if error.errno in {*_FULL, *_HOST} else UsageError
    what = os.strerror(error.errno or 0).lower()  # pyarrow's own words are a paragraph
    if error.filename is None:
        return kind(what, remedy=remedy.replace(" there", ""))
    return kind(what, where=str(error.filename), remedy=remedy)


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if none is similar."""
    import difflib  # slow to import, and rarely needed

    close = difflib.get_close_matches(wrong.lower(), known, n=1) or difflib.get_close_matches(wrong, known, n=1)
    return close[0] if close else None


def use_one_of(wrong: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the name that was probably meant, then all valid names."""
    names = list(known)
    meant = nearest(wrong, names)
    listed = f"use one of: {', '.join(names)}"
    return listed if meant is None else f"did you mean {meant}? {listed}"
