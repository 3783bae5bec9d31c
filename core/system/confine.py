"""What a program gives up for good before it reads a stranger's bytes (docs/design/privilege.md).

`confine` is called when code, certificates and sockets are there, as the last step before the first packet. Afterwards
the process has no capability and no way to a new one, another user where it may change its user, no file, no program,
no child, no other TCP port, no signal to others, and bounded memory and descriptors. What is open stays open.

A rule that a kernel lacks is left out, the others hold. The order matters: capabilities are needed to leave the groups
and the user, and a change of user clears the parent-death signal (kernel/cred.c, commit_creds). Standard library only.
`rust/clientkit/src/confine.rs` does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401 - `ssl` imports it with the first host name, when no file can be opened any more
import errno
import json
import os
import platform
import pwd
import resource
import stat
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser

NOBODY = (65534, 65534)
"""User and group of nobody: the kernel's overflow IDs, which own nothing."""

OPEN_FILES = 64
MEMORY_BYTES = 1 << 30
"""Address space. A client that holds 64 MiB of body needs a quarter of it."""

_SET_DEATH_SIGNAL, _GET_DEATH_SIGNAL, _BOUNDING_DROP, _NO_NEW_PRIVS, _AMBIENT = 1, 2, 24, 38, 47  # linux/prctl.h
_AMBIENT_CLEAR_ALL = 4
_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls of landlock(7), which are the same on all machines; the C library has no functions."""

_RULE_NET_PORT, _BIND_TCP, _CONNECT_TCP, _SCOPES = 2, 1, 2, 3  # linux/landlock.h
_RULE_PATH, _EXECUTE = 1, 1
_READ = 1 << 2 | 1 << 3  # files and folders
_WRITE = _READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14  # remove, make, rename, truncate
_OF_A_FILE = _EXECUTE | 1 << 1 | 1 << 2 | 1 << 14
_CHOWN_AND_DAC_OVERRIDE = 0b11  # linux/capability.h
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/proc/self", "/sys/devices/system", "/dev/urandom", "/run/systemd/resolve"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"),
    *("/etc/localtime", "/etc/mime.types", "/etc/ld.so.cache", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
)
"""What Python and libraries read late: codecs, trust roots, name servers, the number of processors."""

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's version -> how many rights to files it knows; later ones know those of 5."""

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # linux/seccomp.h; refused with the error in the low bits
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NEW_THREAD = 0x10000  # CLONE_THREAD of linux/sched.h
_CLONE3 = 435
_MACHINES = {
    "x86_64": (0xC000003E, 116, 56, (57, 58, 59, 322, 272, 308, 101)),
    "aarch64": (0xC00000B7, 159, 220, (221, 281, 97, 268, 117)),
}
"""Machine -> its AUDIT_ARCH (linux/audit.h), setgroups(2), clone(2), and what clients are refused: fork, vfork, execve,
execveat, unshare, setns, ptrace. RLIMIT_NPROC would not do: it counts threads, and all processes of the user."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What holds for a confined process."""

    user: int
    """User ID."""
    landlock: int
    """Version of Landlock's rules; 0: the kernel has none, so files can be opened as far as the user may."""


def confine(*, port: int | None, user: tuple[int, int] = NOBODY) -> Confinement:
    """Gives up all that the calling process does not need to talk to one server. It must have no second thread.

    Args:
        port: TCP port that may be connected to; None: none. UDP is not restricted (landlock(7)).
        user: user and group to become; without CAP_SETUID, and where a user namespace has no such user, it stays.

    Raises:
        OSError: a rule that this kernel knows could not be set.
    """
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        _lower(limit, value)
    _lower(resource.RLIMIT_AS, MEMORY_BYTES)
    _prctl(_NO_NEW_PRIVS, 1)
    _leave_user(*user)
    _keep_capabilities(0)
    version = _restrict(_BIND_TCP | _CONNECT_TCP, port, {})
    _filter_system_calls()
    return Confinement(user=os.geteuid(), landlock=version)


