"""`paced`: a server whose application hands out bodies slowly, by our program `vantage/programs/fault_server.py`."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.server_kind import ProgramPlan, ServerKind, ServerRole, ServerSetup, python_program


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    if setup.pieces is None:
        raise LookupError(f"server {setup.name} has no field body")
    certificate, key = setup.certificate(setup.name)
    files = ("--root", setup.content, "--certificate", certificate, "--key", key)
    pieces = ("--chunk-bytes", setup.pieces.chunk_bytes, "--every-s", setup.pieces.every_s)
    argv = python_program("fault_server.py", "paced", *files, *pieces)
    return [ProgramPlan(name=setup.name, node=setup.name, argv=argv, tcp=((setup.ipv4, 443),))]


PACED = ServerKind(
    name="paced",
    help="Hands out bodies piece by piece over TCP, as the field body says.",
    roles=frozenset({ServerRole.WEB}),
    programs=_programs,
)
