"""From a checkout to bundles."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from core.errors import UsageError, use_one_of
from core.terminal import Progress
from vantage.fleet.bundle import archive, wheels
from vantage.fleet.bundle.checkout import Checkout

PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of the system interpreters of Debian 12 and 13 and Ubuntu 24.04."""

_INSTALLER = Path(__file__).with_name("install.py")

_TASK = "bundle"


def build(checkout: Checkout, folder: Path, pythons: Sequence[str], *, progress: Progress) -> list[Path]:
    """Makes one bundle for each Python version; returns their paths in that order.

    Raises:
        UsageError: another Python version, another CPU.
        PlaceError: uv is missing; a wheel cannot be built or downloaded.
    """
    for python in pythons:
        if python not in PYTHONS:
            raise UsageError(f"no bundle for Python {python}", where="--python", remedy=use_one_of(python, PYTHONS))
    if platform.machine() != archive.CPU:
        raise UsageError(
            f"bundles are built on and for {archive.CPU}, and this CPU is {platform.machine()}",
            remedy=f"build them on a machine with {archive.CPU}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    needed = wheels.read_lock(checkout, "--extra", wheels.EXTRA)
    tools = wheels.read_lock(checkout, "--only-group", wheels.GROUP).others
    pip = [one for one in tools if one.requirement.name == "pip"]
    total, done = len(needed.ours) + len(pythons), 0

    def told(note: str) -> None:
        nonlocal done
        progress.update(_TASK, done=done, total=total, note=note)
        done += 1

    made = []
    with tempfile.TemporaryDirectory(prefix="upshift-bundle-") as temporary:
        ours_folder = Path(temporary) / "ours"
        ours_folder.mkdir()
        ours = wheels.build_ours(checkout, needed.ours, tools, ours_folder, built=lambda name: told(f"builds {name}"))
        for python in pythons:
            told(f"wheels for Python {python}")
            others = wheels.download(checkout, python, [*needed.others, *pip], Path(temporary) / python)
            files = {_place(path): path for path in (*ours, *others)} | {_INSTALLER.name: _INSTALLER}
            document = archive.manifest(files, python=python, glibc=wheels.GLIBC)
            made.append(archive.write_archive(files, document, folder))
        progress.update(_TASK, done=total, total=total)
    return made


def _place(wheel: Path) -> str:
    """pip's own wheel lies beside the others, as it is run and not installed."""
    return wheel.name if wheel.name.startswith("pip-") else f"wheels/{wheel.name}"
