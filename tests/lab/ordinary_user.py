"""Programs as an ordinary user, although interpreter and checkout may lie below /root, which only root may pass."""

from __future__ import annotations

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

OPEN_ROOT = r"""
open_root() {  # SCRATCH PATH...: in this mount namespace /root has the folders of these paths alone, for everybody
    mkdir "$1/root"
    mount --rbind /root "$1/root"
    mount -t tmpfs -o mode=755 none /root
    for path in "${@:2}"; do
        case "$path" in /root/*) top=$(printf %s "$path" | cut -d/ -f3) ;; *) continue ;; esac
        [ ! -e "/root/$top" ] || continue
        mkdir "/root/$top"
        mount --rbind "$1/root/$top" "/root/$top"
    done
}
"""
NEEDED = (sys.executable, os.path.realpath(sys.executable), str(REPOSITORY))
"""What every Python program of the checkout needs."""

_RUN = r"""
set -eu
uid=$1
mount -t tmpfs -o mode=755 none /mnt
open_root /mnt "${@:2:3}"
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups -- "${@:5}"
"""


def prefix(uid: int) -> list[str]:
    """What stands before a command that this user runs; only root may."""
    namespace = ["unshare", "--mount", "--propagation", "private"]
    return [*namespace, "bash", "-c", OPEN_ROOT + _RUN, "as-user", str(uid), *NEEDED]
