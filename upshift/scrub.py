"""Foreign text made safe: what servers and programs say is stored and shown, but never as control characters.

Domains, headers and error texts come from strangers. They end in a terminal, in HTML and in file names, so each is
cut to size and stripped where it enters.
"""

from __future__ import annotations

import re
import unicodedata

MOST_CHARACTERS = 300
"""Longest text that a record keeps."""


def scrub(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """One line without control, format (bidirectional) or unassigned characters, at most `most` characters."""
    cleaned = "".join(" " if unicodedata.category(c).startswith(("C", "Zl", "Zp")) else c for c in text[: most * 2])
    return " ".join(cleaned.split())[:most]


def plain(text: object) -> str:
    """The text with a mark for each control character, so that it moves no cursor and colours no terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def last_line(text: str) -> str:
    """The last line that says something: where programs put the reason of their death."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return scrub(lines[-1]) if lines else ""


def file_name(text: str) -> str:
    """A part of a file name from a hostile text: letters, digits, dots and dashes only, at most 80 characters.

    Different texts may give the same name; whoever needs unique names adds a number.
    """
    safe = re.sub(r"[^a-z0-9.-]+", "_", text.lower())[:80].strip("._-")
    return safe or "target"
