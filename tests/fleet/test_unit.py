"""A campaign's unit ends by systemd, by kills and by a suspension: the host is as before, and systemd knows why."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.fleet.cloud import Cloud
from tests.fleet.fleet import NAME, Fleet
from tests.fleet.host import Host

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(1800)]

UNIT = f"upshift-campaign@{NAME}.service"
BACK_S = 10.0
WATCHDOG_S = 6
DROP_IN = f"/run/systemd/system/{UNIT}.d"
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


def test_systemd_hears_the_unit_and_kills_it_when_it_hangs(fleet: Fleet) -> None:
    """The guardian is suspended, too: it would kill a suspended runner itself."""
    (host,) = fleet.hosts.values()
    before = host.network()
    host.sh(f"mkdir -p {DROP_IN}; printf '[Service]\\nWatchdogSec={WATCHDOG_S}\\n' > {DROP_IN}/watchdog.conf")
    host.sh("systemctl daemon-reload; systemctl log-level debug")
    try:
        host.sh(f"systemctl start {UNIT}")  # returns after READY=1
        began = main_process(host)
        wait(lambda: host.network() != before, seconds=60, what="the campaign changes nothing on the host")
        time.sleep(3 * WATCHDOG_S)
        assert main_process(host) == began, "a unit that works is not killed"
        assert {"READY=1", "WATCHDOG=1"} <= notifications(host, began)

        host.sh(f"kill -STOP {RUNNER} {GUARDIAN}")
        wait(lambda: main_process(host) != began, seconds=4 * WATCHDOG_S, what="systemd does not kill it")
        wait(lambda: host.network() == before, seconds=BACK_S, what="the host is not as before")
        wait(lambda: shown(host, "ActiveState") == "activating", seconds=30, what="it is not started again")
        assert shown(host, "Result") == "watchdog"

        host.sh(f"systemctl restart {UNIT}")
        began = main_process(host)
        wait(lambda: host.network() != before, seconds=60, what="the campaign changes nothing on the host")
        fleet.do("stop")
        wait(lambda: "STOPPING=1" in notifications(host, began), seconds=30, what="it does not say that it stops")
    finally:
        host.sh(
            f"systemctl stop {UNIT}; systemctl log-level info; rm -r {DROP_IN}; systemctl daemon-reload", timeout_s=400
        )
    wait(lambda: host.network() == before, seconds=BACK_S, what="the host is not as before")


def notifications(host: Host, pid: str) -> set[str]:
    """What systemd has heard from a process by sd_notify(3), by its journal.

    Systemd 252 writes `Got notification message from PID 7 (READY=1)`, 257 `from PID 7: READY=1`.
    """
    lines = host.sh(f"journalctl --unit {UNIT} --output cat --no-pager")
    heard = re.findall(rf"notification message from PID {pid}\b\W+(.*)", lines)
    return {word.rstrip(")") for line in heard for word in line.split(", ")}


def shown(host: Host, value: str) -> str:
    """A property of the unit."""
    return host.sh(f"systemctl show --property {value} --value {UNIT}").strip()


def test_root_undoes_by_hand_what_a_killed_unit_left(fleet: Fleet) -> None:
    """The plans belong to the service's user, and so do their files afterwards."""
    (host,) = fleet.hosts.values()
    before = host.network()
    host.sh(f"mkdir -p {DROP_IN}; printf '[Service]\\nExecStopPost=\\n' > {DROP_IN}/none.conf; systemctl daemon-reload")
    try:
        host.sh(f"systemctl start {UNIT}")
        wait(lambda: host.network() != before, seconds=60, what="the campaign changes nothing on the host")
        host.sh(f"systemctl kill --signal=KILL {UNIT}")
        wait(lambda: main_process(host) == "0", seconds=60, what="the unit does not end")
        assert host.network() != before
        report = json.loads(host.sh("cd /root && /opt/upshift/current/bin/upshift doctor --quick --json || true"))
        [left] = [finding for finding in report["findings"] if finding["name"] == "leftovers"]
        assert "an earlier campaign was killed and left these changes: " in left["says"] and "sysctl" in left["says"]

        report = json.loads(
            host.sh("cd /root && /opt/upshift/current/bin/upshift doctor --restore --quick --json || true")
        )
        assert [line for line in report["restored"] if "undid the changes of an earlier run" in line]
        assert host.network() == before
        assert host.sh("find /run/upshift -not -user upshift") == ""
    finally:
        host.sh(f"rm -r {DROP_IN}; systemctl daemon-reload; systemctl stop {UNIT}", timeout_s=400)


def main_process(host: Host) -> str:
    """The process that the unit waits for; 0 where it has ended."""
    return shown(host, "MainPID")


def wait(condition: object, *, seconds: float, what: str) -> None:
    """Looks twice a second."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)
