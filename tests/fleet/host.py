"""A host of the tests' cloud: a Debian or Ubuntu with systemd as process 1, in the network namespace of a lab's node.

systemd-nspawn runs inside a PID namespace and a mount namespace of its own, which end with the process that started it,
however that ends: the kernel then kills all of the host. In a cgroup of its own, because nspawn puts every container
into `payload` below its own cgroup: two systemd in one cgroup would stop each other's services. Without
`--resolv-conf=off` a host would be given this machine's DNS server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK, S_ISREG

from core.errors import PlaceError
from core.system import process
from core.system.process import Child, Completed
from tests.fleet.roots import USER, Root

BOOT_TIMEOUT_S = 90.0
GONE_TIMEOUT_S = 10.0
LINKS = {"lo", "tun0", "mgmt0"}
"""What a node has while its host is off; all else was made by the host and goes with its power."""

OWN_VALUES = ("conntrack_count", "tcp_fastopen_key", "tcp_available_congestion_control")
"""Settings that nobody sets: what is counted, a random key that the kernel makes for the first listener with Fast Open
(systemd-resolved on Ubuntu), and which modules are loaded."""

BOOT = """
for cgroup in {cgroups}; do echo 0 > "$cgroup/cgroup.procs"; done
mount --bind /proc/self/ns/net "{netns}"
mount -t proc proc /proc
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
exec systemd-nspawn -q -b -D "{root}" --register=no --keep-unit --network-namespace-path="{netns}" --capability=all \
  --drop-capability=CAP_SYS_TIME,CAP_SYS_MODULE --console=pipe --resolv-conf=off
