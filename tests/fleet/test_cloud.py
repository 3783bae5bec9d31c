"""The cloud that the tests of fleets run in is what it says: real hosts, real apt and SSH, and no way out.

What the tests of fleets do themselves (install, lose power, compare a host with what it was) is for `make soak` here.
At the end the quick cells of test_rights.py and test_hostile.py, as a cloud of their own would boot for each.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.errors import UsageError
from tests.fleet import roots
from tests.fleet.cloud import PREFIX, TOPOLOGY, Cloud, management_network, sweep
from tests.fleet.host import LINKS, Host, cgroup_roots, differences
from tests.fleet.hostile import QUICK
from tests.fleet.test_hostile import check_liars
from tests.fleet.test_rights import check_no_way_to_root
from vantage.lab.topology_file import load_topology

pytestmark = pytest.mark.fleet
REPOSITORY = Path(__file__).resolve().parents[2]


def test_hosts_are_debians_with_systemd(cloud: Cloud) -> None:
    versions = {}
    for name, host in cloud.hosts.items():
        assert host.sh("systemctl is-system-running --wait") == "running\n"
        assert host.sh("hostname") == f"{name}\n"
        versions[name] = host.sh(". /etc/os-release; echo $VERSION_ID").strip()
    assert versions == {"MUC": "12", "SGP": "13"}


@pytest.mark.soak
def test_apt_installs_from_control(cloud: Cloud) -> None:
    host = cloud.hosts["SGP"]
    assert host.ssh("sudo apt-get install --yes tcpdump").returncode == 100, "a fresh image has an empty cache"
    host.sh("apt-get update; apt-get install --yes tcpdump >/dev/null; tcpdump --version")
    assert "GET /trixie/./tcpdump" in (cloud.folder / "apt.log").read_text()
    host.sh("apt-get purge --yes tcpdump; apt-get autoremove --purge --yes")


def test_no_way_out(cloud: Cloud) -> None:
    """Each end of each link is in a namespace of the cloud; `control` and the hosts know no other network."""
    control = json.loads(cloud.control(["ip", "-json", "link"]).stdout)
    ends = {f"host{number}" for number in range(len(cloud.hosts))}
    assert {link["ifname"] for link in control} == {"lo", "mgmt"} | ends
    routes = json.loads(cloud.control(["ip", "-json", "route", "show", "table", "all"]).stdout)
    assert {route.get("dev") for route in routes} <= {"lo", "mgmt", *ends}
    assert not [route for route in routes if route["dst"] == "default"]
    assert cloud.control(["sysctl", "-n", "net.ipv4.ip_forward"]).stdout == "0\n"
    first, second = cloud.hosts.values()
    # 198.18.200.1 and 198.18.254.99 are in the cloud's networks, but nobody has them. Each attempt waits for its end.
    ends = [("198.18.200.1", 80), ("198.18.254.99", 80), (cloud.address, 80)]
    attempts = [(host, *end, 30 if end[0] == cloud.address else 2) for host in cloud.hosts.values() for end in ends]
    with ThreadPoolExecutor() as threads:
        names = [threads.submit(host.ssh, "getent ahosts deb.debian.org") for host in cloud.hosts.values()]
        attempts.append((first, second.address, 22, 2))  # hosts do not reach each other
        for (_, address, *_), code in zip(attempts, threads.map(connected, attempts), strict=True):
            assert (code == 0) == (address == cloud.address), (address, code)
        assert [(name.result().returncode, name.result().stdout) for name in names] == [(2, "")] * len(names)
    for host in cloud.hosts.values():
        assert host.links() == LINKS
        assert host.sh("cat /etc/resolv.conf") == f"nameserver {cloud.lab.plan.addresses['dns'].ipv4}\n"


def connected(attempt: tuple[Host, str, int, int]) -> int:
    """0 if a host reaches a port at an address within some seconds."""
    host, address, port, seconds = attempt
    code = f'import socket; socket.create_connection(("{address}", {port}), {seconds})'
    return host.ssh(f"timeout {seconds + 10} python3 -c '{code}'").returncode


def test_a_host_reaches_the_labs_servers(cloud: Cloud) -> None:
    target = cloud.lab.targets()[0]
    own = cloud.lab.plan.addresses["akamai-1"]
    code = f'import socket; print(socket.create_connection(("{target.domain}", 443), 5).getpeername()[0])'
    for host in cloud.hosts.values():
        assert host.ssh(f"python3 -c '{code}'").stdout.strip() in (own.ipv4, own.ipv6)


def test_a_host_key_that_is_not_known_is_refused(cloud: Cloud) -> None:
    host, other = cloud.hosts.values()
    known = cloud.login.known_hosts.read_text()
    try:
        lines = {line.split()[0]: line.split(" ", 1)[1] for line in known.splitlines()}
        cloud.login.known_hosts.write_text(f"{host.address} {lines[other.address]}\n")
        refused = host.ssh("true")
    finally:
        cloud.login.known_hosts.write_text(known)
    assert refused.returncode == 255 and "Host key verification failed" in refused.stderr


@pytest.mark.soak
def test_power_cut_and_boot(cloud: Cloud) -> None:
    host, other = cloud.hosts.values()
    before = host.sysctls()
    booted = host.sh("systemctl show --value --property UserspaceTimestampMonotonic")
    host.sh("echo kept > /root/kept; sync; sysctl -qw net.ipv4.ip_forward=1 net.ipv4.tcp_sack=0")
    host.node("nft", "add", "table", "inet", "left")
    routes = host.routes()
    host.node("ip", "route", "change", "default", "dev", "tun0", "initrwnd", "30")
    host.node("ip", "link", "add", "left0", "type", "veth", "peer", "name", "left1")
    host.cut_power()
    assert host.pid is None
    assert host.ssh("true", connect_timeout_s=2).returncode == 255
    assert other.ssh("true").returncode == 0
    assert host.node("nft", "list", "ruleset") == ""
    assert (host.links(), host.routes()) == (LINKS, routes)
    host.start()
    host.wait()
    assert host.sysctls() == before
    assert host.sh("cat /root/kept; rm /root/kept") == "kept\n"
    assert host.sh("systemctl is-system-running --wait") == "running\n"
    assert host.sh("systemctl show --value --property UserspaceTimestampMonotonic") != booted
    assert host.sh(f"python3 -c 'import socket; socket.create_connection((\"{cloud.address}\", 80), 5)'") == ""


def test_unreachable_keeps_the_uplink(cloud: Cloud) -> None:
    host, other = cloud.hosts.values()
    host.unreachable()
    try:
        assert host.ssh("true", connect_timeout_s=2).returncode == 255
        assert other.ssh("true").returncode == 0
        links = {link["ifname"]: link["operstate"] for link in json.loads(host.node("ip", "-json", "link"))}
        assert links["mgmt0"] == "DOWN" or links["mgmt0"] == "LOWERLAYERDOWN"
        target = cloud.lab.targets()[0]
        host.node(sys.executable, "-c", f"import socket; socket.create_connection(('{target.server_ip}', 443), 5)")
    finally:
        host.reachable()
    assert host.ssh("true").returncode == 0


def test_two_hosts_stop_only_their_own_services(cloud: Cloud) -> None:
    """Two systemd that shared a cgroup would end each other's processes."""
    first, second = cloud.hosts.values()
    for host in (first, second):
        host.sh("systemd-run --unit=same --quiet sleep 600")
    first.sh("systemctl stop same")
    time.sleep(0.5)
    assert second.sh("systemctl is-active same") == "active\n"
    second.sh("systemctl stop same")


