"""The checkout of Upshift that bundles are built from, and uv in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import core
from core.errors import PlaceError, UsageError
from core.system import process

_BUILT_AT = "1577836800"
"""2020-01-01: the time of every file in our wheels (https://reproducible-builds.org/specs/source-date-epoch/)."""

_SYSTEM_CERTIFICATES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout of Upshift."""

    folder: Path

    def uv(self, *arguments: str, doing: str, timeout_s: float = 600.0) -> str:
        """Runs uv there; returns its standard output.

        Raises:
            PlaceError: uv is missing, or failed.
        """
        return self.try_uv(arguments, timeout_s=timeout_s).check(doing=doing).stdout

    def try_uv(self, arguments: Sequence[str], *, timeout_s: float = 600.0) -> process.Completed:
        """Like `uv`, for a caller that looks at the failure itself."""
        return process.run([_uv(), *arguments], timeout_s=timeout_s, env=_environment(), cwd=self.folder)


def find_checkout(package: Path | None = None) -> Checkout:
    """The checkout that this Upshift runs from.

    Args:
        package: the folder of the package `upshift`; None: of this one.

    Raises:
        UsageError: it was installed from a wheel.
    """
    folder = (package or Path(core.__file__).parent).parent
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
    found = process.find_program("uv")
    if found is not None:
        return found
    own = _cache() / "uv" / "bin" / "uv"
    if own.is_file():
        return str(own)
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
    return {**kept, "PATH": path, "SOURCE_DATE_EPOCH": _BUILT_AT}
