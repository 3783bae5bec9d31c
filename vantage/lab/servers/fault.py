"""`fault`: a server whose downloads fail, by our program `vantage/lab/fault_server.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import vantage.lab
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import Role, ServerKind, ServerSetup
from vantage.lab.topology import Server, Topology

_SCRIPT = Path(vantage.lab.__file__).with_name("fault_server.py")


def _claims(_: Topology, server: Server) -> bool:
    return server.fault is not None


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    server = setup.server
    certificate, key = setup.certificate(server.name)
    argv = [sys.executable, "-I", str(_SCRIPT), str(server.fault), "--root", str(setup.content)]
    argv += ["--certificate", str(certificate), "--key", str(key)]
    ports = ((setup.addresses.ipv4, 443),)
    return [ProgramPlan(name=server.name, node=server.name, argv=tuple(argv), tcp=ports, kind=FAULT.name)]


FAULT = ServerKind(
    name="fault",
    help="Fails downloads, or serves another object or from another place, as the field fault says.",
    roles=frozenset({Role.WEB}),
    programs=_programs,
    claims=_claims,
)