def test_the_time_of_day_changes_nothing(cloud: Cloud) -> None:
    """At midnight Debian copies dpkg's database to /var/backups, and any day apt's timers may hold its lock."""
    assert [host.sh("systemctl list-timers --all --no-legend") for host in cloud.hosts.values()] == ["", ""]


@pytest.mark.soak
def test_a_host_as_before_has_no_differences(cloud: Cloud) -> None:
    host = cloud.hosts["SGP"]
    before = host.fingerprint()
    assert len(before["files"]) > 2000 and before["packages"] and before["users"]
    assert differences(before, host.fingerprint()) == {}
    host.sh("useradd someone; touch /usr/bin/something; sysctl -qw net.ipv4.tcp_sack=0")
    changed = differences(before, host.fingerprint())
    assert {"users: someone", "files: usr/bin/something", "settings: net.ipv4.tcp_sack"} <= set(changed)
    host.sh("userdel someone; rm /usr/bin/something; sysctl -qw net.ipv4.tcp_sack=1")


@pytest.mark.parametrize("network", ["10.0.0.0/24", "192.0.2.0/24", "198.18.1.0/24", "198.18.0.0/24", "198.19.0.0/24"])
def test_only_free_addresses_of_the_lab(network: str) -> None:
    with pytest.raises(UsageError, match=r"management network"):
        management_network(network, load_topology(TOPOLOGY))


