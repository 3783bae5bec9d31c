"""The lab's private mount namespace: its own /run/netns and /etc/resolv.conf, everything else as on the host."""

from __future__ import annotations

import tempfile
from pathlib import Path

from core.errors import LabError
from core.system import process

RUN = Path("/run")
NETNS = RUN / "netns"


def private_netns_folder() -> None:
    """Covers /run/netns, where iproute2 keeps namespaces, with an empty file system that is private to the lab."""
    try:
        NETNS.mkdir(mode=0o755, exist_ok=True)
    except PermissionError:
        _private_run()
        NETNS.mkdir(mode=0o755, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-lab", str(NETNS))


def _private_run() -> None:
    """Covers /run with a folder that has the same entries, since only root can create /run/netns.

    Everything stays reachable at its path (this lab's own folder may be below /run/user).
    """
    staging = Path(tempfile.mkdtemp(prefix="upshift-run-"))
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-run", str(staging))
    for entry in RUN.iterdir():
        copy = staging / entry.name
        try:
            if entry.is_symlink():
                copy.symlink_to(entry.readlink())
            elif entry.is_dir():
                copy.mkdir()
                _mount("--rbind", str(entry), str(copy))
            else:
                copy.touch()
                _mount("--bind", str(entry), str(copy))
        except (OSError, LabError):
            continue  # if it cannot be bound, we may not use it either
    _mount("--move", str(staging), str(RUN))
    staging.rmdir()


def cover_resolv_conf(replacement: Path) -> None:
    """Makes programs in the lab use the lab's DNS server."""
    target = Path("/etc/resolv.conf")
    if target.exists():
        _mount("--bind", str(replacement), str(target.resolve()))


def _mount(*arguments: str) -> None:
    done = process.run(["mount", *arguments])
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LabError(f"mounting in the lab's own mount namespace failed ({said})", remedy="see: upshift doctor")
