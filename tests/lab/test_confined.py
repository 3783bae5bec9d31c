"""What a program of ours may still do when a stranger's first byte reaches it: as docs/design/privilege.md says."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import select
import shlex
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.domain import Failure, Transport
from core.errors import PlaceError
from core.reach import IPNetwork
from core.system import process
from core.system.confine import NOBODY, landlock_version, user_of
from core.system.process import Child, Completed
from downloader import clients
from downloader.client import Client, DownloadRequest
from downloader.execution.calls import Caller, StoppedError
from downloader.execution.capture import start_of_tcpdump
from survey.iw.probers import find_iwprobe
from tests.cells import cells
from tests.lab import _taken_over
from tests.lab._taken_over import TakenOver

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

PAGE = Path(__file__).resolve().parents[2] / "docs/design/privilege.md"
PORT, OTHER_PORT = 4433, 4434
WAIT_S = 20.0
RIGHTS = ("net_admin", "sys_admin", "net_raw")
"""Of a campaign's unit (role vantage)."""

SILENT = f"""
import select, socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", {PORT}))
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); dns.bind(("127.0.0.1", 53))
tcp = [socket.create_server(("127.0.0.1", port)) for port in ({PORT}, {OTHER_PORT})]
print("ready", flush=True)
kept = []
while True:
    for one in select.select([udp, dns, *tcp], [], [])[0]:
        kept.append(one.accept() if one in tcp else one.recv(65535))
        print("packet", flush=True)
"""
"""Takes everything, answers nothing, and tells of each first packet."""


@dataclass(eq=False)
class Loopback:
    """A network namespace with a server on its loopback, as a place; programs start in it with the rights of `mode`."""

    name: str
    base: tuple[str, ...]
    rights: tuple[str, ...]
    nameservers: tuple[str, ...] = ("127.0.0.1",)
    allowed_prefixes: tuple[IPNetwork, ...] = (ipaddress.ip_network("127.0.0.0/8"),)
    interface: str = "lo"

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool | Path = False,
        stderr: bool | Path = False,
        binary: bool = False,
    ) -> Child:
        prefix = (*self.base, *self.rights)
        return process.start(argv, prefix=prefix, stdin=stdin, stdout=stdout, stderr=stderr, binary=binary)

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        return process.run([*self.base, *self.rights, *argv], timeout_s=timeout_s, stdin=stdin)


def _rights(mode: str) -> tuple[str, ...]:
    """In `unit` no right to change the user, as in a campaign's unit; in `container` it may give up rights, too. Both
    stay root, whom all files here let pass.
    """
    more = {"unit": (), "container": ("setpcap",)}
    if mode not in more:
        return ()
    listed = ",".join(f"+{right}" for right in (*RIGHTS, *more[mode]))
    return ("setpriv", "--no-new-privs", f"--bounding-set=-all,{listed}", "--")


@contextmanager
def loopback(mode: str) -> Iterator[tuple[Loopback, Child]]:
    """The place, and its server."""
    unshare = ("unshare", "--net", *(("--user", "--map-root-user") if mode == "rootless" else ()))
    holder = ("sh", "-c", "ip link set lo up && echo up && exec sleep 600")
    with process.start(holder, prefix=unshare, stdout=True) as held:
        assert held.stdout is not None and held.stdout.readline() == "up\n"
        user = ("--user", "--preserve-credentials") if mode == "rootless" else ()
        base = ("nsenter", "-t", str(held.pid), *user, "--net", "--")
        with process.start((sys.executable, "-I", "-c", SILENT), prefix=base, stdout=True) as server:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            yield Loopback(mode, base, _rights(mode)), server


