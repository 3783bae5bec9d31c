"""A fleet from provisioning to teardown: systemd stops a unit, and a host loses its power.

One host in `make test`, which keeps its power. In `make soak` two, Debian and Ubuntu; one is away while the other runs.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.fleet.cloud import Cloud
from tests.fleet.conftest import DEBIANS, UBUNTUS
from tests.fleet.fleet import NAME, Fleet, overlaps
from tests.fleet.host import LINKS, Host, differences
from tests.fleet.roots import SYSTEMS

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1200)]
UNIT = f"upshift-campaign@{NAME}.service"
BACK_S = 10.0
MOST_EXPOSURE = 4.0

RESTARTS = (
    "perl -e 'do q(/etc/needrestart/needrestart.conf); my $rules = $nrconf{override_rc};"
    f" print map {{ $rules->{{$_}} }} grep {{ q({UNIT}) =~ /$_/ }} keys %$rules'"
)
"""What needrestart does with the unit, by the rules that match its name; 0: it does not restart it."""


@pytest.mark.parametrize("cloud", [{"MUC": "bookworm"}], ids=["bookworm"], indirect=True)
def test_a_host_from_provisioning_to_teardown(cloud: Cloud, built: Path, tmp_path: Path) -> None:
    fleet = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=3)
    [host] = cloud.hosts.values()
    before = host.fingerprint()
    [provisioned] = fleet.do("provision").values()
    assert "has no reverse DNS" in provisioned["note"], provisioned
    check_unit(host)
    network = host.network()
    # Beside it: where other tests keep the CPUs busy, the campaign may end before the command does.
    with fleet.start("run", "--force") as running:  # clients are not calibrated here
        wait_for_run(fleet, host)
        check_stop(host, network)
        said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    fleet.do("optout", "one.example")
    host.sh(f"systemctl start {UNIT}")  # goes on where it was stopped; `run` again: in make soak
    fleet.wait_state("done", seconds=400)
    check_collected(fleet)
    assert host.sh("cat /var/lib/upshift/opt-out.txt").split() == ["one.example"]
    check_teardown(fleet, {host.name: before})


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("cloud", [DEBIANS, UBUNTUS], ids=lambda hosts: "-".join(hosts.values()), indirect=True)
def test_a_fleet_from_provisioning_to_teardown(cloud: Cloud, built: Path, tmp_path: Path) -> None:
    # Six iterations take ten minutes: `first` must not have ended when `second` is stopped, which takes minutes on a
    # busy host (with three it had, on Ubuntu).
    fleet = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=6, slot_s=34)
    first, second = cloud.hosts.values()
    before = {name: host.fingerprint() for name, host in cloud.hosts.items()}

    assert all(verdict["changed"] for verdict in fleet.do("provision").values())
    # One of them: in `make soak`, tests/fleet/test_kills.py asks all.
    assert [verdict["changed"] for verdict in fleet.do("provision", "--limit", first.name).values()] == [0]
    for host in cloud.hosts.values():
        check_unit(host)
    network = second.network()
    with fleet.start("run", "--force") as running:  # clients are not calibrated here
        wait_for_run(fleet, second)
        check_stop(second, network)
        said = running.communicate(timeout=300)
    assert running.returncode == 0, said

    wait_for_run(fleet, first)
    first.cut_power()
    cut = fleet.try_("status", "--json")
    assert cut.returncode == 1 and first.name in cut.stderr and second.name not in cut.stderr
    with fleet.start("optout", "one.example") as one, fleet.start("optout", "other.example") as other:
        ends = [(child.communicate(timeout=300), child.returncode) for child in (one, other)]
    assert [code for _, code in ends] == [1, 1] and all(
        f"failed: {first.name};" in errors for (_, errors), _ in ends
    ), ends
    first.start()
    first.wait()
    fleet.wait(lambda: fleet.states()[first.name] == "waiting for opt-outs", seconds=60, what="it goes on")

    fleet.do("run", "--force")  # goes on where it was stopped
    fleet.wait_state("done", seconds=1200)
    assert fleet.recorded() == {first.name: 54, second.name: 54}
    for host in cloud.hosts.values():
        assert set(host.sh("cat /var/lib/upshift/opt-out.txt").split()) == {"one.example", "other.example"}

    check_collected(fleet)
    check_teardown(fleet, before)


def check_unit(host: Host) -> None:
    """What systemd says of the unit's walls, and whether needrestart would restart it."""
    table = host.sh(f"systemd-analyze security --no-pager {UNIT}")
    print(f"\n{SYSTEMS[host.suite].name}:\n{table}")
    [exposure] = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", table)
    assert float(exposure) <= MOST_EXPOSURE
    assert "needrestart" not in SYSTEMS[host.suite].image or host.sh(RESTARTS) == "0"


def check_stop(host: Host, network: object) -> None:
    """Has systemd stop the unit: the host is as before, in time."""
    host.sh(f"systemctl stop {UNIT}", timeout_s=400)
    stopped = time.monotonic()
    while host.network() != network:
        assert time.monotonic() < stopped + BACK_S, "the host is not as before"
        time.sleep(0.2)
    assert host.ssh(f"systemctl is-failed {UNIT}").stdout == "inactive\n"


def check_collected(fleet: Fleet) -> None:
    """Each planned download is collected once, and no target had two hosts at once."""
    fleet.do("collect")
    names = [(host, d.iteration, d.domain, d.configuration) for host in fleet.hosts for d in fleet.downloads(host)]
    assert len(names) == len(set(names)) == fleet.planned
    assert overlaps(fleet.spans()) == []


def check_teardown(fleet: Fleet, before: dict[str, dict[str, str]]) -> None:
    """Afterwards only the campaign's folder is on the hosts."""
    fleet.do("teardown")
    for name, host in fleet.hosts.items():
        changed = differences(before[name], host.fingerprint())
        left = {row for row in changed if not row.startswith("files: var/lib/upshift")}
        assert left == set(SYSTEMS[host.suite].left), changed
        assert f"files: var/lib/upshift/{NAME}/results/vantage/{name}/journal.sqlite" in changed, "results stay"


def wait_for_run(fleet: Fleet, host: Host) -> None:
    """Waits until measurement runs have begun on a host: it has links of its own then."""
    deadline = time.monotonic() + 240
    while host.links() == LINKS or fleet.written_state(host) != "running":
        assert time.monotonic() < deadline, f"{host.name} is {fleet.written_state(host)!r}: no measurement run begins"
        time.sleep(0.2)