OPEN = """
import sys, time
from tests.fleet.cloud import open_cloud
with open_cloud({"SFO": "trixie"}) as cloud:
    cloud.start()
    host = cloud.hosts["SFO"]
    print(cloud.folder, host.sh("echo up").strip(), flush=True)
    time.sleep(600)
"""


def test_nothing_outlives_a_killed_owner(cloud_machine: None) -> None:
    running = subprocess.Popen([sys.executable, "-c", OPEN], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert running.stdout is not None
    with running:
        folder, word = running.stdout.readline().split()
        assert word == "up"
        running.send_signal(signal.SIGKILL)
    assert Path(folder).name.startswith(PREFIX)
    deadline = time.monotonic() + 20
    while left := _processes_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    sweep()  # another test that opens a cloud may have done it before
    assert not Path(folder).exists()
    assert not [base for base in cgroup_roots() if (base / Path(folder).name).exists()]


def _processes_of(folder: str) -> list[str]:
    """Processes in the cloud's cgroups, or that name its folder."""
    numbers = [
        line
        for base in cgroup_roots()
        for procs in (base / Path(folder).name).rglob("cgroup.procs")
        for line in procs.read_text().split()
    ]
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and folder.encode() in (entry / "cmdline").read_bytes():
                numbers.append(entry.name)
        except OSError:
            continue
    return numbers


@pytest.mark.parametrize("suite", ["trixie", "noble"])  # keys of Ubuntu are from Debian
def test_roots_that_cannot_be_had_are_one_sentence(suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nowhere = dataclasses.replace(roots.DEBIAN, mirror="http://127.0.0.1:9/debian")
    monkeypatch.setattr(roots, "DEBIAN", nowhere)
    monkeypatch.setitem(roots.SYSTEMS, "trixie", dataclasses.replace(roots.SYSTEMS["trixie"], archive=nowhere))
    with pytest.raises(
        Exception, match=r"Debian 13 cannot be had: no cached root, and from http://127.0.0.1:9/debian: "
    ):
        roots.root(suite)
    assert not list(tmp_path.rglob(f"{suite}-*[0-9a-f].tar"))


@pytest.mark.timeout(1200)
def test_a_unit_has_no_way_to_root(cloud: Cloud) -> None:
    check_no_way_to_root(cloud.hosts["MUC"])


@pytest.mark.timeout(900)
def test_a_host_that_lies_harms_only_its_own_results(cloud: Cloud, tmp_path: Path) -> None:
    """The last of this file: the hosts have other programs afterwards."""
    check_liars(cloud, tmp_path, QUICK)
