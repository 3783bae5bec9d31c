"""What the tests of faults and kills share: campaigns, the command line, what a campaign left.

Every program that is started here, and all that it starts in turn, carries `MARK` in its environment, so that these
tests find their own processes and namespaces among those of everybody else on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from core.domain import Download, Superseded
from core.files import store
from tests import command
from tests.lab.noise import MAX_ATTEMPTS

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "UPSHIFT_TEST_MARK"
UPSHIFT = (sys.executable, "-c", "from upshift.cli import main; main()")

TWO_CONFIGURATIONS = """
[[configurations]]
name = "BL"
client = "requests"
levels = { sack = "off" }
[[configurations]]
name = "quiche"
client = "quiche"
"""

PROGRESS = re.compile(r"[\w -]+: \d+/\d+[^\n]*/s[^\n]*")
"""A line of the plain progress display."""


@dataclass
class World:
    """A folder of files, a state folder for labs, and the processes that belong to them."""

    folder: Path
    state: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="uf-", dir="/tmp")))
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def campaign(
        self, lab: Path | str, *, more: str = "", configurations: str = TWO_CONFIGURATIONS, name: str = "c"
    ) -> Path:
        """A campaign file for a lab."""
        if "max_attempts" not in more:
            more = f"max_attempts = {MAX_ATTEMPTS}\n{more}"
        targets = "" if "targets" in more else 'targets = "lab"\n'
        return self.write(f"{name}.toml", f'name = "{name}"\nlab = "{lab}"\n{targets}{more}\n{configurations}')

    @property
    def environment(self) -> dict[str, str]:
        (self.state / "tmp").mkdir(exist_ok=True)
        return {
            **os.environ,
            "UPSHIFT_STATE_DIR": str(self.state / "s"),
            "TMPDIR": str(self.state / "tmp"),
            MARK: self.mark,
        }

    def start(self, *arguments: str | Path, prefix: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """`upshift ARGUMENTS` in the background, in a session of its own, with pipes."""
        return subprocess.Popen(
            [*prefix, *UPSHIFT, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"env": self.environment, "cwd": self.folder, **options},
        )

    def upshift(
        self, *arguments: str | Path, timeout_s: float = 180, look: Callable[[], None] | None = None, **options: Any
    ) -> Done:
        """`upshift ARGUMENTS` to its end; `look` is called ten times a second meanwhile."""
        child = self.start(*arguments, **options)
        deadline = time.monotonic() + timeout_s
        try:
            while look is not None and time.monotonic() < deadline - 0.1:
                look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stdout, stderr = child.communicate(timeout=0.1)
                    return Done(child.returncode, stdout, stderr)
            stdout, stderr = child.communicate(timeout=max(deadline - time.monotonic(), 0.0))
        except BaseException:
            child.kill()
            child.communicate()
            raise
        return Done(child.returncode, stdout, stderr)

    def within(self, *arguments: str | Path) -> Done:
        """As `upshift`, but within this process: for what it says and leaves, not for how it ends."""
        environment = self.environment
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, environment),
            mock.patch.object(tempfile, "tempdir", environment["TMPDIR"]),  # Python looks at TMPDIR once
        ):
            answer = command.upshift(*arguments)
        return Done(answer.returncode, answer.stdout, answer.stderr)

    def processes(self) -> dict[int, str]:
        """Number -> command line of everything alive that these tests started, and that it started."""
        return started_with(f"{MARK}={self.mark}")

    def find(self, *words: str, timeout_s: float = 30.0) -> int:
        """The number of our process whose command line has all these words; waits for it."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [pid for pid, line in self.processes().items() if all(word in line for word in words)]
            return bool(found)

        assert wait_until(there, timeout_s), f"no process {words} came"
        return found[0]

    def clean(self) -> None:
        """Takes all labs down, and asserts that nothing of ours is left anywhere."""
        down = self.upshift("lab", "down")
        assert down.returncode == 0, down.stderr
        assert wait_until(lambda: not self.processes(), pause_s=0.1), self.processes()
        left = [str(path) for path in self.state.rglob("*") if path.name not in {"s", "tmp"}]
        assert not left, left
        for name in ("tmp", "s"):
            if (self.state / name).exists():
                (self.state / name).rmdir()
        self.state.rmdir()


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def sentences(self) -> list[str]:
        """What standard error has beside the lines of the progress display."""
        return [line for line in self.stderr.splitlines() if not PROGRESS.fullmatch(line)]

    def sentence(self, *, code: int = 2) -> str:
        """The one sentence of a command that was refused, with exit code 2, or failed on this host: 75."""
        assert self.returncode == code, (self.returncode, self.stderr)
        assert len(self.sentences) == 1, self.stderr
        assert self.sentences[0].startswith("upshift: ") and "Traceback" not in self.stderr, self.stderr
        return self.sentences[0]


def started_with(entry: str) -> dict[int, str]:
    """Number -> command line of the processes that were given this entry of the environment; of one that is on its way
    to exec(2) it is empty."""
    found: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ").strip()
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10.0, *, pause_s: float = 0.02) -> bool:
    """Whether it becomes true; a look that reads all processes takes some 10 ms itself: it is worth a longer pause."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause_s)
    return condition()


def signal_group(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """A signal to the whole foreground process group, as a terminal's Ctrl-C does."""
    os.killpg(child.pid, number)


def rows(out: Path) -> list[Download]:
    return store.read_rows(out / "downloads.parquet", "downloads", Download)


def assert_each_once(out: Path, planned: int) -> list[Download]:
    """Every planned download is recorded exactly once: in the Parquet file, and in journals that are whole."""
    found = rows(out)
    keys = Counter((r.vantage, r.iteration, r.domain, r.configuration) for r in found)
    assert len(keys) == planned and set(keys.values()) == {1}, keys
    journaled = 0
    for path in out.glob("vantage/*/journal.sqlite"):
        database = sqlite3.connect(path)
        try:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            (count,) = database.execute("SELECT COUNT(*) FROM downloads").fetchone()
            assert database.execute("SELECT COUNT(*) FROM plan").fetchone() == (count,)
            assert database.execute("SELECT COUNT(*) FROM staged").fetchone() == (0,)
            journaled += count
        finally:
            database.close()
    assert journaled == planned
    thrown = superseded(out)
    captures = {out / r.capture for r in (*found, *thrown) if r.capture}
    assert set(out.glob("vantage/*/captures/*")) == captures, "a capture that no row names"
    assert all(path.stat().st_size > 24 for path in captures)
    assert not [path for path in out.rglob("*") if "part" in path.name or path.name.endswith(".tmp")]
    return found


def superseded(out: Path) -> list[Superseded]:
    """Downloads of attempts that were void or interrupted, and made again."""
    return store.read_rows(out / "superseded.parquet", "superseded", Superseded)


def summary(done: Done) -> dict[str, Any]:
    """The summary that `upshift run --json` prints."""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
