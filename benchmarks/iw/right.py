"""Which tool is right where segments are lost, and where the window is one in bytes: single probes, and our votes.

Every connection of every tool loses the same segments (`router.py`). The tables count servers: right, wrong without a
word, and without a window.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.iw import iw_prober, iwprobe, zmap
from benchmarks.iw.router import BYTES, BYTES_PREFIX, CELLS, LAST_OF_SOME, Routed, open_router
from benchmarks.iw.world import Answers, Window, World

SIZES = (64, 1_200)
"""MSS of the probes through loss [bytes]."""

BYTES_SIZES = (64, 536, 1_200)
"""MSS of those to servers with a window in bytes."""

PARALLEL, TIMEOUT_S = 10, 4
"""Of iw-prober: with more at a time it loses packets by itself; it waits longer than for any retransmission here."""

RATE, COOLDOWN_S = 250, 2
"""Of zmap: SYNs per second, and wait after the last; the second retransmission here comes after 0.6 s."""

LIMIT_S, ZMAP_LIMIT_S = 60, 30
"""Most time of one run. zmap goes on for long where its buffer was too small; what it says comes before."""

Tool = Callable[[World, Sequence[str], int], Answers]
"""World, servers, MSS."""

VOTES = "iwprobe, votes"
SILENT = Answers(windows={}, replies=0, took_s=0.0)


def tools() -> dict[str, Tool]:
    """Those that are installed; says which are not."""
    found: dict[str, Tool] = {"iwprobe": iwprobe.ask, VOTES: iwprobe.vote}
    prober, no_prober = iw_prober.find()
    if prober is not None:
        found["iw-prober"] = partial(iw_prober.ask, prober, together=PARALLEL, timeout_s=TIMEOUT_S, limit_s=LIMIT_S)
    modules, no_modules = zmap.find()
    if modules is not None:
        found["zmap module"] = partial(zmap.ask, modules, rate=RATE, cooldown_s=COOLDOWN_S, limit_s=ZMAP_LIMIT_S)
    for reason in (None if prober else no_prober, None if modules else no_modules):
        if reason:
            print(reason)
    return found


def asked(name: str, tool: Tool, world: World, hosts: Sequence[str], mss: int) -> Answers:
    """A tool's answers; none, and a line that says so, if it fails."""
    began = time.monotonic()
    try:
        answers = tool(world, hosts, mss)
    except subprocess.SubprocessError as error:
        print(f"{name} failed at MSS {mss}: {error}")
        answers = SILENT
    print(f"{name}, MSS {mss}: {len(hosts)} servers in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return answers


def told(answers: Answers, hosts: Sequence[str], truth: str, shown: Callable[[Window], str]) -> str:
    """`25` if all are right, else `20, 3 wrong (31), 2 none`; in brackets the most frequent wrong windows."""
    windows = [answers.windows[host] for host in hosts if host in answers.windows]
    wrong = Counter(shown(window) for window in windows if shown(window) != truth)
    parts = [str(len(windows) - wrong.total())]
    if wrong:
        listed = ", ".join(what for what, _ in wrong.most_common(2)) + (", ..." if len(wrong) > 2 else "")
        parts.append(f"{wrong.total()} wrong ({listed})")
    if len(hosts) > len(windows):
        parts.append(f"{len(hosts) - len(windows)} none")
    return ", ".join(parts)


def segments(window: Window) -> str:
    return str(window.segments)


def segments_and_bytes(window: Window) -> str:
    return f"{window.segments} segments, {window.bytes:,} bytes"


def row(*cells: object) -> None:
    print("|", " | ".join(str(cell) for cell in cells), "|", flush=True)


def check(routed: Routed, mss: int) -> None:
    """Looks at one connection of each kind: the capture must have all segments but those to be lost.

    Raises RuntimeError if it has others.
    """
    arrived: dict[str, set[int]] = {}
    with routed.captured(arrived, mss):
        iwprobe.ask(routed.world, [cell.hosts(1)[0] for cell in CELLS], mss)
    for cell in CELLS:
        found, expected = arrived.get(cell.hosts(1)[0], set()), set(range(cell.window)) - set(cell.lost)
        if found != expected and not (cell.loss == LAST_OF_SOME and found == set(range(cell.window))):
            raise RuntimeError(f"{cell}: of {mss} bytes arrived {sorted(found)}, not {sorted(expected)}")
    routed.lost()
    print(f"MSS {mss}: a capture of {len(CELLS)} connections has the segments that it should have, no others")


def unlike(lost: Mapping[int, int], count: int) -> str:
    """Kinds of loss where not as many segments were lost as should be; empty: none."""
    found = []
    for cell in CELLS:
        planned = count * len(cell.lost) / (3 if cell.loss == LAST_OF_SOME else 1)
        if abs(lost[cell.number] - planned) >= 1:
            found.append(f"{cell.loss} at IW {cell.window}: {lost[cell.number]} of {planned:.0f}")
    return "; ".join(found)


def drops(routed: Routed, found: Mapping[str, Tool], count: int, mss: int) -> None:
    """Prints the table of one MSS."""
    # Windows in turn, so that the large ones do not come all at once.
    hosts = [host for each in zip(*(cell.hosts(count) for cell in CELLS), strict=True) for host in each]
    answers: dict[str, Answers] = {}
    for name, tool in found.items():
        answers[name] = asked(name, tool, routed.world, hosts, mss)
        others = unlike(routed.lost(), count)
        if name != VOTES and others:
            print(f"{name}: not as many segments were lost as planned ({others})")
    print(f"\nMSS {mss}, {count} servers each\n")
    row("lost", "IW", *found)
    row(*["---"] * (2 + len(found)))
    for cell in CELLS:
        of_cell = cell.hosts(count)
        row(
            cell.loss,
            cell.window if cell.seen == cell.window else f"{cell.window}, seen {cell.seen}",
            *(told(answers[name], of_cell, str(cell.seen), segments) for name in found),
        )


def windows_in_bytes(routed: Routed, found: Mapping[str, Tool], count: int) -> None:
    """Prints the table: right are a tool's bytes and its segments."""
    hosts = [BYTES_PREFIX.replace("0/24", str(number + 1)) for number in range(count)]
    lines: list[tuple[object, ...]] = []
    for address, size in BYTES.items():
        for mss in BYTES_SIZES:
            truth = Window(segments=ceil(size / mss), bytes=size)
            cells = [
                told(
                    asked(name, tool, routed.as_client(address), hosts, mss),
                    hosts,
                    segments_and_bytes(truth),
                    segments_and_bytes,
                )
                for name, tool in found.items()
            ]
            lines.append((f"{size:,}", mss, truth.segments, *cells))
    print(f"\nWindows in bytes, {count} servers each\n")
    row("bytes", "MSS", "segments", *found)
    row(*["---"] * (3 + len(found)))
    for line in lines:
        row(*line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=25, help="Servers of each kind; not a multiple of 3.")
    given = parser.parse_args()
    found = tools()
    with open_router() as routed:
        for mss in SIZES:
            check(routed, mss)
            drops(routed, found, given.hosts, mss)
        windows_in_bytes(routed, found, given.hosts)


if __name__ == "__main__":
    main()
