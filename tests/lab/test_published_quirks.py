"""Quirks of the published code in campaigns that are really run: real kernel and server, in a namespace."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.evidence import inspect_campaign
from analysis.measures import dataset, quirks
from core.domain import Download
from core.files.journal import environment, open_journals
from core.system import process
from core.terminal import show_progress
from downloader.factors import ALL as FACTORS
from tests.journaled import recorded
from tests.lab.test_download_run import SIZE, World, campaign, run
from tests.lab.test_download_run import world as world
from tests.plain_captures import plain

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

CONFIGURATIONS: list[dict[str, Any]] = [
    {"name": "BL", "client": "requests"},
    {"name": "WS", "client": "requests", "levels": {"window_scaling": 14}},
    {"name": "BL2", "client": "requests"},
]


def measured(world: World, out: Path, *names: str, configurations: list[dict[str, Any]]) -> list[Download]:
    """A campaign of one target in the published order with these quirks."""
    plan = campaign(order="published", published_quirks=list(names), configurations=configurations)
    summary = run(world, plan, world.targets("a.example"), out)
    assert summary.complete
    rows = recorded(out)
    assert {row.outcome for row in rows} == {"ok"}, [row.failure_detail for row in rows]
    return sorted(rows, key=lambda row: row.position)


def initial_buffer(world: World) -> tuple[str, ...]:
    """What the kernel of the namespace has now: initial and largest size."""
    return tuple(world.place().run(["sysctl", "-n", "net.ipv4.tcp_rmem"]).stdout.split()[1:])


def test_the_initial_buffer_leaks_into_the_next_configuration(world: World, tmp_path: Path) -> None:
    rows = measured(world, tmp_path / "quirk", "initial-buffer", configurations=CONFIGURATIONS)
    assert [row.configuration for row in rows] == ["warmup", "BL", "WS", "BL2"]
    # BL2 came last: it has no scaling, and the buffer of WS.
    assert initial_buffer(world) == ("1073725440", "1073725440")
    scales = [json.loads(row.transport_detail or "")["rcv_wscale"] for row in rows]
    assert scales == [0, 0, 14, 0]
    with open_journals(tmp_path / "quirk") as journals:
        assert environment(journals)["campaign"]["published_quirks"] == ["initial-buffer"]
    # Without the quirk every configuration sets everything again.
    measured(world, tmp_path / "plain", configurations=CONFIGURATIONS[:1])
    assert initial_buffer(world) == ("131072", "6291456")


def test_aioquic_writes_its_logs(world: World, tmp_path: Path) -> None:
    both = [{"name": name, "client": name} for name in ("aioquic", "quiche")]
    rows = measured(world, tmp_path / "quirk", "aioquic-logs", configurations=both)
    (folder,) = (tmp_path / "quirk" / "vantage" / "A" / "logs").iterdir()
    assert {path.name for path in folder.iterdir()} == {"aioquic", "warmup-quic"}
    (qlog,) = (folder / "aioquic").glob("*.qlog")
    (trace,) = json.loads(qlog.read_text(encoding="utf-8"))["traces"]
    received = [event for event in trace["events"] if event["name"] == "transport:packet_received"]
    (aioquic,) = [row for row in rows if row.configuration == "aioquic"]
    # A datagram may hold two packets, only during the handshake.
    datagrams = json.loads(aioquic.transport_detail or "")["packets_received"]
    assert datagrams <= len(received) <= datagrams + 6
    secrets = (folder / "aioquic" / "secrets.log").read_text(encoding="ascii")
    assert {line.split()[0] for line in secrets.splitlines()} >= {"CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"}


@pytest.mark.skipif(
    process.find_program("h3get-debug") is None,
    reason="the quirk debug-client needs the program h3get-debug (make debug-client)",
)
def test_quiche_is_a_debug_build_that_dumps_what_it_gets(world: World, tmp_path: Path) -> None:
    both = [{"name": name, "client": name} for name in ("quiche", "aioquic")]
    rows = measured(world, tmp_path / "quirk", "debug-client", configurations=both)
    (folder,) = (tmp_path / "quirk" / "vantage" / "A" / "logs").iterdir()
    (entry,) = json.loads((folder / "quiche" / "dump.json").read_text(encoding="utf-8"))["entries"]
    assert entry["response"]["headers"][0] == {"name": ":status", "value": "200"}
    assert {"name": ":method", "value": "GET"} in entry["request"]["headers"]
    whole = (world.folder / "www" / "file").read_bytes()
    assert bytes(entry["response"]["body"]) == whole[:10_000]
    (slow,) = [row for row in rows if row.configuration == "quiche"]
    assert slow.body_sha256 == hashlib.sha256(whole).hexdigest()
    local = json.loads(slow.transport_detail or "")["transport_parameters"]["local"]
    assert local["max_idle_timeout"] == 10_000
    # The same download by the release build: less CPU time, no dump.
    plain_rows = measured(world, tmp_path / "plain", configurations=both)
    (quick,) = [row for row in plain_rows if row.configuration == "quiche"]
    assert not (tmp_path / "plain" / "vantage" / "A" / "logs").exists()
    assert slow.client_cpu_s is not None
    assert quick.client_cpu_s is not None
    assert slow.client_cpu_s > 2 * quick.client_cpu_s


@pytest.mark.skipif(
    shutil.which("wget2") is None, reason="the quirk wget2 needs the program wget2 (apt-get install wget2)"
)
def test_wget2_looks_names_up_and_follows_redirects(world: World, tmp_path: Path) -> None:
    out = tmp_path / "quirk"
    plan = campaign(order="published", published_quirks=["wget2"], configurations=CONFIGURATIONS[:2])
    moved = dataclasses.replace(world.targets("b.example")[0], url=f"https://b.example:{world.port}/moved")
    gone = dataclasses.replace(world.targets("c.example")[0], url=f"https://c.example:{world.port}/none")
    summary = run(world, plan, [*world.targets("a.example"), moved, gone], out)
    assert summary.complete
    rows = recorded(out)
    whole = hashlib.sha256((world.folder / "www" / "file").read_bytes()).hexdigest()
    for row in rows:
        assert (row.client, row.server_ip, row.server_port) == ("requests", "127.0.0.1", world.port)
        assert (row.http_version, row.tls_version, row.http_status) == (
            "2",
            "TLSv1.3",
            404 if row.domain[0] == "c" else 200,
        )
        assert (row.outcome, row.failure) == (("failed", "http_status") if row.domain[0] == "c" else ("ok", None))
        assert row.client_version is not None
        if row.outcome == "ok":
            assert (row.body_bytes, row.body_sha256) == (SIZE, whole)
            assert row.tls_s is not None
            assert row.first_byte_s is not None
            assert row.last_byte_s is not None
            assert 0 < row.tls_s < row.first_byte_s <= row.last_byte_s < 5
    with show_progress(as_json=True) as progress:
        inspect_campaign(out, factors=FACTORS, progress=progress, jobs=1)
    # Each record is found in its capture: the same connection, with the options of its configuration.
    (ok, *_), data = [r for r in rows if r.outcome == "ok"], dataset.load([out])
    measured_ = [record for record in data.records if record.download.outcome == "ok"]
    assert len(measured_) == 6
    assert {record.download.treatment_ok for record in measured_} == {True}
    assert all((record.number("mean_throughput") or 0) > 0 for record in measured_)
    # Without the quirk a redirect is no file.
    plain = campaign(order="published", configurations=CONFIGURATIONS[:1])
    run(world, plain, [moved], tmp_path / "plain")
    assert {row.http_status for row in recorded(tmp_path / "plain")} == {302}
    assert ok.setup_s is not None


@pytest.mark.soak
def test_pauses_surround_each_download(world: World, tmp_path: Path) -> None:
    rows = measured(world, tmp_path / "out", "pauses", configurations=CONFIGURATIONS[:1])
    warmup, after = rows
    assert warmup.last_byte_s is not None
    pause_s = after.started_at - warmup.started_at - warmup.last_byte_s
    assert 6.0 <= pause_s < 12.0
    # The times of the downloads have no pause in them.
    assert after.setup_s is not None
    assert after.setup_s < 1.0


def test_as_published_throughput_is_what_tcpdump_counts(world: World, tmp_path: Path) -> None:
    """IP bytes of the server (QUIC: of both sides), over the time from the connection's first packet to its last."""
    out = tmp_path / "out"
    configurations = [*CONFIGURATIONS[:1], {"name": "aioquic", "client": "aioquic"}]
    measured(world, out, configurations=configurations)
    with show_progress(as_json=True) as progress:
        inspect_campaign(out, factors=FACTORS, progress=progress, jobs=1)
    data = dataset.load([out])
    names = ("both-directions", "whole-connection", "ipv6-payload")
    read = quirks.with_quirks(data, [quirks.ALL[name] for name in names])
    differing = set()
    for before, record in zip(data.records, read.records, strict=True):
        d = record.download
        assert d.capture is not None
        packets = printed(plain(out / d.capture), d.local_port)
        both = d.transport == "quic"
        counted = sum(size for from_server, size, _ in packets if from_server or both)
        throughput = counted * 8 / (packets[-1][2] - packets[0][2]) / 1e6
        assert record.number("mean_throughput") == pytest.approx(throughput, rel=1e-4)
        ours = before.number("mean_throughput")
        assert ours != record.number("mean_throughput")
        # Both have other bytes and another time, so the two numbers of one download may be near each other by chance.
        if ours != pytest.approx(throughput, rel=1e-3):
            differing.add(d.transport)
    assert differing == {"tcp", "quic"}


def printed(capture: Path, port: int | None) -> list[tuple[bool, int, float]]:
    """Of each packet of a connection, whether it is from the server, its IP length [bytes], and its time [s]."""
    command = ["tcpdump", "-nvtt", "-r", str(capture), f"port {port}"]
    text = process.run(command).stdout
    found = re.findall(r"^(\d+\.\d+) IP \(.*?length (\d+)\)\n\s+[\d.]+\.(\d+) > ", text, flags=re.MULTILINE)
    return [(int(source) != port, int(length), float(at)) for at, length, source in found]
