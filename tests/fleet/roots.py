"""Roots for the hosts of the tests' cloud, and the packages that they may install: made once, then cached.

    CACHE/fleet/SUITE-HASH12.tar    a minimal system as a cloud image has it: systemd, SSH, sudo, Python
    CACHE/fleet/SUITE-HASH12/       flat apt repository of what provisioning installs (sources.list(5))

HASH12 is over everything that goes in, so another list of packages makes another one. Only this module uses a package
mirror, and only where the cache has nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.errors import PlaceError
from core.system import process
from core.system.process import Completed

USER = "debian"
"""The user that a cloud image has: may use sudo without a password."""

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UBUNTU_KEYRING = "ubuntu-archive-keyring"
"""Package of Debian 13 and newer; taken from there on any system, so that Debian's keys vouch for Ubuntu's."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A distribution's package mirror."""

    mirror: str
    components: str
    pockets: tuple[str, ...]
    """Ends of the names of suites."""
    ubuntu_keys: bool = False

    def lines(self, suite: str, keyring: Path) -> list[str]:
        """For sources.list(5)."""
        return [f"deb [signed-by={keyring}] {self.mirror} {suite}{end} {self.components}" for end in self.pockets]


DEBIAN = Archive("http://deb.debian.org/debian", "main", ("",))
UBUNTU = Archive("http://archive.ubuntu.com/ubuntu", "main universe", ("", "-updates"), ubuntu_keys=True)


@dataclass(frozen=True, slots=True)
class System:
    """What a suite is, and what of it differs from Debian."""

    name: str
    archive: Archive
    python: str
    """Version of the Python that runs Upshift there."""
    image: tuple[str, ...] = ()
    """Packages of its cloud images that provisioning may stumble over."""
    served: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """What its packages leave when they are purged: rows of `Host.fingerprint` as `differences` names them."""


_SERVER = ("apt", "apparmor", "needrestart", "systemd-timesyncd", "unattended-upgrades")
_RDMA = ("users: rdma", "files: etc/group", "files: etc/gshadow")  # of libibverbs1, which its libpcap needs
SYSTEMS = {
    "bookworm": System("Debian 12", DEBIAN, "3.11"),
    "trixie": System("Debian 13", DEBIAN, "3.13"),
    "jammy": System("Ubuntu 22.04", UBUNTU, "3.11", image=_SERVER, served=("python3.11",)),
    "noble": System("Ubuntu 24.04", UBUNTU, "3.12", image=(*_SERVER, "systemd-resolved"), left=_RDMA),
}
"""Suite -> system."""

IMAGE = (
    *("systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "python3", "python3-apt"),
    *("iproute2", "procps", "ca-certificates"),
)
"""Beside the essential packages, on every system. No NTP client, nothing that a measurement needs."""

SERVED = (
    *("tcpdump", "nftables", "ethtool", "rsync", "nginx-light", "systemd-timesyncd", "chrony"),
    *("kmod", "curl", "iputils-ping", "openssl", "zstd"),
)
"""What the hosts can install, with all that these need."""

BUILD_TIMEOUT_S = 900.0

HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash {USER}',
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" > "$1/etc/sudoers.d/{USER}"',
    # Each host gets its own.
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/apt/sources.list',
)


@dataclass(frozen=True, slots=True)
class Root:
    """A minimal system and what it can install."""

    suite: str
    tar: Path
    repository: Path

    def unpack(self, folder: Path) -> None:
        """A copy for one host."""
        folder.mkdir(parents=True)
        argv = ["tar", "--extract", "--preserve-permissions", "--numeric-owner", f"--file={self.tar}"]
        process.run([*argv, f"--directory={folder}"], timeout_s=120).check(doing=f"unpacking {self.tar}")