def confine_here(*, reads: Iterable[Path], writes: Iterable[Path]) -> None:
    """For a command that reads strangers' bytes and writes results itself: no program, no child, no tracing, no port to
    serve, no signal to others, and of files these, and what Python and the system's libraries need.

    The user stays, as the results are the user's. Root keeps two capabilities: to write into folders of others, and to
    give results to the user who called sudo. It must have no second thread.

    Args:
        reads: files and folders that it may read, with all that is below them.
        writes: folders where it may also make, rename and remove files.

    Raises:
        OSError: a rule that this kernel knows could not be set.
    """
    _prctl(_NO_NEW_PRIVS, 1)
    _drop_bounding()
    _keep_capabilities(_CHOWN_AND_DAC_OVERRIDE & capabilities("CapPrm"))
    named = [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
    own = [*_SYSTEM, sys.prefix, sys.base_prefix, *(entry for entry in (*sys.path, *named) if entry)]
    files = {**dict.fromkeys([*own, *map(str, reads)], _READ), "/dev/null": _WRITE}
    _restrict(_BIND_TCP, None, files | dict.fromkeys(map(str, writes), _WRITE))
    _filter_system_calls()


def capabilities(which: str) -> int:
    """One of this process's sets, as /proc/self/status names them (`CapEff`), as bits."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 - a client imports little
        return next(int(line.split()[1], 16) for line in status if line.startswith(f"{which}:"))


_NET_RAW, _SET_BOUNDING = 1 << 13, 1 << 8  # linux/capability.h
_LEAVE_ROOT = 1 << 6 | 1 << 7 | _SET_BOUNDING  # CAP_SETGID, CAP_SETUID, CAP_SETPCAP


def with_net_raw_only(status: str, uid_map: str) -> tuple[str, ...]:
    """The start of a command line that leaves a program of others CAP_NET_RAW and no other capability.

    It becomes nobody where that is possible; root that cannot is root by name only (`become_with_net_raw_only`).
    Nothing is given up without that capability: the program's file may have it for an ordinary user (capabilities(7)).

    Args:
        status, uid_map: of /proc/self, as a program reads them where it starts.
    """
    lines = dict(line.split(":", 1) for line in status.splitlines())
    held, is_root = int(lines["CapEff"], 16), lines["Uid"].split()[1] == "0"
    if not held & _NET_RAW:
        return ()
    user, group = NOBODY
    has_nobody = any(int(a) <= user < int(a) + int(n) for a, _, n in map(str.split, uid_map.splitlines()))
    if is_root and not (has_nobody and held & _LEAVE_ROOT == _LEAVE_ROOT):
        return (sys.executable, "-P", "-m", "core.system.confine", "--net-raw-only", "--")
    begin: tuple[str, ...] = ("setpriv", "--inh-caps=-all,+net_raw", "--ambient-caps=-all,+net_raw", "--no-new-privs")
    begin += ("--bounding-set=-all,+net_raw",) if held & _SET_BOUNDING else ()
    begin += (f"--reuid={user}", f"--regid={group}", "--clear-groups") if is_root else ()
    return (*begin, "--pdeathsig=KILL", "--")


def become_with_net_raw_only(argv: Sequence[str]) -> None:
    """Becomes a program that stays root without root's rights: CAP_NET_RAW, and to read the system's files.

    With no_new_privs root gains nothing when it starts a program (security/commoncap.c, cap_bprm_creds_from_file).
    tcpdump insists on leaving its groups, which takes a right: it is told that it has.
    """
    _prctl(_NO_NEW_PRIVS, 1)
    _drop_bounding(but=_NET_RAW)
    _keep_capabilities(_NET_RAW)
    _restrict(_BIND_TCP | _CONNECT_TCP, None, dict.fromkeys([*_SYSTEM, "/etc/passwd", "/etc/group"], _READ | _EXECUTE))
    if (machine := _MACHINES.get(platform.machine())) is not None:
        architecture, setgroups, *_ = machine
        steps = [(_LOAD, 0, 0, 4), (_EQUAL, 0, 3, architecture), (_LOAD, 0, 0, 0), (_EQUAL, 0, 1, setgroups)]
        _filter([*steps, (_GIVE, 0, 0, _REFUSE), (_GIVE, 0, 0, _ALLOW)])  # refused with error 0
    os.execvp(argv[0], list(argv))  # noqa: S606 - replacing this process is its purpose


def landlock_version() -> int:
    """The version of Landlock that the kernel offers to this process; 0: none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def _leave_user(user: int, group: int) -> None:
    signal, parent = ctypes.c_int(), os.getppid()
    _prctl(_GET_DEATH_SIGNAL, ctypes.byref(signal))
    _drop_bounding()
    with contextlib.suppress(OSError):  # without the rights of root it stays who it is
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    _prctl(_SET_DEATH_SIGNAL, signal.value)
    if signal.value and os.getppid() != parent:
        os._exit(71)  # the parent died while nothing would have told us


def _drop_bounding(but: int = 0) -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        if not but >> capability & 1 and _libc.prctl(_BOUNDING_DROP, capability, 0, 0, 0):
            break  # there is no such capability, or the right to drop any is missing: then none can be gained either


def _keep_capabilities(kept: int) -> None:
    """Keeps these, which are held and below 32, and no others."""
    data = struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    if ctypes.c_int(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), data)).value:
        raise _error("capset")
    _prctl(_AMBIENT, _AMBIENT_CLEAR_ALL)


def _filter_system_calls() -> None:
    if (filters := _system_calls(platform.machine())) is not None:
        _filter(filters)


def _filter(program: Sequence[tuple[int, int, int, int]]) -> None:
    """Sets a filter (seccomp(2)) of `struct sock_filter` (linux/filter.h)."""
    held = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))
    head = struct.pack("@HP", len(program), ctypes.addressof(held))
    if _libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, head, 0, 0):
        raise _error("seccomp")


