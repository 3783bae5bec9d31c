"""A lab of an ordinary user, in a user namespace. Run by root, this test becomes such a user for its child."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.ordinary_user import NEEDED, OPEN_ROOT, REPOSITORY
from vantage.linux.cpu import find_pathem

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]

UID = 54321

SETUP = r"""
set -eu
# In a mount namespace of its own: a TUN device that everybody may use, and no /run/netns.
mkdir "$1/dev"
mount -t tmpfs -o mode=755 none "$1/dev"
mknod "$1/dev/tun" c 10 200
chmod 666 "$1/dev/tun"
mount --bind "$1/dev/tun" /dev/net/tun
cp "$2" "$1/dev/pathem"
open_root "$1/dev" "${@:5}"
exec setpriv --reuid "$4" --regid "$4" --clear-groups -- "$3" -B "$1/body.py"
"""

BODY = r"""
import sys
from pathlib import Path
from tests.lab._probe import Probe, get, probes
from tests.topologies import server, topology
from core.domain import RouteAttribute, Sysctl
from vantage.lab.lab import open_lab

with open_lab("small") as lab:
    assert lab.state["rootless"]
    awake = lab.cpus_awake()
    assert awake.method == "spinners", awake
    # The device is root's, another file hides it, or the kernel has no driver for it.
    reasons = ("Permission denied", "not the kernel's device", "no cpuidle driver")
    assert any(reason in awake.reason for reason in reasons), awake
    place = lab.place("MUC")
    place.apply([Sysctl(name="net.ipv4.tcp_ecn", value="1"), RouteAttribute(name="window", value="65535")])
    target = lab.targets()[0]
    watch = place.watch(target.server_ip)
    capture = place.start(["tcpdump", "-i", place.interface, "-n", "-w", sys.path[0] + "/state/x.pcap"], stderr=True)
    while "listening" not in capture.stderr.readline():
        pass
    argv = ["curl", "-4", "-sS", "--cacert", str(place.ca_file), "-o", "/dev/null", target.url]
    argv += ["-w", "%{size_download} %{local_port}"]
    size, port = place.run(argv).check(doing="downloading").stdout.split()
    watch.settle()
    flow = watch.finish().flows["tcp", int(port)]
    assert flow.sent == flow.received + flow.dropped > 700, flow
    assert int(size) == target.size_bytes
    capture.stop()
    place.close()

windows = Path(sys.path[0], "state", "windows.toml")
more = 'web_server = "sender"\nwindows = [25]\npopulation = [{ hosts = 256, initcwnd = 4 }]'
windows.write_text(topology("windows", server("s", "www.s.example", more=more)))
with open_lab(windows) as lab:
    truth = lab.truth()
    address = next(path["addresses"]["ipv6"] for path in truth["paths"] if path["initcwnd"] == 25)
    host = truth["populations"][0]["prefix"].replace(".0/24", ".77")
    asked = [Probe(target=target, request=get("/a.bin?pace=on&cc=cubic", "x"), mss=64) for target in (address, host)]
    flights = probes(lab.place("V"), asked)
    assert [(len(flight.segments), flight.more) for flight in flights] == [(25, True), (4, True)], flights
print("well")
"""


def test_a_lab_of_an_ordinary_user(lab_host: Path, tmp_path: Path) -> None:
    allowed = ["setpriv", "--reuid", str(UID), "--clear-groups", "unshare", "--user", "--map-current-user", "true"]
    if subprocess.run(allowed, capture_output=True, check=False).returncode:
        pytest.skip("this kernel allows ordinary users no user namespaces")
    folder = lab_host / "rootless"
    state = folder / "state"
    state.mkdir(parents=True)
    lab_host.chmod(0o755)
    os.chown(state, UID, UID)
    (folder / "body.py").write_text(BODY)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "UPSHIFT_STATE_DIR": str(state),
        "UPSHIFT_PATHEM": str(folder / "dev" / "pathem"),
        "HOME": str(state),
    }
    script = ["bash", "-c", OPEN_ROOT + SETUP, "setup", str(folder), find_pathem(), sys.executable, str(UID), *NEEDED]
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *script],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
        assert done.stdout == "well\n", done.stderr
        assert (state / "x.pcap").stat().st_size > 10_000
        assert not list((state / "lab").glob("*"))
    finally:
        lab_host.chmod(0o700)
        shutil.rmtree(folder)
