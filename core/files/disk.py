"""Files on a disk: sizes as people write them, room before anything is written, atomic writing, locks.

A file is written atomically: to a temporary file in the same folder, flushed to disk unless stated otherwise, and
renamed. Locks are those that the kernel releases with the process that holds them (flock(2)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from core.errors import PlaceError, UpshiftError, UsageError

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?) ?(B|kB|MB|GB|TB|KiB|MiB|GiB)")

_UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


def parse_size(value: int | str) -> int:
    """Bytes from a number or a text such as `2 MB`. Raises ValueError."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError(f"{value!r} is not a valid size")
    return round(float(match[1]) * _UNITS[match[2]])


def size_text(size_bytes: int) -> str:
    """A size for people, with three digits: `1.23 GB`."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size_bytes >= 0.9995 * _UNITS[unit]:  # 999.5 kB are 1 MB with three digits
            return f"{size_bytes / _UNITS[unit]:.3g} {unit}"
    return f"{size_bytes} B"


def free_bytes(folder: Path) -> int:
    """What is free on a folder's disk for others than root."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def check_room(folder: Path, needed: int, *, what: str, remedy: str = "free some space there") -> None:
    """Raises PlaceError, which names the disk, if a folder has no room for `needed` bytes of `what`.

    The folder need not exist yet.
    """
    there = nearest(folder)
    free = free_bytes(there)
    if free >= needed or os.statvfs(there).f_blocks == 0:  # no size: /proc, or a tmpfs without a limit
        return
    disk = there.resolve()
    while not disk.is_mount():
        disk = disk.parent
    raise PlaceError(
        f"the disk is full: {size_text(free)} are free on {disk}, and {what} need {size_text(needed)}",
        where=str(folder),
        remedy=f"{remedy}, then run the same command again",
    )


def nearest(folder: Path) -> Path:
    """The folder, or the first of those above it that exists, as far as this user may see: where one would be made."""
    there = folder.absolute()
    while not os.path.exists(there):  # noqa: PTH110 - Path.exists raises where it may not look
        there = there.parent
    return there


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path in the same folder that is renamed to `path` if the block succeeds, else removed."""
    with whole_files(path, durable=durable) as (temporary,):
        yield temporary


@contextmanager
def whole_files(*paths: Path, durable: bool = True) -> Iterator[tuple[Path, ...]]:
    """Like `whole_file` for files that belong together: all are complete and on disk before the first is renamed.

    They are renamed in the order of `paths`, so the one that makes the others valid should be last.

    Args:
        durable: wait for the disk, so that a power cut leaves the old or the new file. Else readers still see one of
            them, but a power cut may leave an empty file.

    Raises:
        UsageError: a path has no name (`.`, `/`).
    """
    if nameless := next((path for path in paths if not path.name), None):
        raise UsageError("this is a folder", where=str(nameless), remedy="name a file")
    temporaries = tuple(path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths)
    with ExitStack() as stack:
        for path, temporary in zip(paths, temporaries, strict=True):
            make_folder(path.parent)
            _remove_remains(path)
            stack.callback(temporary.unlink, missing_ok=True)
        yield temporaries
        for temporary in temporaries if durable else ():
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        for path, temporary in zip(paths, temporaries, strict=True):
            give_to_caller(temporary)
            temporary.replace(path)


def calling_user() -> tuple[int, int] | None:
    """User and group who called sudo, where we are root by it: results are theirs. None for anybody else."""
    names = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not all(name.isdecimal() for name in names) or names[0] == "0":
        return None
    return int(names[0]), int(names[1])


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it; new ones belong to the user who called sudo."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        give_to_caller(each)


def give_to_caller(path: Path) -> None:
    """Gives a file, or a folder with all that is in it, to the user who called sudo.

    Only what is root's changes hands, by its own name alone (no links, nothing with a second name), and nothing in a
    folder of somebody else.
    """
    caller = calling_user()
    if caller is None or path.is_symlink() or path.absolute().parent.stat().st_uid not in (0, caller[0]):
        return

    def give(name: str, folder: int | None = None) -> None:
        with contextlib.suppress(FileNotFoundError):
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
            plain = stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and state.st_nlink == 1)
            if plain and state.st_uid == 0:
                os.chown(name, *caller, dir_fd=folder, follow_symlinks=False)

    give(str(path))
    for _, folders, files, descriptor in os.fwalk(path) if path.is_dir() else ():
        for name in (*folders, *files):
            give(name, descriptor)


def _remove_remains(path: Path) -> None:
    """Removes temporary files of this file that killed processes left behind."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        owner = part.name.split(".")[-2]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Writes a text file atomically (`durable`: see `whole_files`)."""
    with whole_file(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json_text(document))


def json_text(document: object) -> str:
    """A JSON document in the format of our files."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


_LOCK_FILE = ".lock"

_RETRY_S = 0.25
"""How long a second process tries: `is_running` holds the lock for an instant."""


@contextlib.contextmanager
def folder_lock(folder: Path, *, remedy: str = "use another --out") -> Iterator[None]:
    """Locks a campaign's folder for one process; afterwards what is new in it belongs to the user who called sudo.

    Raises:
        PlaceError: another process holds it, or the disk is full.
        UsageError: it cannot be written.
    """
    with ExitStack() as stack:
        try:
            make_folder(folder)
            # They may be somebody else's, in /tmp or /etc. Journals are ours, and only given away below.
            others = {path.name for path in folder.iterdir()} - {_LOCK_FILE, "vantage"}
            handle = stack.enter_context((folder / _LOCK_FILE).open("a"))
            is_ours = take_lock(handle.fileno(), within_s=_RETRY_S)
        except OSError as error:  # also ENOLCK: NFS without locks
            raise _not_written(error, folder, remedy) from None
        if not is_ours:
            what = "another upshift run is working in this folder"
            raise PlaceError(what, where=str(folder), remedy=f"wait for it, or {remedy}")
        try:
            yield
        finally:
            for each in folder.iterdir() if others else (folder,):
                if each.name not in others:
                    give_to_caller(each)


def _not_written(error: OSError, folder: Path, remedy: str = "use another --out") -> UpshiftError:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    kind, remedy = (PlaceError, "free some space there") if full else (UsageError, remedy)
    return kind(f"results cannot be written here ({error.strerror})", where=str(folder), remedy=remedy)


def check_free(folder: Path) -> None:
    """Raises as `folder_lock`; for a look before anything is changed: nothing is left where nothing was."""
    if is_running(folder):
        with folder_lock(folder):
            return
    try:
        Path(tempfile.mkdtemp(dir=nearest(folder))).rmdir()
    except OSError as error:
        raise _not_written(error, folder) from None


def is_running(folder: Path) -> bool:
    """Whether a process works in this folder."""
    try:
        with (folder / _LOCK_FILE).open("r") as handle:
            return not take_lock(handle.fileno(), shared=True)
    except OSError:
        return False


def take_lock(descriptor: int, *, shared: bool = False, wait: bool = False, within_s: float = 0.0) -> bool:
    """Takes the lock of an open file (flock(2)) until it is closed by all who have it; False if another process has it.

    Args:
        shared: others may have it shared, too.
        wait: until it is free.
        within_s: how long to try [s], if not until then.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
