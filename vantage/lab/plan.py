"""The plan of a lab: what its holder builds, as values and as `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.files.atomic import write_json
from vantage.lab.addresses import Addresses
from vantage.server_kind import ProgramPlan

SCHEMA = 4


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
    """By node."""
    ipv6: bool
    sha256: Mapping[str, str]
    """`SERVER/path` -> hash of the file."""


def write_plan(plan: LabPlan, path: Path) -> None:
    """Writes `plan.json`."""
    write_json(path, {"schema": SCHEMA, **_plain(asdict(plan))})


def read_plan(path: Path) -> LabPlan:
    """Reads `plan.json`."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return LabPlan(
        name=found["name"],
        topology_sha256=found["topology_sha256"],
        nodes=tuple(
            NodePlan(
                name=node["name"],
                sysctls=node["sysctls"],
                ip_batch=tuple(node["ip_batch"]),
                ip6_batch=tuple(node["ip6_batch"]),
            )
            for node in found["nodes"]
        ),
        emulator=tuple(found["emulator"]),
        programs=tuple(_program(program) for program in found["programs"]),
        versions={name: tuple(argv) for name, argv in found["versions"].items()},
        resolv_conf=Path(found["resolv_conf"]),
        addresses={name: Addresses(**own) for name, own in found["addresses"].items()},
        ipv6=found["ipv6"],
        sha256=found["sha256"],
    )


def _program(found: Mapping[str, Any]) -> ProgramPlan:
    return ProgramPlan(
        name=found["name"],
        node=found["node"],
        argv=tuple(found["argv"]),
        tcp=tuple((address, port) for address, port in found["tcp"]),
        udp=tuple(found["udp"]),
        env=found["env"],
    )


def _plain(value: Any) -> Any:
    """Paths as texts, everything else as it is."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