def expected() -> dict[str, dict[str, str]]:
    """The table of docs/design/privilege.md: process -> column -> text."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    head = next(row for row in rows if row[0] == "process")
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head) and row[0] != "process"}


def status(task: Path) -> dict[str, str]:
    lines = (task / "status").read_text(encoding="ascii").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def descriptors(pid: int) -> list[str]:
    """Kinds of what a process has open, sorted: `socket:[17]` is a socket, `anon_inode:[eventpoll]` an eventpoll.

    Without libffi, which keeps its own file open on some systems (for the trampolines of ctypes).
    """
    kinds = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            named = link.readlink()
            if not named.name.startswith("libffi.so"):
                kinds.append(named.name.removeprefix("anon_inode:").split(":")[0].strip("[]"))
    return sorted(kinds)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


@contextmanager
def at_first_packet(
    place: Loopback, server: Child, name: str, ca: Path, run_as: tuple[int, int] | None = None
) -> Iterator[int]:
    """The process of that name in the state in which it waits for a stranger's first byte."""
    assert server.stdout is not None
    if name == "iwprobe":
        argv = [find_iwprobe(), "--device", "lo", "--address", "198.18.0.250"]
        with place.start(argv, stdin=True, stdout=True) as prober:
            assert prober.stdout is not None and json.loads(prober.stdout.readline())["fault"] is None
            yield prober.pid
        return
    if name == "lookups":
        argv = [sys.executable, "-P", "-m", "survey.lookups", "127.0.0.1", "53"]
        with place.start(argv, stdin=True, stdout=True) as lookups:
            assert lookups.stdin is not None and lookups.stdout is not None and lookups.stdout.readline()
            lookups.stdin.write(json.dumps({"n": 1, "host": "a.example", "ipv6": False}) + "\n")
            assert server.stdout.readline() == "packet\n"
            yield lookups.pid
        return
    over = threading.Event()

    def check() -> None:
        if over.is_set():
            raise StoppedError

    client = clients.ALL.get(name)
    with Caller(place, [client] if client else [], check, run_as) as caller:
        failed: list[str | None] = []

        def ask() -> None:
            with suppress(StoppedError, PlaceError):
                if client is None:
                    failed.append(caller.resolve("a.example", family="ipv4").error)
                else:
                    failed.append(caller.download(client, _request(ca)).failure_detail)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert select.select([server.stdout], [], [], WAIT_S)[0], f"{name} sent nothing: {failed}"
            assert server.stdout.readline() == "packet\n"
            mothers = [warm._child.pid for warm in caller._warm.values() if warm._child is not None]
            [pid] = [child for mother in mothers for child in _children(mother)]
            yield pid
        finally:
            over.set()
            asking.join()


def _request(ca: Path) -> DownloadRequest:
    return DownloadRequest(
        url=f"https://localhost:{PORT}/",
        address="127.0.0.1",
        port=PORT,
        ca_file=ca,
        budget_s=30.0,
        max_bytes=None,
        user_agent="test",
        allowed=("127.0.0.0/8",),
    )


NAMES = ("requests", "curl-h1", "curl-h3", "aioquic", "quiche", "quinn", "resolve", "lookups", "iwprobe")


@pytest.fixture(scope="module")
def ca() -> Iterator[Path]:
    """Certificates in a folder that everybody may read."""
    import trustme

    folder = Path("/dev/shm") / f"upshift-confined-{os.getpid()}"
    folder.mkdir(mode=0o755)
    trustme.CA().cert_pem.write_to_path(folder / "ca.pem")
    yield folder / "ca.pem"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@cells("mode", every=["root", "rootless", "unit"], quick=["root"])
def test_at_its_first_packet_a_process_has_what_the_page_says(mode: str, ca: Path) -> None:
    table = expected()
    assert set(NAMES) <= set(table)
    wrong = []
    for name in NAMES:
        if name in clients.ALL and clients.ALL[name].missing():
            continue
        # A server for each: the second packet of one client is not the first of the next.
        with loopback(mode) as (place, server), at_first_packet(place, server, name, ca) as pid:
            wrong += [f"{name}: {fault}" for fault in _faults(pid, mode, table[name])]
    assert not wrong, "\n".join(wrong)


def _faults(pid: int, mode: str, row: dict[str, str]) -> list[str]:
    """What of a process is not as its row says."""
    faults = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found = status(task)
        user = NOBODY[0] if mode == "root" else 0
        if set(found["Uid"].split()) != {str(user)} or (mode == "root" and found["Groups"]):
            faults.append(f"user {found['Uid']}, groups {found['Groups']!r}")
        sets = ("CapInh", "CapPrm", "CapEff", "CapAmb", *(("CapBnd",) if mode != "unit" else ()))
        faults += [f"{each} {found[each]}" for each in sets if int(found[each], 16)]
        if (found["NoNewPrivs"], found["Seccomp"]) != ("1", "2"):
            faults.append(f"no_new_privs {found['NoNewPrivs']}, seccomp {found['Seccomp']}")
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    for limit, value in (("core file size", 0), ("open files", 64), ("address space", 1 << 30)):
        if not re.search(rf"Max {limit} +{value} +{value} ", limits):
            faults.append(f"limit of {limit}: {limits}")
    until = time.monotonic() + 5  # it may be between its first packet and its wait
    while (open_now := " ".join(descriptors(pid))) != row["descriptors"] and time.monotonic() < until:
        time.sleep(0.05)
    if open_now != row["descriptors"]:
        faults.append(f"descriptors {open_now}")
    return faults


