"""Each thing that a path does to headers, and each refusal of a server, is found under its own reason; nothing else is.

tests/lab/topologies/proof.toml has a server for each. All of them are measured with ECN, SACK and window scaling, so
that what one of them does must not show in the others.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.captures.limiter import Limiter
from analysis.evidence.proof import handshake_at_server, handshake_of
from analysis.measures import costs, tables
from analysis.measures.dataset import Record
from analysis.measures.limiters import limiter_of
from analysis.measures.rows import Metric
from core.domain import Outcome, TreatmentReason
from downloader.execution.capture import Capture
from tests.captures import scan_capture
from tests.cells import Repeats, cells
from tests.lab.campaigns import BL, ECN, OFF, WS, Bench, Measured, open_bench

pytestmark = pytest.mark.lab

CONFIGURATIONS = {"BL": BL, "ECN": ECN, "SACK": {**OFF, "sack": "on"}, "WS": WS}
ALL = ("warmup", *CONFIGURATIONS)

PLANTED: Mapping[str, tuple[tuple[str, ...], TreatmentReason]] = {
    "bleach": (("ECN",), TreatmentReason.BLEACHED),
    "clear-ce": (("ECN",), TreatmentReason.CE_CLEARED),
    "clear-both": (("ECN",), TreatmentReason.CE_CLEARED),
    "drop-syn": (("ECN",), TreatmentReason.FELL_BACK),
    "strip-ecn": (("ECN",), TreatmentReason.STRIPPED),
    "strip-sack": (("SACK",), TreatmentReason.STRIPPED),
    "strip-window-scale": (("WS",), TreatmentReason.STRIPPED),
    "strip-timestamps": (ALL, TreatmentReason.STRIPPED),
    "rewrite-ecn": (("ECN",), TreatmentReason.REWRITTEN),
    "rewrite-sack": (("SACK",), TreatmentReason.REWRITTEN),
    "rewrite-window-scale": (("WS",), TreatmentReason.REWRITTEN),
    "without-ecn": (("ECN",), TreatmentReason.SERVER_REFUSED),
    "without-sack": (("SACK",), TreatmentReason.SERVER_REFUSED),
    "without-window-scaling": (("WS",), TreatmentReason.SERVER_REFUSED),
    "without-timestamps": (ALL, TreatmentReason.SERVER_REFUSED),
}
"""Server -> the configurations that must be refuted, and the reason; timestamps are asked for by all."""

CLEAN = ("plain", "marks", "far")


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with open_bench("proof", tmp_path_factory.mktemp("proof")) as bench:
        yield bench


WITNESSED = ("drop-syn", "rewrite-ecn")
"""Servers that are watched from their own end; in `make soak` all."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds what tcpdump saw at the servers."""
    return tmp_path_factory.mktemp("there")


@pytest.fixture(scope="module")
def found(bench: Bench, repeats: Repeats, there: Path) -> Measured:
    """All servers, once or five times, while tcpdump runs at some of them."""
    client = bench.lab.plan.addresses["MUC"].ipv4
    with contextlib.ExitStack() as stack:
        for name in (WITNESSED, (*CLEAN, *PLANTED))[repeats(quick=0, soak=1)]:
            place = stack.enter_context(contextlib.closing(bench.lab.place(name)))
            capture = Capture.start(place, there / f"{name}.pcap", address=client, port=443)
            stack.callback(capture.close)
            stack.callback(capture.finish)
        return bench.measure("all", CONFIGURATIONS, times=repeats(quick=1, soak=5))


def server_of(record: Record) -> str:
    return record.download.domain.partition(".")[0]


def test_every_plant_is_found_under_its_own_reason_and_nothing_else_is(found: Measured) -> None:
    wrong = []
    for record in found.data.records:
        d = record.download
        assert d.outcome == Outcome.OK, (d.domain, d.configuration, d.failure, d.failure_detail)
        configurations, reason = PLANTED.get(server_of(record), ((), None))
        expected = reason if d.configuration in configurations else None
        if (d.treatment_ok, d.treatment_reason) != (expected is None, expected):
            wrong.append(f"{d.domain} {d.configuration}: {d.treatment_reason} ({d.treatment_detail}), not {expected}")
    assert not wrong, "\n".join(wrong)
    assert {server_of(record) for record in found.data.records} == {*PLANTED, *CLEAN}


def test_dose_tells_where_an_option_had_something_to_do(found: Measured) -> None:
    times = len(found.of("BL")) // (len(PLANTED) + len(CLEAN))
    samples = costs.samples(found.data, metric=Metric.TIME)
    rows = {row.comparison.name: row for row in tables.dose_rows(found.data, samples)}
    ecn, window = rows["ECN vs BL"], rows["WS vs BL"]
    # A pair of which the host disturbed a download is counted as excluded.
    assert ecn.acted.n + sum(ecn.acted.excluded.values()) == times, "marks on one of the paths where ECN was proven"
    assert ecn.unknown.n == 0
    # A short download on a busy host may have no limiter: then nobody knows whether its window was one.
    assert window.unknown.n <= sum(limiter_of(record) is Limiter.UNKNOWN for record in found.of("BL"))
    far = [record for record in found.of("WS") if server_of(record) == "far"]
    assert all((record.number("flight_lower_max") or 0) > 65_535 for record in far)
    assert all((record.number("flight_lower_max") or 0) <= 65_535 for record in found.of("BL"))
    assert window.acted.n + sum(window.acted.excluded.values()) >= times


@cells("server", every=[*CLEAN, *PLANTED], quick=WITNESSED)
def test_the_account_of_the_servers_end_is_what_tcpdump_sees_there(found: Measured, there: Path, server: str) -> None:
    seen_there = scan_capture(there / f"{server}.pcap").connections
    downloads = [record.download for record in found.data.records if server_of(record) == server]
    assert len(downloads) >= len(ALL)
    for download in downloads:
        assert download.server_end is not None and download.local_port is not None
        told = json.loads(download.server_end)
        same_port = [one for one in seen_there if one.client_port == download.local_port]  # some are used twice
        connection = min(same_port, key=lambda one: abs(one.first_ns / 1e9 - download.started_at))
        seen = handshake_of(connection)
        assert seen is not None
        assert handshake_at_server(told) == replace(seen, later_syn_without_ecn=False)
        sides = connection.server
        assert told["ecn_sent"] == sides.ect0_packets + sides.ect1_packets + sides.ce_packets
        assert told["ce_set"] == download.lab_marked


@pytest.mark.soak  # in the campaign of all servers each of them is measured once
@pytest.mark.parametrize("batch", range(4))
def test_clean_runs_are_not_accused(bench: Bench, batch: int) -> None:
    """On an empty path and on one with marks: 200 runs."""
    times = 25
    for server in ("plain", "marks"):
        measured = bench.measure(f"clean-{server}", CONFIGURATIONS, domain=f"{server}.proof.example", times=times)
        accused = [d for d in measured.downloads if not d.treatment_ok]
        assert not accused, [(d.configuration, d.treatment_reason, d.treatment_detail) for d in accused]
        assert len(measured.downloads) == times * len(ALL)
