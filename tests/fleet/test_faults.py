"""Faults of a fleet: the control machine is killed, a host cannot be reached, an owner opts out, a disk is full."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.fleet.conftest import Make
from tests.fleet.fleet import Fleet, overlaps

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(2400)]


OPTED_OUT_S = 60.0
"""Time after which nothing may be sent to an owner who opted out."""


def kill(fleet: Fleet, command: str, *arguments: str, after_s: float) -> None:
    """Starts a command of the control machine, and kills all that it started there."""
    with fleet.start(command, *arguments) as child:
        time.sleep(after_s)
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.mark.parametrize("after_s", [3.0, 9.0, 18.0])
def test_what_a_killed_control_machine_began_the_same_command_completes(make: Make, after_s: float) -> None:
    fleet = make()
    arguments = {"provision": (), "run": ("--force",), "collect": ()}
    for command, more in arguments.items():
        if command == "collect":
            fleet.wait_state("done", seconds=400)
        kill(fleet, command, *more, after_s=after_s)
        fleet.do(command, *more)
    assert sum(len(fleet.downloads(host)) for host in fleet.hosts) == fleet.planned
    assert overlaps(fleet.spans()) == []
    kill(fleet, "teardown", after_s=after_s)
    fleet.do("teardown")


def test_others_finish_while_a_host_cannot_be_reached(make: Make) -> None:
    fleet = make()
    lost, other = fleet.hosts.values()
    fleet.do("provision")
    lost.unreachable()
    try:
        for command, *more in (("run", "--force"), ("status",)):
            done = fleet.try_(command, *more)
            [failed] = [line for line in done.stderr.splitlines() if "hosts failed" in line]
            assert done.returncode == 1 and f"1 of 2 hosts failed: {lost.name};" in failed, done
        fleet.wait(lambda: fleet.states()[other.name] == "done", seconds=400, what="the other host is not done")
    finally:
        lost.reachable()
    fleet.do("run", "--force")
    fleet.wait_state("done", seconds=400)
    fleet.do("collect")
    assert sum(len(fleet.downloads(host)) for host in fleet.hosts) == fleet.planned


def test_who_opts_out_is_left_alone_within_a_minute_by_all_hosts(make: Make) -> None:
    fleet = make(iterations=500, slot_s=0)
    fleet.do("provision")
    fleet.do("run", "--force")
    leaving = fleet.cloud.lab.targets()[0]
    for host in fleet.hosts.values():
        packets = f"tcpdump -U -n -i tun0 -w /tmp/left.pcap dst host {leaving.server_ip}"
        host.sh(f"systemd-run --quiet --unit=left {packets}")
    fleet.wait(lambda: min(fleet.recorded().values()) >= 12, seconds=300, what="no downloads")
    fleet.do("optout", leaving.domain)
    opted_at = time.time()
    time.sleep(OPTED_OUT_S + 30)
    before = fleet.recorded()
    fleet.wait(
        lambda: all(now > before[host] for host, now in fleet.recorded().items()), seconds=120, what="others wait, too"
    )
    for host in fleet.hosts.values():
        host.sh("systemctl stop left")
        times = [
            float(line.split()[0]) for line in host.sh("tcpdump -tt -nn -r /tmp/left.pcap 2>/dev/null").splitlines()
        ]
        assert times and max(times) <= opted_at + OPTED_OUT_S, (host.name, max(times, default=0.0) - opted_at)
        host.sh("rm /tmp/left.pcap")


def test_a_full_disk_is_one_sentence_and_changes_nothing(make: Make) -> None:
    fleet = make()
    full = next(iter(fleet.hosts.values()))
    full.sh("mkdir -p /opt && mount -t tmpfs -o size=5M full /opt")
    before = full.fingerprint()
    done = fleet.try_("provision")
    assert done.returncode == 1 and "has 5 MB free on the disk of /opt or /var" in done.stdout, done
    assert before == full.fingerprint()
    full.sh("umount /opt")
    fleet.do("provision")
