"""iw-prober (github.com/janrueth/iw-prober), the tool of the TMA'18 paper on CDNs: taken from $IW_PROBER or PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from math import ceil
from urllib.parse import urlsplit

from benchmarks.iw.world import FILE, Answers, Window, World

UNLIMITED = 1_000_000
"""Packets per second; it keeps a queue of as many."""

TIMEOUT_S = 10
"""How long it waits for a packet: its default."""


def find() -> tuple[str | None, str]:
    """The program, or why there is none."""
    found = os.environ.get("IW_PROBER") or shutil.which("iw-prober")
    return found, "iw-prober is not installed: put it on PATH or set IW_PROBER to compare with it"


def ask(
    program: str,
    world: World,
    hosts: Sequence[str],
    mss: int,
    *,
    together: int,
    timeout_s: int = TIMEOUT_S,
    limit_s: float = 600,
) -> Answers:
    """Its answers over HTTP, so many connections at a time.

    Raises subprocess.SubprocessError if it takes longer than `limit_s`.
    """
    own, gateway = world.attachment.addresses[0], world.attachment.next_hop or ""
    argv = [*world.client.enter, program, "-source-ip", own, "-dev", world.attachment.device, "-gw", gateway]
    argv += ["-src-mac", world.client_mac, "-parallel", str(together), "-pktrate", str(UNLIMITED)]
    argv += ["-conn-timeout", str(timeout_s)]
    lines = "".join(json.dumps(_asked(host, mss)) + "\n" for host in hosts)
    began = time.monotonic()
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False, timeout=limit_s)
    took = time.monotonic() - began
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    found = {urlsplit(reply["url"]).hostname or "": _window(reply["result"]) for reply in replies}
    windows = {host: window for host, window in found.items() if window is not None}
    return Answers(windows=windows, replies=len(replies), took_s=took)


def _asked(host: str, mss: int) -> dict[str, object]:
    # With an answer of DNS in it, it does not ask a name server.
    answers = [{"type": "A", "answer": host}]
    return {"mss": mss, "url": f"http://{host}{FILE}", "result": {"dns": {"answers": answers}}}


def _window(result: dict[str, object]) -> Window | None:
    if result["error"]:
        return None
    connection = result["connection"]
    assert isinstance(connection, dict)
    data = connection["data"]
    # Numbers of its data are sequence numbers, with a wrap.
    length = (int(data["end_of_data"]) - int(data["start_of_data"])) % 2**32
    return Window(segments=ceil(length / max(1, int(data["observed_mss"]))), bytes=length)
