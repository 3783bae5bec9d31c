"""`upshift fleet bundle`: all that a vantage point needs, in one archive per Python version.

A checkout -> what `uv.lock` names for an extra and a Python version -> wheels: ours are built, the others downloaded by
hash -> manifest -> archive, the same bytes for the same files. `install.py` travels in it and installs it.

    python -m vantage.fleet.bundle BUNDLE       checks one
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement

import core
from core.errors import PlaceError, UsageError, use_one_of
from core.files import disk
from core.system import process
from core.terminal import Progress
from vantage.fleet import install
from vantage.fleet.install import MANIFEST

PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of the system interpreters of Debian 12 and 13 and Ubuntu 24.04."""

CPU = "x86_64"

GLIBC = (2, 34)
"""The oldest C library that our binaries run on: Debian 12 and Ubuntu 22.04 have newer ones."""

PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{CPU}"

EXTRA, GROUP = "vantage", "bundle"
"""In pyproject.toml: what vantage points need; what builds, downloads and installs it."""

_BUILD_S = 3600.0
"""The first build compiles BoringSSL."""

BUILT_AT = "1577836800"
"""2020-01-01: the time of every file in our wheels (https://reproducible-builds.org/specs/source-date-epoch/).

.cargo/config.toml, which no installed package has, sets the same; a unit test compares them."""

_SYSTEM_CERTIFICATES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))

_HASH = " --hash="

_INSTALLER = Path(install.__file__)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout of Upshift."""

    folder: Path

    def uv(self, *arguments: str, doing: str) -> str:
        """Runs uv there; returns its standard output.

        Raises:
            PlaceError: uv is missing, or failed.
        """
        return self.try_uv(arguments).check(doing=doing).stdout

    def try_uv(self, arguments: Sequence[str], *, timeout_s: float = 600.0) -> process.Completed:
        """Like `uv`, for a caller that looks at the failure itself."""
        return process.run([_uv(), *arguments], timeout_s=timeout_s, env=_environment(), cwd=self.folder)


def find_checkout() -> Checkout:
    """The checkout that this Upshift runs from. Raises UsageError if it was installed from a wheel."""
    folder = Path(core.__file__).parent.parent
    if not all((folder / name).exists() for name in ("pyproject.toml", "uv.lock", "rust")):
        raise UsageError(
            "bundles are built from a checkout of Upshift, and this Upshift was installed without one",
            where=str(folder),
            remedy="clone the repository, run make setup there, and use its upshift",
        )
    return Checkout(folder)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "upshift"


def _uv() -> str:
    """The program uv, also where `make setup` puts it."""
    own = _cache() / "uv" / "bin" / "uv"
    if program := process.find_program("uv") or (str(own) if own.is_file() else None):
        return program
    raise PlaceError("the program uv is missing", remedy="run make setup")


def _environment() -> dict[str, str]:
    """As in the Makefile and scripts/trust: one cache of Rust builds, system interpreters, the system's trust."""
    environment = {
        "CARGO_TARGET_DIR": str(_cache() / "cargo-target"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON": sys.executable,
    }
    if any(path.exists() for path in _SYSTEM_CERTIFICATES):
        environment["UV_SYSTEM_CERTS"] = "true"
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path.home() / ".cargo" / "bin")))
    kept = {name: value for name, value in environment.items() if name not in os.environ}
    return {**kept, "PATH": path, "SOURCE_DATE_EPOCH": BUILT_AT}


