"""What all tests of a fleet need: root, Debian roots, and a cloud of hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet import roots
from tests.fleet.cloud import Cloud, open_cloud
from tests.fleet.fleet import BUNDLES_VARIABLE, bundles
from tests.lab.conftest import newest_emulator
from tests.package_index import download_small
from upshift.errors import PlaceError

HOSTS = {"MUC": "bookworm", "SGP": "trixie"}
"""The hosts of the tier's cloud."""


@pytest.fixture(scope="session")
def cloud_machine() -> None:
    """A machine that can hold a cloud: root, and Debian roots from the cache or a mirror."""
    if os.geteuid() != 0:
        pytest.fail("this test needs root: give make test, or run pytest by sudo", pytrace=False)
    newest_emulator()
    try:
        for suite in roots.SUITES:
            roots.root(suite)
    except PlaceError as error:
        pytest.skip(error.sentence())


@pytest.fixture(scope="module")
def cloud(cloud_machine: None) -> Iterator[Cloud]:
    """Two hosts that have booted, one of each Debian."""
    with open_cloud(HOSTS) as found:
        found.start()
        yield found


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of this checkout. Skips without a package index, and on systems newer than vantage points."""
    if BUNDLES_VARIABLE not in os.environ:
        download_small(tmp_path_factory.mktemp("index") / "wheels")
    try:
        return bundles(tmp_path_factory.mktemp("bundles"))
    except PlaceError as error:
        if "newer C library" in error.sentence():
            pytest.skip(error.sentence())
        raise
