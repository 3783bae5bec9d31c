"""The zmap modules of the paper (github.com/COMSYS/zmap: `tcp_initcwnd_http`, `tcp_initcwnd_ssl`).

The program is taken from $IW_ZMAP, or from PATH if the `zmap` there has the modules (Debian's has not).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.iw.world import Answers, Window, World
from survey.iw.wire import Scheme
from tests.lab._iw_world import DEVICE

MODULES = {Scheme.HTTP: ("tcp_initcwnd_http", 80), Scheme.HTTPS: ("tcp_initcwnd_ssl", 443)}
"""Scheme -> module, port. The first asks for `/`; the second counts the server's handshake."""

COOLDOWN_S = 8
"""How long it waits for late packets after its last SYN: zmap's default."""

FIELDS = (
    "saddr,saddr_raw,daddr,daddr_raw,ipid,ttl,classification,success,packets,payload,completed,assumption,seq_len,"
    "rep_mss,req_mss,probe_num,info"
)
"""All of the modules. They add values in another order than they declare them, so CSV mixes them up; JSON has names."""


def find() -> tuple[str | None, str]:
    """The program, or why there is none."""
    path = "/usr/local/sbin:/usr/sbin:" + os.environ.get("PATH", "")
    program = os.environ.get("IW_ZMAP") or shutil.which("zmap", path=path)
    remedy = "build it as the README says and set IW_ZMAP to compare with it"
    if program is None:
        return None, f"zmap with the paper's modules is not installed: {remedy}"
    try:
        done = subprocess.run([program, "--list-probe-modules"], capture_output=True, text=True, check=False)
    except OSError as error:
        return None, f"{program} cannot be run ({error.strerror}): {remedy}"
    if not {module for module, _ in MODULES.values()} <= set(done.stdout.split()):
        return None, f"{program} does not have the paper's modules: {remedy}"
    return str(Path(program).resolve()), ""


def ask(
    program: str,
    world: World,
    hosts: Sequence[str],
    mss: int,
    *,
    rate: int,
    scheme: Scheme = Scheme.HTTP,
    cooldown_s: int = COOLDOWN_S,
    limit_s: float = 600,
) -> Answers:
    """Its answers, at so many SYNs per second; the time is that until the last reply.

    After `limit_s` it is ended, and what it has said counts. Raises subprocess.SubprocessError if it fails.
    """
    module, port = MODULES[scheme]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "none").write_text("")
        (folder / "hosts").write_text("".join(f"{host}\n" for host in hosts))
        argv = [*world.client.enter, program, "-q", "-v", "0", "--disable-syslog", "-C", "none", "-b", "none"]
        argv += ["-w", "hosts", "-M", module, f"--probe-args={mss}", "-p", str(port), "-r", str(rate)]
        argv += ["-i", DEVICE, "-S", world.attachment.addresses[0], "-G", world.attachment.next_hop or ""]
        argv += ["-c", str(cooldown_s), "-O", "json", "-f", FIELDS, "-o", "found"]
        began = time.time()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(argv, cwd=folder, capture_output=True, check=True, timeout=limit_s)
        took = (folder / "found").stat().st_mtime - began  # it writes each reply at once
        replies = [json.loads(line) for line in (folder / "found").read_text().splitlines()]
    windows = {reply["saddr"]: window for reply in replies if (window := _window(reply)) is not None}
    return Answers(windows=windows, replies=len(replies), took_s=took)


def _window(reply: dict[str, Any]) -> Window | None:
    """What it says, unless it says that this is not to be relied on. No segments: there were too many for it."""
    is_sure = reply["success"] == 1 and "notok" not in reply["completed"] and reply["assumption"]
    return Window(segments=int(reply["assumption"]), bytes=int(reply["seq_len"])) if is_sure else None
