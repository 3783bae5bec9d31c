"""`sender`: a web server whose sending is told by the request, by our program `vantage/lab/sender.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import vantage.lab
from vantage.lab.addresses import vantage_prefixes
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import Role, ServerKind, ServerSetup

_SCRIPT = Path(vantage.lab.__file__).with_name("sender.py")


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    server = setup.server
    argv = [sys.executable, "-I", str(_SCRIPT), "--root", str(setup.content)]
    for vantage_point, prefixes in vantage_prefixes(setup.topology).items():
        first = server.paths[vantage_point].first
        argv += [word for prefix in prefixes if first is not None for word in ("--first", f"{prefix}={first}")]
    ports = ((setup.addresses.ipv4, 80),)
    return [ProgramPlan(name=server.name, node=server.name, argv=tuple(argv), tcp=ports, kind=SENDER.name)]


SENDER = ServerKind(
    name="sender",
    help="Sends over HTTP as the query of the URL says: paced, with a window in bytes, an answer of any size.",
    roles=frozenset({Role.WEB}),
    programs=_programs,
    can_be_chosen=True,
    tls=False,
)
