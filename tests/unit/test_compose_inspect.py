"""Downloads and connections are joined, treatments are proven, stories compared."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from analysis.captures.connection import Connection, Side
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.scan import kpi_values
from analysis.evidence import matching, proof, rows
from core.domain import Download, HostDisturbance, TreatmentReason
from core.errors import UsageError
from core.files import schemas
from downloader.factors import ALL as FACTORS
from tests.configurations import levels_text

START = 1_700_000_000.0


def judge_treatment(row: Download, joined: Connection | None, **more: Any) -> proof.Treatment:
    return proof.judge_treatment(row, joined, FACTORS, **more)


def kpis_of(row: Download, joined: Connection) -> Mapping[str, Any]:
    return kpi_values(rows.with_account(joined, row))


def inspect_run(downloads: Sequence[Download], connections: Sequence[Connection]) -> tuple[rows.Inspected, ...]:
    return rows.inspect_run(downloads, connections, FACTORS)


def blank(kind: type, **known: Any) -> dict[str, Any]:
    """Values for every field of a dataclass: what is known, None where allowed, else an empty value."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(kind):
        hint = hints[entry.name]
        optional = isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)
        values[entry.name] = None if optional else (hint() if hint in (int, float, str, bool) else None)
    return values | known


def download(**changes: Any) -> Download:
    known = {
        "transport": "tcp", "server_ip": "198.18.0.9", "server_port": 443, "local_port": 40000, "started_at": START,
        "outcome": "ok", "last_byte_s": 1.0, "connect_s": 0.0101, "body_bytes": 1000, "configuration": "BL",
        "levels": levels_text({}), "capture": "x.pcap", "treatment_ok": None,
    }  # fmt: skip
    return Download(**blank(Download, **(known | changes)))


def side(**changes: Any) -> Side:
    return Side(**blank(Side, **({"timestamps": True, "mss": 1460, "payload_bytes": 5000} | changes)))


def connection(**changes: Any) -> Connection:
    known = {
        "protocol": "tcp", "server_ip": "198.18.0.9", "server_port": 443, "client_port": 40000,
        "first_ns": int(START * 1e9) + 1000, "last_ns": int(START * 1e9) + 1_100_000_000, "syn_ns": int(START * 1e9),
        "syn_ack_ns": int(START * 1e9) + 10_000_000,
        "ecn_requested": False, "ecn_accepted": False, "response_last_ns": int((START + 0.999) * 1e9),
        "response_first_ns": int((START + 0.5) * 1e9), "response_bytes": 1200,
        "client": side(timestamps=True, mss=1460, syn_window=64240, syn_packets=1), "server": side(),
    }  # fmt: skip
    return Connection(**blank(Connection, **(known | changes)))


HOUR = 3600.0


def at(seconds: float, **changes: Any) -> Connection:
    return connection(first_ns=int((START + seconds) * 1e9), **changes)


@pytest.mark.parametrize("clock", [0.0, HOUR, -HOUR])
def test_addresses_and_ports_tell_the_connection_whatever_the_clock_says(clock: float) -> None:
    connections = [at(n, client_port=40000 + n) for n in range(5)]
    downloads = [download(local_port=40000 + n, started_at=START + n + clock) for n in range(5)]
    assert matching.match(downloads, connections) == connections
    assert matching.match(downloads[::-1], connections) == connections[::-1]


def test_other_ends_are_no_match() -> None:
    for changes in ({"client_port": 1}, {"server_port": 80}, {"server_ip": "198.18.0.8"}, {"protocol": "quic"}):
        assert matching.match([download()], [connection(**changes)]) == [None]
    for missing in ({"local_port": None}, {"server_ip": None}, {"server_port": None}):
        assert matching.match([download(**missing)], [connection()]) == [None]


def test_the_local_address_tells_where_it_is_known() -> None:
    one, two = at(0.1, client_ip="198.18.0.1"), at(0.0, client_ip="198.18.0.2")
    assert matching.match([download(local_ip="::ffff:198.18.0.1")], [one, two]) == [one]
    # Behind an address translation the capture has another one.
    assert matching.match([download(local_ip="198.18.7.7")], [one]) == [one]
    six = connection(server_ip="fd00:198:18::9", client_ip="fe80::1")
    written = download(server_ip="fd00:198:18:0::9", local_ip="fe80::1%eth0")
    assert matching.match([written], [six]) == [six]


