"""`smoltcp`: HTTP over another make of TCP than the kernel's, by our program smoltcp-server (rust/senders)."""

from __future__ import annotations

from collections.abc import Sequence

from core.system.builds import refuse_debug_build
from core.system.process import find_program
from vantage.lab.addresses import IPV4, IPV6
from vantage.lab.network.pathem import DEVICE
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import Role, ServerKind, ServerSetup

_PROGRAM = "smoltcp-server"


def _missing() -> str | None:
    path = find_program(_PROGRAM)
    if path is None:
        return f"the server {_PROGRAM} is not installed; run: make setup"
    return refuse_debug_build(f"the server {_PROGRAM}", path)


def _version() -> tuple[str, ...]:
    return (find_program(_PROGRAM) or _PROGRAM, "--version")


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    name, own = setup.server.name, setup.addresses
    argv = [find_program(_PROGRAM) or _PROGRAM, "--device", DEVICE, "--root", str(setup.content)]
    argv += ["--address", f"{own.ipv4}/{IPV4.prefixlen}"]
    if setup.ipv6:
        argv += ["--address", f"{own.ipv6}/{IPV6.prefixlen}"]
    # No port to wait for: the node's kernel has no address to ask it from. It serves within milliseconds.
    return [ProgramPlan(name=name, node=name, argv=tuple(argv), kind=SMOLTCP.name)]


SMOLTCP = ServerKind(
    name="smoltcp",
    help="HTTP over smoltcp's own TCP: Reno that starts with 2,048 bytes at any segment size.",
    roles=frozenset({Role.WEB}),
    programs=_programs,
    missing=_missing,
    version=_version,
    can_be_chosen=True,
    tls=False,
    initial_window_bytes=2048,
)