def _restrict(network: int, port: int | None, allowed: Mapping[str, int]) -> int:
    """Landlock's rules for files and these network rights; its version.

    `port` may be connected to; `allowed`: path -> rights there and below.
    """
    version = landlock_version()
    if not version:
        return 0
    files = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    network = network if version >= 4 else 0
    rules = struct.pack("=QQQ", files, network, _SCOPES if version >= 6 else 0)
    held = _libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    if held < 0:
        raise _error("landlock_create_ruleset")
    try:
        if network and port is not None:
            rule = struct.pack("=QQ", _CONNECT_TCP, port)
            if _libc.syscall(_ADD_RULE, held, _RULE_NET_PORT, rule, 0):
                raise _error("landlock_add_rule")
        for path, rights in allowed.items():
            _allow(held, path, rights & files)
        if _libc.syscall(_RESTRICT_SELF, held, 0):
            raise _error("landlock_restrict_self")
    finally:
        os.close(held)
    return version


def _allow(held: int, path: str, rights: int) -> None:
    try:
        below = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there, or not ours to see, needs no rule
    try:
        of_kind = rights if stat.S_ISDIR(os.fstat(below).st_mode) else rights & _OF_A_FILE
        if _libc.syscall(_ADD_RULE, held, _RULE_PATH, struct.pack("=Qi", of_kind, below), 0):
            raise _error("landlock_add_rule")
    finally:
        os.close(below)


def _system_calls(machine: str) -> list[tuple[int, int, int, int]] | None:
    """A filter that lets a process make threads, and nothing that runs something else. None: the machine's numbers are
    not known.
    """
    if machine not in _MACHINES:
        return None
    architecture, _, clone, refused = _MACHINES[machine]
    allow, refuse, unknown = _ALLOW, _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
    # Jumps are counted from the end, where the three verdicts are: allow, refuse, unknown.
    steps: list[tuple[int, int, int | None, int | None]] = [
        (_LOAD, 4, None, None),
        (_EQUAL, architecture, None, refuse),
        (_LOAD, 0, None, None),
    ]
    steps += [(_AT_LEAST, 1 << 30, refuse, None)]  # the x32 numbers of x86_64
    steps += [(_EQUAL, number, refuse, None) for number in refused]
    # clone3 has its flags in memory, where no filter sees them; without it the C library uses clone.
    steps += [(_EQUAL, _CLONE3, unknown, None), (_EQUAL, clone, None, allow)]
    steps += [(_LOAD, 16, None, None), (_ANY_BIT, _NEW_THREAD, allow, refuse)]
    verdicts = (allow, refuse, unknown)

    def jump(at: int, to: int | None) -> int:
        return 0 if to is None else len(steps) - at - 1 + verdicts.index(to)

    program = [(code, jump(at, yes), jump(at, no), value) for at, (code, value, yes, no) in enumerate(steps)]
    return program + [(_GIVE, 0, 0, verdict) for verdict in verdicts]


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    least = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (least, least))


def _prctl(option: int, value: object) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise _error(f"prctl {option}")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def user_of(name: str, *, where: str) -> tuple[int, int]:
    """User and group of a name. Raises UsageError if there is no such user, or if it is root."""
    remedy = "name an ordinary user, e.g. nobody"
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"there is no user {name!r}", where=where, remedy=remedy) from None
    if entry.pw_uid == 0:
        raise UsageError(f"{name} is root, whose rights no client may have", where=where, remedy=remedy)
    return entry.pw_uid, entry.pw_gid


def parse_user(text: str) -> tuple[int, int]:
    """`UID:GID`, as clients take it. Raises ValueError."""
    user, group = (int(part) for part in text.split(":"))
    if not (0 < user < 1 << 32 and 0 <= group < 1 << 32):
        raise ValueError(f"{text!r} is not UID:GID of an ordinary user")
    return user, group


def add_run_as(parser: ArgumentParser) -> None:
    """Adds the argument of that name to those of a client program."""
    own = "user and group for the download, if the user may be changed (default: nobody)"
    parser.add_argument("--run-as", type=parse_user, default=NOBODY, metavar="UID:GID", help=own)


def main(argv: Sequence[str]) -> int:
    """Confines itself as a client does and prints what holds then: `python -m core.system.confine [UID:GID]`.

    With `--net-raw-only -- PROGRAM [ARGUMENT...]` it becomes that program instead.
    """
    if argv[:2] == ["--net-raw-only", "--"]:
        become_with_net_raw_only(argv[2:])
    names = {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}
    held = confine(port=None, user=parse_user(argv[0]) if argv else NOBODY)
    user = names.get(held.user, str(held.user))
    print(json.dumps({"user": user, "landlock": held.landlock}))  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
