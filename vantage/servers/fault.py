"""`fault`: a server whose downloads fail, by our program `vantage/programs/fault_server.py`."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.server_kind import Need, ProgramPlan, ServerKind, ServerRole, ServerSetup, python_program


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    certificate, key = setup.certificate(setup.name)
    files = ("--root", setup.content, "--certificate", certificate, "--key", key)
    argv = python_program("fault_server.py", setup.fault, *files)
    return [ProgramPlan(name=setup.name, node=setup.name, argv=argv, tcp=((setup.ipv4, 443),))]


FAULT = ServerKind(
    name="fault",
    help="Fails downloads, or serves another object or from another place, as the field fault says.",
    roles=frozenset({ServerRole.WEB}),
    programs=_programs,
    meets=frozenset({Need.FAULT}),
)
