"""The files of labs, and which labs are alive.

STATE/lab/NAME.lock     held (flock) by the lab's holder and by `unshare`, its parent: the kernel releases it
                        when they end, however they end
STATE/lab/NAME/         everything of one lab; removed by `down`, or by the next `up` when the lab is dead
    owner.json          the process that ran `up`, and whether the lab ends with it; written before the holder starts
    state.json          the holder's process and the lab's status, written by the holder
    plan.json           what the holder builds
    lab.toml            the topology as it was read
    pathem.sock         control socket of the path emulator
    certificates/, content/, sites/, servers/, dns/, log/
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from core.errors import LabError, UsageError
from core.files.config import read_json
from core.files.disk import take_lock
from core.system import process
from vantage.linux.state_folder import state_directory

LONGEST_SOCKET_PATH = 107
"""unix(7): sun_path has 108 bytes with the final zero."""


class LabFolder:
    """The files of one lab, as above.

    Attributes:
        content: measured files, a folder per server.
        sites: files of sites, a folder per host.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name
        self.lock = root.with_name(f"{root.name}.lock")
        self.owner = root / "owner.json"
        self.state = root / "state.json"
        self.plan = root / "plan.json"
        self.topology = root / "lab.toml"
        self.socket = root / "pathem.sock"
        self.logs = root / "log"
        self.content = root / "content"
        self.sites = root / "sites"
        self.certificates = root / "certificates"
        self.ca = self.certificates / "ca.pem"

    def access_log(self, server: str) -> Path:
        """Requests to the sites of a server, one JSON line each, as Caddy logs them."""
        return self.logs / f"{server}.access.jsonl"

    def read_state(self) -> dict[str, Any] | None:
        """The state that the holder wrote last; None if there is none yet."""
        return _read(self.state)

    def abandoned(self) -> bool:
        """Whether the process that brought the lab up has ended, so that the lab is about to end.

        An attached lab ends with its owner at any time, any other lab only while it comes up: within moments.
        """
        owner, state = _read(self.owner), self.read_state()
        if owner is None or _runs(owner):
            return False
        return bool(owner["attached"]) or state is None or state.get("status") in ("starting", "failed")

    def alive(self) -> bool:
        """Whether a lab of this name is up, coming up or going down."""
        return _is_locked(self.lock)

    def busy(self) -> bool:
        """Whether another process works in the lab: the one that brought it up, or one that measures in it."""
        owner = _read(self.owner)
        works = (owner is not None and _runs(owner) and not self.is_own()) or any(
            _is_locked(claim) for claim in self.root.glob("*.claim")
        )
        return self.alive() and works

    def claim(self, node: str) -> Path:
        """The file that a process locks while it measures in a node."""
        return self.root / f"{node}.claim"

    @contextmanager
    def locked(self) -> Iterator[int | None]:
        """Takes the lab's lock without waiting: its file descriptor, or None if another process holds it.

        The lock is released at the end of the block unless a child has inherited the descriptor.
        """
        while True:
            self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # another process removed the folder, with its last lab, in between
            try:
                if not take_lock(descriptor):
                    yield None
                    return
                # `remove` unlinks the file while it holds the lock: ours may no longer have a name.
                named = False
                with suppress(FileNotFoundError):
                    named = self.lock.stat().st_ino == os.fstat(descriptor).st_ino
                if named:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def is_own(self) -> bool:
        """Whether this process brought the lab up, so that nothing else relies on its paths."""
        owner, me = _read(self.owner), os.getpid()
        return owner is not None and (owner["pid"], owner["started_ticks"]) == (me, process.start_time_ticks(me))

    def remove(self) -> None:
        """Removes all files, and the folder of all labs with the last of them. Call it with the lock held."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.lock.unlink(missing_ok=True)
        with suppress(OSError):  # another lab is there
            self.root.parent.rmdir()


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return not take_lock(handle.fileno(), shared=True)
    except FileNotFoundError:
        return False


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(UsageError):
        return read_json(path)
    return None


def _runs(owner: Mapping[str, Any]) -> bool:
    return process.start_time_ticks(int(owner["pid"])) == int(owner["started_ticks"])


def lab_folder(name: str) -> LabFolder:
    """The folder of the lab of that name. Raises UsageError if no lab can have that name, LabError if its path is too
    long for a socket.
    """
    if Path(name).name != name or name in ("", ".."):  # a path leads out of the folder of labs, which `down` removes
        raise UsageError(f"{name!r} is not the name of a lab", remedy="see: upshift lab status")
    folder = LabFolder(state_directory() / "lab" / name)
    if len(os.fsencode(folder.socket)) > LONGEST_SOCKET_PATH:
        raise LabError(
            f"the path of the lab's control socket is longer than {LONGEST_SOCKET_PATH} bytes",
            where=str(folder.socket),
            remedy="set UPSHIFT_STATE_DIR to a folder with a shorter path",
        )
    return folder


def all_labs() -> list[LabFolder]:
    """Every lab of this state folder, dead ones included."""
    root = state_directory() / "lab"
    names = {path.name for path in root.glob("*") if path.is_dir()} | {path.stem for path in root.glob("*.lock")}
    return [LabFolder(root / name) for name in sorted(names)]
