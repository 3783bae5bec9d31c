"""The filter of system calls around a unit's programs: what they use works, what leads to root does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vantage.host import syscall_filter

LOOK = """
import errno, fcntl, socket
def tried(what):
    try:
        what()
    except OSError as error:
        return errno.errorcode.get(error.errno)
def netlink(number):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, number).close()
print([tried(lambda: netlink(number)) for number in (0, 4, 12, 16, 15, 9)])
with socket.socket() as own:
    print([tried(lambda: fcntl.ioctl(own, number, bytes(48))) for number in (0x541B, 0x4030586B, 0x940C)])
print(tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0).close()))
"""


def test_netlink_and_ioctl_are_what_programs_need_and_no_more() -> None:
    argv = ["setpriv", "--no-new-privs", sys.executable, syscall_filter.__file__, sys.executable, "-c", LOOK]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = ["[None, None, None, None, 'EPERM', 'EPERM']", "[None, 'EPERM', 'EPERM']", "None"]
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")


def test_a_program_that_is_missing_is_one_sentence() -> None:
    argv = ["setpriv", "--no-new-privs", sys.executable, syscall_filter.__file__, "/nowhere"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "upshift: /nowhere is not started: No such file or directory\n")


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(OSError, match="the system calls of a pdp11 are not known"):
        syscall_filter.program("pdp11")
