"""A cloud to test a fleet with: hosts at the vantage points of a lab, and a control machine's namespace.

    control 198.18.254.1 -- mgmt -- mgmt0 [ host MUC 198.18.254.11 ] tun0 -- the lab's servers
                                 -- mgmt0 [ host SFO 198.18.254.12 ] tun0 -- ...

Hosts reach the lab over `tun0` and `control` over `mgmt0`, each other by neither, and nothing else: no namespace has a
link out of this. In `control` an apt repository is served, SSH keys are known, and Ansible runs.

    with open_cloud({"MUC": "bookworm", "SGP": "trixie"}) as cloud:
        cloud.hosts["MUC"].ssh("uname -a")

Everything ends with the process that opened the cloud, however it ends; files that a killed one leaves are removed by
the next.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from core.errors import UsageError
from core.files.disk import take_lock
from core.reach import ENVIRONMENT_VARIABLE, LAB_PREFIXES
from core.system import process
from core.system.process import Child, Completed
from tests.fleet.host import Host, Login, cgroup_roots, keygen, remove_cgroup
from tests.fleet.roots import USER, Root, root
from vantage.lab.addresses import address_plan, prober_addresses
from vantage.lab.lab import Lab, open_lab
from vantage.lab.topology import DNS_NODE, Topology
from vantage.lab.topology_file import load_topology

TOPOLOGY = Path(__file__).parent / "cloud.toml"
MANAGEMENT = "198.18.254.0/24"
PREFIX = "upshift-cloud-"
SWEEPING = "upshift-clouds.lock"
"""The lock of who removes the files of clouds that were killed."""

FIRST_HOST = 11
BASES = (Path("/dev/shm"), Path("/tmp"))
"""Where the files of clouds are: short paths, as sockets need them."""

HOST_BYTES = 1_500_000_000
"""What a host's files need, with two releases and a campaign."""


def management_network(network: str, topology: Topology) -> ipaddress.IPv4Network:
    """The network of the management links. Raises UsageError if it is not in the lab's prefix, or the lab uses it."""
    management = ipaddress.ip_network(network)
    lab = ipaddress.IPv4Network(str(LAB_PREFIXES[0]))
    if not isinstance(management, ipaddress.IPv4Network) or not management.subnet_of(lab):
        raise UsageError(f"the management network {network} is not in {lab}", remedy=f"use {MANAGEMENT}")
    for name, own in [*address_plan(topology).items(), *prober_addresses(topology).items()]:
        if ipaddress.ip_address(own.ipv4) in management:
            raise UsageError(f"the management network {network} has the address of {name}", remedy=f"use {MANAGEMENT}")
    return management