@pytest.mark.parametrize("clock", [0.0, HOUR, -HOUR])
def test_time_decides_between_connections_of_one_port(clock: float) -> None:
    """Port 40000 was used again; others of the run tell what the clock is off by."""
    other = at(0, client_port=1)
    early, middle, late = at(10.0), at(10.6), at(20.0)
    known = download(local_port=1, started_at=START + clock)

    def found(*seconds: float) -> list[Connection | None]:
        downloads = [known, *(download(started_at=START + clock + s) for s in seconds)]
        return matching.match(downloads, [late, other, middle, early])[1:]

    assert found(10.1) == [early] and found(10.5) == [middle] and found(19.0) == [late]
    assert found(19.0, 10.5) == [late, middle]
    assert found(10.1, 10.2, 20.0) == [early, middle, late]
    # More downloads than connections: one never left the host.
    assert found(5.0, 10.0, 10.5, 20.0) == [None, early, middle, late]


def test_order_decides_where_no_clock_is_known() -> None:
    early, late = at(10.0), at(20.0)
    assert matching.match([download(started_at=1.0), download(started_at=500.0)], [late, early]) == [early, late]
    # Distances fit best where the first one is left out.
    downloads = [download(started_at=HOUR), download(started_at=HOUR + 10)]
    assert matching.match(downloads, [at(3.0), early, late]) == [early, late]
    # Nothing else can tell: the nearest.
    assert matching.match([download(started_at=START + 19)], [early, late]) == [late]


def test_a_treatment_as_asked_is_proven() -> None:
    assert judge_treatment(download(), connection()) == (True, None, None)


def test_a_treatment_that_the_wire_contradicts_is_told() -> None:
    asked = download(levels=levels_text({"ecn": "on"}))
    ok, reason, detail = judge_treatment(asked, connection())
    assert ok is False and reason is TreatmentReason.WRONG_OFFER
    assert detail is not None and detail.startswith("ecn=on: ")


def test_a_factor_of_another_upshift_is_named() -> None:
    """It was a KeyError, for which inspection blamed the journal."""
    with pytest.raises(UsageError, match=r"does not know \(rack\); use the Upshift that measured them"):
        judge_treatment(download(levels='{"ecn": "off", "rack": "on"}'), connection())


def test_without_a_capture_nothing_is_proven() -> None:
    nothing = TreatmentReason.NO_EVIDENCE
    ok, reason, detail = judge_treatment(download(), None)
    assert ok is None and reason is nothing and "addresses and ports" in (detail or "")
    assert judge_treatment(download(), None, lost="it is gone") == (None, nothing, "it is gone")
    assert judge_treatment(download(capture=None), None) == (None, nothing, "no capture")
    assert judge_treatment(download(), connection(syn_ns=None))[0] is None


def test_a_void_download_is_judged_and_not_accepted() -> None:
    void = download(void_reason="emulator_late")
    assert judge_treatment(void, connection()) == (True, None, None)
    (row,) = inspect_run([void], [connection()])
    assert (row.download.treatment_ok, row.download.accepted) == (True, False)


ECN_ON = levels_text({"ecn": "on"})


def marking(**changes: Any) -> Connection:
    """A connection that negotiated ECN, with 100 data packets of the server, all ECT unless `changes` say otherwise."""
    counts = {"data_packets": 100, "ecn_data_packets": 100, **changes}
    return connection(ecn_requested=True, ecn_accepted=True, server=side(**counts))


def at_server(syn: bool, synack: bool | None, **counts: int) -> str:
    """The account of the server's end: whether ECN was in SYN and SYN-ACK there; None for no SYN-ACK."""
    plain = {"sack": False, "window_scale": None, "timestamps": True, "mss": 1460, "window": 64240}
    answer = None if synack is None else {**plain, "ecn": synack}
    return json.dumps({"syn": {**plain, "ecn": syn}, "synack": answer, **counts})


