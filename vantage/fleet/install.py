"""Installs the bundle in whose folder it lies, on a vantage point. Standard library only: nothing else is there.

    python3 install.py --root /opt/upshift

A release is ROOT/releases/HASH12, a virtual environment. It is complete once its `manifest.json` is there, which is
written last; the link ROOT/current is switched after that, in one rename. A release without it is what a killed
installation left, and is removed by the next. Exit codes: 0 installed or already there, 2 this bundle does not fit or
is damaged, 75 a fault of the host (disk full, no permission, another installation runs).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "manifest.json"
KEPT = 2
"""Releases that stay: the new one, and the one before. One that a process runs from stays as well."""

WRONG, FAULT = 2, 75

_GROWTH = 1.25
"""Size of an installed wheel to the size of its files, as pip adds bytecode (measured: 1.13)."""


class InstallError(Exception):
    """One sentence, and an exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def main() -> None:
    parser = argparse.ArgumentParser(description="Installs this bundle of Upshift.")
    parser.add_argument("--root", type=Path, default=Path("/opt/upshift"), help="default: /opt/upshift")
    root = parser.parse_args().root.absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        print(install(Path(__file__).resolve().parent, root))  # noqa: T201 - its own command line
    except InstallError as error:
        sys.stderr.write(f"install.py: {error}\n")
        raise SystemExit(error.code) from None
    except OSError as error:
        sys.stderr.write(f"install.py: {error.filename or root}: {(error.strerror or str(error)).lower()}\n")
        raise SystemExit(FAULT) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def install(bundle: Path, root: Path) -> str:
    """Installs a bundle that was unpacked into a folder; returns what was done.

    Raises:
        InstallError, OSError: nothing has changed then, save that remains of a killed installation are gone.
    """
    document = read_manifest(bundle)
    check_host(document)
    check_files(bundle, document)
    os.umask(0o022)  # another user runs it
    releases = root / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    with only_one(root):
        release = releases / str(document["release"])
        for other in releases.iterdir():
            if not (other / MANIFEST).exists():
                shutil.rmtree(other)
        fresh = not release.exists()
        if fresh:
            check_space(bundle, releases)
            try:
                make_release(bundle, document, release)
            except BaseException:
                shutil.rmtree(release, ignore_errors=True)
                raise
        before = switch(root, release)
        remove_old(releases, release, before)
    return f"{'installed' if fresh else 'unchanged' if before == release.name else 'switched'}: {release.name}"


def read_manifest(bundle: Path) -> dict[str, object]:
    """The bundle's manifest."""
    try:
        document = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
        if {"release", "python", "cpu", "glibc", "files"} <= document.keys():
            return dict(document)
    except (FileNotFoundError, ValueError, AttributeError):
        pass
    raise InstallError(f"{bundle / MANIFEST} is missing or damaged; copy the bundle again", WRONG)


def check_host(document: dict[str, object]) -> None:
    """Whether the bundle fits this host's Python, CPU and C library."""
    python = ".".join(map(str, sys.version_info[:2]))
    if document["python"] != python or platform.python_implementation() != "CPython":
        raise InstallError(f"this bundle is for Python {document['python']}, and this is {python}", WRONG)
    if document["cpu"] != platform.machine():
        raise InstallError(f"this bundle is for {document['cpu']}, and this CPU is {platform.machine()}", WRONG)
    wanted = tuple(map(int, document["glibc"]))  # type: ignore[call-overload]
    version = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    present = tuple(map(int, (version or "glibc 0.0").split()[-1].split(".")[:2]))
    if present < wanted:
        needed = ".".join(map(str, wanted))
        raise InstallError(f"this bundle needs glibc {needed}, and this system has {version or 'none'}", WRONG)


