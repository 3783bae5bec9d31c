"""Wheels: ours are built, those of others downloaded by the hashes of `uv.lock`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from core.errors import PlaceError
from vantage.fleet.bundle.checkout import Checkout
from vantage.fleet.bundle.locked import Locked, Pinned, parse

EXTRA, GROUP = "vantage", "bundle"
"""In pyproject.toml: what vantage points need; what builds, downloads and installs it."""

GLIBC = (2, 34)
"""The oldest C library that our binaries run on: Debian 12 and Ubuntu 22.04 have newer ones."""

PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"

_BUILD_S = 3600.0
"""The first build compiles BoringSSL."""


def read_lock(checkout: Checkout, *which: str) -> Locked:
    """What an extra (`--extra NAME`) or a group (`--only-group NAME`) needs, by `uv.lock`.

    Raises:
        PlaceError: uv is missing, or `uv.lock` is older than pyproject.toml.
    """
    arguments = ("export", "--locked", "--no-default-groups", "--no-header", "--no-annotate", "--quiet", *which)
    return parse(checkout.uv(*arguments, doing="it read uv.lock"))


def build_ours(
    checkout: Checkout, folders: Sequence[str], backends: Iterable[Pinned], into: Path, *, built: Callable[[str], None]
) -> list[Path]:
    """Builds the wheels of our packages.

    Args:
        folders: of the packages, relative to the checkout.
        backends: what builds them, so that another day's release of a backend does not change the bytes.
        built: told about each package.

    Raises:
        PlaceError: a build failed, or a binary needs a newer C library than `GLIBC`.
    """
    constraints = into / "constraints.txt"
    constraints.write_text("".join(f"{one.line()}\n" for one in backends), encoding="utf-8")
    for folder in folders:
        built(folder)
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
    for platform in platforms():
        arguments += ["--platform", platform]
    checkout.uv(*arguments, doing=f"it downloaded the wheels for Python {python}")
    found = sorted(into.glob("*.whl"))
    if len(found) != len(wanted):
        raise PlaceError(f"{len(found)} of {len(wanted)} wheels for Python {python} were downloaded")
    return found


def platforms() -> list[str]:
    """Platform tags of wheels that run on x86_64 with `GLIBC` (PEP 600), the newest first."""
    versions = [f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(GLIBC[1], 4, -1)]
    return [*versions, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
