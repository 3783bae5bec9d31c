"""Makes a capture of TCP downloads between network namespaces: client - router - server, drops and CE marks by nft.

    sudo python benchmarks/kpis/make_capture.py /tmp/big.pcap --flows 8 --megabytes 330 --drop 0.0005 --ce 0.0002

Packets stay inside 198.18.0.0/15 in namespaces without a route out, which are removed at the end. The capture
is taken at the client (`-s 128`, offloads off, so that packets are as on the wire); `--sender FILE` takes another at
the server, which has the true retransmissions. Needs root, ip, ethtool, nft and tcpdump.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

PREFIX = f"kb{os.getpid() % 10000}"
SERVER, ROUTER, CLIENT = (f"{PREFIX}{part}" for part in "src")
SERVER_IP, CLIENT_IP = "198.18.201.2", "198.18.202.2"
PORT = 5309
MOST_SECONDS = 300


def run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL)


def build(drop: float, mark: float) -> None:
    """The three namespaces and what the router does to packets."""
    for name in (SERVER, ROUTER, CLIENT):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    for side, name, address in (("s", SERVER, "198.18.201"), ("c", CLIENT, "198.18.202")):
        run("ip", "-n", ROUTER, "link", "add", side, "type", "veth", "peer", "name", "e", "netns", name)
        run("ip", "-n", ROUTER, "addr", "add", f"{address}.1/24", "dev", side)
        run("ip", "-n", name, "addr", "add", f"{address}.2/24", "dev", "e")
        for space, device in ((ROUTER, side), (name, "e")):
            run("ip", "-n", space, "link", "set", device, "up")
            offloads = ("tso", "off", "gso", "off", "gro", "off")
            run("ip", "netns", "exec", space, "ethtool", "-K", device, *offloads)
        # Only the other lab network is reachable, nothing else.
        other = "198.18.202.0/24" if side == "s" else "198.18.201.0/24"
        run("ip", "-n", name, "route", "add", other, "via", f"{address}.1")
    run("ip", "netns", "exec", ROUTER, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
    for name in (SERVER, CLIENT):
        run(
            "ip",
            "netns",
            "exec",
            name,
            "sysctl",
            "-q",
            "-w",
            "net.ipv4.tcp_ecn=1",
            "net.ipv4.tcp_rmem=4096 131072 6291456",
        )
    rules = ["table ip t {", "chain f { type filter hook forward priority 0;"]
    if mark > 0:
        rules.append(f"iifname s ip ecn != not-ect numgen random mod 1000000 < {int(mark * 1e6)} ip ecn set ce")
    if drop > 0:
        rules.append(f"iifname s numgen random mod 1000000 < {int(drop * 1e6)} drop")
    subprocess.run(
        ["ip", "netns", "exec", ROUTER, "nft", "-f", "-"],
        input="\n".join([*rules, "}", "}", ""]),
        text=True,
        check=True,
    )


def enter(name: str) -> None:
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


def serve(size: int, flows: int) -> None:
    """Sends `size` bytes to each of `flows` connections."""
    enter(SERVER)
    block = b"x" * 262_144

    def send(connection: socket.socket) -> None:
        left = size
        while left > 0:
            left -= connection.send(block[:left])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        connection.close()

    with socket.create_server((SERVER_IP, PORT)) as listener:
        threads = [threading.Thread(target=send, args=(listener.accept()[0],)) for _ in range(flows)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fetch(flows: int) -> int:
    """Receives all flows; returns the bytes."""
    enter(CLIENT)
    total = [0] * flows

    def receive(index: int) -> None:
        with socket.create_connection((SERVER_IP, PORT), timeout=MOST_SECONDS) as connection:
            buffer = bytearray(262_144)
            while count := connection.recv_into(buffer):
                total[index] += count

    threads = [threading.Thread(target=receive, args=(index,)) for index in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(total)


def dump(space: str, path: Path) -> subprocess.Popen[bytes]:
    """tcpdump in a namespace, listening when this returns."""
    command = ["ip", "netns", "exec", space, "tcpdump", "-i", "e", "-s", "128", "-B", "524288", "-w", str(path), "tcp"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while b"listening" not in process.stderr.readline():
        pass
    return process


def fork(work: Callable[..., object], *arguments: int) -> int:
    child = os.fork()
    if child == 0:
        # The child must never reach the parent's clean-up.
        try:
            signal.alarm(MOST_SECONDS)
            work(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="capture at the client")
    parser.add_argument("--sender", type=Path, help="capture at the server too")
    parser.add_argument("--flows", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=330, help="bytes of each flow, 10^6")
    parser.add_argument(
        "--drop", type=float, default=0.0005, help="share of the server's packets that the router drops"
    )
    parser.add_argument("--ce", type=float, default=0.0002, help="share that it marks")
    options = parser.parse_args()
    dumps = []
    children = []
    try:
        build(options.drop, options.ce)
        dumps.append(dump(CLIENT, options.out))
        if options.sender:
            dumps.append(dump(SERVER, options.sender))
        children.append(fork(serve, options.megabytes * 1_000_000, options.flows))
        time.sleep(0.5)  # the server has no way to say that it listens
        children.append(fork(fetch, options.flows))
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
        if failed:
            raise SystemExit("a download failed, see above")
        time.sleep(1)  # the last packets reach tcpdump's buffer
    finally:
        for process in dumps:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            sys.stderr.write(said.decode())
        for name in (SERVER, ROUTER, CLIENT):
            run("ip", "netns", "del", name, check=False)


if __name__ == "__main__":
    main()
