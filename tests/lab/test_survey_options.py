"""`upshift survey options` against real kernels: every combination of options, loss, kills, refusals, opt-out.

One client namespace, one namespace per server, a veth between each; the client's default route leads to server 0, which
counts whatever should never have left.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.files import store
from core.system.process import PARENT_DEATH
from survey.options.record import OptionsRecord
from tests.cells import Repeats
from tests.journaled import surveyed
from tests.lab._survey_world import FIRST, NETWORK
from tests.lab.noise import Noise, host_noise, measured

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "_survey_world.py"
UPSHIFT = [sys.executable, "-c", "from upshift.cli import main; main()"]
OPTIONS = ("ecn", "sack", "window_scaling", "timestamps")
KINDS: list[tuple[tuple[bool, ...], str, str]] = [
    *(((*three, True), "443", "close") for three in itertools.product((True, False), repeat=3)),
    ((True, True, True, False), "443", "reset"),  # 8: without timestamps; resets at once
    ((False, False, False, False), "443", "close"),  # 9: like a SYN cookie
    ((True, True, True, True), "443", "hold"),  # 10: the first SYN to every address up to 100 is lost
    ((True, True, True, True), "80", "close"),  # 11: nobody listens on 443
    ((True, True, True, True), "8443", "close"),  # 12: nobody listens on 443 and 80
    ((True, True, True, True), "443", "close"),  # 13: says nothing at all
]
"""(ECN, SACK, window scaling, timestamps), ports, manner of each server."""

LOSSY, PORT_80, CLOSED, SILENT = 10, 11, 12, 13

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]


def run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


class Node:
    """A network namespace, held by the program that runs in it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", *PARENT_DEATH, sys.executable, str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen: list[str] = []
        while Path(f"/proc/{self.process.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.002)

    def ip(self, *words: str) -> None:
        self.run("ip", *words)

    def run(self, *command: str, stdin: str | None = None) -> str:
        return run("nsenter", f"--net=/proc/{self.process.pid}/ns/net", *command, stdin=stdin)

    def go(self) -> None:
        """Lets the program begin, and notes what it prints from then on."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line.strip())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if hasattr(self, "reader"):
            self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class World:
    def __init__(self) -> None:
        self.client = Node("names")
        self.servers: list[Node] = []

    def build(self) -> None:
        self.client.ip("link", "set", "lo", "up")
        for number, (on, ports, manner) in enumerate(KINDS):
            node = Node("serve", ports, manner)
            self.servers.append(node)
            self._join(number, node)
            ecn, *others = (str(int(value)) for value in on)
            names = ("tcp_sack", "tcp_window_scaling", "tcp_timestamps")
            settings = [f"net.ipv4.{name}={value}" for name, value in zip(names, others, strict=True)]
            node.run("sysctl", "-qw", f"net.ipv4.tcp_ecn={2 if ecn == '1' else 0}", *settings)
        self.client.ip("route", "add", "default", "via", f"{NETWORK}.0.2")
        self._filter(0, f"ip daddr != {NETWORK}.0.0/16 counter")
        seen = "add set inet t seen { type ipv4_addr; flags dynamic; }"
        first = f"ip daddr {NETWORK}.{FIRST + LOSSY}.1-{NETWORK}.{FIRST + LOSSY}.100 ip daddr != @seen"
        syn = "tcp flags & (syn | ack) == syn"
        self._filter(LOSSY, f"{syn} counter", f"{syn} {first} add @seen {{ ip daddr }} drop", before=seen)
        self._filter(SILENT, "meta l4proto tcp drop")
        self.client.run("sysctl", "-qw", "net.ipv4.tcp_ecn=1", "net.ipv4.tcp_ecn_fallback=0")
        for node in (self.client, *self.servers):
            node.go()

    def _join(self, number: int, node: Node) -> None:
        here, there = f"s{number}", str(node.process.pid)
        self.client.ip("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", there)
        self.client.ip("address", "add", f"{NETWORK}.{number}.1/30", "dev", here)
        self.client.ip("link", "set", here, "up")
        node.ip("link", "set", "lo", "up")
        node.ip("address", "add", f"{NETWORK}.{number}.2/30", "dev", "eth0")
        node.ip("link", "set", "eth0", "up")
        node.ip("route", "add", "default", "via", f"{NETWORK}.{number}.1")
        node.ip("route", "add", "local", f"{NETWORK}.{FIRST + number}.0/24", "dev", "lo")
        self.client.ip("route", "add", f"{NETWORK}.{FIRST + number}.0/24", "via", f"{NETWORK}.{number}.2")

    def _filter(self, number: int, *rules: str, before: str = "") -> None:
        lines = ["add table inet t", before, "add chain inet t c { type filter hook prerouting priority 0; }"]
        lines += [f"add rule inet t c {rule}" for rule in rules]
        self.servers[number].run("nft", "-f", "-", stdin="\n".join(lines) + "\n")

    def counted(self, number: int) -> int:
        """Packets that the first counter of a server's rules has seen."""
        listed = self.servers[number].run("nft", "list", "table", "inet", "t")
        return int(listed.partition("counter packets ")[2].split()[0])

    def command(self, *arguments: object, isolation: str = "here") -> list[str]:
        prefix = ["nsenter", f"--net=/proc/{self.client.process.pid}/ns/net", *UPSHIFT, "survey", "options"]
        return [*prefix, *map(str, arguments), "--nameserver", "127.0.0.1", "--isolation", isolation, "--json"]

    def survey(self, source: Path, out: Path, *arguments: object, isolation: str = "here") -> list[OptionsRecord]:
        done = subprocess.run(
            self.command(source, "-o", out, *arguments, isolation=isolation),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return store.read_rows(out, "survey_options", OptionsRecord)

    def close(self) -> None:
        for node in (self.client, *self.servers):
            node.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    found = World()
    try:
        found.build()
        yield found
    finally:
        found.close()


def write_list(path: Path, labels: Sequence[str]) -> Path:
    path.write_text("".join(f"{rank},{label}.test\n" for rank, label in enumerate(labels, 1)))
    return path


def test_every_combination_is_recognised_every_time(world: World, tmp_path: Path, repeats: Repeats) -> None:
    count = repeats(quick=15, soak=200)
    labels = [f"s{server}-{number}" for number in range(1, count + 1) for server in range(10)]
    source = write_list(tmp_path / "list.csv", labels)
    surveys = iter(range(1, 100))

    def survey() -> tuple[list[OptionsRecord], Noise]:
        with host_noise() as noise:
            records = world.survey(source, tmp_path / f"{next(surveys)}.parquet", "--again-after", 0.2)
        return records, noise[0]

    def wrong(found: tuple[list[OptionsRecord], Noise]) -> list[str]:
        return [f"{label}: {record}" for label, record in zip(labels, found[0], strict=True) if faulty(label, record)]

    records, _ = measured(survey, wrong, excuse=lambda found: found[1].excuse)
    assert [record.domain for record in records] == [f"{label}.test" for label in labels]
    made = next(surveys) - 1
    assert Counter(world.servers[1].seen) == {f"{NETWORK}.{FIRST + 1}.{n} 443": made for n in range(1, count + 1)}


def faulty(label: str, record: OptionsRecord) -> bool:
    """Whether a record is not what its server does."""
    server = int(label[1 : label.index("-")])
    facts = (record.outcome, record.failure, record.server_port, record.syn_retransmissions, record.attempts)
    return not (
        tuple(getattr(record, name) for name in OPTIONS) == KINDS[server][0]
        and facts == ("ok", None, 443, 0, 2 if server == 9 else 1)
        and (record.window_scale is not None) == record.window_scaling
        and record.rtt_s is not None
        and record.snd_mss_bytes == (1448 if record.timestamps else 1460)
        and record.cname_chain == ("edge.cdn.test" if label.endswith("7") else None)
        and record.varied is (False if server == 9 else None)
    )


def test_syns_sent_again_are_counted_and_still_ask_for_ecn(world: World, tmp_path: Path) -> None:
    source = write_list(tmp_path / "list.csv", [f"s{LOSSY}-{number}" for number in range(1, 151)])
    before = world.counted(LOSSY)
    records = world.survey(source, tmp_path / "r.parquet")
    assert [record.syn_retransmissions for record in records] == [1] * 100 + [0] * 50
    assert all(record.ecn and record.sack and record.window_scaling for record in records)
    assert world.counted(LOSSY) - before == sum(r.attempts + (r.syn_retransmissions or 0) for r in records) == 250


def test_failures_have_their_words_and_nothing_leaves_for_refused_addresses(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "block.txt"
    blocked.write_text(f"s1-201.test  # a domain\n{NETWORK}.{FIRST + 1}.202/32\n")
    labels = [
        "s1-201",
        "s1-202",
        "private",
        "outside",
        "missing",
        "bare",
        f"s{PORT_80}-1",
        f"s{CLOSED}-1",
        f"s{SILENT}-1",
    ]
    source = write_list(tmp_path / "list.csv", labels)
    sent = world.counted(0)
    monkeypatch.setenv("UPSHIFT_ALLOWED_PREFIXES", f"127.0.0.0/8,{NETWORK}.0.0/16")
    found = world.survey(source, tmp_path / "r.parquet", "--block-list", blocked, "--timeout", 1.5)
    records = {record.domain.removesuffix(".test"): record for record in found}
    assert {label: record.failure for label, record in records.items()} == {
        "s1-201": "blocked",
        "s1-202": "blocked",
        "private": "address_refused",
        "outside": "address_refused",
        "missing": "no_such_domain",
        "bare": "no_address",
        f"s{PORT_80}-1": None,
        f"s{CLOSED}-1": "connection_refused",
        f"s{SILENT}-1": "connect_timeout",
    }
    assert (records[f"s{PORT_80}-1"].server_port, records[f"s{PORT_80}-1"].attempts) == (80, 2)
    assert records[f"s{SILENT}-1"].syn_retransmissions == 1
    assert records[f"s{CLOSED}-1"].failure_detail == "port 443: Connection refused; port 80: Connection refused"
    assert records["outside"].attempts == 0
    assert world.counted(0) == sent
    assert not {f"{NETWORK}.{FIRST + 1}.{n} 443" for n in (201, 202)} & set(world.servers[1].seen)
    # The counter does count: a packet to that address, sent on purpose, goes into a namespace that has no way out.
    world.client.run(sys.executable, "-c", "import socket; socket.socket(2, 2).sendto(b'x', ('198.19.255.1', 9))")
    assert world.counted(0) > sent


@pytest.mark.soak
def test_killed_and_started_again_every_domain_is_done_once(world: World, tmp_path: Path) -> None:
    labels = [f"s{server}-{number}" for number in range(1, 101) for server in range(2, 8)]
    source, out = write_list(tmp_path / "list.csv", labels), tmp_path / "r.parquet"
    arguments = (source, "-o", out, "--rate", 400)
    before = Counter(line for server in world.servers[2:8] for line in server.seen)
    ledger = tmp_path / "r.parquet.ledger.sqlite"
    for kill_at in (60, 250):
        child = subprocess.Popen(world.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while surveyed(ledger) < kill_at:
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = surveyed(ledger)
    assert 250 <= done < 600
    assert not out.exists()
    records = world.survey(source, out, "--rate", 400)
    assert [record.domain for record in records] == [f"{label}.test" for label in labels]
    assert {record.outcome for record in records} == {"ok"}
    time.sleep(0.1)
    after = Counter(line for server in world.servers[2:8] for line in server.seen) - before
    assert set(after.values()) <= {1, 2, 3}
    assert len(after) == 600
    # Contacted again were those that had begun and were not written down: the work of a fraction of a second, twice.
    assert sum(after.values()) - 600 <= 2 * 400 * 0.75

    other = subprocess.run(world.command(*arguments, "--timeout", 3), capture_output=True, text=True, timeout=60)
    assert other.returncode == 2
    assert "this ledger belongs to another survey: timeout changed; use the options of the first start" in other.stderr


def test_who_opts_out_while_it_runs_is_left_alone(world: World, tmp_path: Path) -> None:
    labels = [f"s3-{number}" for number in range(1, 201)]
    source, opt_out = write_list(tmp_path / "list.csv", labels), tmp_path / "opt-out.txt"
    arguments = (source, "-o", tmp_path / "r.parquet", "--opt-out", opt_out, "--rate", 20)
    child = subprocess.Popen(world.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ledger = tmp_path / "r.parquet.ledger.sqlite"
    while surveyed(ledger) < 10:
        assert child.poll() is None
        time.sleep(0.05)
    opt_out.write_text(f"{NETWORK}.{FIRST + 3}.0/24\n")
    time.sleep(5.5)
    seen = len(world.servers[3].seen)
    said, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert len(world.servers[3].seen) == seen
    document = json.loads(said)
    assert document["hosts"] + document["failures"]["blocked"]["count"] == 200
    assert document["failures"]["blocked"]["count"] > 40


def test_ipv6(world: World, tmp_path: Path) -> None:
    source = write_list(tmp_path / "list.csv", ["six", "s0-1"])
    six, four = world.survey(source, tmp_path / "r.parquet", "--ipv6", "--port", 443)
    assert (six.server_ip, six.outcome, [getattr(six, name) for name in OPTIONS]) == ("::1", "ok", [True] * 4)
    assert four.failure == "no_address"


def test_pace_per_address_holds(world: World, tmp_path: Path) -> None:
    source = tmp_path / "list.csv"
    # The name server looks at the first label only, so all of them are one address.
    source.write_text("".join(f"{n},s0-230.d{n}.test\n" for n in range(1, 22)))
    began = time.monotonic()
    records = world.survey(source, tmp_path / "r.parquet", "--address-rate", 10)
    assert time.monotonic() - began >= 2.0
    assert {(record.outcome, record.server_ip) for record in records} == {("ok", f"{NETWORK}.{FIRST}.230")}


@pytest.mark.parametrize("isolation", ["netns", "host"])
def test_wrong_settings_are_refused_here_made_right_elsewhere_and_put_back(
    world: World, tmp_path: Path, isolation: str
) -> None:
    source = write_list(tmp_path / "list.csv", ["s0-1", "s0-2"])
    world.client.run("sysctl", "-qw", "net.ipv4.tcp_ecn=2")
    try:
        command = world.command(source, "-o", tmp_path / "r.parquet")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 75
        assert (
            "kernel settings here do not request every option (net.ipv4.tcp_ecn = 2); leave --isolation at netns"
            in done.stderr
        )
        assert len(done.stderr.strip().splitlines()) == 1
        environment = {**os.environ, "UPSHIFT_STATE_DIR": str(tmp_path / "state")}
        command = world.command(source, "-o", tmp_path / "r.parquet", isolation=isolation)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        records = store.read_rows(tmp_path / "r.parquet", "survey_options", OptionsRecord)
        assert [tuple(getattr(r, name) for name in OPTIONS) for r in records] == [KINDS[0][0]] * 2
        assert world.client.run("sysctl", "-n", "net.ipv4.tcp_ecn").strip() == "2"
        assert world.client.run("nft", "list", "ruleset") == ""
    finally:
        world.client.run("sysctl", "-qw", "net.ipv4.tcp_ecn=1")
