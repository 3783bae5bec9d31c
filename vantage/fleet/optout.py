"""Opt-outs of a fleet: checked, and kept in the control machine's file, which the next `run` copies to new hosts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from core.errors import UsageError
from core.files import atomic
from core.files.config import read_text
from core.outreach.blocks import MOST_BYTES, read_blocked


def checked(entries: Sequence[str]) -> list[str]:
    """The entries without spaces around them, each once. Raises UsageError for one that is no domain and no prefix."""
    found = list(dict.fromkeys(entry.strip() for entry in entries))
    for entry in found:
        if not entry or "#" in entry or len(entry.splitlines()) != 1:
            raise UsageError(f"{entry!r} is neither a domain nor a prefix", where="ADD", remedy="see: docs/use/fleet.md")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(f"{entry}\n" for entry in found))
        file.flush()
        try:
            read_blocked(Path(file.name))
        except UsageError as error:
            raise UsageError(error.what.partition(": ")[2], where="ADD", remedy=error.remedy) from None
    return found


def append(path: Path, entries: Sequence[str]) -> list[str]:
    """Adds to a file those entries that it does not have, and returns them; the file is whole at any moment."""
    text = read_text(path, most_bytes=MOST_BYTES) if path.exists() else ""
    present = {line.partition("#")[0].strip() for line in text.splitlines()}
    missing = [entry for entry in entries if entry not in present]
    if missing:
        if text and not text.endswith("\n"):
            text += "\n"
        atomic.write_text(path, text + "".join(f"{entry}\n" for entry in missing))
    return missing
