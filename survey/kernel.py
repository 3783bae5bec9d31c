"""Kernel settings that a survey needs where its programs run. Standard library only: probers import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def wrong_settings(wanted: Mapping[str, str]) -> dict[str, str]:
    """Settings of this network namespace that differ from the required ones: sysctl name -> value here.

    Args:
        wanted: setting, relative to /proc/sys -> value.
    """
    wrong = {}
    for name, value in wanted.items():
        try:
            here = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError as error:
            here = str(error.strerror)
        if here != value:
            wrong[name.replace("/", ".")] = here
    return wrong
