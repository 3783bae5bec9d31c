"""The folder for this user's runtime files: locks, sockets, what a campaign changed on this host.

On a vantage point of a fleet, root's folder belongs to the user of the service that runs the campaigns there.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from core.errors import LabError

ROOTS = Path("/run/upshift")
"""Root's folder. On a vantage point of a fleet it belongs to the service's user."""

SERVICE_RIGHTS = ("net_admin", "sys_admin", "net_raw")
"""Capabilities of the service on a vantage point. The role vantage repeats them as `vantage_capabilities`, and a test
compares the two lists."""


def state_directory() -> Path:
    """`$UPSHIFT_STATE_DIR`, else a folder for this user's runtime files; created with mode 0700 if missing.

    Raises LabError if it belongs to another user.
    """
    if given := os.environ.get("UPSHIFT_STATE_DIR"):
        path = Path(given).absolute()
    elif _is_roots():
        # Root has XDG_RUNTIME_DIR by SSH, and none by sudo, cron and systemd: in two folders, two campaigns would not
        # know of each other, and logind removes that of a session with what has to be undone.
        path = ROOTS
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "upshift"
    else:
        # In a world-writable folder, so its owner is checked below.
        path = Path(tempfile.gettempdir()) / f"upshift-{os.geteuid()}"
    remedy = "set UPSHIFT_STATE_DIR to a folder that you own"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        what = f"the folder for the lab's state cannot be used ({error.strerror})"
        raise LabError(what, where=str(path), remedy=remedy) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        what = "the folder for the lab's state belongs to another user"
        if path == ROOTS and (user := service_user()):
            what = f"the folder for this host's state belongs to {user.pw_name}, the user of its fleet's campaigns"
            remedy = f"leave campaigns on this host to its fleet; for a lab {remedy}"
        raise LabError(what, where=str(path), remedy=remedy)
    return path


def _is_roots() -> bool:
    """Whether root's folder is ours. Root of a user namespace alone may not write to /run."""
    return os.geteuid() == 0 and os.access(ROOTS.parent, os.W_OK)


def service_user() -> pwd.struct_passwd | None:
    """The user to whom root's folder belongs, if we are root and that is another; None with UPSHIFT_STATE_DIR, or where
    that user is gone.
    """
    if os.environ.get("UPSHIFT_STATE_DIR") or not _is_roots() or not ROOTS.is_dir():
        return None
    owner = ROOTS.lstat().st_uid
    with suppress(KeyError):
        return pwd.getpwuid(owner) if owner else None
    return None
