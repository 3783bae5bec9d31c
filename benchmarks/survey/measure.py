"""Handshakes per second: the whole command, the probers alone, zmap and zgrab2 where they are installed.

client 198.18.250.1 -- server 198.18.250.2, which answers for every address of 198.19.0.0/16
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.system import process
from core.system.process import PARENT_DEATH, Child
from survey.options.visit import prober
from survey.programs import ProberPool

HERE = Path(__file__).resolve().parent
SERVER, CLIENT = "198.18.250.2", "198.18.250.1"
PREFIXES = "127.0.0.0/8,198.18.0.0/15"
GOAL = 6_000

KNOT = """
server:
  listen: {server}@53
  rundir: {folder}
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
database:
  storage: {folder}/db
zone:
  - domain: bench
    file: {folder}/bench.zone
    journal-content: none
    zonefile-sync: -1
"""


def run(*command: str, stdin: str | None = None) -> str:
    return process.run(command, stdin=stdin).check(doing=" ".join(command)).stdout


class World:
    """Two namespaces, a listener and a name server; all end with this process."""

    def __init__(self, folder: Path, domains: int) -> None:
        self.folder = folder
        self.children: list[Child] = []
        self.list = folder / "list.csv"
        self.addresses = [f"198.19.{n % 250}.{n // 250 % 250 + 1}" for n in range(domains)]
        self.list.write_text("".join(f"{n},d{n}.bench\n" for n in range(1, domains + 1)))
        zone = "".join(f"d{n} A {address}\n" for n, address in enumerate(self.addresses, 1))
        (folder / "bench.zone").write_text(
            f"$ORIGIN bench.\n$TTL 60\n@ SOA ns a 1 1 1 1 1\n@ NS ns\nns A {SERVER}\n{zone}"
        )
        (folder / "knot.conf").write_text(KNOT.format(server=SERVER, folder=folder))
        self.client, self.server = self._namespace(), self._namespace()
        self._join()

    def _namespace(self) -> list[str]:
        child = process.start(["cat"], prefix=["unshare", "--net"], stdin=True, stdout=True)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        self.children.append(child)
        return ["nsenter", f"--net=/proc/{child.pid}/ns/net"]

    def _join(self) -> None:
        pid = str(self.children[1].pid)
        run(*self.client, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pid)
        for inside, address in ((self.client, CLIENT), (self.server, SERVER)):
            run(*inside, "ip", "address", "add", f"{address}/30", "dev", "eth0")
            for link in ("lo", "eth0"):
                run(*inside, "ip", "link", "set", link, "up")
        run(*self.server, "ip", "route", "add", "local", "198.19.0.0/16", "dev", "lo")
        run(*self.client, "ip", "route", "add", "default", "via", SERVER)
        run(*self.client, "sysctl", "-qw", "net.ipv4.tcp_ecn=1", "net.ipv4.tcp_ecn_fallback=0")
        run(*self.server, "sysctl", "-qw", "net.core.somaxconn=65535", "net.ipv4.tcp_max_syn_backlog=65535")
        run("cc", "-O2", "-o", str(self.folder / "listener"), str(HERE / "listener.c"))
        (self.folder / "db").mkdir()
        listener = process.start([str(self.folder / "listener"), "443"], prefix=self.server, stdout=True)
        knot = process.start(["knotd", "-c", str(self.folder / "knot.conf")], prefix=self.server)
        self.children += [listener, knot]
        assert listener.stdout is not None
        listener.stdout.readline()
        for _ in range(100):
            if process.run([*self.client, "kdig", "+short", "d1.bench", "@" + SERVER]).stdout.strip() in self.addresses:
                return
            time.sleep(0.1)
        raise SystemExit("the name server does not answer")

    def close(self) -> None:
        for child in reversed(self.children):
            child.stop()


@contextlib.contextmanager
def measured(name: str, count: int, results: dict[str, dict[str, float]]) -> Iterator[None]:
    """Wall and CPU time of the block's child processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    own = time.process_time()
    yield
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + time.process_time() - own
    results[name] = {"per_s": count / wall, "cpu_us": cpu / count * 1e6, "wall_s": wall}
    print(f"{name:<34} {count / wall:>10,.0f}/s {cpu / count * 1e6:>8.0f} µs CPU each {wall:>7.1f} s", flush=True)