"""

VOLATILE = (
    *("proc", "sys", "dev", "run", "tmp", "var/tmp", "var/log", "var/cache", "var/lib/apt", "var/lib/dpkg"),
    *("var/lib/systemd", "var/lib/ucf", "home/debian/.ansible", "etc/machine-id", "etc/ld.so.cache"),
    # An empty folder of Ubuntu's: purging any package with a profile removes it (dh_apparmor).
    "etc/apparmor.d/disable",
    *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"),
)
"""Files that change while a host does nothing, or by any installation: packages and users are compared apart, what they
were before is not."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to reach hosts by SSH."""

    prefix: tuple[str, ...]
    """Enters the namespace `control`."""
    key: Path
    known_hosts: Path

    def options(self) -> list[str]:
        """For ssh(1), scp and Ansible; host keys are checked."""
        return [
            *("-i", str(self.key), "-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "StrictHostKeyChecking=yes"),
            *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-F", "none"),
        ]


class Host:
    """One host, off at first.

    Args:
        folder: its files; the root is below it.
        netns: the network namespace of the lab's node that it lives in.
        nameserver: the lab's.
        address: of its `mgmt0`.
        end: the other end of `mgmt0`, in `control`.
    """

    def __init__(
        self, name: str, root: Root, folder: Path, *, netns: str, nameserver: str, address: str, end: str, login: Login
    ) -> None:
        self.name, self.address, self.suite = name, address, root.suite
        self.root = folder / name
        self.netns, self._login, self._end = netns, login, end
        self._folder = folder
        self._running: Child | None = None
        self._cgroups = [base / folder.parent.name / name for base in cgroup_roots()]
        self._hashes: dict[tuple[int, ...], str] = {}
        root.unpack(self.root)
        self._write_identity(nameserver)
        for folder in ("usr/lib", "etc"):  # at midnight the distribution's would change what tests compare
            shutil.rmtree(self.root / folder / "systemd/system/timers.target.wants", ignore_errors=True)
        # The kernel may load the module of `ct` now, which gives settings to all namespaces.
        self.node("nft", "add table inet t; add chain inet t c; add rule inet t c ct state new; delete table inet t")
        self._settings, self._routes = self.sysctls(), self.routes()

    @property
    def pid(self) -> int | None:
        """The process that holds all of it, while it has power."""
        return self._running.pid if self._running and self._running.returncode is None else None

    def _write_identity(self, nameserver: str) -> None:
        key = self._folder / f"{self.name}_key"
        keygen(key, f"root@{self.name}")
        ssh = self.root / "etc/ssh"
        shutil.copy(key, ssh / "ssh_host_ed25519_key")
        shutil.copy(key.with_suffix(".pub"), ssh / "ssh_host_ed25519_key.pub")
        with self._login.known_hosts.open("a") as known:
            known.write(f"{self.address} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n")
        home = self.root / "home" / USER
        owner = home.stat()
        (home / ".ssh").mkdir(mode=0o700)
        shutil.copy(self._login.key.with_suffix(".pub"), home / ".ssh/authorized_keys")
        for path in (home / ".ssh", home / ".ssh/authorized_keys"):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n::1 localhost\n")
        (self.root / "etc/resolv.conf").write_text(f"nameserver {nameserver}\n")
        stub = self.root / "etc/systemd/resolved.conf"
        if stub.exists():  # as images of Ubuntu have it
            stub.with_name("resolved.conf.d").mkdir()
            stub.with_name("resolved.conf.d").joinpath("cloud.conf").write_text(f"[Resolve]\nDNS={nameserver}\n")
            (self.root / "etc/resolv.conf").unlink()
            (self.root / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")

    def start(self) -> None:
        """Gives it power; `wait` waits until it has booted."""
        if self.pid is not None:
            return
        netns = self._folder / f"{self.name}.netns"
        netns.touch()
        for cgroup in self._cgroups:
            cgroup.mkdir(parents=True, exist_ok=True)
        script = BOOT.format(cgroups=" ".join(map(str, self._cgroups)), netns=netns, root=self.root)
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--"]
        self._running = process.start(
            [*alone, "sh", "-ec", script],
            prefix=["nsenter", f"--net={self.netns}"],
            stdout=self._folder / f"{self.name}.console",
            stderr=self._folder / f"{self.name}.console",
        )

    def wait(self) -> None:
        """Waits until SSH answers. Raises PlaceError with the end of the console if it does not."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while (tried := self.ssh("true", connect_timeout_s=2)).returncode:
            if self.pid is None or time.monotonic() > deadline:
                console = (self._folder / f"{self.name}.console").read_text(errors="replace")[-2000:]
                raise PlaceError(f"the host {self.name} does not boot: {tried.stderr.strip()}; its console: {console}")
            time.sleep(0.2)

    def ssh(self, command: str, *, timeout_s: float = 120.0, connect_timeout_s: int = 15) -> Completed:
        """Runs a shell command on it as the image's user, from `control`."""
        options = [*self._login.options(), "-o", f"ConnectTimeout={connect_timeout_s}"]
        argv = [*self._login.prefix, "ssh", *options, f"{USER}@{self.address}", "--", command]
        return process.run(argv, timeout_s=timeout_s)

    def sh(self, command: str, *, timeout_s: float = 120.0) -> str:
        """As `ssh`, as root; its output. Raises PlaceError if it fails."""
        quoted = command.replace("'", "'\\''")
        done = self.ssh(f"sudo sh -ec '{quoted}'", timeout_s=timeout_s)
        return done.check(doing=f"running {command!r} on {self.name}").stdout

    def cut_power(self) -> None:
        """Every process of it ends at once; what a kernel would lose with its power is taken back."""
        if self._running is None:
            return
        self._running.stop(signal.SIGKILL)
        self._running = None
        for cgroup in self._cgroups:
            remove_cgroup(cgroup)
        self._reset_node()

    def unreachable(self) -> None:
        """Its management link goes down at the other end; its uplink stays."""
        self._control(["ip", "link", "set", self._end, "down"])

    def reachable(self) -> None:
        """The link is up again."""
        self._control(["ip", "link", "set", self._end, "up"])

    def _control(self, argv: Sequence[str]) -> None:
        process.run([*self._login.prefix, *argv]).check(doing=f"changing the link of {self.name}")

    def node(self, *argv: str, stdin: str | None = None) -> str:
        """Runs a program of this machine in the host's network namespace."""
        enter = ["nsenter", f"--net={self.netns}", "--"]
        return process.run([*enter, *argv], stdin=stdin).check(doing=f"looking at {self.name}").stdout

    def links(self) -> set[str]:
        """Names of its network devices."""
        return {link["ifname"] for link in json.loads(self.node("ip", "-json", "link"))}

    def routes(self) -> dict[str, list[str]]:
        """Family -> its routes, as `ip route` takes them."""
        lines = {family: self.node("ip", family, "route", "show").splitlines() for family in ("-4", "-6")}
        return {family: [line.replace(" linkdown", "").strip() for line in lines[family]] for family in lines}

    def sysctls(self) -> dict[str, str]:
        """Every setting of its network namespace."""
        done = process.run(["nsenter", f"--net={self.netns}", "sysctl", "-a", "-r", r"^net\."])
        pairs = (line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
        return {name: value for name, value in pairs if not name.endswith(OWN_VALUES)}

    def _reset_node(self) -> None:
        self.node("nft", "flush", "ruleset")
        while left := self.links() - LINKS:
            self.node("ip", "link", "delete", left.pop())  # a veth takes its peer along
        for _ in range(3):  # forwarding changes others
            now = self.sysctls()
            changed = [f"{name}={value}" for name, value in self._settings.items() if now.get(name, value) != value]
            if changed:
                self.node("sysctl", "-qw", *changed)
        for family, routes in self.routes().items():
            lines = [f"route delete {route}" for route in routes if route not in self._routes[family]]
            lines += [f"route replace {route}" for route in self._routes[family] if route not in routes]
            if lines:
                self.node("ip", family, "-batch", "-", stdin="\n".join(lines) + "\n")

    def network(self) -> dict[str, object]:
        """What a campaign may change, and must put back."""
        return {
            "settings": self.sysctls(),
            "routes": self.routes(),
            "links": self.links(),
            "rules": self.node("nft", "list", "ruleset"),
        }

    def fingerprint(self) -> dict[str, dict[str, str]]:
        """What provisioning and teardown must leave as it was: name of a table -> its rows."""
        return {
            "packages": _pairs(self.sh("dpkg-query -W -f '${Package}=${Version} ${Status}\\n'")),
            "users": _pairs(self.sh("cat /etc/passwd /etc/group"), ":"),
            "units": _words(self.sh("systemctl list-unit-files --no-legend --plain --no-pager")),
            "running": _words(
                self.sh("systemctl list-units --type=service,socket,timer --no-legend --plain --no-pager")
            ),
            "settings": self.sysctls(),
            "routes": {family: "\n".join(lines) for family, lines in self.routes().items()},
            "rules": {"ruleset": self.node("nft", "list", "ruleset")},
            "links": dict.fromkeys(self.links(), "there"),
            "files": dict(self._files()),
        }

    def _files(self) -> Iterator[tuple[str, str]]:
        """Path -> mode, owner and content of every file that is not volatile.

        What was hashed before is not hashed again where the kernel has noted no change of the file since (st_ctime of
        inode(7), which nobody can set).
        """
        skip = {self.root / name for name in VOLATILE}
        for name, folders, names in os.walk(self.root):
            folder = Path(name)
            folders[:] = [name for name in folders if folder / name not in skip and name != "__pycache__"]
            for path in (folder / name for name in (*folders, *names)):
                if path in skip:
                    continue
                stat = path.lstat()
                content = str(path.readlink()) if S_ISLNK(stat.st_mode) else ""
                if S_ISREG(stat.st_mode):
                    version = (stat.st_dev, stat.st_ino, stat.st_ctime_ns, stat.st_size)
                    if version not in self._hashes:
                        self._hashes[version] = hashlib.sha256(path.read_bytes()).hexdigest()
                    content = self._hashes[version]
                yield str(path.relative_to(self.root)), f"{stat.st_mode:o} {stat.st_uid}:{stat.st_gid} {content}"


def differences(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> dict[str, tuple[str, str]]:
    """What is not as it was: `table: row` -> (then, now)."""
    changed = {}
    for table in before:
        for row in sorted({*before[table], *now[table]}):
            then, later = before[table].get(row, "(none)"), now[table].get(row, "(none)")
            if then != later:
                changed[f"{table}: {row}"] = (then, later)
    return changed


def keygen(path: Path, comment: str) -> None:
    """Writes a key pair without a passphrase."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    process.run(argv).check(doing="making an SSH key")


def cgroup_roots() -> list[Path]:
    """The hierarchies that systemd uses (cgroups(7)): the unified one, on a mixed machine `systemd` as well."""
    base = Path("/sys/fs/cgroup")
    if (base / "cgroup.controllers").exists():
        return [base]
    return [base / name for name in ("systemd", "unified") if (base / name).is_dir()]


def remove_cgroup(folder: Path) -> None:
    """Removes a cgroup with all below it, and what is above where that is empty then, once its processes have ended.

    Raises PlaceError if they do not.
    """
    deadline = time.monotonic() + GONE_TIMEOUT_S
    for each in [*sorted(folder.rglob("*/"), reverse=True), folder]:
        while each.is_dir():
            try:
                each.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise PlaceError("processes of a host do not end", where=str(each)) from None
                time.sleep(0.02)
    with contextlib.suppress(OSError):  # another host's is there
        folder.parent.rmdir()


def _pairs(text: str, separator: str = "=") -> dict[str, str]:
    return dict(line.split(separator, 1) for line in text.splitlines() if separator in line)


def _words(text: str) -> dict[str, str]:
    """First word -> the next three."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return {row[0]: " ".join(row[1:4]) for row in rows}
