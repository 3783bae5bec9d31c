"""The campaigns that run on one host, so that two do not share it unknown to each other.

Each has a socket with an abstract name (unix(7)) in the host's network namespace, and all are in /proc/net/unix. The
kernel removes it with the process, however that ends, and no folder is needed that several users may write.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from core.errors import PlaceError

_KIND = "upshift-campaign"
_SOCKETS = Path("/proc/net/unix")
_MOST_NAME, _MOST_FOLDER = 30, 40
"""Characters of a name and of a folder's end: a socket's name has 107 bytes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCampaign:
    """A campaign that runs on this host."""

    name: str
    """Its beginning, if it is long."""
    folder: str
    """The end of the path of its results."""
    force: bool
    """Whether it runs at the same time as others."""


@contextlib.contextmanager
def announced(name: str, folder: Path, *, force: bool) -> Iterator[None]:
    """Tells other campaigns of this host that this one runs, for the duration of a block.

    Args:
        force: run at the same time as others.

    Raises:
        PlaceError: another one runs, and neither of the two was forced.
    """
    place = _quoted_end(folder.resolve()).replace("/", ":")
    words = (_KIND, str(os.getpid()), "force" if force else "alone", quote(name, safe="")[:_MOST_NAME], place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        mark.bind("\0" + "/".join(words))
        if unwilling := [other for other in others() if not (force or other.force)]:
            raise PlaceError(
                f"the campaign {unwilling[0].name} runs on this host",
                where=unwilling[0].folder,
                remedy="wait for its end: two share slots and budgets with nobody knowing; --force runs both",
            )
        yield


def others() -> list[RunningCampaign]:
    """The campaigns of other processes on this host."""
    running = []
    for line in _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.rpartition(" @")[2].split("/")
        if len(words) == 5 and words[0] == _KIND and words[1] != str(os.getpid()):
            name, folder = unquote(words[3]), unquote(words[4].replace(":", "/"))
            running.append(RunningCampaign(name=name, folder=folder, force=words[2] == "force"))
    return running


def shown_end(folder: Path) -> str:
    """The end of a folder's path as others see it (`RunningCampaign.folder`).

    A long one is cut as it is quoted, also within a character.
    """
    return unquote(_quoted_end(folder))


def _quoted_end(folder: Path) -> str:
    return quote(str(folder))[-_MOST_FOLDER:]