@pytest.mark.parametrize(
    ("counts", "server_end", "expected"),
    [
        ({}, None, None),
        ({"ecn_data_packets": 0}, None, "bleached"),
        ({"ecn_data_packets": 9}, None, "bleached"),
        ({"ecn_data_packets": 10}, None, None),
        ({"data_packets": 49, "ecn_data_packets": 0}, None, None),
        ({"data_packets": 50, "ecn_data_packets": 0}, None, "bleached"),
        ({"ecn_data_packets": 0}, at_server(True, True, ecn_sent=100, ce_set=0), "bleached"),
        ({"ecn_data_packets": 0}, at_server(True, True, ecn_sent=0, ce_set=0), "server_refused"),
        ({"ce_packets": 5}, at_server(True, True, ecn_sent=100, ce_set=5), None),
        ({"ce_packets": 0}, at_server(True, True, ecn_sent=100, ce_set=5), "ce_cleared"),
        ({"ce_packets": 0}, at_server(True, True, ecn_sent=100, ce_set=0), None),
        ({"ce_packets": 0, "ecn_data_packets": 6}, at_server(True, True, ecn_sent=100, ce_set=94), "ce_cleared"),
        ({"ce_packets": 0, "ecn_data_packets": 0}, at_server(True, True, ecn_sent=100, ce_set=94), "bleached"),
        ({"ce_packets": 0, "ecn_data_packets": 0}, at_server(True, True, ecn_sent=100, ce_set=100), "ce_cleared"),
        ({}, at_server(False, False, ecn_sent=0, ce_set=0), "rewritten"),
        ({}, at_server(True, None), None),
    ],
)
def test_ecn_must_be_delivered_and_not_only_negotiated(
    counts: dict[str, int], server_end: str | None, expected: str | None
) -> None:
    asked = download(levels=ECN_ON, server_end=server_end)
    ok, reason, detail = judge_treatment(asked, marking(**counts))
    assert (ok, reason) == (expected is None, expected), detail
    off = download(server_end=server_end and at_server(False, None))
    plain = connection(server=side(data_packets=100, ecn_data_packets=0))
    assert judge_treatment(off, plain).ok, "nothing was asked"


def test_an_incomplete_capture_says_nothing_of_delivery() -> None:
    bleached = marking(ecn_data_packets=0)
    assert judge_treatment(download(levels=ECN_ON, capture_dropped=1), bleached).ok
    assert judge_treatment(download(levels=ECN_ON), dataclasses.replace(bleached, truncated=True)).ok


def test_quic_kpis_have_the_clients_account() -> None:
    told = '{"data_blocked_received": 2, "stream_data_blocked_received": 3, "packets_lost": 4, "loss_episodes": 5}'
    quic = connection(protocol="quic", syn_ns=None)
    found = kpis_of(download(transport="quic", transport_detail=told), quic)
    assert (found["quic_data_blocked"], found["client_losses"], found["quic_loss_episodes"]) == (5, 4, 5)
    found = kpis_of(download(transport="quic", transport_detail='{"version": "0x00000001"}'), quic)
    assert (found["quic_data_blocked"], found["client_losses"], found["quic_loss_episodes"]) == (None, None, None)


@pytest.mark.parametrize(
    ("detail", "alpn", "expected"),
    [('{"version": "0x00000001"}', "h3", True), ('{"version": "0x6b3343cf"}', "h3", False), (None, None, None)],
)
def test_quic_counts_by_the_clients_account(detail: str | None, alpn: str | None, expected: bool | None) -> None:
    asked = download(transport="quic", transport_detail=detail, alpn=alpn)
    assert judge_treatment(asked, None)[0] is expected


def test_the_version_of_quic_comes_from_the_capture_if_the_client_does_not_tell_it() -> None:
    silent = quic(transport_detail='{"window_bytes": 70000}', connect_s=0.04)
    seen = connection(protocol="quic", syn_ns=None, syn_ack_ns=None)
    for version, expected in ((1, True), (0x6B3343CF, False), (None, None)):
        assert judge_treatment(silent, dataclasses.replace(seen, quic_version=version))[0] is expected
    assert judge_treatment(silent, None)[0] is None
    assert rows.with_account(seen, silent).quic_window == 70000


@pytest.mark.parametrize(
    ("client_http", "http_version", "alpn", "is_as_requested"),
    [
        ("1.1", "1.1", "http/1.1", True),
        ("1.1", "1.0", None, True),
        ("1.1", "2", "h2", False),
        ("2", "2", "h2", True),
        ("2", "1.1", "http/1.1", False),
        ("2", "1.1", None, False),
        ("2", None, None, True),  # it ended before either was known
        (None, "2", "h2", True),  # as client and server agree
    ],
)
def test_a_fallback_to_another_http_version_is_a_mismatch(
    client_http: str | None, http_version: str | None, alpn: str | None, is_as_requested: bool
) -> None:
    one = download(client_http=client_http, http_version=http_version, alpn=alpn)
    verdict = judge_treatment(one, connection())
    assert verdict.ok is is_as_requested
    assert verdict.reason == (None if is_as_requested else TreatmentReason.HTTP_VERSION)


