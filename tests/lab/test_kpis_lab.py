"""`upshift kpis` on captures of real downloads, against witnesses that share no line of code with the engine.

The lab is `small`; tcpdump captures each download at the vantage point and at the server. Proven are

- IPv6, TCP and QUIC: addresses, IP bytes, options and mean throughput are what tcpdump prints, `--packets` packet by
  packet; the smallest round trip is the programmed one (2 % or 1 ms); goodput is that of the body;
- the spin bit: `spin_rtt_*` are the times between the edges that tcpdump's hexadecimal dump shows. They are too long by
  what client and server took to answer (aioquic delays an ACK by 1 ms: 32 ms were seen on the path of 30 ms); without
  it, which the captures of both ends tell, they are the programmed round trip. Where one end does not spin (Caddy's
  quic-go, h3get's quiche), no KPI is claimed;
- the handshake round trip of QUIC, without the time that the server thought about it;
- that an answer over TLS begins with its body, and not with the session tickets that come before the server has it;
- `true_class`: packet by packet what the server's own capture says, with losses, and with packets that overtook others;
- `ws_class` is tshark's verdict on every packet of these captures, where tshark is installed.

What a receiver cannot tell: a segment that is sent again where nothing came behind the first copy (docs/design/
kpi-engine.md). It is `new`, here as there; the path www.lossy.example drops the very first data packet each time.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.captures.scan import kpi_values
from core.domain import Sysctl
from core.errors import PlaceError
from core.files import store
from core.system import process
from tests.captures import scan_capture
from tests.cells import cells
from tests.contract import test_pcapscan_parity as parity
from tests.lab import _iw_servers as servers
from tests.lab._captures import (
    UPSHIFT,
    Printed,
    Taken,
    curl,
    fetch,
    kpis,
    losses,
    overtaking,
    packets,
    printed,
    quic,
)
from vantage.lab.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

BODY = 1_000_000
HERE = Path(__file__).parent
H3GET = str(Path(sys.executable).with_name("h3get"))
AIOQUIC = [sys.executable, "-P", "-m", "downloader.programs.aioquic_get"]

tshark = parity.tshark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds all captures of this module."""
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def tcp6(small_lab: Lab, folder: Path) -> Taken:
    return fetch(small_lab, "cloudflare-1", "ipv6", curl(small_lab, "www.near.example", "ipv6"), "tcp6", folder)


@pytest.fixture(scope="module")
def quic6(small_lab: Lab, folder: Path) -> Taken:
    command = quic(small_lab, [H3GET], "www.near.example", "cloudflare-1", "ipv6")
    return fetch(small_lab, "cloudflare-1", "ipv6", command, "quic6", folder)


