"""The stored calibration of this host: `ceilings.json` in a folder that survives a restart.

The folder is `$UPSHIFT_STATE_DIR`, else `$XDG_STATE_HOME/upshift`, else `~/.local/state/upshift` (XDG Base Directory
Specification). A ceiling is stale if the host, its kernel, its processor, Upshift or a package of the client has
changed since it was measured.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import core
from core.errors import UsageError
from core.files.config import read_json
from core.files.disk import write_json
from core.system.place import Program
from vantage.doctor.ceilings.values import MeasuredCeiling
from vantage.doctor.checks import BUSY_LIMIT
from vantage.linux import environment

SCHEMA = 1
FILE_NAME = "ceilings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the ceilings of all clients depend on."""

    host: str
    kernel: str
    cpu: str
    """Model and usable count."""
    python: str
    upshift: str


def circumstances() -> Circumstances:
    """The current values of this host."""
    cpu = environment.cpu()
    return Circumstances(
        host=platform.node(),
        kernel=platform.release(),
        cpu=f"{cpu['count']} x {cpu['model']}",
        python=platform.python_version(),
        upshift=core.__version__,
    )


def calibration_file() -> Path:
    """The folder with this host's calibration."""
    if given := os.environ.get("UPSHIFT_STATE_DIR"):
        return Path(given).absolute() / FILE_NAME
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "upshift" / FILE_NAME


def check_writable(path: Path) -> None:
    """Raises UsageError if the calibration cannot be stored there, before a minute of measuring is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise UsageError(
            "the calibration cannot be stored in this folder",
            where=str(path.parent),
            remedy="set UPSHIFT_STATE_DIR to a folder that you own",
        )


def save(
    ceilings: Sequence[MeasuredCeiling],
    *,
    path: Path,
    now: Circumstances,
    measured_at: str,
    seconds: float,
    busy_share: float,
) -> None:
    """Writes `ceilings.json` atomically.

    Args:
        measured_at: date and time (ISO 8601).
        seconds: the longest duration of a transfer.
        busy_share: share of this host's CPU time that other programs used before, 0 to 1.
    """
    document = {
        "schema": SCHEMA,
        "measured_at": measured_at,
        "seconds": seconds,
        "busy_share": busy_share,
        "too_low": busy_share > BUSY_LIMIT,
        "circumstances": asdict(now),
        "clients": {ceiling.client: ceiling.document() for ceiling in ceilings},
    }
    write_json(path, document)


def present(clients: Iterable[Program], *, path: Path, now: Circumstances) -> dict[str, Any] | None:
    """The stored calibration, with `stale` for each client: why its ceiling is no longer valid (empty: it is).

    None if nothing is stored, or nothing that this version can read.
    """
    if not path.exists():
        return None
    try:
        document = dict(read_json(path))
    except UsageError:
        return None
    if document.get("schema") != SCHEMA:
        return None
    shared = changes(document.get("circumstances", {}), asdict(now))
    versions = {client.name: client.versions() for client in clients}
    document["clients"] = {
        name: {**entry, "stale": [*shared, *changes(entry.get("versions", {}), versions.get(name, {}))]}
        for name, entry in document.get("clients", {}).items()
    }
    return document


def changes(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """The differences, one clause each: `kernel 6.1.0 -> 6.12.1`."""
    names = dict.fromkeys((*then, *now))
    return [
        f"{name} {then.get(name) or 'missing'} -> {now.get(name) or 'missing'}"
        for name in names
        if then.get(name) != now.get(name)
    ]


def unknown(document: Mapping[str, Any] | None, clients: Iterable[str]) -> dict[str, str | None]:
    """Client -> why its ceiling is unknown, as a clause; None if it is known."""
    entries = {} if document is None else document["clients"]
    return {name: _unknown(entries.get(name)) for name in clients}


def _unknown(entry: Mapping[str, Any] | None) -> str | None:
    if entry is None:
        return "not calibrated"
    if entry["fault"] is not None:
        return str(entry["fault"])
    return f"stale: {', '.join(entry['stale'])}" if entry["stale"] else None


def summary(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The calibration as stored with data: without its transfers."""
    if document is None:
        return None
    clients = {
        name: {key: value for key, value in entry.items() if key != "transfers"}
        for name, entry in document["clients"].items()
    }
    return {**document, "clients": clients}
