"""ECN is what was asked, on the wire and in its effect: a bottleneck of 10 Mbit/s, 20 ms, that marks above 15 kB.

With ECN on (ECN, ALL) it is negotiated, and CE, ECE and CWR appear after the handshake (RFC 3168); with it off
(warm-up, BL, WS) it is not negotiated and none of them ever appears, because the bottleneck drops instead. The KPIs
agree with what the emulator counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.domain import Outcome
from tests.lab.campaigns import ALL, BL, ECN, WS, Measured, open_bench

pytestmark = pytest.mark.lab

WITH_ECN = ("ECN", "ALL")


@pytest.fixture(scope="module")
def found(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with open_bench("truth-ecn", tmp_path_factory.mktemp("ecn")) as bench:
        yield bench.measure("ecn", {"BL": BL, "ECN": ECN, "WS": WS, "ALL": ALL}, times=2)


def test_ecn_is_negotiated_exactly_where_it_was_asked_for(found: Measured) -> None:
    for record in found.data.records:
        asked = record.download.configuration in WITH_ECN
        assert record.download.outcome == Outcome.OK and record.download.treatment_ok, record.download
        assert record.kpis["ecn_requested"] is asked and record.kpis["ecn"] is asked
        share = record.number("ect_share")
        assert share is not None and (share > 0.9 if asked else share == 0), record.kpis
        assert record.kpis["ect1_packets"] == 0
        assert record.kpis["acc_ecn"] is False and record.kpis["ecn_fallback"] is False


def test_marks_and_their_echoes_appear_with_ecn_only(found: Measured) -> None:
    for record in found.data.records:
        counts = {name: record.number(name) for name in ("ce_packets", "ece_segments", "cwr_segments")}
        print(record.download.configuration, counts)
        if record.download.configuration in WITH_ECN:
            assert all(count is not None and count > 0 for count in counts.values()), counts
        else:
            assert set(counts.values()) == {0}, counts


def test_the_capture_has_every_mark_that_the_emulator_made(found: Measured) -> None:
    for record in found.data.records:
        passages = found.passages(record.download)
        marked = sum(passage.verdict == "marked" for passage in passages)
        dropped = sum(passage.verdict == "aqm" for passage in passages)
        assert record.kpis["ce_packets"] == marked == record.download.lab_marked
        assert dropped == record.download.lab_dropped
        if record.download.configuration not in WITH_ECN:
            assert dropped > 0, "above the threshold a packet that cannot be marked is dropped"