class Cloud:
    """A cloud whose lab is up; its hosts are off until they are started.

    Args:
        folder: for all files, removed by the caller.
        suites: vantage point -> suite of its host.
    """

    def __init__(self, lab: Lab, folder: Path, suites: Mapping[str, str], *, network: str = MANAGEMENT) -> None:
        self.lab, self.folder = lab, folder
        self._network = management_network(network, lab.topology)
        self._children: list[Child] = []
        self.address = str(self._network[1])
        self.hosts: dict[str, Host] = {}
        unknown = [name for name in suites if name not in lab.vantage_points]
        if unknown:
            raise UsageError(f"the lab has no vantage point {unknown[0]}", remedy=f"use {lab.vantage_points}")
        self._roots: dict[str, Root] = {suite: root(suite) for suite in sorted(set(suites.values()))}
        try:
            self._start_control()
            for number, (name, suite) in enumerate(suites.items()):
                self._add(name, self._roots[suite], number)
        except BaseException:
            self.close()
            raise

    def _start_control(self) -> None:
        holder = process.start(["unshare", "--net", "cat"], stdin=True, stdout=True)
        self._children.append(holder)
        assert holder.stdin and holder.stdout
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.stdout.readline()  # cat runs, so the namespace is there
        self.prefix = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
        key = self.folder / "control_key"
        keygen(key, "control")
        self.login = Login(self.prefix, key, self.folder / "known_hosts")
        (self.folder / "hosts").mkdir()
        self._ip("link set lo up", "link add mgmt type bridge", "link set mgmt up")
        self._ip(f"address add {self.address}/{self._network.prefixlen} dev mgmt")
        repositories = self.folder / "apt"
        repositories.mkdir()
        for suite, made in self._roots.items():
            (repositories / suite).symlink_to(made.repository)
        serve = ["python3", "-m", "http.server", "80", "--bind", self.address, "--directory", str(repositories)]
        log = self.folder / "apt.log"
        self._children.append(process.start(serve, prefix=self.prefix, stdout=log, stderr=log))

    def _ip(self, *lines: str) -> None:
        done = process.run([*self.prefix, "ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
        done.check(doing="setting up the namespace control")

    def _add(self, name: str, made: Root, number: int) -> None:
        netns = f"/proc/{self.lab.state['pid']}/root/run/netns/{name}"
        address, end = str(self._network[FIRST_HOST + number]), f"host{number}"
        self._ip(
            f"link add {end} type veth peer name mgmt0",
            f"link set mgmt0 netns {netns}",
            f"link set {end} master mgmt",
            f"link set {end} type bridge_slave isolated on",  # no packet from host to host
            f"link set {end} up",
        )
        inside = [
            f"address add {address}/{self._network.prefixlen} dev mgmt0",
            "link set mgmt0 up",
            "route add default dev tun0",
        ]
        process.run(["nsenter", f"--net={netns}", "ip", "-batch", "-"], stdin="\n".join(inside) + "\n").check(
            doing=f"setting up the node {name}"
        )
        nameserver = self.lab.plan.addresses[DNS_NODE].ipv4
        host = Host(
            name,
            made,
            self.folder / "hosts",
            netns=netns,
            nameserver=nameserver,
            address=address,
            end=end,
            login=self.login,
        )
        source = f"deb [trusted=yes] http://{self.address}/{made.suite} ./\n"
        (host.root / "etc/apt/sources.list").write_text(source)
        self.hosts[name] = host

    def start(self) -> None:
        """Starts all hosts and waits until SSH answers everywhere."""
        for host in self.hosts.values():
            host.start()
        for host in self.hosts.values():
            host.wait()

    def control(self, argv: Sequence[str], *, timeout_s: float = 600.0, **env: str) -> Completed:
        """Runs a program in the namespace `control`."""
        return process.run([*self.prefix, *argv], timeout_s=timeout_s, env=env)

    def inventory(self, path: Path, hosts: Sequence[str] | None = None, **variables: Any) -> Path:
        """Writes an inventory of all hosts, or of these; YAML, of which JSON is a part.

        Args:
            variables: of the group `vantage`.
        """
        chosen = {name: {"ansible_host": self.hosts[name].address} for name in hosts or self.hosts}
        common = {
            "ansible_user": USER,
            "ansible_python_interpreter": "/usr/bin/python3",
            # Ansible's own path for shared connections has address and user only: another cloud's are the same.
            "ansible_ssh_common_args": " ".join([*self.login.options(), "-o", f"ControlPath={self.folder}/%C"]),
            "vantage_ca_file": str(self.lab.ca_file),
            "vantage_clock": "trusted",  # one kernel, one clock
        }
        document = {"vantage": {"hosts": chosen, "vars": common | variables}}
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return path

    def close(self) -> None:
        """Ends all hosts and `control`."""
        for host in self.hosts.values():
            host.cut_power()
        for child in reversed(self._children):
            child.stop()
        self._children.clear()


@contextlib.contextmanager
def open_cloud(suites: Mapping[str, str], *, topology: Path = TOPOLOGY) -> Iterator[Cloud]:
    """A cloud for the duration of a block; its hosts are off at first.

    Raises:
        PlaceError: no root can be had, or no lab can be built here.
        UsageError: a vantage point that the topology does not have.
    """
    sweep()
    load_topology(topology)
    for suite in sorted(set(suites.values())):
        root(suite)  # before anything is started: it may take a minute, or fail
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base(len(suites))))
    own = {"pid": os.getpid(), "started_ticks": process.start_time_ticks(os.getpid())}
    (folder / "owner.json").write_text(json.dumps(own), encoding="utf-8")
    os.environ.setdefault(ENVIRONMENT_VARIABLE, "198.18.0.0/15,fd00:198:18::/48,127.0.0.0/8,::1/128")
    try:
        with (
            mock.patch.dict(os.environ, UPSHIFT_STATE_DIR=str(folder)),
            open_lab(topology) as lab,
            contextlib.closing(Cloud(lab, folder, suites)) as cloud,
        ):
            yield cloud
    finally:
        shutil.rmtree(folder)


def _base(hosts: int) -> Path:
    """The folder for all files: in memory where there is plenty, which is six times as fast as a busy disk."""
    memory, disk = BASES
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = min(available / 2, shutil.disk_usage(memory).free) if memory.is_dir() else 0
    return memory if room > hosts * HOST_BYTES else disk


def sweep() -> None:
    """Removes the files and cgroups of clouds whose process has ended (their processes ended with it)."""
    with (BASES[1] / SWEEPING).open("a") as handle:
        take_lock(handle.fileno(), wait=True)  # tests side by side open clouds at the same time
        for folder in (path for base in BASES for path in base.glob(f"{PREFIX}*")):
            try:
                owner = json.loads((folder / "owner.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # being made
            if process.start_time_ticks(owner["pid"]) == owner["started_ticks"]:
                continue
            for base in cgroup_roots():
                remove_cgroup(base / folder.name)
            shutil.rmtree(folder)
