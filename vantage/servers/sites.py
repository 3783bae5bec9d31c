"""`sites`: a server with sites that Caddy cannot serve, by our program `vantage/programs/site_server.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from core.files.disk import write_json
from vantage.server_kind import Need, ProgramPlan, ServerKind, ServerRole, ServerSetup, python_program


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    table = setup.data(setup.name) / "sites.json"
    answers = {host.name: {path: asdict(answer) for path, answer in host.answers.items()} for host in setup.hosts}
    write_json(table, answers)
    files = (table, "--certificates", setup.certificates, "--log", setup.access_log)
    argv = python_program("site_server.py", *files)
    return [ProgramPlan(name=setup.name, node=setup.name, argv=argv, tcp=((setup.ipv4, 443),))]


SITES = ServerKind(
    name="sites",
    help="Serves sites with answers that no ordinary server gives.",
    roles=frozenset({ServerRole.WEB}),
    programs=_programs,
    meets=frozenset({Need.ANSWERS}),
)
