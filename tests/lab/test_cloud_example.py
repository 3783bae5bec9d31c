"""The packet filter of examples/cloud/user-data.yml: what it lets through, between two namespaces made here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from core.system import process
from core.system.process import Completed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cloud" / "user-data.yml"
HOST, OTHER, METADATA = "198.18.77.1", "198.18.77.2", "198.18.77.3"
PYTHON = "/usr/bin/python3"
"""Other users may not read the one that runs the tests."""

SERVE = """
import socket, sys
for port in map(int, sys.argv[2:]):
    server = socket.create_server((sys.argv[1], port), backlog=50)
    globals().setdefault("kept", []).append(server)
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind((sys.argv[1], 4433))
print("ready", flush=True)
while True:
    data, sender = echo.recvfrom(2000)
    echo.sendto(data, sender)
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("open")
except OSError as error:
    print(type(error).__name__)
"""
ASK = """
import socket, sys
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(float(sys.argv[2]))
asker.sendto(b"x", (sys.argv[1], 4433))
try:
    print(asker.recvfrom(10)[0].decode())
except OSError as error:
    print(type(error).__name__)
"""


def rules() -> str:
    document = yaml.safe_load(EXAMPLE.read_text())
    [written] = [file for file in document["write_files"] if file["path"] == "/etc/nftables.conf"]
    return str(written["content"])


class Pair:
    """Two namespaces with a link: one behind the rules, one that asks and answers."""

    def __init__(self, stack: ExitStack) -> None:
        holders = {}
        for name in ("host", "other"):
            holders[name] = process.start(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=True, stdout=True)
            stack.callback(holders[name].stop)
            assert holders[name].stdout
            holders[name].stdout.readline()
        self.prefix = {name: ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"] for name, holder in holders.items()}
        ends = [f"name t0 netns {holder.pid}" for holder in holders.values()]
        process.run(["ip", "link", "add", *f"{ends[0]} type veth peer {ends[1]}".split()]).check(doing="linking")
        for name, addresses in (("host", [HOST]), ("other", [OTHER, METADATA])):
            for address in addresses:
                self.run(name, "ip", "address", "add", f"{address}/24", "dev", "t0")
            for link in ("lo", "t0"):
                self.run(name, "ip", "link", "set", link, "up")
        served = {"host": [HOST, "22", "80", "8080"], "other": [OTHER, "443"]}
        for name, arguments in {**served, "metadata": [METADATA, "80"]}.items():
            where = "host" if name == "host" else "other"
            server = process.start([PYTHON, "-c", SERVE, *arguments], prefix=self.prefix[where], stdout=True)
            stack.callback(server.stop)
            assert server.stdout and server.stdout.readline() == "ready\n"

    def run(self, name: str, *argv: str, stdin: str | None = None) -> str:
        done: Completed = process.run([*self.prefix[name], *argv], stdin=stdin)
        return done.check(doing=f"running {argv[0]}").stdout.strip()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_ssh_and_the_page_are_open_and_nothing_else(pair: Pair) -> None:
    def tries(name: str, to: str, port: int, wait_s: float = 10.0) -> str:
        return pair.run(name, PYTHON, "-c", CONNECT, to, str(port), str(wait_s))

    assert tries("other", HOST, 8080) == "open", "before"
    for _ in range(2):  # a second time it replaces itself
        pair.run("host", "nft", "-f", "-", stdin=rules().replace("169.254.169.254", METADATA))
    assert {port: tries("other", HOST, port) for port in (22, 80)} == {22: "open", 80: "open"}
    assert tries("other", HOST, 8080, 1.5) == "TimeoutError"
    assert pair.run("other", PYTHON, "-c", ASK, HOST, "1.5") == "TimeoutError"
    assert tries("host", OTHER, 443) == "open", "what the host asks for is answered"
    assert pair.run("host", PYTHON, "-c", ASK, OTHER, "10") == "x"
    pair.run("other", "ping", "-c", "1", "-W", "10", HOST)
    assert tries("host", METADATA, 80) == "open", "as root"
    other_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert pair.run("host", *other_user, PYTHON, "-c", CONNECT, METADATA, "80", "10") == "ConnectionRefusedError"


def test_a_small_image_can_read_the_rules() -> None:
    """Without the package netbase there are no names of protocols and services."""
    hide = "for file in /etc/protocols /etc/services; do [ ! -e $file ] || mount --bind /dev/null $file; done"
    script = f"{hide}; exec nft -c -f -"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", script], input=rules(), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
