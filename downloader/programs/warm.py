"""A warm interpreter: imports a program once, then forks a child per request, to save the start-up time.

Standard input: one JSON line per request, `{"argv": [...], "limit_s": 30.0}`. Standard output: the line
`{"ready": true}` when the program is imported, then one line per request, in order,
`{"returncode": 0, "excess": false, "stdout": "...", "stderr": "..."}`; `returncode` is negative for the signal that
ended the child, and None if it was killed because `limit_s` was over or, with `excess`, because it printed too much.

The parent opens no connection, makes no event loop and no TLS context; each child makes its own. OpenSSL and Python's
`random` reseed themselves after a fork. A child is killed when we end (PR_SET_PDEATHSIG), and we when our parent ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

_PR_SET_PDEATHSIG = 1
"""prctl(2)."""

MOST_OUTPUT_BYTES = 1 << 18
"""What a program may print; documents have some kB. A client that a server has taken over may print anything."""

_libc = ctypes.CDLL(None, use_errno=True)

Main = Callable[[Sequence[str]], int]


def answer(main: Main, argv: Sequence[str], limit_s: float) -> dict[str, object]:
    """Runs `main(argv)` in a forked child; returns how it ended, and its output."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(main, argv, parent, out_write, err_write)
    os.close(out_write)
    os.close(err_write)
    deadline = time.monotonic() + limit_s
    output: dict[int, list[bytes]] = {out_read: [], err_read: []}
    ended = os.pidfd_open(pid)  # it may close its output, and go on
    open_ends = {*output, ended}
    killed = excess = False
    while open_ends:
        ready, _, _ = select.select(list(open_ends), [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            os.kill(pid, signal.SIGKILL)  # its pipes close with it
            killed, deadline = True, time.monotonic() + 10.0
            continue
        for end in ready:
            data = b"" if end == ended else os.read(end, 65536)
            if not data:
                open_ends.discard(end)
                os.close(end)
            elif not killed:
                output[end].append(data)
                if sum(map(len, output[end])) > MOST_OUTPUT_BYTES:
                    os.kill(pid, signal.SIGKILL)
                    killed = excess = True
    _, status = os.waitpid(pid, 0)
    return {
        "returncode": None if killed else os.waitstatus_to_exitcode(status),
        "excess": excess,
        "stdout": b"".join(output[out_read]).decode("utf-8", "replace"),
        "stderr": b"".join(output[err_read]).decode("utf-8", "replace"),
    }


def _child(main: Main, argv: Sequence[str], parent: int, out: int, err: int) -> None:
    """The forked child: never returns."""
    code = 70
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(71)  # our parent died before we could ask to die with it
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, max(out, err) + 8)
        code = main(argv)
    except SystemExit as end:  # argparse
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(argv: Sequence[str]) -> int:
    """Serves requests until standard input ends."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m downloader.programs.warm MODULE\n")
        return 2
    # Ctrl-C at a terminal reaches the whole group of processes. The campaign decides what happens then, not we.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program: Main = importlib.import_module(argv[0]).main
    gc.collect()
    gc.freeze()  # children then share more memory: the collector does not touch what was imported
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        request = json.loads(line)
        result = answer(program, [str(part) for part in request["argv"]], float(request["limit_s"]))
        print(json.dumps(result), flush=True)  # noqa: T201 - the protocol
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
