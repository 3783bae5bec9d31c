"""Failure codes that need their own network: what kernels and routers say to each client, and what DNS servers say.

client 198.18.0.1 -- 198.18.0.2 [ router ] 198.18.1.1 to 198.18.1.6, which it refuses each in another way
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.domain import Failure, FailureCode
from core.system import process
from downloader import clients
from tests.lab._host_world import World

pytestmark = pytest.mark.lab

NETWORK = {
    "198.18.1.1": (Failure.NETWORK_UNREACHABLE, FailureCode.ICMP_HOST),
    "198.18.1.2": (Failure.NETWORK_UNREACHABLE, FailureCode.ICMP_NET),
    "198.18.1.3": (Failure.CONNECTION_REFUSED, FailureCode.ICMP_PORT),
    "198.18.1.4": (Failure.NETWORK_UNREACHABLE, FailureCode.ICMP_HOST),
    "198.18.1.5": (Failure.NETWORK_UNREACHABLE, FailureCode.HOST_FIREWALL),
    "198.18.1.6": (Failure.NETWORK_UNREACHABLE, FailureCode.HOST_FIREWALL),
    "198.19.0.1": (Failure.NETWORK_UNREACHABLE, FailureCode.NO_ROUTE),
    "198.19.1.1": (Failure.NETWORK_UNREACHABLE, FailureCode.NO_ROUTE),
    "198.19.2.1": (Failure.NETWORK_UNREACHABLE, FailureCode.NO_ROUTE),
    "198.19.3.1": (Failure.NETWORK_UNREACHABLE, FailureCode.HOST_FIREWALL),
}

ROUTER = """
sysctl -qw net.ipv4.icmp_ratelimit=0
ip addr add 198.18.0.2/16 dev eth0
for n in 1 2 3 4; do ip addr add 198.18.1.$n/32 dev lo; done
nft -f - <<'END'
table inet refusing { chain input { type filter hook input priority 0;
    ip daddr 198.18.1.1 reject with icmp host-unreachable
    ip daddr 198.18.1.2 reject with icmp net-unreachable
    ip daddr 198.18.1.3 reject with icmp port-unreachable
    ip daddr 198.18.1.4 reject with icmp admin-prohibited
}
}
END
"""

CLIENT = """
sysctl -qw net.ipv4.icmp_ratelimit=0
ip addr add 198.18.0.1/16 dev eth0
ip route add blackhole 198.19.1.1
ip route add unreachable 198.19.2.1
ip route add prohibit 198.19.3.1
nft -f - <<'END'
table inet own { chain output { type filter hook output priority 0;
    ip daddr 198.18.1.5 reject with icmp admin-prohibited
    ip daddr 198.18.1.6 reject
}
}
END
"""

DOWNLOADS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from downloader import clients
from downloader.client import DownloadRequest
from tests.contract._programs import Programs

def ended(client):
    found = []
    for address in sys.argv[2:]:
        request = DownloadRequest(
            url="https://files.example/x", address=address, port=443, ca_file=Path(sys.argv[1]), budget_s=4.0,
            max_bytes=None, user_agent="upshift-test", allowed=("198.18.0.0/15",),
        )
        result = programs.call(client, request)
        found.append((client.name, address, result.failure, result.failure_code, result.failure_detail))
    return found

with Programs() as programs, ThreadPoolExecutor() as threads:
    print(json.dumps([one for found in threads.map(ended, clients.ALL.values()) for one in found]))
"""

LOOKUPS = """
import json, sys
from downloader.programs.resolve import resolve
from core.reach import parse_prefixes

allowed = parse_prefixes("127.0.0.0/8", where="test")
asked = [("www.example.", 1), ("missing.example.", 1), ("text.example.", 1), ("www.broken.test.", 1),
         ("www.other.test.", 1), ("www.sub.example.", 1), ("www.example.", 2), ("www.example.", 3), ("www.example.", 4)]
found = [resolve(name, family="ipv4", nameservers=[f"127.0.0.{host}"], timeout_s=1.0, allowed=allowed)
         for name, host in asked]
print(json.dumps([(one["code"], one["addresses"], one["error"]) for one in found]))
"""