def cache_folder() -> Path:
    """Outside the checkout, so that a second clone needs no mirror."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "upshift" / "fleet"


def root(suite: str) -> Root:
    """The root of a suite, made first where the cache has none.

    Raises:
        PlaceError: it is not in the cache, and cannot be made here.
    """
    cache = cache_folder()
    system = SYSTEMS[suite]
    recipe = "\n".join([suite, *IMAGE, *system.image, *HOOKS])
    tar = cache / f"{suite}-{_hash12(recipe)}.tar"
    served = " ".join((*SERVED, *system.served))
    wanted = Root(suite, tar, cache / f"{suite}-{_hash12(recipe + served)}")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # worker processes of one test run
        if tar.exists() and wanted.repository.exists():
            return wanted
        with _keyring(system.archive) as keyring:
            if not tar.exists():
                _make_tar(wanted, keyring)
            if not wanted.repository.exists():
                _make_repository(wanted, keyring)
    return wanted


def _hash12(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _make_tar(wanted: Root, keyring: Path) -> None:
    system = SYSTEMS[wanted.suite]
    part = wanted.tar.with_suffix(".part.tar")
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join((*IMAGE, *system.image))}"]
    argv += ['--aptopt=Acquire::Languages "none"', *(f"--customize-hook={hook}" for hook in HOOKS)]
    lines = system.archive.lines(wanted.suite, keyring)
    made = process.run([*argv, wanted.suite, str(part), *lines], timeout_s=BUILD_TIMEOUT_S)
    _check(made, system)
    part.rename(wanted.tar)


@contextlib.contextmanager
def _keyring(archive: Archive) -> Iterator[Path]:
    """The keys of an archive, where the user `_apt` can read them."""
    process.require("mmdebstrap", package="mmdebstrap")
    if not DEBIAN_KEYRING.exists():
        raise PlaceError("the keys of Debian's archive are missing", remedy="apt-get install debian-archive-keyring")
    if not archive.ubuntu_keys:
        yield DEBIAN_KEYRING
        return
    with tempfile.TemporaryDirectory(prefix="upshift-keys-") as name:
        folder = Path(name) / "root"
        argv = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={UBUNTU_KEYRING}", "trixie", str(folder)]
        lines = DEBIAN.lines("trixie", DEBIAN_KEYRING)
        _check(process.run([*argv, *lines], timeout_s=BUILD_TIMEOUT_S), SYSTEMS["trixie"])
        Path(name).chmod(0o755)
        yield folder / f"usr/share/keyrings/{UBUNTU_KEYRING}.gpg"


def _make_repository(wanted: Root, keyring: Path) -> None:
    """By this machine's apt, with the root's list of what is installed."""
    system = SYSTEMS[wanted.suite]
    process.require("dpkg-scanpackages", package="dpkg-dev")
    part = wanted.repository.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    with tempfile.TemporaryDirectory(prefix="upshift-root-") as name:
        folder = Path(name) / "root"
        wanted.unpack(folder)
        lines = system.archive.lines(wanted.suite, keyring)
        (folder / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
        config = Path(name) / "apt.conf"
        status = folder / "var/lib/dpkg/status"
        config.write_text(f'Dir "{folder}"; Dir::State::Status "{status}"; Acquire::Languages "none";\n')
        env = {"APT_CONFIG": str(config)}
        _check(process.run(["apt-get", "-qq", "update"], env=env, timeout_s=BUILD_TIMEOUT_S), system)
        for package in (*SERVED, *system.served):  # one by one: NTP clients conflict
            fetch = ["apt-get", "-qq", "--yes", "--download-only", "--no-install-recommends", "install", package]
            _check(process.run(fetch, env=env, timeout_s=BUILD_TIMEOUT_S), system)
        for package in (folder / "var/cache/apt/archives").glob("*.deb"):
            shutil.copy(package, part)
    index = process.run(["dpkg-scanpackages", "--multiversion", "."], cwd=part).check(doing="indexing the packages")
    (part / "Packages").write_text(index.stdout, encoding="utf-8")
    part.rename(wanted.repository)


def _check(done: Completed, system: System) -> None:
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        error = (errors or ["no message"])[0].removeprefix("E: ")
        raise PlaceError(f"{system.name} cannot be had: no cached root, and from {system.archive.mirror}: {error}")