@contextmanager
def spinning_server(lab: Lab) -> Iterator[None]:
    """aioquic's HTTP/3 server on hoster-1, whose own web server leaves UDP port 443 alone."""
    keys = lab.folder.root / "certificates"
    arguments = [lab.plan.addresses["hoster-1"].ipv4, *(str(keys / f"hoster-1.{end}") for end in ("pem", "key"))]
    place = lab.place("hoster-1")
    with place.start([sys.executable, str(HERE / "_h3_server.py"), *arguments, str(BODY)], stdout=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        yield
    place.close()


@pytest.fixture(scope="module")
def spins(small_lab: Lab, folder: Path) -> dict[str, Taken]:
    """Downloads by QUIC; the name says which end spins."""
    found = {}
    with spinning_server(small_lab):
        for name, program in (("both", AIOQUIC), ("server", [H3GET])):
            command = quic(small_lab, program, "www.plain.example", "hoster-1", "ipv4")
            found[name] = fetch(small_lab, "hoster-1", "ipv4", command, f"spin-{name}", folder)
    command = quic(small_lab, AIOQUIC, "www.near.example", "cloudflare-1", "ipv4")
    found["client"] = fetch(small_lab, "cloudflare-1", "ipv4", command, "spin-client", folder)
    return found


def test_figures_of_ipv6_are_those_that_tcpdump_prints(tcp6: Taken, quic6: Taken) -> None:
    for taken, protocol in ((tcp6, "tcp"), (quic6, "quic")):
        document, lines = kpis(taken.client), printed(taken.client)
        record, values = document["record"], document["kpis"]
        ends = (record["client_ip"], record["server_ip"], record["server_port"], record["ip_version"])
        assert ends == (lines[0].source, taken.server_ip, 443, 6) and record["protocol"] == protocol
        for side, name in ((True, "client"), (False, "server")):
            own = [line.ip_bytes for line in lines if line.from_client is side]
            assert (values[f"packets_from_{name}"], values[f"ip_bytes_from_{name}"]) == (len(own), sum(own))
        received = sum(line.ip_bytes for line in lines if not line.from_client)
        span_us = lines[-1].time_us - lines[0].time_us
        assert values["throughput_published"] == pytest.approx(received * 8 / span_us, rel=1e-9)
        assert values["throughput_published"] < values["mean_throughput"]
        print(protocol, len(lines), received, values["mean_throughput"], values["rtt_min"])
        expected = [
            (line.time_us * 1000, "c2s" if line.from_client else "s2c", line.payload, number)
            for number, line in enumerate(lines, start=1)
        ]
        seen = [(int(r["time_ns"]), r["direction"], int(r["len"]), int(r["frame"])) for r in packets(taken.client)]
        assert seen == expected


def test_options_of_ipv6_are_those_that_tcpdump_prints(tcp6: Taken) -> None:
    values, lines = kpis(tcp6.client)["kpis"], printed(tcp6.client)
    for line, side in ((lines[0], "client"), (lines[1], "server")):
        assert "Flags [S" in line.text
        mss, scale = re.search(r"mss (\d+)", line.text), re.search(r"wscale (\d+)", line.text)
        assert mss and values[f"mss_{side}"] == int(mss[1])
        assert scale and values[f"window_scale_{side}"] == int(scale[1])
        assert "sackOK" in line.text and "TS val" in line.text and "[S" in line.text
    assert values["sack"] and values["timestamps"] and not values["ecn"] and not values["acc_ecn"]
    windows = [
        int(found[1]) for line in lines[2:] if line.from_client and (found := re.search(r"win (\d+)", line.text))
    ]
    assert values["largest_window"] == max(windows) << values["window_scale_client"]


def test_the_smallest_round_trip_of_ipv6_is_the_programmed_one(tcp6: Taken) -> None:
    values = kpis(tcp6.client)["kpis"]
    assert values["rtt_min"] == pytest.approx(tcp6.rtt_ms, abs=tcp6.tolerance_ms)
    assert values["rtt_samples"] > 20 and values["rtt_source"] == "timestamps"


def test_goodput_is_that_of_the_body(tcp6: Taken, quic6: Taken) -> None:
    assert int(tcp6.said) == BODY
    document = kpis(tcp6.client)
    # What is not body: HTTP headers, 22 bytes per TLS record of at most 16 KiB (RFC 8446, section 5.2).
    assert BODY < document["record"]["response_bytes"] < BODY * 1.005
    body = json.loads(quic6.said)["body_bytes"]
    for taken in (tcp6, quic6):
        (connection,) = scan_capture(taken.client).connections
        values = kpi_values(connection)
        assert values["goodput"] is values["delivery_rate"] is None, "a capture alone does not tell"
        lines = printed(taken.client)
        # What carries the body: segments with payload, datagrams that are more than an acknowledgement.
        data = [line for line in lines if not line.from_client and line.ip_bytes > 150]
        mbit_s = body * 8 / (data[-1].time_us - lines[0].time_us)
        assert kpi_values(replace(connection, body_bytes=body))["goodput"] == pytest.approx(mbit_s, rel=1e-9)
    assert body == BODY


def edges(capture: Path) -> list[tuple[bool, int]]:
    """Edges of the spin bit from the server's first one on: from the client?, us. The bit is 0x20 of short headers."""
    said = process.run(["tcpdump", "-nn", "-tt", "-x", "-r", str(capture)]).check(doing="reading").stdout
    bits = {True: 0, False: 0}
    found: list[tuple[bool, int]] = []
    for packet in re.split(r"\n(?=\d)", said.strip()):
        head = re.match(r"(\d+)\.(\d{6}) IP \S+\.(\d+) > ", packet)
        assert head, packet
        content = bytes.fromhex("".join(re.findall(r"0x[0-9a-f]{4}:\s+(.*)", packet)).replace(" ", ""))
        assert content[0] == 0x45 and content[9] == 17, "IPv4 without options, UDP"
        bit, from_client = content[28] & 0x20, head[3] != "443"
        if content[28] & 0xC0 != 0x40 or bit == bits[from_client]:
            continue
        bits[from_client] = bit
        if not from_client:
            bits[True] = bit  # it is the client's, whose first one may hide behind a long header
        if found or not from_client:
            found.append((from_client, int(head[1]) * 1_000_000 + int(head[2])))
    return found


def test_the_spin_bit_gives_the_programmed_round_trip_and_what_the_ends_took(spins: dict[str, Taken]) -> None:
    taken = spins["both"]
    values = kpis(taken.client)["kpis"]
    here, there = edges(taken.client), edges(taken.server)
    # One edge goes round and round: each end sees it leave and come in turn, and both ends see the same.
    sides = [side for side, _ in here]
    assert sides == [side for side, _ in there] == [n % 2 == 1 for n in range(len(sides))] and len(sides) > 8
    times = [time_us for side, time_us in here if not side]
    samples = [(after - before) / 1000 for before, after in itertools.pairwise(times)]
    # That the first packet's bit is an edge, because the bit begins as 0, the engine may not have seen (a packet lost).
    counted = samples[-kpis(taken.client)["record"]["quic_spin_rtt_count"] :]
    assert len(samples) - len(counted) in (0, 1)
    assert values["spin_rtt_min"] == pytest.approx(min(counted), abs=1e-6)
    assert values["spin_rtt_mean"] == pytest.approx(statistics.fmean(counted), abs=1e-6)
    ways = []
    for n in range(0, len(here) - 2, 2):
        took_here, took_there = here[n + 1][1] - here[n][1], there[n + 2][1] - there[n + 1][1]
        ways.append((here[n + 2][1] - here[n][1] - took_here - took_there) / 1000)
        print(
            f"spin {(here[n + 2][1] - here[n][1]) / 1000} ms, client {took_here} us, server {took_there} us, {ways[-1]}"
        )
    assert len(ways) == len(samples)
    assert min(ways) == pytest.approx(taken.rtt_ms, abs=taken.tolerance_ms)
    assert min(counted) >= min(ways) and values["spin_rtt_mean"] > values["spin_rtt_min"]


def test_no_round_trip_is_claimed_where_one_end_does_not_spin(spins: dict[str, Taken]) -> None:
    for name in ("client", "server"):
        values = kpis(spins[name].client)["kpis"]
        assert values["quic_version"] == 1 and values["packets_from_server"] > 700
        assert (values["spin_rtt_min"], values["spin_rtt_mean"]) == (None, None), name


def firsts(lines: list[Printed]) -> tuple[Printed, Printed]:
    """The first packets of client and server."""
    return next(line for line in lines if line.from_client), next(line for line in lines if not line.from_client)


def test_the_handshake_of_quic_took_the_path_and_the_servers_thinking(spins: dict[str, Taken], quic6: Taken) -> None:
    for name, taken in [*spins.items(), ("ipv6", quic6)]:
        asked, answered = firsts(printed(taken.client))
        came, left = firsts(printed(taken.server))
        seen_ms = kpis(taken.client)["kpis"]["handshake_rtt"]
        assert seen_ms == pytest.approx((answered.time_us - asked.time_us) / 1000, abs=1e-6)
        path_ms = seen_ms - (left.time_us - came.time_us) / 1000
        line_ms = answered.ip_bytes * 8 / taken.rate_mbit / 1000
        print(f"{name}: handshake {seen_ms:.3f} ms, of it on the path {path_ms:.3f}, of it on the line {line_ms:.3f}")
        assert path_ms - line_ms == pytest.approx(taken.rtt_ms, abs=taken.tolerance_ms)


def test_an_answer_begins_with_its_body(small_lab: Lab, folder: Path) -> None:
    """OpenSSL sends two session tickets when it has the client's Finished, here 0.7 s before the body."""
    keys = small_lab.folder.root / "certificates"
    command = [sys.executable, servers.__file__, *(str(keys / f"hoster-1.{end}") for end in ("pem", "key"))]
    place = small_lab.place("hoster-1")
    with place.start(command, stdin=True, stdout=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        url = f"https://www.plain.example:{servers.THINKS}/"
        get = ["curl", "-4", "-sS", "--http0.9", "--cacert", str(small_lab.ca_file), "-o", "/dev/null", url]
        taken = fetch(small_lab, "hoster-1", "ipv4", get, "thinks", folder, port=servers.THINKS)
    place.close()
    rows = packets(taken.client)
    began_ns = int(rows[0]["time_ns"])
    data = [(int(r["time_ns"]) - began_ns, r["direction"], int(r["len"])) for r in rows if r["len"] != "0"]
    body = next(at for at in range(1, len(data)) if data[at][0] - data[at - 1][0] > 600_000_000)
    request = max(at for at in range(body) if data[at][1] == "c2s")
    tickets = [size for _, _, size in data[request + 1 : body]]
    last_ns = max(at_ns for at_ns, side, size in data if side == "s2c" and size > 100)  # then comes close_notify
    values = kpis(taken.client)["kpis"]
    print(f"tickets of {tickets} B; first byte after {values['time_to_first_byte']:.3f} s")
    assert tickets and max(tickets) < 1000 and data[body][2] >= 1000
    assert values["time_to_first_byte"] == pytest.approx(data[body][0] / 1e9, abs=1e-6)
    assert values["transfer"] == pytest.approx((last_ns - data[body][0]) / 1e9, abs=1e-6)


BAD_PATHS = [("lossy", "ipv4"), ("loss", "ipv4"), ("both", "ipv4"), ("both", "ipv6")]


class BadPaths(dict[tuple[str, str], Taken]):
    """Downloads with losses, each made when it is asked for: the path's own losses, ours, ours with reordering."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder

    def __missing__(self, key: tuple[str, str]) -> Taken:
        kind, family = key
        domain, server = ("www.lossy.example", "hoster-2") if kind == "lossy" else ("www.plain.example", "hoster-1")
        with ExitStack() as trouble:
            if kind != "lossy":
                trouble.enter_context(losses(self.lab, server))
            if kind == "both":
                trouble.enter_context(overtaking(self.lab.place(server)))
            command = curl(self.lab, domain, family)
            self[key] = fetch(self.lab, server, family, command, f"{kind}-{family}", self.folder)
        return self[key]


@pytest.fixture(scope="module")
def bad(small_lab: Lab, folder: Path) -> BadPaths:
    return BadPaths(small_lab, folder)


def copies(capture: Path) -> list[tuple[Printed, int]]:
    """Data packets of the server, each with how many of its bytes had been in packets before."""
    data = [line for line in printed(capture) if not line.from_client and line.payload]
    first = min(line.first for line in data)
    sent = bytearray(2 * BODY)
    found = []
    for line in data:
        span = slice(line.first - first, line.first - first + line.payload)
        found.append((line, sent[span].count(1)))
        sent[span] = b"\1" * line.payload
    return found


def identity(line: Printed) -> tuple[object, ...]:
    """Tells copies of a segment apart: by IP-ID, or by the millisecond in which they were sent."""
    return line.ip_id, line.first, line.payload, re.findall(r"TS val (\d+)", line.text)[0]


@cells("kind", every=BAD_PATHS, quick=[("lossy", "ipv4")], ids="-".join)
def test_true_class_is_what_the_sender_did(bad: BadPaths, kind: tuple[str, str]) -> None:
    taken = bad[kind]
    sent: dict[object, deque[int]] = {}
    left = copies(taken.server)
    for line, again in left:
        sent.setdefault(identity(line), deque()).append(again)
    expected, highest, seen_again, hidden_again = [], 0, 0, 0
    for line in printed(taken.client):
        if line.from_client or not line.payload:
            continue
        again, behind = sent[identity(line)].popleft(), line.first < highest
        expected.append(("retransmission" if again else "reordered") if behind else "new")
        highest = max(highest, line.first + line.payload)
        seen_again, hidden_again = seen_again + again * behind, hidden_again + again * (not behind)
    rows = [row for row in packets(taken.client) if row["direction"] == "s2c" and int(row["len"])]
    document = kpis(taken.client)["kpis"]
    lost_again = sum(again for queue in sent.values() for again in queue)
    counts = {name: expected.count(name) for name in ("retransmission", "reordered")}
    print(f"{kind}: {counts}; sent again and seen {seen_again} bytes, not to be told {hidden_again}, lost {lost_again}")
    wrong = [(row, name) for row, name in zip(rows, expected, strict=True) if row["true_class"] != name]
    assert not wrong
    assert document["retransmitted_bytes"] == seen_again
    if kind[0] != "both":  # there the engine sees no gap, so it takes what was overtaken for sent once
        assert kpis(taken.server)["kpis"]["retransmitted_bytes"] == sum(again for _, again in left)
    assert (document["true_retransmissions"], document["true_reordered"]) == tuple(counts.values())
    assert document["missing_bytes"] == document["true_duplicates"] == 0
    assert counts["retransmission"] >= (1 if kind[0] == "lossy" else 10)
    assert (counts["reordered"] > 5) == (kind[0] == "both")


def test_wireshark_agrees_on_every_packet(tcp6: Taken, bad: BadPaths, tshark: parity.Tshark, tmp_path: Path) -> None:
    captures = [taken.client for taken in (tcp6, *(bad[kind] for kind in BAD_PATHS))]
    for capture in (*captures, bad["both", "ipv4"].server):
        count, wrong = parity.differences(tshark, capture, tmp_path)
        print(f"{capture.name}: {count} packets, {len(wrong)} different")
        assert count > 1000 and not wrong, f"{capture.name}: {len(wrong)} of {count} differ, first {wrong[:5]}"


def test_accurate_ecn_is_told_and_its_counter_is_no_echo(small_lab: Lab, folder: Path) -> None:
    """The kernel's own, on the path that marks above 15 kB; net.ipv4.tcp_ecn=3 asks for it (ip-sysctl.rst)."""
    with ExitStack() as stack:
        for name in ("MUC", "hoster-2"):
            place = small_lab.place(name)
            stack.callback(place.close)
            try:
                place.apply([Sysctl(name="net.ipv4.tcp_ecn", value="3")])
            except PlaceError as error:
                pytest.skip(f"this kernel does not negotiate AccECN: {error.sentence()}")
        command = curl(small_lab, "www.lossy.example", "ipv4")
        taken = fetch(small_lab, "hoster-2", "ipv4", command, "accecn", folder)
    assert_accurate(taken.client, marked=True)


def test_accurate_ecn_of_a_public_capture(shared_data: Path) -> None:
    assert_accurate(shared_data / "captures" / "accecn_handshake.pcap", marked=False)


def assert_accurate(capture: Path, *, marked: bool) -> None:
    """The KPIs say AccECN and count no echoes, though the bits are there: tcpdump counts them."""
    document = kpis(capture)
    values, record = document["kpis"], document["record"]
    assert values["acc_ecn"] is values["ecn"] is values["ecn_requested"] is True
    assert (values["ece_segments"], values["cwr_segments"]) == (None, None)
    for name, bits in (("ece", "tcp[13] & 0x40 != 0"), ("cwr", "tcp[13] & 0x80 != 0"), ("ae", "tcp[12] & 1 != 0")):
        only = f"{bits} and tcp[tcpflags] & tcp-syn == 0"
        lines = process.run(["tcpdump", "-nn", "-r", str(capture), only]).check(doing="reading").stdout.splitlines()
        assert sum(record[side][f"{name}_packets"] for side in ("client", "server")) == len(lines)
    assert not marked or values["ce_packets"] > 0


def test_a_folder_of_captures_becomes_one_table(
    tcp6: Taken, quic6: Taken, bad: BadPaths, folder: Path, tmp_path: Path
) -> None:
    wanted = (tcp6, quic6, bad["lossy", "ipv4"])
    captures = sorted(folder.rglob("*.pcap"))
    out = tmp_path / "kpis.parquet"
    done = process.run([UPSHIFT, "kpis", str(folder), "-o", str(out), "--jobs", "2"])
    assert done.returncode == 0
    table = {row["capture"]: row for row in store.read_table(out, "connections").to_pylist()}
    assert sorted(table) == [str(capture) for capture in captures]
    for taken in wanted:
        row = table[str(taken.client)]
        values = kpis(taken.client)["kpis"]
        assert {name: row[name] for name in values} == values


def test_series_of_a_download_add_up(bad: BadPaths) -> None:
    taken = bad["lossy", "ipv4"]
    done = process.run([UPSHIFT, "kpis", str(taken.client), "--json", "--series", "--rules", "4.4"])
    document = json.loads(done.check(doing="reading").stdout)
    series, lines = document["series"], printed(taken.client)
    assert (series["start_ns"], series["bin_ns"]) == (lines[0].time_us * 1000, 100_000_000)
    for side, name in ((True, "client"), (False, "server")):
        bins = [0] * ((lines[-1].time_us - lines[0].time_us) // 100_000 + 1)
        for line in lines:
            if line.from_client is side:
                bins[(line.time_us - lines[0].time_us) // 100_000] += line.ip_bytes
        assert series[f"{name}_bytes"] == bins
    again = [entry for entry in series["sequence"] if not entry[1] and entry[3] == "retransmission"]
    assert len(again) == document["kpis"]["true_retransmissions"]
    assert len(series["rtt"]) >= document["kpis"]["rtt_samples"] > 20