def test_client_and_capture_must_agree() -> None:
    assert proof.contradiction(download(), connection()) is None
    assert proof.contradiction(download(started_at=START + HOUR), connection(), clock_s=-HOUR) is None, (
        "only the clock differs"
    )
    early = connection(response_last_ns=int((START + 1.02) * 1e9))
    told = "client and capture differ: last byte after 1.0000 s by the client, 0.0200 s later by the capture"
    assert proof.contradiction(download(), early) == told
    short = connection(server=side(payload_bytes=999))
    assert "999 bytes" in (proof.contradiction(download(), short) or "")
    assert proof.contradiction(download(), connection(truncated=True, server=side(payload_bytes=1))) is None


def test_a_client_that_read_late_was_disturbed_and_not_mistreated() -> None:
    late = connection(response_last_ns=int((START + 0.98) * 1e9))
    (row,) = inspect_run([download()], [late])
    assert (row.download.treatment_ok, row.download.treatment_detail) == (True, None)
    assert row.download.host_disturbance == HostDisturbance.CLIENT_LATE and row.download.accepted is False
    assert row.download.host_disturbance_detail == "the client read the last byte 20.0 ms after it arrived"
    (again,) = inspect_run([download(started_at=START + HOUR)], [late])
    assert again.download.host_disturbance == HostDisturbance.CLIENT_LATE, "only the clock differs"
    for other, seen in (
        (download(), connection()),
        (download(), connection(response_last_ns=int((START + 0.991) * 1e9))),  # within 1 %
        (download(outcome="censored"), late),
        (download(capture_dropped=3), late),
        (download(), dataclasses.replace(late, truncated=True)),
    ):
        (row,) = inspect_run([other], [seen])
        assert row.download.host_disturbance is None


def test_a_part_of_an_answer_tells_no_times() -> None:
    """A segment of the client was taken for a request, and cut the answer in two."""
    half = connection(response_last_ns=int((START + 0.6) * 1e9), response_bytes=999)
    (row,) = inspect_run([download()], [half])
    assert row.kpis is not None and row.download.host_disturbance is None
    assert {row.kpis[name] for name in ("transfer", "time_to_first_byte", "delivery_rate")} == {None}
    # What the capture does not have, and what was lost and came again, is no part of `response_bytes`.
    for apart in (side(missing_bytes=1), side(retransmitted_bytes=1)):
        (row,) = inspect_run([download()], [dataclasses.replace(half, server=apart)])
        assert row.kpis is not None and row.kpis["transfer"] == pytest.approx(0.1)
        assert row.download.host_disturbance == HostDisturbance.CLIENT_LATE


def test_the_server_s_handshake_is_no_answer() -> None:
    """It is the largest one where the body is smaller than the certificates, and then the client seems late."""
    flight = connection(
        response_first_ns=int((START + 0.05) * 1e9), response_last_ns=int((START + 0.051) * 1e9), response_bytes=4000
    )
    small = download(body_bytes=1_200, tls_s=0.1)
    (row,) = inspect_run([small], [flight])
    assert row.kpis is not None and row.download.host_disturbance is None
    assert {row.kpis[name] for name in ("transfer", "time_to_first_byte", "time_to_answer")} == {None}
    other_clock = dataclasses.replace(small, started_at=START - HOUR)
    assert proof.has_answer(other_clock, flight) and not proof.has_answer(other_clock, flight, clock_s=HOUR)


def test_the_time_to_the_answer_is_by_the_client_s_clock() -> None:
    """A client that was redirected to another host, or whose first address did not answer, began before this
    connection."""
    (row,) = inspect_run([download(started_at=START - 0.2, connect_s=0.2101, last_byte_s=1.2)], [connection()])
    first, last = connection().response_first_ns, connection().response_last_ns
    assert row.kpis is not None and first is not None and last is not None
    assert row.kpis["time_to_answer"] == pytest.approx(first / 1e9 - START + 0.2, abs=1e-6)
    assert row.kpis["time_to_first_byte"] == pytest.approx(row.kpis["time_to_answer"] - 0.2, abs=0.05)  # type: ignore[operator]


