"""CHANGELOG.md: news since the last release from the fragments in `changes/`, and the releases as they were cut.

A fragment is `changes/<issue>.<short-name>.md`, one or two sentences. A release is cut by

    python -m scripts.pages.changelog 0.2.0 2027-01-31

which gives the news their version, and removes the fragments; the version itself is in `pyproject.toml` and
`core/__init__.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HEAD = """# Changelog

News from `changes/` by `scripts/docs`, then the releases, newest first.
"""

_RELEASE = re.compile(r"^## \d", re.M)


def text(repository: Path, news: str = "Unreleased") -> str:
    """The page.

    Args:
        news: heading of what is new since the last release.
    """
    path = repository / "CHANGELOG.md"
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    first = _RELEASE.search(known)
    releases = f"\n{known[first.start() :]}" if first else ""
    lines = "".join(f"- {' '.join(path.read_text(encoding='utf-8').split())}\n" for path in fragments(repository))
    return HEAD + (f"\n## {news}\n\n{lines}" if lines else "") + releases


def fragments(repository: Path) -> list[Path]:
    """The latest issue first; within an issue in order of name."""
    paths = (repository / "changes").glob("[0-9]*.md")
    return sorted(paths, key=lambda path: (-int(path.name.partition(".")[0]), path.name))


def release(repository: Path, version: str, day: str) -> None:
    """Gives the news their version and day, and removes the fragments."""
    page = text(repository, f"{version} ({day})")
    (repository / "CHANGELOG.md").write_text(page, encoding="utf-8")
    for path in fragments(repository):
        path.unlink()


if __name__ == "__main__":
    release(Path(), *sys.argv[1:3])
