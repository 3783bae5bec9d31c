"""The folders of hosts that shared a campaign, as one folder: links to their vantage points."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from core.errors import UsageError
from core.files.description import BESIDE, FILE_NAME
from core.files.journal import open_journals

_COPIED = (FILE_NAME, *BESIDE)
"""What tables and reports read besides journals and captures; the same in all folders."""


def link_together(folders: Sequence[Path], out: Path) -> None:
    """Makes or completes a folder with the vantage points of all folders, which stay where they are.

    The links are relative, so folders that are moved together stay together.

    Raises:
        UsageError: the folders hold different plans, or one vantage point twice; `out` holds something else.
    """
    homes: dict[str, Path] = {}
    digests: dict[str | None, Path] = {}
    for folder in folders:
        with open_journals(folder) as journals:
            for name, journal in journals.items():
                if name in homes:
                    raise UsageError(
                        f"the vantage point {name} is in {homes[name]}, too",
                        where=str(folder),
                        remedy="name one of them",
                    )
                homes[name] = folder
                digests.setdefault(journal.meta("plan_hash"), folder)
    if len(digests) > 1:
        one, other, *_ = digests.values()
        raise UsageError(
            f"it holds another plan than {one}", where=str(other), remedy="name folders of one campaign (--here)"
        )
    links = {out / "vantage" / name: home / "vantage" / name for name, home in homes.items()}
    for link, home in links.items():
        if os.path.lexists(link) and link.resolve() != home.resolve():
            raise UsageError("this is already there", where=str(link), remedy="use another --out")
    (out / "vantage").mkdir(parents=True, exist_ok=True)
    for link, home in links.items():
        if not os.path.lexists(link):
            link.symlink_to(os.path.relpath(home.resolve(), link.parent.resolve()))
    for name in _COPIED:
        if (source := folders[0] / name).exists() and not (out / name).exists():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, out / name)
