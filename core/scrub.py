"""Makes untrusted text safe: text from servers and programs is stored and shown, but without control characters.

Domains, headers and error texts are untrusted. They are shown in a terminal, in HTML and in file names, so each is
truncated and stripped on input.
"""

from __future__ import annotations

import re
import unicodedata

MOST_CHARACTERS = 300
"""Longest text in a record [characters]."""


def scrub(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """One line without control, format (bidirectional) or unassigned characters, at most `most` characters."""
    cleaned = "".join(" " if unicodedata.category(c).startswith(("C", "Zl", "Zp")) else c for c in text[: most * 2])
    return " ".join(cleaned.split())[:most]


def plain(text: object) -> str:
    """The text with a mark for each control character, so that it moves no cursor and colours no terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def last_line(text: str) -> str:
    """The last line that is not empty: programs usually end with the reason of a failure."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return scrub(lines[-1]) if lines else ""


def file_name(text: str) -> str:
    """A part of a file name from untrusted text: letters, digits, dots and dashes only, at most 80 characters.

    Different texts may give the same name; callers that need unique names add a number.
    """
    safe = re.sub(r"[^a-z0-9.-]+", "_", text.lower())[:80].strip("._-")
    return safe or "target"
