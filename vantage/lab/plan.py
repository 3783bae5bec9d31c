"""The plan of a lab: what its holder builds, as values and as `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from core.files.config import build
from core.files.disk import write_json
from vantage.lab.addresses import Addresses
from vantage.server_kind import ProgramPlan


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
    fifo_priority: int | None = None
    """Real-time priority of the servers; None: none."""


def write_plan(plan: LabPlan, path: Path) -> None:
    """Writes `plan.json`."""
    write_json(path, asdict(plan) | {"resolv_conf": str(plan.resolv_conf)})


def read_plan(path: Path) -> LabPlan:
    """Reads `plan.json`."""
    return build(json.loads(path.read_text(encoding="utf-8")), LabPlan, where=str(path))
