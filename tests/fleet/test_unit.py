"""A campaign's unit ends by systemd, by kills and by a suspension: the host is as before, and systemd knows why."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fleet.cloud import Cloud
from tests.fleet.fleet import NAME, Fleet
from tests.fleet.host import Host

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(1800)]

UNIT = f"upshift-campaign@{NAME}.service"
BACK_S = 10.0
RUNNER = f"$(systemctl show --property MainPID --value {UNIT})"
GUARDIAN = "$(pgrep -f vantage[.]host[.]guardian)"

WAYS = {
    "stop": (f"systemctl stop {UNIT}", "inactive"),
    "restart": (f"systemctl restart {UNIT}", "active"),
    "SIGKILL of the runner": (f"kill -KILL {RUNNER}", "activating"),
    "SIGKILL of the guardian": (f"kill -KILL {GUARDIAN}", "activating"),
    "SIGKILL of both": (f"kill -KILL {RUNNER} {GUARDIAN}", "activating"),
    "SIGSTOP of the runner": (f"kill -STOP {RUNNER}", "activating"),
}
"""How a unit ends -> what does it, and the state that systemd then has it in; `activating`: it waits to start again."""

ISOLATIONS = ("netns", "host")


@pytest.fixture(scope="module", params=ISOLATIONS)
def fleet(request: pytest.FixtureRequest, cloud: Cloud, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """One host that is provisioned, with a long campaign that is stopped."""
    targets = cloud.lab.targets()[:3]
    folder = tmp_path_factory.mktemp(str(request.param))
    name = list(cloud.hosts)[ISOLATIONS.index(request.param)]
    made = Fleet(
        cloud, folder, built, targets=targets, hosts=[name], iterations=1000, slot_s=0, isolation=request.param
    )
    made.do("provision")
    made.do("run", "--force")
    made.do("stop")
    return made


@pytest.mark.parametrize("way", WAYS)
def test_the_host_is_as_before_however_the_unit_ends(fleet: Fleet, way: str) -> None:
    (host,) = fleet.hosts.values()
    before = host.network()
    command, state = WAYS[way]
    host.sh(f"systemctl start {UNIT}")
    wait(lambda: host.network() != before, seconds=60, what="the campaign changes nothing on the host")
    began = main_process(host)

    host.sh(command, timeout_s=400)
    wait(lambda: main_process(host) != began, seconds=60, what="the unit does not end")
    if way != "restart":
        wait(lambda: host.network() == before, seconds=BACK_S, what="the host is not as before")
    # It is deactivating while ExecStopPost looks for what is left.
    seen = f"systemctl is-active {UNIT}"
    wait(lambda: host.ssh(seen).stdout.strip() == state, seconds=30, what=f"the unit is not {state}")
    host.sh(f"systemctl stop {UNIT}", timeout_s=400)
    wait(lambda: host.network() == before, seconds=BACK_S, what="the host is not as before")


def main_process(host: Host) -> str:
    """The process that the unit waits for; 0 where it has ended."""
    return host.sh(f"systemctl show --property MainPID --value {UNIT}").strip()


def wait(condition: object, *, seconds: float, what: str) -> None:
    """Looks twice a second."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)
