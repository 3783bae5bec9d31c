"""What can be done on this host, tried: in a private network namespace, never on the host itself."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from core.errors import PlaceError
from core.reach import ANYWHERE
from core.system import process
from vantage.doctor.facts import Probed
from vantage.host import rules
from vantage.host.network import choose_link

_UDP_GRO = 104
"""linux/udp.h; Python 3.11's socket module lacks it."""


def run_all(pool: ThreadPoolExecutor) -> Probed:
    """Runs all probes, some at a time."""
    namespaces = pool.submit(try_privately, ("true",))
    tun = pool.submit(try_privately, ("ip", "tuntap", "add", "dev", "probe0", "mode", "tun"))
    nat = pool.submit(try_translation)
    capture = pool.submit(try_capture)
    cubic = pool.submit(try_cubic)
    prober = pool.submit(try_prober)
    return Probed(
        namespaces=namespaces.result(),
        tun=tun.result(),
        nat=nat.result(),
        capture=capture.result(),
        cubic_by_route=cubic.result(),
        prober=prober.result(),
    )


def private_namespace() -> tuple[str, ...]:
    """Command prefix for a private network namespace; without root, in a user namespace with our own user ID.

    With a mapping to root, tcpdump would drop its privileges.
    """
    if os.geteuid() == 0:
        return ("unshare", "--net", "--mount", "--")
    return ("unshare", "--user", "--net", "--mount", "--map-current-user", "--keep-caps", "--")


def try_privately(argv: Sequence[str], *, stdin: str | None = None) -> str | None:
    """Runs a program in a private namespace; None if it succeeded, else its error message."""
    try:
        done = process.run((*private_namespace(), *argv), stdin=stdin, timeout_s=20)
    except PlaceError as error:
        return error.what
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"{argv[0]} ended with exit code {done.returncode}"


def try_translation() -> str | None:
    """Loads the rules that a campaign's namespace uses."""
    link = choose_link((), ipv6=True, rng=random.Random(0))
    table = "upshift_probe"
    text = rules.host_table(table, link=link, interface="ups0", uplink="eth0", only_ours=True, allowed=ANYWHERE)
    return try_privately(("nft", "-f", "-"), stdin=text)


def try_cubic() -> str | None:
    """Sets CUBIC on a route; the sysctl may refuse what the route allows (allowed_congestion_control)."""
    lines = "link set lo up\nroute add 198.18.0.1/32 dev lo congctl cubic\n"
    return try_privately(("ip", "-batch", "-"), stdin=lines)


def try_capture() -> str | None:
    """Starts tcpdump on a private loopback and waits until it reports that it listens."""
    argv = ("tcpdump", "-i", "lo", "-w", "/dev/null")
    private = private_namespace()
    up = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    try:
        with process.start(argv, prefix=(*private, *up), stderr=True) as child:
            said = ""
            while child.stderr is not None and (line := child.stderr.readline()):
                if "listening on" in line:
                    return None
                said = line.strip() or said
    except PlaceError as error:
        return error.what
    return said or "tcpdump ended at once"


def try_prober() -> str | None:
    """Starts the prober of initial windows on a private loopback; without requests it ends at once."""
    name = "iwprobe"
    path = process.find_program(name)
    if path is None:
        return f"{name} is not installed"
    script = 'ip link set lo up && exec "$@"'
    return try_privately(("sh", "-c", script, "sh", path, "--device", "lo", "--address", "198.18.0.250"), stdin="")


def has_udp_gro() -> bool:
    """Whether a UDP socket takes the option UDP_GRO (Linux 5.0); nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            handle.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
        except OSError:
            return False
    return True
