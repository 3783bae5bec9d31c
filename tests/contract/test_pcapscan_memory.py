"""Memory of `upshift kpis` does not grow with the number of connections."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("upshift_native")

FEW, MANY = 68_000, 136_000
"""Both more than twice what the engine holds at once, and what a row group of the table holds."""

MOST_GROWTH_BYTES = 1_000
"""Per connection; it was 12,000."""


def write_syns(path: Path, count: int) -> None:
    """A SYN from each of `count` clients, 10 a ms."""
    with path.open("wb") as handle:
        handle.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
        for number in range(count):
            ip = struct.pack(">BBHHHBBHII", 0x45, 0, 40, 0, 0, 64, 6, 0, 0xC6120000 + number, 0xC6130001)
            tcp = struct.pack(">HHIIBBHHH", 40000, 443, number, 0, 0x50, 2, 1000, 0, 0)
            handle.write(struct.pack("<IIII", 1 + number // 10_000, number % 10_000 * 100, 40, 40) + ip + tcp)


def peak_bytes(capture: Path, table: Path) -> int:
    """Resident memory of `upshift kpis` at its peak."""
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, '-m', 'upshift', 'kpis', *sys.argv[1:]], check=True, capture_output=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
    )
    argv = [sys.executable, "-c", code, str(capture), "-o", str(table)]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.mark.soak
def test_memory_per_connection(tmp_path: Path) -> None:
    peaks = []
    for count in (FEW, MANY):
        write_syns(tmp_path / "syns.pcap", count)
        peaks.append(peak_bytes(tmp_path / "syns.pcap", tmp_path / "kpis.parquet"))
        numbers = pq.read_table(tmp_path / "kpis.parquet", columns=["connection"])["connection"].to_pylist()
        assert numbers == list(range(count)), "all of them, in order of their first packets"
    assert (peaks[1] - peaks[0]) / (MANY - FEW) < MOST_GROWTH_BYTES