def test_what_a_client_did_before_its_connection_is_no_slow_handshake() -> None:
    """wget2 after a redirect to another host: TCP and TLS took two round trips of this connection."""
    times = {"started_at": START - 0.2, "connect_s": None, "tls_s": 0.222, "last_byte_s": 1.2}
    row = download(**times, tls_version="TLSv1.3")
    seen = connection(last_syn_ns=int(START * 1e9))  # SYN to SYN-ACK: 10 ms
    (inspected,) = inspect_run([row], [seen])
    assert inspected.download.slow_handshake is False
    (inspected,) = inspect_run([dataclasses.replace(row, tls_s=0.252)], [seen])
    assert inspected.download.slow_handshake is True


@pytest.mark.parametrize("coding", ["gzip", "br", "identity", None])
def test_a_body_that_came_compressed_is_longer_than_what_was_sent(coding: str | None) -> None:
    """wget2 (quirk `wget2`) offers compression, and counts what it has unpacked."""
    headers = {"server": "x"} | ({} if coding is None else {"content-encoding": coding})
    sent = connection(server=side(payload_bytes=1_000_000), response_bytes=1_000_000)
    (row,) = inspect_run([download(body_bytes=5_000_000, response_headers=json.dumps(headers))], [sent])
    is_proven = coding in ("gzip", "br")
    assert download(body_bytes=5_000_000).content_length is None, "as wget2 tells of such a body"
    assert row.download.treatment_ok is is_proven
    assert row.download.treatment_reason == (None if is_proven else TreatmentReason.ACCOUNTS_DIFFER)
    assert row.kpis is not None and (row.kpis["transfer"] is not None) is is_proven
    # A file that is stored as gzip: other clients count its bytes as they came.
    told = download(body_bytes=5_000_000, content_length=5_000_000, response_headers=json.dumps(headers))
    (row,) = inspect_run([told], [sent])
    assert row.download.treatment_reason == TreatmentReason.ACCOUNTS_DIFFER


def quic(**changes: Any) -> Download:
    return download(**{"transport": "quic", "transport_detail": '{"version": "0x00000001"}', "alpn": "h3"} | changes)


@pytest.mark.parametrize("clock_s", [0.0, HOUR])
def test_quic_is_held_against_its_capture_too(clock_s: float) -> None:
    """The server may send for a round trip after the client has everything."""

    def judged(answer_s: float, **of_server: Any) -> Download:
        ns = {"response_last_ns": int((START + answer_s) * 1e9), "first_ns": int(START * 1e9)}
        seen = connection(protocol="quic", syn_ns=None, syn_ack_ns=None, server=side(**of_server), **ns)
        (row,) = inspect_run([quic(started_at=START + clock_s, connect_s=0.04)], [seen])
        return row.download

    assert judged(0.999).treatment_ok is True
    assert judged(1.04).treatment_ok is True, "retransmitted before the server knew"
    assert judged(1.08).treatment_reason == TreatmentReason.ACCOUNTS_DIFFER
    assert judged(0.999, payload_bytes=999).treatment_reason == TreatmentReason.ACCOUNTS_DIFFER
    assert judged(0.9).host_disturbance is None, "a QUIC client that is late acknowledges late"


def test_a_short_body_of_quic_has_no_times_and_is_no_contradiction() -> None:
    """Its one datagram is below 1,000 bytes, as tickets are."""
    seen = connection(protocol="quic", syn_ns=None, syn_ack_ns=None, response_last_ns=None)
    (row,) = inspect_run([quic(body_bytes=500, connect_s=0.04)], [seen])
    assert (row.download.treatment_ok, row.download.treatment_detail) == (True, None)
    assert row.kpis is not None and row.kpis["transfer"] is None
    for of_server, told in ((499, "499 bytes of payload"), (0, "no data from the server")):
        other = dataclasses.replace(seen, server=side(payload_bytes=of_server))
        assert told in (proof.contradiction(quic(body_bytes=500), other) or "")


SKEWS_S = [0.0003, 0.003, 0.012]
"""How long before its SYN a client takes its start time."""


