"""The warm interpreter: one line in, one line out, whatever the child does; and it leaves nobody behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.resolver
import pytest

from core.reach import ANYWHERE
from core.system.process import start_time_ticks
from downloader.programs import resolve
from downloader.programs.warm import MOST_OUTPUT_BYTES

PROGRAM = """
import os, random, sys, time
IMPORTED = os.getpid()
def main(argv):
    if argv[0] == "pids":
        print(IMPORTED, os.getpid(), os.getppid(), random.random())
    elif argv[0] == "crash":
        raise RuntimeError("a bad day")
    elif argv[0] == "segfault":
        os.kill(os.getpid(), 11)
    elif argv[0] == "hang":
        print(os.getpid(), flush=True)
        time.sleep(60)
    elif argv[0] == "much":
        sys.stdout.write("x" * 200_000); sys.stderr.write("y" * 200_000)
    elif argv[0] == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    elif argv[0] == "mute":
        os.close(1), os.close(2), time.sleep(60)
    elif argv[0] == "stdin":
        print(repr(sys.stdin.read()))
    elif argv[0] == "exit":
        sys.exit(3)
    return 0
"""


class Warm:
    def __init__(self, folder: Path) -> None:
        (folder / "warm_program.py").write_text(PROGRAM)
        path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[2])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "downloader.programs.warm", "warm_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self.line() == {"ready": True}

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def send(self, *argv: str, limit_s: float = 20.0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"argv": argv, "limit_s": limit_s}) + "\n")
        self.process.stdin.flush()

    def ask(self, *argv: str, limit_s: float = 20.0) -> dict[str, Any]:
        self.send(*argv, limit_s=limit_s)
        return self.line()


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    for pipe in (made.process.stdin, made.process.stdout):
        assert pipe is not None
        pipe.close()


def test_children_are_forked_and_differ(warm: Warm) -> None:
    seen = [warm.ask("pids")["stdout"].split() for _ in range(3)]
    parent = str(warm.process.pid)
    assert all(imported == parent == mother for imported, _, mother, _ in seen)
    assert len({child for _, child, _, _ in seen}) == 3
    assert len({number for *_, number in seen}) == 3, "children must not share their random numbers"


def test_ends_of_every_kind(warm: Warm) -> None:
    crash = warm.ask("crash")
    assert crash["returncode"] == 70 and crash["stderr"].strip().endswith("RuntimeError: a bad day")
    assert warm.ask("segfault")["returncode"] == -11
    assert warm.ask("exit")["returncode"] == 3
    much = warm.ask("much")
    assert (much["returncode"], much["excess"]) == (0, False) and len(much["stdout"]) == len(much["stderr"]) == 200_000
    flood = warm.ask("flood")
    assert (flood["returncode"], flood["excess"]) == (None, True) and len(flood["stdout"]) < 2 * MOST_OUTPUT_BYTES
    assert warm.ask("stdin")["stdout"] == "''\n"
    began = time.monotonic()
    assert warm.ask("hang", limit_s=0.3)["returncode"] is None
    assert warm.ask("mute", limit_s=0.3)["returncode"] is None
    assert time.monotonic() - began < 5
    assert warm.ask("pids")["returncode"] == 0, "it goes on after all that"


def test_a_child_dies_with_its_parent(warm: Warm, tmp_path: Path) -> None:
    warm.send("hang")
    children = Path(f"/proc/{warm.process.pid}/task/{warm.process.pid}/children")
    until = time.monotonic() + 10
    while not (pids := children.read_text().split()):
        assert time.monotonic() < until
    time.sleep(0.2)  # so that the child has asked to die with its parent
    warm.process.kill()
    warm.process.wait()
    until = time.monotonic() + 10
    while start_time_ticks(int(pids[0])) is not None:
        assert time.monotonic() < until, "the child lives on"
        time.sleep(0.01)


def test_it_ends_with_its_input(warm: Warm) -> None:
    warm.process.communicate(timeout=10)
    assert warm.process.returncode == 0


def test_resolve_asks_only_allowed_servers() -> None:
    found = resolve.resolve("a.example", family="ipv4", nameservers=["192.0.2.1"], timeout_s=1, allowed=())
    assert found["addresses"] == [] and "192.0.2.1 is outside" in found["error"]
    literal = resolve.resolve("127.0.0.1", family="ipv4", nameservers=[], timeout_s=1, allowed=())
    assert (literal["addresses"], literal["error"]) == (["127.0.0.1"], None)


class Quiet:
    """A name server that does not answer for names; for the root with this code, if there is one."""

    def __init__(self, rcode: dns.rcode.Rcode | None) -> None:
        self.asked: list[str] = []
        self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(rcode,), daemon=True)
        self._thread.start()

    def _serve(self, rcode: dns.rcode.Rcode | None) -> None:
        while (got := self.socket.recvfrom(4096))[0] != b"end":
            query = dns.message.from_wire(got[0])
            self.asked.append(query.question[0].name.to_text())
            if rcode is not None and self.asked[-1] == ".":
                answer = dns.message.make_response(query)
                answer.set_rcode(rcode)
                self.socket.sendto(answer.to_wire(), got[1])

    def end(self) -> None:
        self.socket.sendto(b"end", self.socket.getsockname())
        self._thread.join()
        self.socket.close()


@pytest.mark.parametrize(
    ("rcode", "unreachable"), [(None, True), (dns.rcode.REFUSED, False), (dns.rcode.NOERROR, False)], ids=str
)
def test_silence_is_the_names_where_servers_answer_for_the_root(
    rcode: dns.rcode.Rcode | None, unreachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Quiet(rcode)
    monkeypatch.setattr(resolve, "_DNS_PORT", server.socket.getsockname()[1])
    found = resolve.resolve("a.example", family="ipv4", nameservers=["127.0.0.1"], timeout_s=0.3, allowed=ANYWHERE)
    server.end()
    assert (found["code"], found["unreachable"]) == ("timeout", unreachable)
    assert found["dns_s"] < 0.85, "without the question for the root, which takes 0.6 s in silence"
    assert server.asked.count(".") in ((1,) if rcode is not None else (1, 2)), "again only as it may have been lost"


def test_a_place_without_a_network_or_a_server_can_reach_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_DNS_PORT", 0)  # which the kernel refuses, as without a route
    found = resolve.resolve("a.example", family="any", nameservers=["127.0.0.1"], timeout_s=5, allowed=ANYWHERE)
    assert found["unreachable"] and "Errno 22" in found["error"] and found["dns_s"] < 2
    emptied = dns.resolver.NoResolverConfiguration()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(dns.resolver.Resolver, "read_resolv_conf", lambda *_: raised(emptied))
    assert resolve.resolve("a.example", family="any", nameservers=[], timeout_s=5, allowed=())["unreachable"]


def raised(error: Exception) -> None:
    raise error
