"""CHANGELOG.md from the fragments in `changes/`.

A fragment is `changes/<issue>.<short-name>.md`, one or two sentences. At a release they move to `changes/<version>/`.
"""

from __future__ import annotations

import re
from pathlib import Path

HEAD = """# Changelog

Made by `scripts/docs` from the files in `changes/`, newest first.
"""


def text(repository: Path) -> str:
    folder = repository / "changes"
    releases = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: numbers(path.name))
    sections = [("Unreleased", folder), *((path.name, path) for path in reversed(releases))]
    told = ((title, fragments(path)) for title, path in sections)
    return HEAD + "".join(f"\n## {title}\n\n{said}" for title, said in told if said)


def numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def fragments(folder: Path) -> str:
    """The latest issue first; within an issue in order of name."""
    paths = sorted(folder.glob("[0-9]*.md"), key=lambda path: (-numbers(path.name)[0], path.name))
    return "".join(f"- {' '.join(path.read_text(encoding='utf-8').split())}\n" for path in paths)
