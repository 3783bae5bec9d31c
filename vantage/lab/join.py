"""Enters a lab that runs without root, and executes a program there. Standard library only, started with `-I -S`.

    join.py PID NODE PROGRAM [ARGUMENT...]

nsenter(1) cannot keep capabilities across execve(2) for a user ID other than 0 before util-linux 2.40 (`--keep-caps`):
they must be raised into the ambient set (capabilities(7)).
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63


def main() -> None:
    """Joins user, mount and network namespace, then executes."""
    pid, node, *argv = sys.argv[1:]
    library = ctypes.CDLL(None, use_errno=True)
    # Open all before the first change of namespace: afterwards /proc and /run may differ.
    paths = (f"/proc/{pid}/ns/user", f"/proc/{pid}/ns/mnt", f"/proc/{pid}/root/run/netns/{node}")
    try:
        descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        for descriptor in descriptors:
            if library.setns(descriptor, 0):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        keep_capabilities(library)
        os.execvp(argv[0], argv)  # noqa: S606 - replacing this process is its purpose
    except OSError as error:
        sys.stderr.write(f"the lab's node {node} cannot be entered ({error})\n")
        raise SystemExit(125) from None


def keep_capabilities(library: ctypes.CDLL) -> None:
    """Makes every permitted capability inheritable and ambient, so that it survives execve(2)."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    if library.capget(header, data):
        return
    data[2], data[5] = data[1], data[4]
    library.capset(header, data)
    for number in range(LAST_CAPABILITY + 1):
        library.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)


if __name__ == "__main__":
    main()