def test_clients_become_the_user_that_is_named(ca: Path) -> None:
    user, group = user_of("daemon", where="--client-user")
    for name in ("requests", "quiche", "resolve"):
        with loopback("root") as (place, server), at_first_packet(place, server, name, ca, (user, group)) as pid:
            found = status(Path(f"/proc/{pid}"))
            assert (set(found["Uid"].split()), set(found["Gid"].split())) == ({str(user)}, {str(group)}), name


@cells("mode", every=["root", "rootless", "unit", "container"], quick=["root", "unit"])
def test_tcpdump_has_one_capability_and_dies_with_the_runner(mode: str, tmp_path: Path) -> None:
    with loopback(mode) as (place, _):
        command = [*process.PARENT_DEATH, *start_of_tcpdump(place), "-p", "-i", "lo", "-U", "-w", "-"]
        code = f"import subprocess, sys; subprocess.run({command!r}, stdout=open(sys.argv[1], 'wb'))"
        with place.start((sys.executable, "-c", code, str(tmp_path / "c.pcap")), stderr=True) as runner:
            assert runner.stderr is not None and "listening on" in runner.stderr.readline()
            [pid] = _children(runner.pid)
            found = status(Path(f"/proc/{pid}"))
            held = {each: int(found[f"Cap{each}"], 16) for each in ("Inh", "Prm", "Eff", "Amb", "Bnd")}
            assert held["Prm"] == held["Eff"] == 1 << 13 and held["Inh"] | held["Amb"] | 1 << 13 == 1 << 13, held
            assert held["Bnd"] == 1 << 13 or mode == "unit", held
            assert set(found["Uid"].split()) == {str(NOBODY[0] if mode == "root" else 0)}
            assert found["NoNewPrivs"] == "1" and not (mode == "root" and found["Groups"])
            assert (tmp_path / "c.pcap").stat().st_size == 24, "the file's header is on the disk at once"
            runner.send(signal.SIGKILL)
            until = time.monotonic() + 5
            while process.start_time_ticks(pid) is not None:
                assert time.monotonic() < until, "tcpdump outlives its runner"
                time.sleep(0.02)


@pytest.mark.skipif(not _taken_over.KNOWN, reason="system calls are played for x86_64 only")
@pytest.mark.skipif(landlock_version() < 6, reason="the kernel lacks Landlock's rules for signals (Linux 6.12)")
@cells(
    "name",
    every=["requests", "aioquic", "curl-h3", "quiche", "quinn", "resolve", "lookups", "iwprobe"],
    quick=["requests", "quiche"],
)
@cells("mode", every=["root", "rootless", "unit"], quick=["root"])
def test_a_client_that_is_taken_over_can_do_nothing(name: str, mode: str, ca: Path) -> None:
    journal = ca.with_name("journal.sqlite")
    journal.write_bytes(b"a world-readable file")
    with loopback(mode) as (place, server), at_first_packet(place, server, name, ca) as pid, TakenOver(pid) as client:
        refused = _attempts(client, journal, ca, server.pid)
        may = client.call(_taken_over.SOCKET, 2, 1, 0)
        port = 53 if name in ("resolve", "lookups") else PORT
        asked = client.call(_taken_over.CONNECT, may, _address(port), 16)
    assert asked in ((-errno.EACCES,) if name == "iwprobe" else (0, -errno.ECONNREFUSED)), os.strerror(-asked)
    assert all(refused.values()), refused


def test_the_attempts_succeed_where_nothing_is_confined(ca: Path) -> None:
    if not _taken_over.KNOWN:
        pytest.skip("system calls are played for x86_64 only")
    journal = ca.with_name("journal.sqlite")
    journal.write_bytes(b"a world-readable file")
    with (
        loopback("root") as (place, server),
        place.start(
            ("python3", "-c", "import sys; print('up', flush=True); sys.stdin.read()"), stdin=True, stdout=True
        ) as free,
    ):
        assert free.stdout is not None and free.stdout.readline() == "up\n"
        with TakenOver(free.pid) as client:
            refused = _attempts(client, journal, ca, server.pid)
    assert not any(refused.values()), refused