def whole_command(world: World, count: int, probers: int, results: dict[str, dict[str, float]]) -> None:
    """List, DNS, handshakes, ledger, results. The rate is that of its own progress: without start and export."""
    out = world.folder / f"r{probers}.parquet"
    command = [*world.client, *PARENT_DEATH, sys.executable, "-c", "from upshift.cli import main; main()"]
    command += ["survey", "options", str(world.list), "-o", str(out), "--nameserver", SERVER, "--rate", "200000"]
    command += ["--isolation", "here", "--json", "--probers", str(probers)]
    name = f"survey options, probers: {probers}"
    with measured(name, count, results):
        done = process.run(command, timeout_s=900, env={"UPSHIFT_ALLOWED_PREFIXES": PREFIXES})
    done.check(doing="surveying")
    hosts = json.loads(done.stdout)["hosts"]
    assert hosts == count, done.stdout
    last = json.loads(done.stderr.strip().splitlines()[-1])
    results[name]["working_per_s"] = last["rate_per_s"]
    print(f"{'':<34} {last['rate_per_s']:>10,.0f}/s while it works (without start, list and export)", flush=True)


def probers_alone(world: World, probers: int, results: dict[str, dict[str, float]]) -> None:
    os.environ["UPSHIFT_ALLOWED_PREFIXES"] = PREFIXES

    def start(argv: Sequence[str]) -> Child:
        return process.start(argv, prefix=world.client, stdin=True, stdout=True, binary=True)

    async def shake() -> None:
        async with ProberPool(prober(5.0), start, count=probers) as pool:
            todo = iter(world.addresses)

            async def one() -> None:
                for address in todo:
                    assert (await pool.ask((address, 443))).info is not None

            await asyncio.gather(*(one() for _ in range(1_000)))

    with measured(f"probers alone: {probers}", len(world.addresses), results):
        asyncio.run(shake())


def zmap(world: World, results: dict[str, dict[str, float]]) -> str | None:
    if shutil.which("zmap", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"]) is None:
        return "zmap is not installed (apt-get install zmap)"
    link = json.loads(run(*world.server, "ip", "-json", "link", "show", "eth0"))[0]
    (world.folder / "none").write_text("")
    command = [*world.client, *PARENT_DEATH, "zmap", "-q", "-C", str(world.folder / "none"), "-p", "443", "-i", "eth0"]
    command += ["-G", link["address"], "-S", CLIENT, "-b", str(world.folder / "none"), "-r", "0", "-c", "2", "-v", "0"]
    command += ["-o", str(world.folder / "zmap.csv"), "198.19.0.0/16"]
    with measured("zmap: SYN, 65,536 addresses, no options", 65_536, results):
        done = process.run(command, timeout_s=300)
    found = (world.folder / "zmap.csv").read_text().count("\n")
    print(f"{'':<34} {found:,} answered; 2 s of it is its wait for late answers", flush=True)
    return None if done.returncode == 0 else f"zmap failed: {done.stderr.strip()[-200:]}"


def zgrab2(world: World, results: dict[str, dict[str, float]]) -> str | None:
    program = shutil.which("zgrab2")
    if program is None:
        return "zgrab2 is not on PATH (it is built with Go: go install github.com/zmap/zgrab2/cmd/zgrab2@latest)"
    targets, out = world.folder / "addresses", world.folder / "zgrab.json"
    targets.write_text("\n".join(world.addresses) + "\n")
    command = [
        *world.client,
        *PARENT_DEATH,
        program,
        "banner",
        "--port",
        "443",
        "--senders",
        "1000",
        "-f",
        str(targets),
    ]
    with measured("zgrab2 banner: connect, no options", len(world.addresses), results):
        done = process.run([*command, "-o", str(out)], timeout_s=600)
    found = out.read_text().count("\n") if out.exists() else 0
    print(f"{'':<34} {found:,} lines", flush=True)
    return None if done.returncode == 0 else f"zgrab2 failed: {done.stderr.strip()[-200:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domains", type=int, default=60_000)
    count = parser.parse_args().domains
    if os.geteuid() != 0:
        raise SystemExit("benchmarks/survey needs root: it makes two network namespaces")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="upshift-survey-") as name:
        world = World(Path(name), count)
        try:
            for probers in (1, 2):
                probers_alone(world, probers, results)
            for probers in (1, 2):
                whole_command(world, count, probers, results)
            reasons = [zmap(world, results), zgrab2(world, results)]
        finally:
            world.close()
    for reason in filter(None, reasons):
        print(f"left out: {reason}")
    for name, value in results.items():
        if name.startswith("z"):
            continue
        rate = value.get("working_per_s", value["per_s"])
        print(f"{name}: {rate:,.0f} handshakes a second, {rate / GOAL:.2f} of the goal of {GOAL:,}")
        for other, peer in results.items():
            if other.startswith("z"):
                print(
                    f"    / {other}: {rate / peer['per_s']:.2f} in rate, {value['cpu_us'] / peer['cpu_us']:.1f} in CPU"
                )


if __name__ == "__main__":
    main()
