"""Labs that tests of this folder share: each is up once per worker process, for tests that change nothing in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import PlaceError
from vantage.lab import control
from vantage.lab.lab import Lab, open_lab
from vantage.linux.cpu import find_pathem

DEVELOPMENT = Path("~/.cache/upshift/dev-pathem/release/pathem").expanduser()
"""Where somebody who works on the emulator has built it; it counts where it is newer than the installed one."""


def newest_emulator() -> None:
    """Makes the labs of these tests use the newest emulator that there is."""
    try:
        installed = Path(find_pathem()).stat().st_mtime
    except PlaceError:
        installed = 0.0
    if DEVELOPMENT.exists() and DEVELOPMENT.stat().st_mtime > installed:
        os.environ["UPSHIFT_PATHEM"] = str(DEVELOPMENT)


@pytest.fixture(scope="session")
def root() -> None:
    """For tests of what only root may do, such as to measure on a host's own network. No reason to skip them:
    `make test` asks for it by sudo, as `make setup` does."""
    if os.geteuid() != 0:
        pytest.fail("this test needs root: give make test, or run pytest by sudo", pytrace=False)


@pytest.fixture(scope="session")
def lab_host() -> Iterator[Path]:
    """A host that can hold labs, with a state folder of our own. Elsewhere the test fails: every machine that Upshift
    supports has root or user namespaces."""
    newest_emulator()
    try:
        find_pathem()
        control.check_host()
    except PlaceError as error:
        pytest.fail(error.sentence(), pytrace=False)
    before = os.environ.get("UPSHIFT_STATE_DIR")
    folder = Path(tempfile.mkdtemp(prefix="ul-", dir="/tmp"))  # socket paths must stay short
    os.environ["UPSHIFT_STATE_DIR"] = str(folder)
    yield folder
    control.down_all()
    if before is None:
        del os.environ["UPSHIFT_STATE_DIR"]
    else:
        os.environ["UPSHIFT_STATE_DIR"] = before
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def small_lab(lab_host: Path) -> Iterator[Lab]:
    """The lab `small`."""
    with open_lab("small") as lab:
        yield lab


@pytest.fixture(scope="session")
def anrw_lab(lab_host: Path) -> Iterator[Lab]:
    """The lab `anrw`: three vantage points, sixteen targets, sites for a crawl."""
    with open_lab("anrw") as lab:
        yield lab