def _address(port: int) -> bytes:
    return struct.pack("=H", 2) + struct.pack("!H4s8x", port, bytes([127, 0, 0, 1]))


def _attempts(client: TakenOver, journal: Path, ca: Path, other: int) -> dict[str, bool]:
    """What a client tries -> whether the kernel refused it."""
    call, path = client.call, bytes(journal)
    read, write, memory = os.O_RDONLY, os.O_WRONLY | os.O_CREAT, 1 << 30
    new = bytes(ca.with_name("new"))
    results = {
        "read the journal": call(_taken_over.OPEN, path + b"\0", read, 0),
        "write the journal": call(_taken_over.OPEN, path + b"\0", os.O_WRONLY, 0),
        "write a file": call(_taken_over.OPEN, new + b"\0", write, 0o600),
        "signal the runner": call(_taken_over.KILL, os.getpid(), 0),
        "send raw packets": call(_taken_over.SOCKET, 17, 3, 0),
        "use 1 GiB": call(_taken_over.MMAP, 0, memory, 3, 0x22, -1, 0),
        "unshare": call(_taken_over.UNSHARE, 0x20000),
    }
    stream = call(_taken_over.SOCKET, 2, 1, 0)
    results["connect elsewhere"] = call(_taken_over.CONNECT, stream, _address(OTHER_PORT), 16)
    stream = call(_taken_over.SOCKET, 2, 1, 0)
    results["serve"] = call(_taken_over.BIND, stream, _address(4499), 16)
    results["trace"] = call(_taken_over.PTRACE, 0x4206, other, 0, 0)
    results["fork"] = call(_taken_over.FORK)
    if results["fork"] > 0:
        os.kill(results["fork"], signal.SIGKILL)
    results["exec"] = call(_taken_over.EXECVE, b"/bin/true\0", 0, 0) if results["fork"] < 0 else 0
    return {what: result < 0 for what, result in results.items()}


def test_a_look_up_whose_interpreter_is_killed_is_made_once_more() -> None:
    """Killed again, it is our crash, and no word about the name."""
    with (
        loopback("root") as (place, server),
        Caller(place, [], lambda: None) as caller,
        ThreadPoolExecutor() as thread,
    ):
        assert server.stdout is not None
        asking = thread.submit(caller.resolve, "a.example", family="ipv4", timeout_s=1.9)
        for _ in range(2):
            assert select.select([server.stdout], [], [], WAIT_S)[0] and server.stdout.readline() == "packet\n"
            [interpreter] = [warm._child.pid for warm in caller._warm.values() if warm._child is not None]
            os.kill(interpreter, signal.SIGKILL)
        resolution = asking.result(timeout=WAIT_S)
    assert resolution.crashed and resolution.error == "the look-up failed: its interpreter failed (ValueError)"


HOSTILE = {
    "flood": ("while True: sys.stdout.write('x' * 65536)", "printed more than"),
    "memory": ("kept = [bytearray(1 << 26) for _ in range(64)]", "MemoryError"),
    "stay": ("signal.signal(signal.SIGTERM, signal.SIG_IGN); os.close(1); os.close(2); time.sleep(60)", "killed"),
}


@cells("name", every=HOSTILE, quick=["flood"])
def test_a_hostile_client_is_bounded_and_a_record(
    name: str, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, reason = HOSTILE[name]
    program = tmp_path / f"hostile-{name}"
    start = f"import os, signal, sys, time\nsys.path.insert(0, {str(PAGE.parents[2])!r})\n"
    start += "if '--version' in sys.argv: sys.exit()\n"
    confined = "from core.system.confine import confine\nconfine(port=None)\n"
    program.with_suffix(".py").write_text(start + confined + body + "\n")
    # No interpreter's path with a space fits into the first line of a script.
    command = shlex.join([sys.executable, str(program.with_suffix(".py"))])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    client = Client(name=name, help="", transport=Transport.TCP, http=None, program=program.name)
    with loopback("root") as (place, _), Caller(place, [client], lambda: None) as caller:
        result = caller.download(client, _request(ca))
    assert result.failure is Failure.CLIENT_CRASHED and result.failure_detail is not None
    assert reason in result.failure_detail, result.failure_detail
