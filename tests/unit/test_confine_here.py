"""What a command may still do that reads strangers' bytes and writes its results itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from core.system.confine import landlock_version

PROGRAM = """
import json, os, socket, sqlite3, sys, threading
from pathlib import Path
from core.system.confine import confine_here
results, other = Path(sys.argv[1]), Path(sys.argv[2])
confine_here(reads=[other / "list"], writes=[results])
attempts = {
    "read its list": lambda: (other / "list").read_text(),
    "write a result": lambda: (results / ".part").write_text("x"),
    "rename it": lambda: (results / ".part").replace(results / "done"),
    "remove it": lambda: (results / "done").unlink(),
    "keep a ledger": lambda: sqlite3.connect(results / "l").execute("PRAGMA journal_mode = WAL").fetchall(),
    "import": lambda: __import__("xml.dom.minidom"),
    "make a thread": lambda: threading.Thread(target=int).start(),
    "read another file": lambda: (other / "secret").read_text(),
    "write another file": lambda: (other / "new").write_text("x"),
    "write its list": lambda: (other / "list").write_text("x"),
    "read accounts": lambda: Path("/etc/passwd").read_text(),
    "look at its parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "fork": lambda: os.fork() or os._exit(0),
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "serve": lambda: socket.create_server(("127.0.0.1", 0)),
}
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
        done[name] = True
    except OSError:
        done[name] = False
print(json.dumps(done))
"""


@pytest.mark.skipif(landlock_version() < 6, reason="the kernel lacks Landlock's rules for signals (Linux 6.12)")
def test_it_keeps_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    results, other = tmp_path / "results", tmp_path / "other"
    results.mkdir()
    other.mkdir()
    (other / "list").write_text("a.example")
    (other / "secret").write_text("x")
    command = [sys.executable, "-c", PROGRAM, str(results), str(other)]
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": root})
    found = json.loads(done.stdout)
    may = dict.fromkeys(list(found)[:7], True)
    assert found == {**dict.fromkeys(found, False), **may}


LATER = """
import sys
from pathlib import Path
from core.outreach.arguments import give_up_rights
later = Path(sys.argv[1], "host", "opt-out.txt")
give_up_rights(reads=[], lists=[later], written=[Path(sys.argv[2], "results.parquet")])
print("ready", flush=True)
input()
print(later.read_text())
"""


@pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock")
def test_an_opt_out_is_read_whose_folder_was_made_later(tmp_path: Path) -> None:
    lists, results = tmp_path / "lists", tmp_path / "results"
    lists.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", LATER, str(lists), str(results)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": root}
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        (lists / "host").mkdir()
        (lists / "host" / "opt-out.txt").write_text("a.example")
        assert started.communicate("go\n")[0] == "a.example\n"
