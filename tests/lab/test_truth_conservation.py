"""No packet is unaccounted for: sent = received + programmed drops, for every accepted download, TCP and QUIC.

Three paths with random loss, a full queue, and AQM. Three witnesses that know nothing of each other have to agree, per
direction: the emulator's counters in `downloads.parquet`, its log of packets, and the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from core.domain import Outcome
from tests.lab.campaigns import ALL, BL, DELIVERED, DROPPED, Bench, Measured, open_bench

pytestmark = pytest.mark.lab

CONFIGURATIONS: dict[str, Mapping[str, str] | str] = {"BL": BL, "ALL": ALL, "aioquic": "aioquic", "quiche": "quiche"}


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with open_bench("truth-drops", tmp_path_factory.mktemp("drops")) as bench:
        yield bench


@pytest.fixture(scope="module")
def found(bench: Bench) -> Measured:
    return bench.measure("drops", CONFIGURATIONS)


def test_every_download_balances(found: Measured) -> None:
    assert len(found.downloads) == 3 * (2 + len(CONFIGURATIONS))
    for download in found.downloads:
        assert download.outcome == Outcome.OK, download
        assert download.lab_sent is not None and download.lab_received is not None and download.lab_dropped is not None
        assert download.lab_sent == download.lab_received + download.lab_dropped
        assert download.capture_dropped == 0


def test_counters_and_log_of_the_emulator_agree(found: Measured) -> None:
    kinds: dict[str, set[str]] = {}
    for download in found.downloads:
        verdicts = [passage.verdict for passage in found.passages(download)]
        assert download.lab_sent == len(verdicts)
        assert download.lab_received == sum(verdict in DELIVERED for verdict in verdicts)
        assert download.lab_dropped == sum(verdict in DROPPED for verdict in verdicts)
        assert download.lab_marked == sum(verdict == "marked" for verdict in verdicts)
        kinds.setdefault(download.domain, set()).update(set(verdicts) - {"delivered"})
    # A sender that overshoots may fill the long queue of the other paths too, so these are not the only kinds there.
    assert "loss" in kinds["loss.drops.example"]
    assert "tail" in kinds["tail.drops.example"]
    assert {"aqm", "marked"} <= kinds["aqm.drops.example"]
    assert set().union(*kinds.values()) <= {*DROPPED, "marked"}, "nothing but programmed drops"


def test_the_capture_has_what_the_emulator_passed_on_in_each_direction(found: Measured) -> None:
    for record in found.data.records:
        passages = found.passages(record.download)
        from_server = [p for p in passages if not p.from_client and p.verdict in DELIVERED]
        from_client = [p for p in passages if p.from_client]
        assert record.kpis["packets_from_server"] == len(from_server), record.download
        assert record.kpis["packets_from_client"] == len(from_client), record.download
        assert record.kpis["ip_bytes_from_server"] == sum(p.ip_bytes for p in from_server)
        assert record.kpis["ip_bytes_from_client"] == sum(p.ip_bytes for p in from_client)
