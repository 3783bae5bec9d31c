"""Campaigns in the lab `small`: what was asked is on the wire, faults have causes, no packet is unaccounted for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from core.domain import Download, Failure, Outcome, Target
from core.files.config import read_toml
from core.system import process
from downloader import clients, factors
from downloader.campaign.campaign import from_document
from downloader.execution.run import RunSummary
from tests.campaigns import Silent, run_in
from tests.cells import Repeats
from tests.configurations import over_tcp
from tests.journaled import recorded
from tests.plain_captures import plain
from vantage.lab.lab import Lab

pytestmark = pytest.mark.lab

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(lab: Lab, document: dict[str, object], targets: list[Target], out: Path) -> tuple[RunSummary, list[Download]]:
    place = lab.place("MUC")
    try:
        campaign = from_document({"name": "t", "lab": "small", "targets": "lab", **document}, Path("t.toml"))
        summary = run_in(campaign, targets, {"MUC": place}, out, progress=Silent())
    finally:
        place.close()
    return summary, recorded(out)


def first_syn(out: Path, download: Download) -> str:
    assert download.capture is not None
    command = ["tcpdump", "-nr", str(plain(out / download.capture)), f"tcp src port {download.local_port}"]
    return process.run(command).stdout.splitlines()[0]


def test_the_example_puts_every_combination_on_the_wire(small_lab: Lab, tmp_path: Path, repeats: Repeats) -> None:
    document = read_toml(EXAMPLES / "small.toml")
    targets = [t for t in small_lab.targets() if t.quic]
    assert len(targets) == 3
    targets = targets[: repeats(quick=1, soak=3)]
    summary, rows = run(small_lab, document, targets, tmp_path)
    assert summary.complete and summary.planned == len(targets) * 14
    assert Counter(r.outcome for r in rows)[Outcome.OK] >= len(rows) - 1, [r.failure_detail for r in rows]
    for row in rows:
        if row.transport != "tcp":
            continue
        syn = first_syn(tmp_path, row)
        scale = re.search(r"wscale (\d+)", syn)
        assert ("[SEW]" in syn) == ('"ecn": "on"' in row.levels), (row.configuration, syn)
        assert ("sackOK" in syn) == ('"sack": "on"' in row.levels), (row.configuration, syn)
        asked = re.search(r'"window_scaling": "(\w+)"', row.levels)
        assert asked is not None and (scale[1] if scale else "off") == asked[1], (row.configuration, syn)
        assert "TS val" in syn
    for row in rows:
        assert row.capture_dropped == 0 and row.lab_lateness_p99_ms is not None
        assert row.lab_sent is not None and row.lab_received is not None and row.lab_dropped is not None
        if row.attempts == 1 and row.void_reason is None:
            assert row.lab_sent == row.lab_received + row.lab_dropped


def test_every_client_keeps_to_ipv6_where_the_campaign_does(small_lab: Lab, tmp_path: Path) -> None:
    document: dict[str, object] = {
        "address_family": "ipv6",
        "configurations": [{"name": name, "client": name} for name in clients.ALL],
    }
    [target] = [t for t in small_lab.targets() if t.domain == "www.near.example"]
    [path] = [p for p in small_lab.truth()["paths"] if p["domain"] == target.domain]
    _, rows = run(small_lab, document, [target], tmp_path)
    assert len(rows) == len(clients.ALL) + 2
    for row in rows:
        assert (row.outcome, row.server_ip) == (Outcome.OK, path["addresses"]["ipv6"]), (row.client, row.failure_detail)
        assert row.local_ip is not None and row.local_ip.startswith("fd00:198:18:")
        assert row.lab_sent and row.lab_received and row.lab_sent == row.lab_received + (row.lab_dropped or 0)


@pytest.mark.measures
def test_a_window_of_64_kib_limits_quic(small_lab: Lab, tmp_path: Path) -> None:
    windows = {"max_data": 65_535, "max_stream_data": 65_535}
    document: dict[str, object] = {
        "configurations": [
            {"name": "quiche", "client": "quiche"},
            {"name": "narrow", "client": "quiche", "options": windows},
        ]
    }
    [target] = [t for t in small_lab.targets() if t.domain == "www.near.example"]
    _, rows = run(small_lab, document, [target], tmp_path)
    times = {r.configuration: r.last_byte_s for r in rows}
    # 1 MB at 10 ms and 50 Mbit/s: 0.17 s on the line, and 16 windows of at least half a window per round-trip.
    assert times["quiche"] and times["narrow"] and times["narrow"] > times["quiche"]


@pytest.mark.soak  # test_faults_campaign has each of these causes among its quick ones
def test_every_fault_has_its_cause(small_lab: Lab, tmp_path: Path) -> None:
    document: dict[str, object] = {
        "budget": 3,
        "configurations": [
            {"name": "BL", "client": "requests"},
            {"name": "WS", "client": "requests", "levels": {"window_scaling": 14}},
        ],
    }
    targets = [t for t in small_lab.targets(faults=True) if ".fault." in t.domain]
    summary, rows = run(small_lab, document, targets, tmp_path)
    assert summary.complete
    assert Counter((r.domain, r.outcome, r.failure) for r in rows) == {
        ("missing.fault.example", "failed", Failure.HTTP_STATUS): 3,
        ("reset.fault.example", "failed", Failure.CONNECTION_RESET): 3,
        ("stall.fault.example", "censored", Failure.STALLED): 3,
        ("truncate.fault.example", "failed", Failure.TRUNCATED_BODY): 3,
    }, [(r.domain, r.failure, r.failure_detail) for r in rows]


def test_all_factors_are_accepted_by_this_kernel(small_lab: Lab) -> None:
    from downloader.campaign.configurations import settings_for

    place = small_lab.place("MUC")
    try:
        for factor in factors.ALL.values():
            for level in factor.levels:
                place.apply(settings_for(over_tcp({factor.name: level})))
        for scale in range(15):
            place.apply(settings_for(over_tcp({"window_scaling": str(scale)})))
    finally:
        place.close()
