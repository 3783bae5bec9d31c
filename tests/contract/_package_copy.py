"""A copy of the packages that a test adds files to, and its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("upshift", "downloader", "analysis", "vantage", "crawler", "cdn_mapping", "survey")


def copy_packages(folder: Path, added: Mapping[str, str]) -> None:
    """Copies the packages into a folder, and adds new files to them."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in added.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text)


def upshift(folder: Path, *arguments: str, state: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    """The command line of the copy."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import upshift.cli, downloader.factors as f\n"
        f"assert f.__file__.startswith({str(folder)!r}), f.__file__\nupshift.cli.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "UPSHIFT_STATE_DIR": state, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=120,
        check=False,
    )
