"""Bytes, packets and throughput per connection against two tools that count by themselves: tcptrace and tshark."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

upshift_native = pytest.importorskip("upshift_native")

from analysis.captures.scan import kpi_values  # noqa: E402
from tests.captures import scan_capture  # noqa: E402


def plain(capture: Path, folder: Path) -> Path:
    """The capture without compression, which the tools cannot read."""
    if capture.suffix != ".zst":
        return capture
    path = folder / capture.stem
    path.write_bytes(pa.input_stream(capture, compression="zstd").read())
    return path


@pytest.mark.parametrize(
    "name", ["lab_rwnd.rcv.pcap.zst", "lab_app.rcv.pcap.zst", "zeek_206_example_a.pcap", "ndpi_weibo.pcap"]
)
def test_packets_and_bytes_are_tcptraces(shared_data: Path, tmp_path: Path, name: str) -> None:
    if shutil.which("tcptrace") is None:
        pytest.skip("tcptrace is not installed")
    capture = plain(shared_data / "captures" / name, tmp_path)
    said = subprocess.run(["tcptrace", "-l", "-n", "--csv", str(capture)], capture_output=True, text=True, check=True)
    lines = [line for line in said.stdout.splitlines() if "," in line and not line.startswith("#")]
    counts = ("total_packets", "actual_data_pkts", "actual_data_bytes")
    theirs = {}
    for row in csv.DictReader(lines, skipinitialspace=True):
        ends = [(row["host_a"], row["port_a"]), (row["host_b"], row["port_b"])]
        for (source, destination), way in ((ends, "a2b"), (ends[::-1], "b2a")):
            theirs[source, destination] = tuple(int(row[f"{count}_{way}"]) for count in counts)
    connections = scan_capture(capture).connections
    tcp = [connection for connection in connections if connection.protocol == "tcp"]
    ours = {}
    for c in tcp:
        client, server = (c.client_ip, str(c.client_port)), (c.server_ip, str(c.server_port))
        ours[client, server] = (c.client.packets, c.client.data_packets, c.client.payload_bytes)
        ours[server, client] = (c.server.packets, c.server.data_packets, c.server.payload_bytes)
    assert len(ours) == 2 * len(tcp), "a port was used twice, and tcptrace divides such connections by other rules"
    assert ours == theirs
    assert sum(count for _, _, count in ours.values()) > 100_000


@pytest.mark.parametrize("name", ["http2_follow_multistream.pcapng", "ndpi_weibo.pcap", "zeek_206_example_a.pcap"])
def test_published_throughput_is_that_of_tsharks_ip_bytes(shared_data: Path, tmp_path: Path, name: str) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    capture = plain(shared_data / "captures" / name, tmp_path)
    fields = ["tcp.stream", "frame.time_epoch", "ip.src", "ipv6.src", "tcp.srcport", "ip.len", "ipv6.plen"]
    command = ["tshark", "-n", "-r", str(capture), "-Y", "tcp", "-T", "fields", "-E", "separator=;"]
    command += ["-E", "occurrence=f", *(part for name in fields for part in ("-e", name))]
    times_ns: dict[str, list[int]] = defaultdict(list)
    ip_bytes: Counter[tuple[str, str, str]] = Counter()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        stream, time, source, source_6, port, length, payload = line.split(";")
        times_ns[stream].append(int(time.replace(".", "")))
        ip_bytes[stream, source or source_6, port] += int(length) if length else int(payload) + 40
    tcp = [connection for connection in scan_capture(capture).connections if connection.protocol == "tcp"]
    assert len(tcp) == len(times_ns)
    # Both number connections in the order of their first packets.
    for stream, connection in zip(times_ns, tcp, strict=True):
        seen = ip_bytes[stream, connection.server_ip, str(connection.server_port)]
        assert connection.server.ip_bytes == seen
        elapsed_ns = max(times_ns[stream]) - min(times_ns[stream])
        throughput = kpi_values(connection)["throughput_published"]
        assert throughput == (pytest.approx(seen * 8 / elapsed_ns * 1e3, rel=1e-9) if elapsed_ns else None)
    assert sum(ip_bytes.values()) > 100_000
