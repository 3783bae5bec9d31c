"""What is cut off: a control machine that provisions, a host's power within a role, one unit of a fleet."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cells import cells
from tests.fleet.conftest import Make
from tests.fleet.fleet import NAME, overlaps

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(2400)]

UNIT = f"upshift-campaign@{NAME}.service"
RUNNER = f"$(systemctl show --property MainPID --value {UNIT})"
GUARDIAN = "$(pgrep -f vantage[.]host[.]guardian)"
KILLS = {
    "SIGKILL of the runner": f"kill -KILL {RUNNER}",
    "SIGKILL of both": f"kill -KILL {RUNNER} {GUARDIAN}",
    "SIGSTOP of the runner": f"kill -STOP {RUNNER}",
}


@cells("after_s", every=[2.0, 6.0, 12.0, 20.0, 35.0], quick=[12.0])
def test_a_killed_provisioning_is_completed_by_the_same_command(make: Make, after_s: float) -> None:
    fleet = make()
    with fleet.start("provision") as child:
        time.sleep(after_s)
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    fleet.do("provision")
    assert [verdict["changed"] for verdict in fleet.do("provision").values()] == [0] * len(fleet.hosts)


@cells("after_s", every=[6.0, 14.0, 25.0], quick=[14.0])
def test_a_power_cut_within_a_role_is_completed_by_the_same_command(make: Make, after_s: float) -> None:
    fleet = make()
    lost, other = fleet.hosts.values()
    with fleet.start("provision", "--json") as child:
        time.sleep(after_s)
        lost.cut_power()
        child.communicate()
    lost.start()
    lost.wait()
    again = fleet.do("provision")
    assert again[other.name]["changed"] == 0
    assert [verdict["changed"] for verdict in fleet.do("provision").values()] == [0, 0]
    assert lost.sh("dpkg --audit") == ""


@pytest.mark.parametrize("isolation", ["netns", "host"])
def test_a_fleet_is_complete_although_one_unit_is_killed(make: Make, isolation: str) -> None:
    fleet = make(iterations=8, isolation=isolation)
    first, second = fleet.hosts.values()
    fleet.do("provision")
    networks = {name: host.network() for name, host in fleet.hosts.items()}
    fleet.do("run", "--force")
    for way, command in KILLS.items():
        before = fleet.recorded()
        fleet.wait(lambda before=before: fleet.recorded()[first.name] > before[first.name], seconds=300, what=way)  # type: ignore[misc]
        if fleet.states()[first.name] == "done":
            break
        first.sh(command)
        fleet.wait(lambda before=before: fleet.recorded()[second.name] > before[second.name], seconds=300, what=way)  # type: ignore[misc]
    fleet.wait_state("done", seconds=900)
    fleet.do("collect")
    names = [(host, d.iteration, d.domain, d.configuration) for host in fleet.hosts for d in fleet.downloads(host)]
    assert len(names) == len(set(names)) == fleet.planned
    assert overlaps(fleet.spans()) == []
    assert {name: host.network() for name, host in fleet.hosts.items()} == networks