def run_of(clock_s: float, late_s: float) -> tuple[list[Download], list[Connection]]:
    """Downloads whose clock is ahead, the last of which learns of everything late, and their connections."""
    downloads, connections = [], []
    for number, skew_s in enumerate(SKEWS_S):
        told_s = skew_s + (late_s if number == 2 else 0.0002)
        port, syn_s = 40000 + number, START + 10 * number
        times = {"connect_s": told_s + 0.01, "last_byte_s": told_s + 1.0}
        downloads.append(download(local_port=port, started_at=syn_s - skew_s + clock_s, **times))
        ns = {"first_ns": syn_s, "syn_ns": syn_s, "syn_ack_ns": syn_s + 0.01, "response_last_ns": syn_s + 1.0}
        connections.append(connection(client_port=port, **{name: round(at * 1e9) for name, at in ns.items()}))
    return downloads, connections


@pytest.mark.parametrize("clock_s", [0.0, 0.5, -0.5, HOUR, -HOUR])
def test_a_clock_that_is_off_and_a_start_before_the_syn_are_no_lateness(clock_s: float) -> None:
    downloads, connections = run_of(clock_s, late_s=0.0002)
    expected = -clock_s if clock_s else 0.0
    assert matching.clock_offset_s(downloads, connections) == pytest.approx(expected, abs=0.001)
    for row in inspect_run(downloads, connections):
        assert (row.download.treatment_ok, row.download.host_disturbance) == (True, None)
    downloads, connections = run_of(clock_s, late_s=0.02)
    found = [row.download.host_disturbance for row in inspect_run(downloads, connections)]
    assert found == [None, None, HostDisturbance.CLIENT_LATE]


def test_without_a_handshake_there_is_one_clock() -> None:
    assert matching.clock_offset_s([], []) == 0.0
    assert matching.clock_offset_s([download(connect_s=None, started_at=5.0)], [connection()]) == 0.0
    assert matching.clock_offset_s([download(started_at=5.0), download()], [connection(syn_ns=None), None]) == 0.0


def test_a_row_of_kpis_has_every_column_with_its_unit() -> None:
    schema = rows.downloads_schema()
    assert schema.names == [*schemas.row_schema("downloads").names, *KPIS]
    assert schema.field("mean_throughput").metadata == {b"unit": b"Mbit/s"}
    (found,) = inspect_run([download()], [connection()])
    row = found.columns(7)
    assert list(row) == schema.names and row["engine"] == row["kpi_engine"] == rows.ENGINE and row["run"] == 7
    (lost,) = inspect_run([download()], [])
    assert all(lost.columns(0)[name] is None for name in (*KPIS, "kpi_engine")) and lost.kpis is None


@pytest.mark.parametrize("transport", ["tcp", "quic"])
def test_goodput_and_delivery_rate_are_of_the_body_and_end_with_the_data(transport: str) -> None:
    start_ns = int(START * 1e9)
    found = connection(
        protocol=transport,
        first_ns=start_ns,
        last_ns=start_ns + 2_000_000_000,
        response_first_ns=start_ns + 200_000_000,
        response_last_ns=start_ns + 1_000_000_000,
        response_bytes=1_020_000,
        response_first_bytes=10_200,
        server=side(ip_bytes=1_100_000, last_data_ns=start_ns + 1_000_000_000),
    )
    row = kpis_of(download(transport=transport, body_bytes=1_000_000), found)
    assert row["goodput"] == pytest.approx(8)
    assert row["delivery_rate"] == pytest.approx(0.99 * 8 / 0.8)
    assert (row["mean_throughput"], row["throughput_published"]) == (pytest.approx(8.8), pytest.approx(4.4))
    assert KPIS["goodput"].compute(found) is KPIS["delivery_rate"].compute(found) is None, "a capture alone has no body"


@pytest.mark.parametrize("transport", ["tcp", "quic"])
def test_throughput_ends_before_close_notify_and_the_last_acknowledgements(transport: str) -> None:
    start_ns = int(START * 1e9)
    found = connection(
        protocol=transport,
        first_ns=start_ns,
        response_last_ns=start_ns + 1_000_000_000,
        response_ip_bytes=1_000_000,
        server=side(ip_bytes=1_100_000, last_data_ns=start_ns + 1_100_000_000),
    )
    assert KPIS["mean_throughput"].compute(found) == pytest.approx(8)
    # Where the answer's times do not hold, as a body is longer than the largest answer, both are of all data.
    assert KPIS["mean_throughput"].compute(dataclasses.replace(found, response_last_ns=None)) == pytest.approx(8)


