"""The plan of a lab: what its holder builds, as values and as `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return LabPlan(
        name=document["name"],
        topology_sha256=document["topology_sha256"],
        nodes=tuple(
            NodePlan(
                name=node["name"],
                sysctls=node["sysctls"],
                ip_batch=tuple(node["ip_batch"]),
                ip6_batch=tuple(node["ip6_batch"]),
            )
            for node in document["nodes"]
        ),
        emulator=tuple(document["emulator"]),
        programs=tuple(_program(program) for program in document["programs"]),
        versions={name: tuple(argv) for name, argv in document["versions"].items()},
        resolv_conf=Path(document["resolv_conf"]),
        addresses={name: Addresses(**own) for name, own in document["addresses"].items()},
        ipv6=document["ipv6"],
        sha256=document["sha256"],
        fifo_priority=document["fifo_priority"],
    )


def _program(entry: Mapping[str, Any]) -> ProgramPlan:
    return ProgramPlan(
        name=entry["name"],
        node=entry["node"],
        argv=tuple(entry["argv"]),
        tcp=tuple((address, port) for address, port in entry["tcp"]),
        udp=tuple(entry["udp"]),
        env=entry["env"],
    )


def _plain(value: Any) -> Any:
    """Paths as texts, everything else as it is."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