NOISE = """
import random, select, socket
junk = random.Random(1).randbytes(60)  # other seeds may say that it is truncated
silent, noisy, unable = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(3))
for host, one in enumerate((silent, noisy, unable), start=2):
    one.bind((f"127.0.0.{host}", 53))
print("ready", flush=True)
while True:
    for one in select.select([noisy, unable], [], [])[0]:
        data, peer = one.recvfrom(4096)
        # Random bytes with the right number; "not implemented" (RFC 1035, section 4.1.1).
        one.sendto(data[:2] + (junk if one is noisy else bytes([0x80, 4]) + data[4:]), peer)
"""

ZONE = """
$ORIGIN example.
@ 60 SOA ns.example. admin.example. 1 60 60 60 60
@ 60 NS ns.example.
ns 60 A 127.0.0.1
www 60 A 198.18.0.9
text 60 TXT "no address"
sub 60 NS ns.elsewhere.test.
"""


@pytest.fixture(scope="module")
def world(root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("words"))
    try:
        made.add("client")
        made.add("router")
        target = made._holders[1].pid
        made.sh("client", f"ip link add eth0 type veth peer name eth0 netns {target}; ip link set eth0 up")
        made.sh("router", f"ip link set eth0 up\n{ROUTER}")
        made.sh("client", CLIENT)
        yield made
    finally:
        made.close()


def said(world: World, code: str, *arguments: str) -> Any:
    running = world.start("client", code, *arguments)
    printed, complaint = running.communicate(timeout=120)
    assert running.returncode == 0, complaint
    return json.loads(printed)


def test_what_routers_and_the_kernel_say(world: World, tmp_path: Path) -> None:
    import trustme

    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    found = said(world, DOWNLOADS, str(tmp_path / "ca.pem"), *NETWORK)
    assert len(found) == len(NETWORK) * len(clients.ALL)
    wrong = [
        (client, address, failure, code, detail)
        for client, address, failure, code, detail in found
        if (failure, code) != NETWORK[address]
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_what_dns_servers_say(world: World, tmp_path: Path) -> None:
    """Knot DNS with a zone, one that it could not load, and one that it does not have; a silent one; random bytes."""
    (tmp_path / "example.zone").write_text(ZONE)
    (tmp_path / "knot.conf").write_text(
        textwrap.dedent(f"""\
        server:
            rundir: {tmp_path}
            listen: 127.0.0.1@53
        database:
            storage: {tmp_path}
        zone:
          - domain: example
            file: {tmp_path}/example.zone
          - domain: broken.test
            file: {tmp_path}/none.zone
        """)
    )
    knotd = process.require("knotd", package="knot")
    entry = world._entries["client"]
    with process.start([*entry, knotd, "-c", str(tmp_path / "knot.conf")], stderr=tmp_path / "log") as server:
        noise = world.start("client", NOISE)
        try:
            assert noise.stdout is not None and noise.stdout.readline() == "ready\n"
            for _ in range(50):
                assert server.returncode is None, (tmp_path / "log").read_text()
                answers = said(world, LOOKUPS)
                if answers[0][1]:
                    break
        finally:
            noise.kill()
            noise.communicate()
    assert [code for code, _, _ in answers] == [
        None,
        FailureCode.NXDOMAIN,
        FailureCode.NO_ADDRESS,
        FailureCode.SERVFAIL,
        FailureCode.REFUSED,
        FailureCode.LAME,
        FailureCode.TIMEOUT,
        FailureCode.TIMEOUT,  # dnspython waits on: what cannot be read may be forged (RFC 5452)
        FailureCode.BAD_ANSWER,
    ], answers
    assert answers[0][1] == ["198.18.0.9"]
