"""What all tests of a fleet need: root, roots of the hosts' systems, and a cloud of hosts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import PlaceError
from tests.fleet import roots
from tests.fleet.cloud import Cloud, open_cloud
from tests.fleet.fleet import BUNDLES_VARIABLE, Fleet, bundles
from tests.lab.conftest import newest_emulator
from tests.package_index import download_small

DEBIANS = {"MUC": "bookworm", "SGP": "trixie"}
"""The hosts of a cloud where a test names no others."""

Make = Callable[..., Fleet]

UBUNTUS = {"MUC": "jammy", "SGP": "noble"}


@pytest.fixture(scope="session")
def cloud_machine() -> None:
    """A machine that can hold a cloud: root, and Debian roots from the cache or a mirror."""
    if os.geteuid() != 0:
        pytest.fail("this test needs root: give make test, or run pytest by sudo", pytrace=False)
    newest_emulator()
    skip_without(DEBIANS.values())


def skip_without(suites: Iterable[str]) -> None:
    """Skips where a root cannot be had."""
    try:
        for suite in suites:
            roots.root(suite)
    except PlaceError as error:
        pytest.skip(error.sentence())


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest, cloud_machine: None) -> Iterator[Cloud]:
    """Hosts that have booted, by a test's cells, or one of each Debian. Skips without their roots."""
    hosts: dict[str, str] = getattr(request, "param", DEBIANS)
    skip_without(hosts.values())
    with open_cloud(hosts) as opened:
        opened.start()
        yield opened


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Bundles of this checkout for the hosts of this run, made by the first of its processes that needs them. Skips
    without a package index, and on systems newer than vantage points.
    """
    if BUNDLES_VARIABLE not in os.environ:
        download_small(tmp_path_factory.mktemp("index") / "wheels")
    long = request.config.getoption("--soak")  # otherwise no test installs on a host of another system
    suites = [*DEBIANS.values(), *UBUNTUS.values()] if long else ["bookworm"]
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "bundles"
    folder.mkdir(exist_ok=True)
    try:
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = list(folder.glob("*.tar"))
            return folder if made else bundles(folder, suites)
    except PlaceError as error:
        if "newer C library" in error.sentence():
            pytest.skip(error.sentence())
        raise


@pytest.fixture
def make(cloud: Cloud, built: Path, tmp_path: Path) -> Iterator[Make]:
    """Makes a fleet of all hosts; they are as before afterwards, however the test ends."""
    made: list[Fleet] = []

    def of(**more: Any) -> Fleet:
        made.append(Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], **more))
        return made[-1]

    yield of
    for fleet in made:
        fleet.try_("stop")
        fleet.do("teardown")
        for host in fleet.hosts.values():
            host.sh("rm -rf /var/lib/upshift")
