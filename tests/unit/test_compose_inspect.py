"""Downloads and connections are joined, treatments are proven, stories compared."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from analysis.connection import Connection, Side
from analysis.kpis import ALL as KPIS
from downloader.apply import complete_levels
from upshift import store
from upshift.compose.inspect import matching, proof, rows
from upshift.domain import Download

START = 1_700_000_000.0


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
        "outcome": "ok", "last_byte_s": 1.0, "connect_s": 0.1, "body_bytes": 1000, "configuration": "BL",
        "levels": json.dumps(complete_levels({})), "capture": "x.pcap", "treatment_ok": None,
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
        "client": side(timestamps=True, mss=1460, syn_window=64240, syn_packets=1), "server": side(),
    }  # fmt: skip
    return Connection(**blank(Connection, **(known | changes)))


def test_the_nearest_connection_of_a_used_port_is_taken() -> None:
    early, late = connection(first_ns=int((START - 0.4) * 1e9)), connection(first_ns=int((START + 0.01) * 1e9))
    assert matching.find_connection(download(), [early, late]) is late
    far = connection(first_ns=int((START + 5) * 1e9))
    assert matching.find_connection(download(), [far]) is None
    assert matching.find_connection(download(), [connection(client_port=1)]) is None
    assert matching.find_connection(download(local_port=None), [late]) is None


def test_a_treatment_as_asked_is_proven() -> None:
    assert proof.judge_treatment(download(), connection()) == (True, None)


def test_a_treatment_that_the_wire_contradicts_is_told() -> None:
    asked = download(levels=json.dumps(complete_levels({"ecn": "on"})))
    ok, detail = proof.judge_treatment(asked, connection())
    assert ok is False
    assert detail is not None and detail.startswith("ecn=on: ")


def test_without_a_capture_nothing_is_proven() -> None:
    assert proof.judge_treatment(download(), None) == (None, "no connection of the capture fits this download")
    assert proof.judge_treatment(download(capture=None), None) == (None, "there is no capture")
    assert proof.judge_treatment(download(), connection(syn_ns=None))[0] is None


def test_a_void_download_stays_void() -> None:
    void = download(treatment_ok=False, treatment_detail="void: late")
    assert proof.judge_treatment(void, connection()) == (False, "void: late")


@pytest.mark.parametrize(
    ("detail", "alpn", "expected"),
    [('{"version": "0x00000001"}', "h3", True), ('{"version": "0x6b3343cf"}', "h3", False), (None, None, None)],
)
def test_quic_counts_by_the_clients_account(detail: str | None, alpn: str | None, expected: bool | None) -> None:
    asked = download(transport="quic", transport_detail=detail, alpn=alpn)
    assert proof.judge_treatment(asked, None)[0] is expected


def test_client_and_capture_must_agree() -> None:
    assert proof.story(download(), connection()) is None
    late = connection(response_last_ns=int((START + 0.98) * 1e9))
    assert "client and capture differ" in (proof.story(download(), late) or "")
    short = connection(server=side(payload_bytes=999))
    assert "999 bytes" in (proof.story(download(), short) or "")
    assert proof.story(download(), connection(truncated=True, server=side(payload_bytes=1))) is None


def test_kpis_are_written_with_units(tmp_path: Path) -> None:
    row = rows.kpi_row(download(), connection())
    rows.write_kpis(tmp_path / "kpis.parquet", [row])
    table = store.read_table(tmp_path / "kpis.parquet", "kpis")
    assert table.column_names == [*store.DOWNLOAD_KEY, *KPIS]
    assert table.schema.field("mean_throughput").metadata == {b"unit": b"Mbit/s"}
    rows.write_kpis(tmp_path / "empty.parquet", [])
    assert store.read_table(tmp_path / "empty.parquet", "kpis").num_rows == 0


def test_quic_goodput_comes_from_the_body() -> None:
    quic = connection(protocol="quic", syn_ns=None)
    row = rows.kpi_row(download(transport="quic", body_bytes=1_000_000), quic)
    assert row["goodput"] == pytest.approx(8 / (1.1 - 1e-6), rel=1e-6)
