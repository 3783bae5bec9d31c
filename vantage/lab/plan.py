"""The plan of a lab: what its holder builds, as values and as `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.files.config import build
from core.files.disk import write_json
from vantage.lab.addresses import Addresses
from vantage.server_kind import ProgramPlan

SCHEMA = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A network namespace."""

    name: str
    sysctls: Mapping[str, str]
    """Set before the device exists."""
    ip_batch: tuple[str, ...]
    """Lines for `ip -batch`, run once the device exists."""
    ip6_batch: tuple[str, ...] = ()
    """Lines for `ip -6 -batch`, run after those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """A whole lab."""

    name: str
    topology_sha256: str
    nodes: tuple[NodePlan, ...]
    emulator: tuple[str, ...]
    """Command line of the path emulator."""
    programs: tuple[ProgramPlan, ...]
    versions: Mapping[str, tuple[str, ...]]
    """Program -> the command line that prints its version."""
    resolv_conf: Path
    addresses: Mapping[str, Addresses]
    """Node -> its addresses."""
    ipv6: bool
    sha256: Mapping[str, str]
    """`SERVER/path` -> hash of the file."""
    fifo_priority: int | None = None
    """Real-time priority of the servers; None: none."""


def write_plan(plan: LabPlan, path: Path) -> None:
    """Writes `plan.json`."""
    write_json(path, {"schema": SCHEMA, **_plain(asdict(plan))})


def read_plan(path: Path) -> LabPlan:
    """Reads `plan.json`."""
    return build(json.loads(path.read_text(encoding="utf-8")), LabPlan, where=str(path))


def _plain(value: Any) -> Any:
    """Paths as texts, everything else as it is."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
