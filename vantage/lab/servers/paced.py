"""`paced`: a server whose application hands out bodies slowly, by our program `vantage/lab/fault_server.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import vantage.lab
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import Role, ServerKind, ServerSetup

_SCRIPT = Path(vantage.lab.__file__).with_name("fault_server.py")


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    server = setup.server
    if server.body is None:
        raise LookupError(f"server {server.name} has no field body")
    certificate, key = setup.certificate(server.name)
    argv = [sys.executable, "-I", str(_SCRIPT), "paced", "--root", str(setup.content)]
    argv += ["--certificate", str(certificate), "--key", str(key)]
    argv += ["--chunk-bytes", str(server.body.chunk_bytes), "--every-s", str(server.body.every_s)]
    ports = ((setup.addresses.ipv4, 443),)
    return [ProgramPlan(name=server.name, node=server.name, argv=tuple(argv), tcp=ports, kind=PACED.name)]


PACED = ServerKind(
    name="paced",
    help="Hands out bodies piece by piece over TCP, as the field body says.",
    roles=frozenset({Role.WEB}),
    programs=_programs,
)
