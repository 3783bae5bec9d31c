"""Estimates per second, and CPU time of each: `iwprobe` alone, fed with requests; nginx in another namespace."""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from survey.iw.program import Attachment, prober
from survey.iw.wire import Reply, Request, decode, encode
from survey.programs import Program
from tests.lab._iw_world import DEVICE, PROBER_ADDRESSES, Node

NGINX = """
daemon off; pid {folder}/pid; error_log /dev/null crit; worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 30000; multi_accept on; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
 uwsgi_temp_path {folder}; scgi_temp_path {folder};
 server {{ listen 80 backlog=20000; root {folder}; }} }}
"""


def connect(client: Node, server: Node) -> Attachment:
    client.run("ip", "link", "add", DEVICE, "type", "veth", "peer", DEVICE, "netns", str(server.holder.pid))
    macs = []
    for node, address in ((client, "198.18.77.1"), (server, "198.18.77.2")):
        node.run("ip", "addr", "add", f"{address}/24", "dev", DEVICE)
        node.run("ethtool", "-K", DEVICE, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        node.run("ip", "link", "set", DEVICE, "up", "txqueuelen", "20000")
        macs.append(node.run("ip", "-o", "link", "show", DEVICE).split("link/ether ")[1].split()[0])
    server.run("ip", "neigh", "replace", PROBER_ADDRESSES[0], "lladdr", macs[0], "dev", DEVICE, "nud", "permanent")
    server.run("ip", "route", "add", "local", "198.19.0.0/16", "dev", "lo")
    server.run("sysctl", "-qw", "net.ipv4.tcp_max_syn_backlog=20000", "net.core.somaxconn=20000")
    return Attachment(device=DEVICE, addresses=PROBER_ADDRESSES[:1], next_hop=macs[1])


def requests(count: int, mss: int) -> Iterator[bytes]:
    for number in range(count):
        address = f"198.19.{number >> 8 & 255}.{number & 255}"
        yield encode(number, Request(address=address, port=80, mss=mss, host=address, path="/file", user_agent="bench"))


def measure(program: Program[Request, Reply], client: Node, count: int, mss: int, together: int) -> dict[str, object]:
    """Asks for `count` estimates, `together` at a time."""
    command = [*client.enter, *program.argv]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, 1 << 20)  # or both could wait to write
    child.stdout.readline()
    data = list(requests(count, mss))
    begun, rest, seen = 0, b"", Counter[tuple[str, int]]()
    began, answered, half_kb = time.monotonic(), 0, 0
    while answered < count:
        batch = data[begun : answered + together]
        if batch:
            child.stdin.write(b"".join(batch))
            begun += len(batch)
        rest += os.read(child.stdout.fileno(), 1 << 18)
        whole = len(rest) - len(rest) % program.reply_bytes
        for _, reply in decode(rest[:whole], 0):
            seen[reply.verdict.value, reply.flight_segments] += 1
            answered += 1
        rest = rest[whole:]
        if answered >= 10_000 and not half_kb:
            half_kb = memory_kb(child.pid)
    took = time.monotonic() - began
    end_kb = memory_kb(child.pid)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child.stdin.close()
    child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "estimates_per_s": round(count / took),
        "cpu_us_each": round(cpu / count * 1e6, 1),
        "kb_after_10000": half_kb,
        "kb_at_the_end": end_kb,
        "seen": dict(seen.most_common(4)),
    }


def memory_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=60_000)
    parser.add_argument("--mss", type=int, default=64)
    parser.add_argument("--together", type=int, default=1_500, help="Probes at the same time.")
    given = parser.parse_args()
    client, server = Node(), Node()
    os.environ.setdefault("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "file").write_bytes(b"x" * 20_000)
        (folder / "conf").write_text(NGINX.format(folder=folder))
        try:
            attachment = connect(client, server)
            nginx = subprocess.Popen([*server.enter, "nginx", "-c", str(folder / "conf")])
            try:
                while ":80 " not in server.run("ss", "-Hltn"):
                    time.sleep(0.05)
                print(measure(prober(attachment), client, given.hosts, given.mss, given.together))
            finally:
                nginx.terminate()
                nginx.wait()
        finally:
            client.close()
            server.close()


if __name__ == "__main__":
    main()
