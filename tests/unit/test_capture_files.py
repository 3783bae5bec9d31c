"""Two files of tcpdump become one, in order of time."""

from __future__ import annotations

import errno
import re
import struct
import sys
from pathlib import Path

import pytest

from core.errors import PlaceError
from core.system import process
from downloader.execution.capture import Captured, Tcpdump, insert, part_names
from tests.captures import scan_capture

MAGIC = 0xA1B2C3D4


def write(path: Path, packets: list[tuple[int, int, bytes]], *, link: int = 1, snap: int = 160) -> None:
    data = struct.pack("=IHHiIII", MAGIC, 2, 4, 0, 0, snap, link)
    for seconds, microseconds, content in packets:
        kept = content[:snap]
        data += struct.pack("=IIII", seconds, microseconds, len(kept), len(content)) + kept
    path.write_bytes(data)


def read(path: Path) -> tuple[int, list[tuple[int, int, bytes]]]:
    data, found, at = path.read_bytes(), [], 24
    while at < len(data):
        seconds, microseconds, size, _ = struct.unpack_from("=IIII", data, at)
        found.append((seconds, microseconds, data[at + 16 : at + 16 + size]))
        at += 16 + size
    return struct.unpack_from("=I", data, 16)[0], found


@pytest.mark.parametrize(
    ("headers", "whole", "order"),
    [
        ([(1, 5), (2, 0), (2, 7)], [(1, 0), (2, 3)], "wHHwH"),
        ([(1, 5), (2, 0)], [(1, 5), (9, 0), (9, 0)], "wHHww"),
        ([], [(1, 0)], "w"),
        ([(1, 0), (3, 0)], [], "HH"),
    ],
)
def test_packets_are_in_order_of_time(
    tmp_path: Path, headers: list[tuple[int, int]], whole: list[tuple[int, int]], order: str
) -> None:
    into, few = tmp_path / ".a.part.pcap", tmp_path / ".a.long.part.pcap"
    write(into, [(*time, b"H" * 1000) for time in headers])
    write(few, [(*time, b"w" * 1200) for time in whole], snap=65_535)
    insert(into, few)
    snap, found = read(into)
    assert "".join(content[:1].decode() for _, _, content in found) == order
    assert [time for *time, _ in found] == sorted(list(time) for time in headers + whole)
    assert {len(content) for _, _, content in found if content[:1] == b"w"} <= {1200}
    assert {len(content) for _, _, content in found if content[:1] == b"H"} <= {160}
    assert snap == 65_535
    assert [path.name for path in tmp_path.iterdir() if path != few] == [into.name]
    assert not scan_capture(into).warnings


def test_names_that_ubuntu_lets_tcpdump_write() -> None:
    """Its AppArmor profile allows `/**.[pP][cC][aA][pP] rw` (/etc/apparmor.d/usr.bin.tcpdump of 22.04 and 24.04)."""
    folder = Path("/var/lib/upshift/week/results/vantage/MUC/captures")
    for name in ("0-example.org.pcap", "0-example.org.pcap.zst"):
        assert all(re.fullmatch(r"/.*\.pcap", str(part)) for part in part_names(folder / name))


def test_captures_of_different_kinds_are_refused(tmp_path: Path) -> None:
    into, few = tmp_path / "a.pcap", tmp_path / "b.pcap"
    write(into, [(1, 0, b"x")])
    write(few, [(1, 0, b"y")], link=113)
    before = into.read_bytes()
    with pytest.raises(PlaceError, match="captures of different kinds"):
        insert(into, few)
    assert into.read_bytes() == before


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from downloader.execution.capture import insert
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    insert(*map(Path, sys.argv[1:]))
except OSError as error:
    print(error.errno)
"""


def test_a_disk_that_fills_meanwhile_leaves_no_half_of_a_capture(tmp_path: Path) -> None:
    into, few = (tmp_path / name for name in (".a.part.pcap", ".a.long.part.pcap"))
    write(into, [(n, 0, b"H" * 160) for n in range(1_000)])
    write(few, [(500, 0, b"w" * 1200)], snap=65_535)
    done = process.run([sys.executable, "-c", FULL_DISK, str(into), str(few)]).check(doing="merging")
    assert done.stdout == f"{errno.EFBIG}\n"
    assert sorted(tmp_path.iterdir()) == [few, into], "the two files, by which the attempt is counted"


BUSY_TCPDUMP = """
import signal, sys, time
def tell(count):
    words = ("captured", "received by filter", "dropped by kernel")
    print(*(f"{n} packets {word}" for n, word in zip((count, count, 0), words)), sep="\\n", file=sys.stderr, flush=True)
def end(*_):
    tell(5)
    time.sleep(0.3)
    tell(7)
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGINT, end)
print("listening on lab", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""


def test_a_late_answer_is_not_that_of_the_end(tmp_path: Path) -> None:
    """Until tcpdump has told how many packets it has captured in the end, it writes to its file."""
    with process.start([sys.executable, "-c", BUSY_TCPDUMP], stderr=True, binary=True) as child:
        tcpdump = Tcpdump(child, tmp_path / "a.pcap", "A")
        tcpdump.wait_until_ready()
        assert tcpdump.finish() == Captured(packets=7, received=7, dropped=0)