def check_files(bundle: Path, document: dict[str, object]) -> None:
    """Whether every file is there and has its hash."""
    for name, expected in files_of(document).items():
        try:
            with (bundle / name).open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
        except FileNotFoundError:
            raise InstallError(f"{name} is missing in the bundle; copy it again", WRONG) from None
        if digest != expected:
            raise InstallError(f"{name} has another hash than {MANIFEST} says; copy the bundle again", WRONG)


def files_of(document: dict[str, object]) -> dict[str, str]:
    """Name -> SHA-256."""
    files = document["files"]
    return files if isinstance(files, dict) else {}


def check_space(bundle: Path, releases: Path) -> None:
    """Whether the disk has room for a release."""
    size = 0
    for wheel in (bundle / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            size += sum(entry.file_size for entry in opened.infolist())
    needed, free = int(size * _GROWTH), shutil.disk_usage(releases).free
    if free < needed:
        there = f"{releases} has {free / 1e6:.0f} MB free, and the release needs {needed / 1e6:.0f} MB"
        raise InstallError(f"{there}; free some space there", FAULT)


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Keeps a second installation out."""
    with (root / ".lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(f"another installation runs in {root}; wait for it", FAULT) from None
        yield


def make_release(bundle: Path, document: dict[str, object], release: Path) -> None:
    """Makes a virtual environment and fills it; pip runs out of its wheel, and asks no index."""
    run([sys.executable, "-I", "-m", "venv", "--without-pip", str(release)], "the environment cannot be made")
    pip = next(name for name in files_of(document) if name.startswith("pip-"))
    wheels = sorted(str(bundle / name) for name in files_of(document) if name.endswith(".whl") and name != pip)
    command = [str(release / "bin" / "python3"), "-I", str(bundle / pip / "pip"), "--isolated", "--quiet"]
    command += ["--no-input", "--disable-pip-version-check", "--no-cache-dir", "install", "--no-index", *wheels]
    run(command, "the wheels cannot be installed")
    # A power cut must not leave a complete release with empty files.
    run(["sync", "--file-system", str(release)], "the disk cannot be written")
    part = release / f".{MANIFEST}.part"
    shutil.copyfile(bundle / MANIFEST, part)
    part.replace(release / MANIFEST)


def run(command: list[str], failure: str) -> None:
    """Runs a program to its end; it ends with us, even if we are killed."""
    tied = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    with subprocess.Popen(tied, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        try:
            output, _ = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = output.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
        raise InstallError(f"{failure}: {lines[-1]}", FAULT)


def switch(root: Path, release: Path) -> str | None:
    """Points ROOT/current at a release, in one rename; returns the name of the one before."""
    link, part = root / "current", root / ".current.part"
    before = link.readlink().name if link.is_symlink() else None
    if before != release.name:
        part.unlink(missing_ok=True)
        part.symlink_to(Path("releases") / release.name)
        part.replace(link)
        os.utime(release / MANIFEST)
    return before


def remove_old(releases: Path, release: Path, before: str | None) -> None:
    """Removes all but the newest releases, by when they were last switched to, and those that processes run from."""

    def last_used(other: Path) -> tuple[bool, bool, float]:
        return other == release, other.name == before, (other / MANIFEST).stat().st_mtime

    for other in sorted(releases.iterdir(), key=last_used, reverse=True)[KEPT:]:
        if runs_from(other):
            continue
        (other / MANIFEST).unlink()  # from here on it is what an installation left
        shutil.rmtree(other)


def runs_from(release: Path) -> bool:
    """Whether a process runs from a release: a campaign that began with it imports modules and starts programs later.

    A program has the release in its command line, as the first line of a script names its Python by the full path, or
    is mapped from it. A unit that waits to be started again has no process, and starts from ROOT/current.
    """
    marks = {os.fsencode(f"{path}/") for path in (release, release.resolve())}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            named = (process / "cmdline").read_bytes() + (process / "maps").read_bytes()
            if any(mark in named for mark in marks):
                return True
    return False


if __name__ == "__main__":
    main()
