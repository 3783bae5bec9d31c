"""Starts a program that keeps CAP_SYS_ADMIN without two of its powers, which systemd cannot take away:

    python -m vantage.host.syscall_filter PROGRAM ARGUMENT...

With it a process may send device events as if the kernel did (lib/kobject_uevent.c, uevent_net_rcv_skb), on which udev
runs programs as root; and some file systems open any of their files for it by ioctl(2), whoever owns it
(fs/xfs/xfs_handle.c, xfs_open_by_handle). A filter of system calls (seccomp(2)) looks at their numbers, and holds for
all that the program starts. The unit of a campaign uses it (role vantage). Standard library only, so that it starts
fast.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable

NETLINK = (0, 4, 12, 16)
"""NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_NETFILTER, NETLINK_GENERIC (linux/netlink.h): what ip, ss and nft use."""

IOCTLS = (0x54, 0x89)
"""Types of ioctl requests, their second byte: those of terminals and pipes, and those of sockets and interfaces."""

_SYSTEM_CALLS = {"x86_64": (41, 16), "aarch64": (198, 29)}
"""Machine -> numbers of socket(2) and ioctl(2)."""

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _AF_NETLINK = 22, 2, 16
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06  # linux/bpf_common.h
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # linux/seccomp.h
_NUMBER, _ARGUMENTS = 0, (16, 24, 32)  # struct seccomp_data; the lower halves, on little-endian machines


def _one_of(values: Iterable[int]) -> bytes:
    """Allows the loaded value if it is among these, else refuses."""
    several = list(values)
    jumps = (struct.pack("<HBBI", _EQUAL, len(several) - at, 0, value) for at, value in enumerate(several))
    return b"".join(jumps) + struct.pack("<HBBI", _RETURN, 0, 0, _REFUSE) + struct.pack("<HBBI", _RETURN, 0, 0, _ALLOW)


def program(machine: str) -> bytes:
    """The filter, as an array of `struct sock_filter` (linux/filter.h). Raises OSError for an unknown machine."""
    if machine not in _SYSTEM_CALLS:
        raise OSError(errno.ENOTSUP, f"the system calls of a {machine} are not known")
    socket, ioctl = _SYSTEM_CALLS[machine]
    protocol = struct.pack("<HBBI", _LOAD, 0, 0, _ARGUMENTS[2]) + _one_of(NETLINK)
    family = struct.pack("<HBBI", _LOAD, 0, 0, _ARGUMENTS[0])
    family += struct.pack("<HBBI", _EQUAL, 0, len(protocol) // 8 - 1, _AF_NETLINK) + protocol
    request = struct.pack("<HBBI", _LOAD, 0, 0, _ARGUMENTS[1]) + struct.pack("<HBBI", _AND, 0, 0, 0xFF00)
    request += _one_of(kind << 8 for kind in IOCTLS)
    start = struct.pack("<HBBI", _LOAD, 0, 0, _NUMBER)
    start += struct.pack("<HBBI", _EQUAL, 1, 0, socket)
    start += struct.pack("<HBBI", _EQUAL, len(family) // 8, len(family + request) // 8 - 1, ioctl)
    return start + family + request


def raise_walls() -> None:
    """Applies the filter to this process and all that it starts. Raises OSError where the kernel refuses."""
    instructions = program(platform.machine())
    held = ctypes.create_string_buffer(instructions)
    head = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(held))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the filter of system calls is refused ({os.strerror(number)})")


def main(argv: list[str]) -> None:
    """The program: does not return."""
    try:
        raise_walls()
        os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"upshift: {argv[0]} is not started: {error.strerror}\n")
        raise SystemExit(os.EX_TEMPFAIL) from None


if __name__ == "__main__":
    main(sys.argv[1:])
