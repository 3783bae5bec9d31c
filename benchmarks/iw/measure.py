"""Estimates per second, and CPU time of each: `iwprobe` alone, fed with requests; nginx in another namespace."""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.iw.world import FILE, open_world
from survey.iw.probers import prober
from survey.iw.wire import ProbeReply, ProbeRequest, decode, encode
from survey.programs import ProberProgram
from tests.lab._iw_world import Node


def requests(count: int, mss: int) -> Iterator[bytes]:
    for number in range(count):
        address = f"198.19.{number >> 8 & 255}.{number & 255}"
        yield encode(
            number, ProbeRequest(address=address, port=80, mss=mss, host=address, path=FILE, user_agent="bench")
        )


def measure(
    program: ProberProgram[ProbeRequest, ProbeReply], client: Node, count: int, mss: int, together: int
) -> dict[str, object]:
    """Asks for `count` estimates, `together` at a time."""
    command = [*client.enter, *program.argv]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, 1 << 20)  # or both could wait to write
    child.stdout.readline()
    assert program.reply_bytes is not None
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
    with open_world() as world:
        print(measure(prober(world.attachment), world.client, given.hosts, given.mss, given.together))


if __name__ == "__main__":
    main()
