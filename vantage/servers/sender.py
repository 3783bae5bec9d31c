"""`sender`: a web server whose sending is told by the request, by our program `vantage/programs/sender.py`."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.server_kind import ProgramPlan, ServerKind, ServerRole, ServerSetup, python_program


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    windows = [word for prefix, first in setup.first_bytes.items() for word in ("--first", f"{prefix}={first}")]
    argv = python_program("sender.py", "--root", setup.content, *windows)
    return [ProgramPlan(name=setup.name, node=setup.name, argv=argv, tcp=((setup.ipv4, 80),))]


SENDER = ServerKind(
    name="sender",
    help="Sends over HTTP as the query of the URL says: paced, with a window in bytes, an answer of any size.",
    roles=frozenset({ServerRole.WEB}),
    programs=_programs,
    can_be_chosen=True,
    tls=False,
)