def test_a_client_hello_that_the_host_had_not_cut_counts_as_cut() -> None:
    found = connection(client_hello_bytes=1_600, client_hello_packets=1, timestamps_accepted=True)
    assert KPIS["client_hello_datagrams"].compute(found) == 2
    assert KPIS["client_hello_datagrams"].compute(dataclasses.replace(found, client_hello_bytes=1_448)) == 1
    assert KPIS["client_hello_datagrams"].compute(dataclasses.replace(found, protocol="quic")) == 1


@pytest.mark.parametrize(
    ("changes", "slow"),
    [
        ({"transport": "quic", "connect_s": 0.144, "tls_version": "TLSv1.3"}, False),
        ({"transport": "quic", "connect_s": 0.146, "tls_version": "TLSv1.3"}, True),
        ({"tls_s": 0.274, "tls_version": "TLSv1.3"}, False),
        ({"tls_s": 0.276, "tls_version": "TLSv1.3"}, True),
        ({"tls_s": 0.404, "tls_version": "TLSv1.2"}, False),
        ({"tls_s": 0.406, "tls_version": "TLSv1.2"}, True),
        ({"tls_s": None, "tls_version": None}, None),
        ({"transport": "quic", "connect_s": None, "tls_version": None}, None),
    ],
)
def test_a_handshake_is_slow_beyond_its_round_trips(changes: dict[str, Any], slow: bool | None) -> None:
    assert proof.slow_handshake(download(**changes), 0.1) is slow
    assert proof.slow_handshake(download(**changes), None) is None


def test_the_round_trip_time_of_a_slow_handshake_is_that_of_the_run() -> None:
    """A server that answers a QUIC ClientHello late makes its own handshake's round trip look long."""
    start_ns = int(START * 1e9)
    tcp = connection(last_syn_ns=start_ns)  # SYN to SYN-ACK: 10 ms
    quic = connection(
        protocol="quic",
        syn_ns=None,
        client_port=40001,
        quic_client_initial_ns=start_ns,
        quic_last_client_initial_ns=start_ns,
        quic_server_initial_ns=start_ns + 40_000_000,
    )
    late = download(transport="quic", local_port=40001, connect_s=0.041, tls_version="TLSv1.3")
    in_time = download(tls_s=0.022, tls_version="TLSv1.3")
    first, second = inspect_run([in_time, late], [tcp, quic])
    assert (first.download.slow_handshake, second.download.slow_handshake) == (False, True)


def test_a_slow_handshake_is_told_by_round_trips_to_its_own_server() -> None:
    """In the published order, with a look-up before each download, servers may be 10 ms and 60 ms away."""

    def of(number: int, server_ip: str, rtt_s: float, transport: str = "tcp") -> tuple[Download, Connection]:
        port, start_s = 40000 + number, START + 2 * number
        start_ns, answer_ns = (round(at_s * 1e9) for at_s in (start_s, start_s + rtt_s))
        times = {"connect_s": rtt_s, "tls_s": 2 * rtt_s, "started_at": start_s}
        ns = {"first_ns": start_ns, "syn_ns": start_ns, "last_syn_ns": start_ns, "syn_ack_ns": answer_ns}
        ns |= {"response_last_ns": start_ns + 10**9}
        ns |= {"quic_client_initial_ns": start_ns, "quic_last_client_initial_ns": start_ns}
        seen = {"server_ip": server_ip, "client_port": port, "quic_server_initial_ns": answer_ns, **ns}
        told = {"server_ip": server_ip, "local_port": port, "tls_version": "TLSv1.3", **times}
        row, joined = download(**told), connection(**seen)
        return dataclasses.replace(row, transport=transport), dataclasses.replace(joined, protocol=transport)

    near, far, again = of(0, "198.18.0.9", 0.01), of(1, "198.18.1.9", 0.06), of(2, "198.18.1.9", 0.06)

    def slow(*pairs: tuple[Download, Connection]) -> list[bool | None]:
        return [row.download.slow_handshake for row in inspect_run(*zip(*pairs, strict=True))]

    assert slow(near, far, again) == [False, False, False]
    alone = of(3, "198.18.2.9", 0.06, "quic")
    assert slow(near, alone) == [False, None], "only its own round trip is known, and a server's delay is in it"
    assert slow(near, alone, of(4, "198.18.2.9", 0.01)) == [False, True, False]