@dataclass(frozen=True, slots=True)
class Pinned:
    """A package of others, in one version."""

    requirement: Requirement
    hashes: tuple[str, ...]
    """Hashes of all its files, such as `sha256:...`."""

    def applies_to(self, python: str) -> bool:
        """Whether CPython of this version on Linux (x86_64) needs it."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(cast("dict[str, Any]", target_environment(python)))

    def line(self) -> str:
        """A line of a requirements file, without the marker, as pip would evaluate that for the Python it runs on."""
        hashes = "".join(f"{_HASH}{one}" for one in self.hashes)
        return f"{self.requirement.name}{self.requirement.specifier}{hashes}"


@dataclass(frozen=True, slots=True)
class Locked:
    """What an extra or a group needs."""

    ours: tuple[str, ...]
    """Folders in the checkout, relative to it."""
    others: tuple[Pinned, ...]


def parse(exported: str) -> Locked:
    """Reads the output of `uv export --format requirements.txt`."""
    ours, others = [], []
    for line in _logical_lines(exported):
        if line.startswith("-e "):
            ours.append(line.removeprefix("-e ").strip())
            continue
        named, *hashes = line.split(_HASH)
        others.append(Pinned(Requirement(named.strip()), tuple(one.strip() for one in hashes)))
    return Locked(tuple(ours), tuple(others))


def _logical_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", "").splitlines():
        if (words := " ".join(line.split())) and not words.startswith("#"):
            yield words


def target_environment(python: str) -> Environment:
    """Values of markers on a vantage point (https://packaging.python.org/specifications/dependency-specifiers/)."""
    return {
        **default_environment(),
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def read_lock(checkout: Checkout, *which: str) -> Locked:
    """What an extra (`--extra NAME`) or a group (`--only-group NAME`) needs, by `uv.lock`.

    Raises:
        PlaceError: uv is missing, or `uv.lock` is older than pyproject.toml.
    """
    arguments = ("export", "--locked", "--no-default-groups", "--no-header", "--no-annotate", "--quiet", *which)
    return parse(checkout.uv(*arguments, doing="it read uv.lock"))


def build_ours(
    checkout: Checkout, folders: Sequence[str], backends: Iterable[Pinned], into: Path, *, step: Callable[[str], None]
) -> list[Path]:
    """Builds the wheels of our packages.

    Args:
        folders: of the packages, relative to the checkout.
        backends: what builds them, so that another day's release of a backend does not change the bytes.
        step: called with a note before each package.

    Raises:
        PlaceError: a build failed, or a binary needs a newer C library than `GLIBC`.
    """
    constraints = into / "constraints.txt"
    constraints.write_text("".join(f"{one.line()}\n" for one in backends), encoding="utf-8")
    # As scripts/setup does: else cargo takes what another checkout has built in the same cache.
    own_build = checkout.folder / "scripts" / "own-build"
    if own_build.exists():
        done = process.run(
            ["bash", "-euc", f". {shlex.quote(str(own_build))}"], env=_environment(), cwd=checkout.folder
        )
        done.check(doing="marking the cache of Rust builds as this checkout's")
    for folder in folders:
        step(f"builds {folder}")
        _build(checkout, folder, constraints, into)
    return sorted(into.glob("*.whl"))


def _build(checkout: Checkout, folder: str, constraints: Path, into: Path) -> None:
    arguments = ["build", "--wheel", "--out-dir", str(into), "--build-constraints", str(constraints)]
    arguments += ["--require-hashes", "--no-create-gitignore"]
    if (checkout.folder / folder / "Cargo.toml").exists() and folder != ".":
        # maturin then looks at the versions of all symbols, as auditwheel does, and refuses the tag if it is not true.
        arguments += ["--config-setting", f"build-args=--compatibility {PLATFORM.removesuffix('_x86_64')}"]
    done = checkout.try_uv([*arguments, folder], timeout_s=_BUILD_S)
    if done.returncode == 0:
        return
    if "too-recent versioned symbols" in done.stderr:
        raise PlaceError(
            f"this system's binaries need a newer C library than glibc {GLIBC[0]}.{GLIBC[1]}",
            where=folder,
            remedy="build the bundle on Debian 12 or Ubuntu 22.04",
        )
    failures = [line for line in done.stderr.splitlines() if line.lower().lstrip().startswith(("error", "cause"))]
    raise PlaceError(
        f"the wheel cannot be built ({failures[0].strip() if failures else f'exit code {done.returncode}'})",
        where=str(checkout.folder / folder),
        remedy=f"run there: uv build --wheel {folder}",
    )


def download(checkout: Checkout, python: str, pinned: Iterable[Pinned], into: Path) -> list[Path]:
    """Downloads the wheels for a Python version, by pip: uv has no such command (astral-sh/uv#3163).

    Raises:
        PlaceError: an index cannot be reached, has no wheel for that Python, or one with another hash.
    """
    wanted = [one for one in pinned if one.applies_to(python)]
    requirements = into.with_name(f"{into.name}.txt")
    requirements.write_text("".join(f"{one.line()}\n" for one in wanted), encoding="utf-8")
    shutil.rmtree(into, ignore_errors=True)
    arguments = ["run", "--isolated", "--locked", "--only-group", GROUP, "--quiet", "python", "-m", "pip", "download"]
    arguments += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(into), "-r", str(requirements)]
    arguments += ["--implementation", "cp", "--python-version", python, "--quiet", "--disable-pip-version-check"]
    for tag in platforms():
        arguments += ["--platform", tag]
    checkout.uv(*arguments, doing=f"it downloaded the wheels for Python {python}")
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != len(wanted):
        raise PlaceError(f"{len(wheels)} of {len(wanted)} wheels for Python {python} were downloaded")
    return wheels


def platforms() -> list[str]:
    """Platform tags of wheels that run on x86_64 with `GLIBC` (PEP 600), the newest first."""
    versions = [f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(GLIBC[1], 4, -1)]
    return [*versions, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def manifest(files: Mapping[str, Path], *, python: str, glibc: tuple[int, int]) -> dict[str, Any]:
    """The document that describes a bundle.

    Args:
        files: name in the bundle -> file.
        python: version, such as `3.12`.
        glibc: the oldest that its binaries run on.

    Returns:
        `release`: 12 hex digits of the SHA-256 over all else; `python`; `cpu`; `glibc`; `files`: name -> SHA-256.
    """
    hashes = {name: _sha256(path) for name, path in sorted(files.items())}
    content = {"python": python, "cpu": CPU, "glibc": list(glibc), "files": hashes}
    return {"release": _release(content), **content}


def _release(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def archive_name(document: Mapping[str, Any]) -> str:
    """The file name of a bundle."""
    return f"upshift-bundle-{document['release']}-py{document['python']}-{CPU}.tar"


def write_archive(files: Mapping[str, Path], document: Mapping[str, Any], folder: Path) -> Path:
    """Writes a bundle into a folder, atomically, and removes others for the same Python; returns its path."""
    target = folder / archive_name(document)
    with disk.whole_file(target) as part, tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, MANIFEST, disk.json_text(document).encode())
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    for other in folder.glob(f"upshift-bundle-*-py{document['python']}-{CPU}.tar"):
        if other != target:
            other.unlink()
    return target


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Adds a file that belongs to root and has no time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def is_whole(bundle: Path) -> bool:
    """Whether a bundle has every file that its manifest names, by hash, and is the release that its name says."""
    try:
        with tarfile.open(bundle) as archive:
            files = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
            document = json.loads((files.pop(MANIFEST) or io.BytesIO()).read())
            hashes = {name: hashlib.sha256(file.read()).hexdigest() for name, file in files.items() if file}
        content = {key: document[key] for key in ("python", "cpu", "glibc", "files")}
        return bool(
            hashes == document["files"]
            and _release(content) == document["release"]
            and archive_name(document) == bundle.name
        )
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def build(checkout: Checkout, folder: Path, pythons: Sequence[str], *, progress: Progress) -> list[Path]:
    """Makes one bundle for each Python version; returns their paths in that order.

    Raises:
        UsageError: another Python version, another CPU.
        PlaceError: uv is missing; a wheel cannot be built or downloaded.
    """
    for python in pythons:
        if python not in PYTHONS:
            raise UsageError(f"no bundle for Python {python}", where="--python", remedy=use_one_of(python, PYTHONS))
    if platform.machine() != CPU:
        raise UsageError(
            f"bundles are built on and for {CPU}, and this CPU is {platform.machine()}",
            remedy=f"build them on a machine with {CPU}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    needed = read_lock(checkout, "--extra", EXTRA)
    tools = read_lock(checkout, "--only-group", GROUP).others
    pip = [one for one in tools if one.requirement.name == "pip"]
    total, done = len(needed.ours) + len(pythons), 0

    def step(note: str) -> None:
        nonlocal done
        progress.update("bundle", done=done, total=total, note=note)
        done += 1

    made = []
    with tempfile.TemporaryDirectory(prefix="upshift-bundle-") as temporary:
        ours_folder = Path(temporary) / "ours"
        ours_folder.mkdir()
        ours = build_ours(checkout, needed.ours, tools, ours_folder, step=step)
        for python in pythons:
            step(f"wheels for Python {python}")
            others = download(checkout, python, [*needed.others, *pip], Path(temporary) / python)
            files = {_place(path): path for path in (*ours, *others)} | {_INSTALLER.name: _INSTALLER}
            document = manifest(files, python=python, glibc=GLIBC)
            made.append(write_archive(files, document, folder))
        progress.update("bundle", done=total, total=total)
    return made


def _place(wheel: Path) -> str:
    """pip's own wheel lies beside the others, as it is run and not installed."""
    return wheel.name if wheel.name.startswith("pip-") else f"wheels/{wheel.name}"


if __name__ == "__main__":
    raise SystemExit(0 if is_whole(Path(sys.argv[1])) else 1)
