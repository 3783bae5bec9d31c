"""`upshift survey iw` in a lab's place: input, results, and what was sent."""

from __future__ import annotations

import ipaddress
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from core.files import store
from survey.iw.record import IwRecord
from vantage.lab.lab import Lab

UPSHIFT = (sys.executable, "-P", "-m", "upshift")
CONTACT = ("--contact", "lab@example.org")


def targets(path: Path, urls: Sequence[str]) -> Path:
    lines = [f"t{number}-{url.split('/')[2]},{url}" for number, url in enumerate(urls)]
    path.write_text("\n".join(["domain,url", *lines]) + "\n")
    return path


def survey(lab: Lab, out: Path, *arguments: object, vantage: str = "V", timeout_s: float = 300) -> dict[str, Any]:
    """Runs the command in a vantage point; its JSON."""
    argv = [*UPSHIFT, "survey", "iw", "-o", str(out), *CONTACT, "--json", *map(str, arguments)]
    done = lab.place(vantage).run(argv, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def records(out: Path) -> list[IwRecord]:
    return store.read_rows(out, "survey_iw", IwRecord)


def prefix_file(lab: Lab, path: Path) -> Path:
    path.write_text("".join(f"{part['prefix']}\n" for part in lab.truth()["populations"]))
    return path


def planted(lab: Lab) -> dict[int, ipaddress.IPv4Network]:
    return {part["initcwnd"]: ipaddress.IPv4Network(part["prefix"]) for part in lab.truth()["populations"]}


def syns(capture: Path) -> list[tuple[float, str]]:
    """(time, destination) of each SYN; checks that nobody but the prober sent a reset."""
    text = subprocess.run(
        ["tcpdump", "-tt", "-nn", "-r", capture, "tcp"], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in text.splitlines():
        at, _, source, _, target, rest = line.split(maxsplit=5)
        if "Flags [S]," in rest:
            found.append((float(at), target.rpartition(".")[0]))
        if "Flags [R" in rest:
            assert source.rpartition(".")[0].endswith(".3"), line  # the prober's address, not the kernel's
    return found


def finished(ledger: Path) -> int:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        try:
            return int(db.execute("SELECT count(*) FROM domains WHERE outcome IS NOT NULL").fetchone()[0])
        except sqlite3.OperationalError:
            return 0  # it is being made


def most_in_a_second(times: Sequence[float]) -> int:
    """The largest number of times within any second."""
    most = first = 0
    ordered = sorted(times)
    for last, at in enumerate(ordered):
        while at - ordered[first] >= 1:
            first += 1
        most = max(most, last - first + 1)
    return most
