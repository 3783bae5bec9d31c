"""Whether this machine can download wheels: not all machines that run the tests reach a package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import PlaceError
from vantage.fleet import bundle
from vantage.fleet.bundle import Pinned, find_checkout

SMALL = "mdurl"


def small_package() -> Pinned:
    """A locked package whose wheel has 10 kB."""
    others = bundle.read_lock(find_checkout(), "--extra", bundle.EXTRA).others
    (small,) = [one for one in others if one.requirement.name == SMALL]
    return small


def download_small(into: Path) -> Path:
    """Its wheel, for Python 3.13. Skips the test where no index has it."""
    try:
        (found,) = bundle.download(find_checkout(), "3.13", [small_package()], into)
    except PlaceError as error:
        pytest.skip(f"wheels cannot be downloaded here: {error.sentence()}")
    return found
