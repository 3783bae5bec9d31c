"""Debian roots for the hosts of the tests' cloud, and the packages that they may install: made once, then cached.

    CACHE/fleet/SUITE-HASH12.tar    a minimal system as a cloud image has it: systemd, SSH, sudo, Python
    CACHE/fleet/SUITE-HASH12/       flat apt repository of what provisioning installs (sources.list(5))

HASH12 is over everything that goes in, so another list of packages makes another one. Only this module uses a package
mirror, and only where the cache has nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from upshift.errors import PlaceError
from upshift.system import process
from upshift.system.process import Completed

SUITES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = "http://deb.debian.org/debian"
USER = "debian"
"""The user that a cloud image has: may use sudo without a password."""

IMAGE = (
    *("systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "python3", "python3-apt"),
    *("iproute2", "procps", "ca-certificates"),
)
"""Beside the essential packages. No NTP client, nothing that a measurement needs."""

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
    """A minimal Debian and what it can install."""

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
    recipe = "\n".join([suite, *IMAGE, *HOOKS])
    tar = cache / f"{suite}-{_hash12(recipe)}.tar"
    found = Root(suite, tar, cache / f"{suite}-{_hash12(recipe + ' '.join(SERVED))}")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # worker processes of one test run
        if not tar.exists():
            _make_tar(found)
        if not found.repository.exists():
            _make_repository(found)
    return found


def _hash12(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _make_tar(wanted: Root) -> None:
    process.require("mmdebstrap", package="mmdebstrap")
    if not KEYRING.exists():
        raise PlaceError("the keys of Debian's archive are missing", remedy="apt-get install debian-archive-keyring")
    part = wanted.tar.with_suffix(".part.tar")
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(IMAGE)}", f"--keyring={KEYRING}"]
    argv += ['--aptopt=Acquire::Languages "none"', *(f"--customize-hook={hook}" for hook in HOOKS)]
    made = process.run([*argv, wanted.suite, str(part), MIRROR], timeout_s=BUILD_TIMEOUT_S)
    _check(made, wanted)
    part.rename(wanted.tar)


def _make_repository(wanted: Root) -> None:
    """By this machine's apt, with the root's list of what is installed."""
    process.require("dpkg-scanpackages", package="dpkg-dev")
    part = wanted.repository.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    with tempfile.TemporaryDirectory(prefix="upshift-root-") as name:
        folder = Path(name) / "root"
        wanted.unpack(folder)
        (folder / "etc/apt/sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} {wanted.suite} main\n")
        config = Path(name) / "apt.conf"
        status = folder / "var/lib/dpkg/status"
        config.write_text(f'Dir "{folder}"; Dir::State::Status "{status}"; Acquire::Languages "none";\n')
        env = {"APT_CONFIG": str(config)}
        _check(process.run(["apt-get", "-qq", "update"], env=env, timeout_s=BUILD_TIMEOUT_S), wanted)
        for package in SERVED:  # one by one: NTP clients conflict
            fetch = ["apt-get", "-qq", "--yes", "--download-only", "--no-install-recommends", "install", package]
            _check(process.run(fetch, env=env, timeout_s=BUILD_TIMEOUT_S), wanted)
        for package in (folder / "var/cache/apt/archives").glob("*.deb"):
            shutil.copy(package, part)
    index = process.run(["dpkg-scanpackages", "--multiversion", "."], cwd=part).check(doing="indexing the packages")
    (part / "Packages").write_text(index.stdout, encoding="utf-8")
    part.rename(wanted.repository)


def _check(done: Completed, wanted: Root) -> None:
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        said = (errors or ["no message"])[0].removeprefix("E: ")
        raise PlaceError(f"{SUITES[wanted.suite]} cannot be had: no cached root, and from {MIRROR}: {said}")
