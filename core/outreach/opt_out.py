"""Opt-outs: the list of a host, which every campaign, crawl and survey there obeys, and that of a control machine.

Entries are only ever added: under a lock, so that of two who add at once none is lost, and read back. A control machine
hands its whole list to a host, which notes that it has it. A host that was off does not know what it missed: what runs
there waits after a boot until a control machine has handed over its list again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import PlaceError, UsageError
from core.files import disk
from core.files.config import read_text
from core.outreach.blocks import HOST_LIST, MOST_BYTES, first_fault, parse_blocked, read_blocked

CONFIRMED = HOST_LIST.with_name("opt-out.json")
"""Which list of a control machine this host has, since when, and in which boot."""

_BOOT = Path("/run/upshift-opt-outs")
"""Root's note of this boot: /run is empty after each. Not the kernel's boot ID, as a unit that has a /proc of its own
sees another one in a container."""

_MOST_WAIT_S = 30.0


def parts(lines: Iterable[str]) -> list[str]:
    """The entries of a list, each once, without comments and the byte order mark that some editors write."""
    entries = (line.removeprefix("\ufeff").partition("#")[0].strip() for line in lines)
    return list(dict.fromkeys(filter(None, entries)))


def listed(path: Path) -> list[str]:
    """The entries of a file. Raises UsageError for one that is missing or not valid, with the line."""
    read_blocked(path)
    return parts(read_text(path, most_bytes=MOST_BYTES).splitlines())


def checked(entries: Sequence[str]) -> list[str]:
    """The entries without spaces around them, each once. Raises UsageError for one that is no domain and no prefix."""
    unique = list(dict.fromkeys(entry.strip() for entry in entries))
    for entry in unique:
        if not entry or "#" in entry or len(entry.splitlines()) != 1:
            raise UsageError(
                f"{entry!r} is neither a domain nor a prefix", where="ADD", remedy="see: docs/use/fleet.md"
            )
    _, wrong = parse_blocked("\n".join(unique))
    if wrong:
        error = first_fault(Path("ADD"), wrong)
        raise UsageError(error.what.partition(": ")[2], where="ADD", remedy=error.remedy)
    return unique


def add(path: Path, entries: Sequence[str]) -> list[str]:
    """Adds to a file, made if missing, those entries that it does not have, and returns them.

    The file is whole at any moment, and everybody may read it.

    Raises:
        PlaceError: another process holds the lock for 30 s, or an entry is not there when the file is read back.
        UsageError: the file cannot be read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        text = read_text(path, most_bytes=MOST_BYTES) if path.exists() else ""
        present = set(parts(text.splitlines()))
        missing = [entry for entry in entries if entry not in present]
        if missing or not path.exists():
            gap = "\n" if text and not text.endswith("\n") else ""
            _write(path, f"{text}{gap}" + "".join(f"{entry}\n" for entry in missing))
        lost = set(entries).difference(parts(read_text(path, most_bytes=MOST_BYTES).splitlines()))
    if lost:
        raise PlaceError(f"{', '.join(sorted(lost))} was written, but is not there", where=str(path))
    return missing


def _write(path: Path, text: str) -> None:
    """Writes a file that everybody may read from its first moment on, whatever the umask: campaigns are not root."""
    with disk.whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
        part.chmod(0o644)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a list: that of a file beside it, as the list itself is replaced."""
    with path.with_name(f".{path.name}.lock").open("a") as handle:
        if not disk.take_lock(handle.fileno(), within_s=_MOST_WAIT_S):
            raise PlaceError(f"another process has held the list for {_MOST_WAIT_S:g} s", where=str(path))
        yield


def digest(entries: Iterable[str]) -> str:
    """What identifies a list of a control machine: SHA-256 of its sorted entries, a line each."""
    return hashlib.sha256("".join(f"{entry}\n" for entry in sorted(set(entries))).encode()).hexdigest()


def confirm(entries: Iterable[str], now: float) -> None:
    """Notes that this host has all entries of a control machine's list, in this boot."""
    mark = f"{digest(entries)} {now}"
    _write(_BOOT, f"{mark}\n")
    _write(CONFIRMED, disk.json_text({"sha256": digest(entries), "at": now, "boot": mark}))


def confirmed() -> Mapping[str, Any] | None:
    """What this host noted: `sha256` of the list, Unix time `at`, and whether that was in this boot (`current`).

    None where no control machine hands lists over. What cannot be read counts as not confirmed.
    """
    try:
        note: Any = json.loads(CONFIRMED.read_text(encoding="utf-8"))
        current = _BOOT.exists() and note["boot"] == _BOOT.read_text(encoding="ascii").strip() and HOST_LIST.exists()
        return {"sha256": str(note["sha256"]), "at": float(note["at"]), "current": current}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return {"sha256": "", "at": 0.0, "current": False}
