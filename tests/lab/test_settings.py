"""The process that writes kernel settings: what it takes, what it refuses, and what its end means."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial

import pytest

from core.domain import RouteAttribute, Sysctl
from core.errors import PlaceError
from core.system import process
from core.system.process import Completed
from vantage.linux.namespace import Namespace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

SETUP = "ip link set lo up && ip address add 198.18.0.1/24 dev lo && ip route add default dev lo && echo up && exec cat"
SACK, RMEM = "net.ipv4.tcp_sack", "net.ipv4.tcp_rmem"
NO_METRICS = "net.ipv4.tcp_no_metrics_save"


def test_settings_without_programs() -> None:
    with process.start(("sh", "-c", SETUP), prefix=("unshare", "--net"), stdin=True, stdout=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "up\n"
        prefix = ("nsenter", "-t", str(holder.pid), "--net", "--")
        ran: list[str] = []

        def run(argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
            ran.append(argv[0])
            return process.run((*prefix, *argv), timeout_s=timeout_s, stdin=stdin)

        def shown(name: str) -> list[str]:
            return run(("sysctl", "-n", name)).stdout.split()

        run(("sysctl", "-qw", f"{NO_METRICS}=1"))
        before = shown(SACK), shown(RMEM)
        namespace = Namespace(run, ("default",))
        namespace.limit(partial(process.start, prefix=prefix), [SACK, RMEM])
        wanted = [Sysctl(name=RMEM, value="7291456", field=2), RouteAttribute(name="initrwnd", value="44")]
        namespace.apply([Sysctl(name=SACK, value="0"), *wanted])
        assert (shown(SACK), shown(RMEM)) == (["0"], [*before[1][:2], "7291456"])
        assert "initrwnd 44" in run(("ip", "route")).stdout
        ran.clear()
        namespace.apply([Sysctl(name=SACK, value="1"), *wanted])
        assert not ran, "programs run where no route changes"
        assert shown(SACK) == ["1"]
        for bad, why in (
            (Sysctl(name="net.ipv4.tcp_ecn", value="1"), "'net.ipv4.tcp_ecn' is no setting of a factor"),
            (Sysctl(name="../etc/passwd", value="1"), "is no setting of a factor"),
            (Sysctl(name=SACK, value="9999"), "the kernel refuses net.ipv4.tcp_sack = '9999'"),
            (Sysctl(name=RMEM, value="1", field=7), "has 3 numbers, none is number 7"),
        ):
            with pytest.raises(PlaceError, match=why):
                namespace.apply([bad])
        assert namespace._process is not None
        os.kill(namespace._process._child.pid, signal.SIGKILL)
        with pytest.raises(PlaceError, match="the process that writes kernel settings has ended") as ended:
            namespace.apply(wanted)
        assert ended.value.exit_code == 75
        namespace.restore()
        assert (shown(SACK), shown(RMEM)) == before
        assert "initrwnd" not in run(("ip", "route")).stdout
        run(("sysctl", "-qw", f"{NO_METRICS}=0"))
        namespace.limit(partial(process.start, prefix=prefix), [SACK])
        ran.clear()
        namespace.apply([Sysctl(name=SACK, value="0")])
        assert "ip" in ran, "metrics that the kernel keeps are flushed"
        namespace.restore()
