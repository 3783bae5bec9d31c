"""`sites`: a server with sites that Caddy cannot serve, by our program `vantage/lab/sites/server.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import vantage.lab
from core.files.atomic import write_json
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import Role, ServerKind, ServerSetup
from vantage.lab.sites.sites import need_site_server

_SCRIPT = Path(vantage.lab.__file__).parent / "sites" / "server.py"


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    name = setup.server.name
    table = setup.data(name) / "sites.json"
    answers = {host.name: {path: asdict(answer) for path, answer in host.answers.items()} for host in setup.hosts}
    write_json(table, answers)
    argv = [sys.executable, "-I", str(_SCRIPT), str(table)]
    argv += ["--certificates", str(setup.folder.certificates), "--log", str(setup.folder.access_log(name))]
    ports = ((setup.addresses.ipv4, 443),)
    return [ProgramPlan(name=name, node=name, argv=tuple(argv), tcp=ports, kind=SITES.name)]


SITES = ServerKind(
    name="sites",
    help="Serves sites with answers that no ordinary server gives.",
    roles=frozenset({Role.WEB}),
    programs=_programs,
    claims=need_site_server,
)
