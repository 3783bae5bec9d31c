"""`ws_class` against tshark on every TCP packet, and `true_class` against what the sender knows.

The rules are those of the tshark that is installed, 4.0 or 4.4; UPSHIFT_TSHARK names another program.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

upshift_native = pytest.importorskip("upshift_native")

from tests.captures import scan_capture  # noqa: E402
from tests.contract.test_pcapscan_counts import plain  # noqa: E402

CLASSES = (
    "fast_retransmission",
    "spurious_retransmission",
    "retransmission",
    "out_of_order",
    "zero_window_probe_ack",
    "zero_window_probe",
    "keep_alive_ack",
    "keep_alive",
    "duplicate_ack",
)
"""tshark's marks, the most specific first where it sets several."""

QUICK_LIMIT = 4_000_000
"""Larger captures take tshark more than a few seconds; UPSHIFT_FULL_PARITY=1 compares them too."""


def rows(capture: Path, folder: Path, rules: str = "4.0") -> dict[int, dict[str, str]]:
    """The engine's rows by frame number."""
    out = folder / "packets.csv"
    with out.open("wb") as stream:
        upshift_native.write_packets(capture, stream.fileno(), rules=rules)
    with out.open(newline="") as text:
        return {int(row["frame"]): row for row in csv.DictReader(text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tshark:
    """A tshark and the rules that the engine calls by its version."""

    program: str
    rules: str


def tshark_rows(tshark: Tshark, capture: Path, folder: Path) -> dict[int, tuple[str, str, str]]:
    """tshark's (seq, len, class) by frame number; packets quoted in ICMP and fragments left out, as the engine does."""
    path = plain(capture, folder)
    fields = ["frame.number", "tcp.seq", "tcp.len", "icmp.type", "icmpv6.type", "ip.fragment"]
    fields += [f"tcp.analysis.{name}" for name in CLASSES]
    command = [tshark.program, "-n", "-r", str(path), "-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]
    command += [part for name in fields for part in ("-e", name)]
    found = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        number, seq, length, *others = line.split(";")
        if seq and not any(others[:3]):
            name = next((name for name, mark in zip(CLASSES, others[3:], strict=True) if mark), "")
            found[int(number)] = (seq, length, "dup_ack" if name == "duplicate_ack" else name)
    return found


def differences(tshark: Tshark, capture: Path, folder: Path) -> tuple[int, list[object]]:
    ours, theirs = rows(capture, folder, tshark.rules), tshark_rows(tshark, capture, folder)
    wrong: list[object] = []
    for number, expected in theirs.items():
        row = ours.get(number)
        got = None if row is None else (row["seq"], row["len"], row["ws_class"])
        if got != expected:
            wrong.append((number, expected, got))
    return len(theirs), wrong


@pytest.fixture(scope="session")
def tshark() -> Tshark:
    program = shutil.which(os.environ.get("UPSHIFT_TSHARK", "tshark"))
    if program is None:
        pytest.skip("tshark is not installed")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+\.\d+)\.\d+", said)
    if version is None or version[1] not in ("4.0", "4.4"):
        pytest.skip(f"tshark is neither 4.0 nor 4.4, whose rules the engine knows: {said.splitlines()[0]}")
    return Tshark(program=program, rules=version[1])


def test_parity_on_every_sample(shared_data: Path, tmp_path: Path, tshark: Tshark) -> None:
    total = 0
    for capture in sorted((shared_data / "captures").iterdir()):
        if capture.stat().st_size > QUICK_LIMIT and "UPSHIFT_FULL_PARITY" not in os.environ:
            continue
        count, wrong = differences(tshark, capture, tmp_path)
        total += count
        assert not wrong, f"{capture.name}: {len(wrong)} of {count} differ, first {wrong[:5]}"
    assert total > 100_000


@pytest.mark.parametrize(("seed", "share"), [(1, 0.0), (2, 0.3), (3, 0.6), (4, 0.9)])
def test_parity_on_random_segments(tmp_path: Path, tshark: Tshark, seed: int, share: float) -> None:
    from tests.unit.pcap_writer import random_connections

    capture = tmp_path / "random.pcap"
    capture.write_bytes(random_connections(seed=seed, connections=150, packets=40, plain_share=share))
    count, wrong = differences(tshark, capture, tmp_path)
    assert count == 6000
    assert not wrong, f"{len(wrong)} of {count} differ, first {wrong[:5]}"


def test_the_truth_behind_508_retransmissions(shared_data: Path, tmp_path: Path) -> None:
    """Of 652 packets that came behind others 508 were sent again (tcp_info) and 144 were overtaken."""
    received = rows(shared_data / "captures" / "lab_m500.rcv.pcap.zst", tmp_path).values()
    counts = Counter(row["true_class"] for row in received)
    assert (counts["retransmission"], counts["reordered"]) == (508, 144)


def test_retransmitted_bytes_are_the_senders(shared_data: Path) -> None:
    captures = shared_data / "captures"
    received, sent = (
        [c.server.retransmitted_bytes for c in scan_capture(captures / f"lab_m500.{side}.pcap.zst").connections]
        for side in ("rcv", "snd")
    )
    assert received == sent
    assert sum(sent) > 700_000


def test_ecn_counts_of_the_lab_capture(shared_data: Path) -> None:
    connections = scan_capture(shared_data / "captures" / "lab_m500.rcv.pcap.zst").connections
    assert sum(c.server.ce_packets for c in connections) == 186
    assert sum(c.client.ece_packets for c in connections) == 2312
    assert sum(c.server.cwr_packets + c.client.cwr_packets for c in connections) == 537


@pytest.mark.parametrize("snap_length", [54, 58, 60, 66])
def test_parity_where_the_snap_length_cuts_options(
    shared_data: Path, tmp_path: Path, tshark: Tshark, snap_length: int
) -> None:
    """Wireshark gives up inside such a header and shows no verdict, though it remembers what it found."""
    if shutil.which("editcap") is None:
        pytest.skip("editcap is not installed")
    capture = tmp_path / "cut.pcap"
    for name in ("zeek_ssh-dups.pcap", "ndpi_weibo.pcap", "arkime_wireshark-retrans.pcap"):
        source = shared_data / "captures" / name
        subprocess.run(["editcap", "-s", str(snap_length), str(source), str(capture)], check=True)
        count, wrong = differences(tshark, capture, tmp_path)
        assert not wrong, f"{name}: {len(wrong)} of {count} differ, first {wrong[:5]}"
