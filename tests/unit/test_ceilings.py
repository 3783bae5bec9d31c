"""Ceilings of clients: what their transfers say, and when a stored calibration holds no longer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.domain import Transport
from vantage.doctor import ceilings as stored
from vantage.doctor.ceilings import Limit, MeasuredCeiling, Transfer, rate_text, read_answer


@dataclass(frozen=True)
class Client:
    """A client as the doctor sees it."""

    name: str
    transport: Transport = Transport.TCP
    packages: Mapping[str, str | None] = field(default_factory=dict)

    def missing(self) -> str | None:
        return None

    def versions(self) -> Mapping[str, str | None]:
        return self.packages

    def command(self) -> tuple[str, ...]:
        return (self.name,)


NOW = stored.Circumstances(host="muc", kernel="6.1.0", cpu="2 x EPYC", python="3.11.2", upshift="0.1.0")
REQUESTS = Client("requests", packages={"requests": "2.34.2", "urllib3": "2.8.0"})
QUICHE = Client("quiche", Transport.QUIC, {"upshift-h3get": "0.1.0"})


def transfer(mbit_s: float | None = 800.0, **changes: object) -> Transfer:
    first = Transfer(server="nginx", mbit_s=mbit_s, seconds=1.0, body_bytes=10**8, client_cpu_s=0.9, server_cpu_s=0.2)
    return replace(first, **changes)  # type: ignore[arg-type]


def ceiling(client: Client, *transfers: Transfer, fault: str | None = None) -> MeasuredCeiling:
    return MeasuredCeiling(
        client=client.name,
        transport=client.transport,
        versions=client.versions(),
        transfers=transfers,
        fault=fault,
    )


@pytest.mark.parametrize(
    ("answer", "rate", "fault"),
    [
        (
            {"outcome": "ok", "body_bytes": 10**6, "first_byte_s": 1.0, "last_byte_s": 2.0, "transfer_cpu_s": 0.1},
            8.0,
            None,
        ),
        (
            {"outcome": "censored", "failure": "time_budget", "body_bytes": 10**6, "first_byte_s": 1, "last_byte_s": 3},
            4.0,
            None,
        ),
        ({"outcome": "failed", "failure": "tls_error", "failure_detail": "bad"}, None, "tls_error: bad"),
        ({"outcome": "ok", "body_bytes": 0}, None, "it received too little to compute a rate"),
    ],
)
def test_a_rate_from_a_clients_answer(answer: dict[str, object], rate: float | None, fault: str | None) -> None:
    found = read_answer(answer, server="nginx")
    assert (found.mbit_s, found.fault) == (rate, fault)
    assert found.client_cpu_s == answer.get("transfer_cpu_s")


@pytest.mark.parametrize(
    ("client_cpu_s", "server_cpu_s", "limit"),
    [
        (0.95, 0.3, Limit.CLIENT),
        (0.75, 0.98, Limit.SERVER),
        (0.5, 0.6, Limit.NEITHER),
        (None, 0.9, None),
    ],
)
def test_the_end_that_was_the_limit(client_cpu_s: float | None, server_cpu_s: float, limit: Limit | None) -> None:
    fastest = transfer(client_cpu_s=client_cpu_s, server_cpu_s=server_cpu_s)
    # A slower transfer that kept the other end busy says nothing.
    slower = transfer(100.0, client_cpu_s=0.1, server_cpu_s=1.0)
    assert ceiling(REQUESTS, fastest, slower).limit is limit


def test_the_ceiling_is_the_fastest_transfer_and_drops_begin_at_the_lowest_offered_rate() -> None:
    found = ceiling(
        QUICHE,
        transfer(900.0, socket_drops=40),
        transfer(430.0, offered_mbit_s=450.0, socket_drops=0),
        transfer(600.0, offered_mbit_s=675.0, socket_drops=3),
        transfer(870.0, offered_mbit_s=900.0, socket_drops=90),
    ).document()
    assert (found["ceiling_mbit_s"], found["first_drops_mbit_s"]) == (900.0, 675.0)
    assert found["client_cpu_s_per_gb"] == pytest.approx(9.0)
    assert ceiling(REQUESTS, transfer()).first_drops_mbit_s is None


def test_a_client_without_a_transfer_has_a_reason() -> None:
    for found, reason in (
        (ceiling(QUICHE, fault="h3get is missing"), "h3get is missing"),
        (ceiling(QUICHE, Transfer(server="quiche", fault="tls_error: bad")), "tls_error: bad"),
        (ceiling(QUICHE), "no transfer was made"),
    ):
        document = found.document()
        assert (document["fault"], document["ceiling_mbit_s"], document["limit"]) == (reason, None, None)


def test_rates_have_units() -> None:
    assert [rate_text(rate) for rate in (4.24, 196.7, 1532.0)] == ["4.2 Mbit/s", "197 Mbit/s", "1.53 Gbit/s"]


def saved(path: Path, *ceilings: MeasuredCeiling) -> Path:
    stored.save(ceilings, path=path, now=NOW, measured_at="2026-11-22T08:00:00+00:00", seconds=1.0, busy_share=0.02)
    return path


def test_a_stored_calibration_holds_until_something_changes(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep" / "ceilings.json", ceiling(REQUESTS, transfer()), ceiling(QUICHE, transfer()))
    clients = (REQUESTS, QUICHE)

    def reasons(now: stored.Circumstances = NOW, known: tuple[Client, ...] = clients) -> dict[str, str | None]:
        return stored.unknown(stored.present(known, path=path, now=now), [client.name for client in known])

    assert reasons() == {"requests": None, "quiche": None}
    for name, value in (("kernel", "6.12.1"), ("cpu", "4 x EPYC"), ("host", "sfo"), ("python", "3.12.0")):
        said = f"stale: {name} {getattr(NOW, name)} -> {value}"
        assert reasons(replace(NOW, **{name: value})) == {"requests": said, "quiche": said}
    newer = Client("quiche", Transport.QUIC, {"upshift-h3get": "0.2.0"})
    assert reasons(known=(REQUESTS, newer)) == {"requests": None, "quiche": "stale: upshift-h3get 0.1.0 -> 0.2.0"}
    assert reasons(known=(*clients, Client("curl")))["curl"] == "not calibrated"


def test_a_calibration_that_failed_or_is_missing_or_unreadable_is_unknown(tmp_path: Path) -> None:
    path = saved(tmp_path / "ceilings.json", ceiling(QUICHE, fault="h3get is missing"))
    found = stored.present([QUICHE], path=path, now=NOW)
    assert stored.unknown(found, ["quiche"]) == {"quiche": "h3get is missing"}
    assert stored.present([QUICHE], path=tmp_path / "none.json", now=NOW) is None
    document = json.loads(path.read_text())
    for text in ("{", json.dumps(document | {"schema": 99})):
        path.write_text(text)
        assert stored.present([QUICHE], path=path, now=NOW) is None
    assert stored.unknown(None, ["quiche"]) == {"quiche": "not calibrated"}


def test_what_is_stored_with_data_has_no_single_transfers(tmp_path: Path) -> None:
    path = saved(tmp_path / "ceilings.json", ceiling(REQUESTS, transfer()))
    kept = stored.summary(stored.present([REQUESTS], path=path, now=NOW))
    assert kept is not None and kept["clients"]["requests"]["stale"] == []
    assert kept["clients"]["requests"]["ceiling_mbit_s"] == 800.0
    assert kept["too_low"] is False  # the host was idle
    assert "transfers" not in kept["clients"]["requests"] and kept["circumstances"]["kernel"] == "6.1.0"
    assert stored.summary(None) is None


def test_the_folder_outlives_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UPSHIFT_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stored.calibration_file() == tmp_path / ".local/state/upshift/ceilings.json"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert stored.calibration_file() == tmp_path / "state/upshift/ceilings.json"
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "own"))
    assert stored.calibration_file() == tmp_path / "own/ceilings.json"
