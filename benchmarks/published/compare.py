"""Figures of the published ANRW'23 code and ours from the same captures, download by download.

usage: uv run --no-sync --with pandas --with scipy python compare.py PUBLISHED CAMPAIGN

PUBLISHED is `src/pcap_analysis` of a checkout of tumi8/active-tcp-and-quic-measurements, CAMPAIGN the folder of a
campaign that has its captures. Needs tcpdump and tshark. The published code expects one connection per capture, so each
TCP download's packets are cut out of ours first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import zstandard

from analysis.measures import dataset
from analysis.measures.dataset import Record
from core.domain import Outcome, Transport

FIELDS = (
    "bytes from server",
    "bytes from client",
    "packets from server",
    "packets from client",
    "handshake",
    "duration",
    "throughput",
)
RELATIVE = 1e-6
"""Epoch seconds are 64-bit floats there, with a resolution of 0.24 µs; ours are nanoseconds."""
RESOLUTION_S = 1e-6


def ours(record: Record) -> list[float | None]:
    """Bytes, packets, seconds and Mbit/s, in the order of `FIELDS`."""
    names = ("ip_bytes_from_server", "ip_bytes_from_client", "packets_from_server", "packets_from_client")
    return [record.number(name) for name in (*names, "handshake", "duration", "throughput_published")]


def theirs(folder: Path) -> list[float]:
    """The same from `folder/capture.pcap` by the published code, which runs in its own folder."""
    from lib.capture import Capture  # type: ignore[import-not-found]
    from lib.lib import get_cst  # type: ignore[import-not-found]
    from lib.tcp_flow_info import TCPFlowCharacteristics  # type: ignore[import-not-found]

    capture: Any = Capture(str(folder), False)
    flow: Any = TCPFlowCharacteristics(capture.capture_df, capture.ips)
    # IPv6 counts without its 40 bytes of header there.
    header = 40 if capture.ips.ip_version == 6 else 0
    packets, size = flow.flowpackets, flow.flowbytes
    from_server = size.rx_bytes + header * packets.rx_packets
    return [
        from_server,
        size.tx_bytes + header * packets.tx_packets,
        packets.rx_packets,
        packets.tx_packets,
        get_cst(capture.capture_df, capture.ips) / 1e3,
        flow.flowduration.duration,
        from_server * 8 / flow.flowduration.duration / 1e6,
    ]


def cut(record: Record, campaign: Path, folder: Path) -> None:
    """The packets of one download into `folder/capture.pcap`."""
    download = record.download
    assert download.capture is not None
    expression = f"tcp port {download.local_port} and host {download.local_ip}"
    command = ["tcpdump", "-n", "-r", "-", "-w", str(folder / "capture.pcap"), expression]
    with zstandard.open(campaign / download.capture, "rb") as packed:
        subprocess.run(command, input=packed.read(), check=True, capture_output=True)


def differs(field: str, one: float | None, other: float) -> bool:
    if one is None:
        return True
    slack = RESOLUTION_S if field in ("handshake", "duration") else 0.0
    # A rate inherits the duration's resolution.
    relative = 1e-5 if field == "throughput" else RELATIVE if slack else 0.0
    return abs(one - other) > slack + relative * abs(other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("campaign", type=Path)
    arguments = parser.parse_args()
    campaign = arguments.campaign.resolve()
    records = [
        record
        for record in dataset.load([campaign]).records
        if record.download.transport == Transport.TCP and record.download.outcome == Outcome.OK
    ]
    published = arguments.published.resolve()
    sys.path.insert(0, str(published))
    wrong: Counter[str] = Counter()
    equal = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # It reads its tshark command from the current folder. Wireshark 4 calls one of the fields by another name.
        command = (published / "tshark_cmd.txt").read_text(encoding="ascii").replace("tcp.flags.ecn", "tcp.flags.ece")
        (folder / "tshark_cmd.txt").write_text(command, encoding="ascii")
        os.chdir(folder)
        for number, record in enumerate(records):
            cut(record, campaign, folder)
            found = theirs(folder)
            unequal = [
                f"{field} {one} and {other}"
                for field, one, other in zip(FIELDS, ours(record), found, strict=True)
                if differs(field, one, other)
            ]
            wrong.update(text.split(" ")[0] for text in unequal)
            equal += not unequal
            if unequal:
                d = record.download
                print(f"{d.vantage} {d.domain} {d.configuration} {d.iteration}: {'; '.join(unequal)}")
            if number % 50 == 49:
                print(f"{number + 1} of {len(records)}", file=sys.stderr)
    print(
        f"{equal} of {len(records)} TCP downloads equal in {len(FIELDS)} figures; differences: {dict(wrong) or 'none'}"
    )
    return 0 if records and equal == len(records) else 1


if __name__ == "__main__":
    sys.exit(main())
