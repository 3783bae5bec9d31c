"""The download-time model against closed forms, and the comparison with what was measured."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.measures import dataset, truth
from analysis.measures.truth import UNSCALED_WINDOW, TruthRow, download_time
from core.domain import Download
from core.errors import UsageError
from tests.unit.analysis_factory import LEVELS, lab_path, make_download, of_records

FRAMING = 1 + truth.TCP.record_overhead / truth.TCP.record_bytes


def test_an_unscaled_window_carries_65160_bytes_per_round_trip() -> None:
    # 100 ms, 1 Gbit/s: serialisation is nothing, so each further window of 45 segments costs one round trip.
    def at(size: int) -> float:
        return download_time(
            size_bytes=size, rtt_s=0.1, rate_mbit=1000, initial_window=10, window_bytes=UNSCALED_WINDOW
        )

    rounds = 40
    more = rounds * 45 * 1448 / FRAMING
    assert at(1_000_000 + round(more)) - at(1_000_000) == pytest.approx(rounds * 0.1, rel=0.002)


def test_slow_start_takes_a_round_trip_per_doubling() -> None:
    # 10 + 20 + 40 + 80 segments in four rounds; the last one starts three round trips after the first byte.
    size = math.floor(150 * 1448 / FRAMING) - truth.TCP.record_overhead
    time = download_time(size_bytes=size, rtt_s=0.1, rate_mbit=10_000, initial_window=10, window_bytes=None)
    assert time == pytest.approx(0.3 + 0.3, rel=0.005)
    one_more = download_time(size_bytes=size + 3000, rtt_s=0.1, rate_mbit=10_000, initial_window=10, window_bytes=None)
    assert one_more == pytest.approx(0.3 + 0.4, rel=0.005)


def test_a_large_initial_window_fills_the_path_at_once() -> None:
    time = download_time(size_bytes=2_000_000, rtt_s=0.02, rate_mbit=20, initial_window=100, window_bytes=None)
    line = 2_000_000 * FRAMING / 1448 * 1500 * 8 / 20e6
    assert time == pytest.approx(0.06 + line, rel=0.002)


def test_a_short_path_runs_at_line_rate_without_scaling_too() -> None:
    # 3 ms at 10 Mbit/s: a round trip is less than three segments, so even the initial window keeps the link busy.
    arguments = {"size_bytes": 1_000_000, "rtt_s": 0.003, "rate_mbit": 10.0, "initial_window": 10}
    unscaled = download_time(**arguments, window_bytes=UNSCALED_WINDOW)  # type: ignore[arg-type]
    scaled = download_time(**arguments, window_bytes=None)  # type: ignore[arg-type]
    assert unscaled == scaled == pytest.approx(0.009 + 1_000_000 * FRAMING / 1448 * 0.0012, rel=0.002)


def test_a_tiny_body_takes_three_round_trips_and_its_packet() -> None:
    time = download_time(size_bytes=100, rtt_s=0.05, rate_mbit=12, initial_window=10, window_bytes=None)
    assert time == pytest.approx(0.15 + 0.001)


@pytest.mark.parametrize(("size", "share"), [(1_000_000, 0.74), (2_000_000, 0.83), (4_000_000, 0.91)])
def test_a_prototype_measured_a_little_more_than_the_model(size: int, share: float) -> None:
    # research/lab.md: body over download time, without scaling at 100 ms, as a share of 65,535 B per RTT.
    expected = download_time(size_bytes=size, rtt_s=0.1, rate_mbit=50, initial_window=10, window_bytes=UNSCALED_WINDOW)
    measured = size / (share * UNSCALED_WINDOW / 0.1)
    assert 1.0 <= measured / expected <= 1.09


sizes = st.integers(1, 20_000_000)
rtts = st.floats(0.001, 0.3)
rates = st.floats(1, 1000)


@settings(deadline=None)  # a shared machine may stop for a second
@given(sizes, rtts, rates, st.integers(1, 100))
def test_more_of_anything_good_is_never_slower(size: int, rtt_s: float, rate: float, window: int) -> None:
    def at(**changes: float) -> float:
        values = {"size_bytes": size, "rtt_s": rtt_s, "rate_mbit": rate, "initial_window": window} | changes
        return download_time(**values, window_bytes=UNSCALED_WINDOW)  # type: ignore[arg-type]

    base = at()
    least = 3 * rtt_s + math.ceil(size / 1448) * 1500 * 8 / (rate * 1e6)
    assert base >= least * (1 - 1e-9)
    assert at(size_bytes=size + 100_000) > base
    assert at(rtt_s=rtt_s * 1.1) > base
    assert at(rate_mbit=rate * 1.1) < base
    free = download_time(size_bytes=size, rtt_s=rtt_s, rate_mbit=rate, initial_window=window, window_bytes=None)
    assert free <= base


def test_levels_of_window_scaling() -> None:
    assert truth.window_limit({"window_scaling": "off"}) == 65_535
    assert truth.window_limit({}) == 65_535
    assert truth.window_limit({"window_scaling": "0"}) == 65_535
    assert truth.window_limit({"window_scaling": "2"}) == 262_140
    assert truth.window_limit({"window_scaling": "on"}) is None


def _document(*paths: dict[str, object]) -> dict[str, object]:
    return {"schema": 1, "topology": "t", "paths": list(paths)}


def compare(document: dict[str, object], downloads: list[Download]) -> list[TruthRow]:
    records = [dataset.Record(folder=0, download=download, kpis={}) for download in downloads]
    return truth.compare(document, of_records(records, kpi_units={}))


def test_clean_paths_get_a_verdict() -> None:
    expected = download_time(
        size_bytes=1_000_000, rtt_s=0.02, rate_mbit=30, initial_window=10, window_bytes=UNSCALED_WINDOW
    )
    downloads = [
        make_download(iteration=i, last_byte_s=expected * factor, first_byte_s=0.061)
        for i, factor in enumerate((1.02, 1.05, 3.0))
    ]
    downloads.append(make_download(iteration=9, outcome="failed", failure="connection_reset", last_byte_s=None))
    downloads.append(make_download(iteration=8, last_byte_s=0.001, treatment_ok=False))
    downloads.append(make_download(configuration="WS", last_byte_s=expected * 1.5))
    rows = {row.configuration: row for row in compare(_document(lab_path()), downloads)}
    row = rows["BL"]
    assert (row.n, row.size_bytes, row.within) == (3, 1_000_000, True)
    assert row.ratio == pytest.approx(1.05)
    assert row.delivery_ratio == pytest.approx(8e6 / (expected * 1.05 - 0.061) / (65_535 * 8 / 0.02), rel=1e-6)
    assert rows["WS"].within is False
    assert rows["WS"].delivery_ratio is None
    assert (row.path.congestion_control, row.path.initcwnd, row.path.mtu) == ("cubic", 10, 1500)


def test_packets_of_ipv6_have_twenty_bytes_less_to_carry() -> None:
    levels = json.dumps(LEVELS["WS"])
    (four,) = compare(_document(lab_path()), [make_download(levels=levels)])
    unresolved = make_download(levels=levels, outcome="failed", failure="dns_error", last_byte_s=None, server_ip=None)
    downloads = [unresolved, make_download(levels=levels, iteration=2, server_ip="fd00:198:18:100::16")]
    (six,) = compare(_document(lab_path()), downloads)
    assert four.expected_s is not None and six.expected_s is not None
    more = math.ceil(1_001_364 / 1428) - math.ceil(1_001_364 / 1448)  # packets of body and records
    assert six.expected_s - four.expected_s == pytest.approx(more * 1500 * 8 / 30e6, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"loss": 0.005, "clean": False}, "loss 0.50%"),
        ({"clean": False, "queue_bytes": 5000}, "bandwidth-delay product"),
        ({"clean": False}, "slow application: not modelled"),
        ({"ecn_threshold_bytes": 15000}, "15000 B"),
    ],
)
def test_other_paths_are_shown_with_a_note(changes: dict[str, object], note: str) -> None:
    (row,) = compare(_document(lab_path(**changes)), [make_download()])
    assert row.expected_s is not None and row.ratio is not None
    assert row.within is None
    assert note in row.note


def test_nothing_is_predicted_for_quic_cold_edges_and_unknown_factors() -> None:
    levels = json.dumps(LEVELS["WS"] | {"rmem": "4096"})
    downloads = [
        make_download(levels=json.dumps(LEVELS["BL"] | {"rmem": "default"})),
        make_download(configuration="quiche"),
        make_download(configuration="warmup", levels=json.dumps(LEVELS["warmup"] | {"rmem": "default"})),
        make_download(configuration="SMALL", levels=levels),
    ]
    rows = {row.configuration: row for row in compare(_document(lab_path(edge=True)), downloads)}
    assert rows["BL"].expected_s is not None
    for name in ("quiche", "warmup", "SMALL"):
        assert rows[name].expected_s is None and rows[name].within is None
        assert "no prediction" in rows[name].note
    path = rows["quiche"].path
    assert (path.quic_initial_window_packets, path.quic_packet_bytes) == (32, 1280)


def test_nothing_is_predicted_for_a_server_with_a_tcp_of_its_own() -> None:
    (row,) = compare(_document(lab_path(initcwnd=None, congestion_control=None)), [make_download()])
    assert row.n == 1 and row.expected_s is None and row.within is None
    assert row.note.startswith("no prediction: the server has a TCP of its own")


def test_the_quic_server_is_read_from_the_lab() -> None:
    server = {
        "quic_server": "quiche",
        "quic_congestion_control": "bbr2",
        "quic_initial_window_packets": 10,
        "quic_packet_bytes": 1480,
    }
    (row,) = compare(_document(lab_path(**server)), [make_download(configuration="quiche")])
    assert {name: getattr(row.path, name) for name in server} == server
    assert "the QUIC server quiche uses bbr2, 10 packets at first, 1480-byte packets" in row.note


def test_quic_saves_a_round_trip() -> None:
    path = {"size_bytes": 100, "rtt_s": 0.05, "rate_mbit": 30.0, "initial_window": 10, "window_bytes": None}
    assert download_time(**path) - download_time(**path, stack=truth.QUIC) == pytest.approx(0.05)  # type: ignore[arg-type]


def test_a_path_without_downloads_and_a_download_without_path() -> None:
    assert compare(_document(lab_path(domain="www.other.example")), [make_download()]) == []


def test_broken_lab_file_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="paths"):
        compare({"schema": 1}, [])
    broken = lab_path()
    del broken["rtt_ms"]
    with pytest.raises(UsageError, match="path 0: field rtt_ms: it is missing"):
        compare(_document(broken), [])
