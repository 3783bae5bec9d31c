"""`smoltcp`: HTTP over another make of TCP than the kernel's, by our program smoltcp-server (rust/senders)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from core.reach import LAB_PREFIXES
from core.system.process import find_program
from vantage.server_kind import ProgramPlan, ServerKind, ServerRole, ServerSetup, binary_missing

_PROGRAM = "smoltcp-server"


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    argv = [find_program(_PROGRAM) or _PROGRAM, "--device", setup.device, "--root", str(setup.content)]
    for address in filter(None, (setup.ipv4, setup.ipv6)):
        length = next(net.prefixlen for net in LAB_PREFIXES if net.version == ipaddress.ip_address(address).version)
        argv += ["--address", f"{address}/{length}"]
    # No port to wait for: the node's kernel has no address to ask it from. It serves within milliseconds.
    return [ProgramPlan(name=setup.name, node=setup.name, argv=tuple(argv))]


SMOLTCP = ServerKind(
    name="smoltcp",
    help="HTTP over smoltcp's own TCP: Reno that starts with 2,048 bytes at any segment size.",
    roles=frozenset({ServerRole.WEB}),
    programs=_programs,
    missing=binary_missing(_PROGRAM, title=f"the server {_PROGRAM}"),
    version=lambda: (_PROGRAM, "--version"),
    can_be_chosen=True,
    tls=False,
    initial_window_bytes=2048,
)
