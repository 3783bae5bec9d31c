"""Ceilings of clients: what their transfers say, and when a stored calibration holds no longer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import Transport
from core.files import fixed_rates
from core.files.fixed_rates import Limit, PacketForm, Transfer
from vantage.doctor import ceilings as stored
from vantage.doctor.ceilings import MeasuredCeiling, circumstances, read_answer
from vantage.linux import environment

NAMES = st.sampled_from(["http", "family", "transfers", "server", "packets", "mbit_s", "offered_mbit_s"])


@dataclass(frozen=True)
class Client:
    """A client as the doctor sees it."""

    name: str
    transport: Transport = Transport.TCP
    http: str | None = "1.1"
    family: str = "own"
    packages: Mapping[str, str | None] = field(default_factory=dict)

    def missing(self) -> str | None:
        return None

    def versions(self) -> Mapping[str, str | None]:
        return self.packages

    def command(self) -> tuple[str, ...]:
        return (self.name,)


NOW = {"host": "muc", "kernel": "6.1.0", "cpu": "2 x EPYC", "python": "3.11.2", "upshift": "0.1.0"}
REQUESTS = Client("requests", packages={"requests": "2.34.2", "urllib3": "2.8.0"})
QUICHE = Client("quiche", Transport.QUIC, "3", packages={"upshift-h3get": "0.1.0"})


def transfer(mbit_s: float | None = 800.0, **changes: object) -> Transfer:
    first = Transfer(server="nginx", mbit_s=mbit_s, seconds=1.0, client_cpu_s_per_gb=9.0)
    return replace(first, client_core_share=0.9, server_core_share=0.2, **changes)  # type: ignore[arg-type]


def ceiling(client: Client, *transfers: Transfer, fault: str | None = None) -> MeasuredCeiling:
    return MeasuredCeiling(client=client, transfers=transfers, fault=fault)


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
    found = read_answer(answer, Transfer(server="nginx", offered_mbit_s=10.0), server_cpu_s=0.4)
    assert (found.server, found.offered_mbit_s, found.mbit_s, found.fault) == ("nginx", 10.0, rate, fault)
    if "transfer_cpu_s" in answer:
        assert (found.client_cpu_s_per_gb, found.client_core_share, found.server_core_share) == (100.0, 0.1, 0.4)
    else:
        assert found.client_cpu_s_per_gb is None


@pytest.mark.parametrize(
    ("client", "server", "limit"),
    [
        (0.95, 0.3, Limit.CLIENT),
        (0.75, 0.98, Limit.SERVER),
        (0.5, 0.6, Limit.NEITHER),
        (None, 0.9, None),
    ],
)
def test_the_end_that_was_the_limit(client: float | None, server: float, limit: Limit | None) -> None:
    best = replace(transfer(), client_core_share=client, server_core_share=server)
    # A slower transfer that kept the other end busy says nothing.
    slower = replace(transfer(100.0), client_core_share=0.1, server_core_share=1.0)
    assert ceiling(REQUESTS, best, slower).document()["limit"] is limit


def test_the_ceiling_is_the_fastest_transfer_and_drops_begin_at_the_lowest_offered_rate() -> None:
    found = ceiling(
        QUICHE,
        transfer(900.0, socket_drops=40),
        transfer(430.0, offered_mbit_s=450.0, socket_drops=0),
        transfer(600.0, offered_mbit_s=675.0, socket_drops=3),
        transfer(870.0, offered_mbit_s=900.0, socket_drops=90),
    ).document()
    assert (found["ceiling_mbit_s"], found["first_drops_mbit_s"]) == (900.0, 675.0)
    assert ceiling(REQUESTS, transfer()).document()["first_drops_mbit_s"] is None


def test_merged_packets_do_not_raise_a_ceiling() -> None:
    merged = transfer(2_000.0, packets=PacketForm.MERGED, socket_drops=1)
    found = ceiling(REQUESTS, merged, transfer()).document()
    assert (found["ceiling_mbit_s"], found["first_drops_mbit_s"]) == (800.0, None)
    assert ceiling(REQUESTS, merged).document()["fault"] == "no transfer was made"


def test_a_client_without_a_transfer_has_a_reason() -> None:
    for found, reason in (
        (ceiling(QUICHE, fault="h3get is missing"), "h3get is missing"),
        (ceiling(QUICHE, Transfer(server="quiche", fault="tls_error: bad")), "tls_error: bad"),
        (ceiling(QUICHE), "no transfer was made"),
    ):
        document = found.document()
        assert (document["fault"], document["ceiling_mbit_s"], document["limit"]) == (reason, None, None)


def step(rate: float | None, mbit_s: float, cost: float, **changes: object) -> Transfer:
    return replace(transfer(mbit_s, offered_mbit_s=rate, **changes), client_cpu_s_per_gb=cost)


def test_clients_by_rate_and_h3_over_h2_of_a_family() -> None:
    h2 = Client("curl-h2", http="2", family="curl")
    h3 = Client("curl-h3", Transport.QUIC, "3", "curl")
    merged = {"packets": PacketForm.MERGED}
    found = (
        ceiling(h2, step(None, 2_500, 1.0), step(1_000, 950, 1.2), step(None, 3_000, 0.5, **merged)),
        ceiling(h3, step(None, 1_100, 1.5), step(1_000, 940, 1.5, socket_drops=3), step(None, 900, 0.9, **merged)),
        ceiling(REQUESTS, replace(step(None, 700, 6.0), client_core_share=0.5), step(1_000, 690, 6.1)),
        ceiling(QUICHE, fault="h3get is missing"),
    )
    shown = fixed_rates.cells({one.client.name: one.document() for one in found})
    assert shown == [
        ["client", "packets", "server", "limit", "highest", "first drops", "1,000", "no limit"],
        ["curl-h2", "single", "nginx", "client", "2,500", "–", "950 (1.2)", "2,500 (1.0)"],
        ["curl-h2", "merged", "nginx", "client", "3,000", "–", "", "3,000 (0.5)"],
        ["curl-h3", "single", "nginx", "client", "1,100", "1,000", "940 (1.5)", "1,100 (1.5)"],
        ["curl-h3", "merged", "nginx", "client", "900", "–", "", "900 (0.9)"],
        ["requests", "single", "nginx", "neither", "≥ 700", "–", "690 (6.1)", "700 (6.0)"],
        ["curl: h3 over h2", "single", "", "", "", "", "1.25", "1.50"],
        ["curl: h3 over h2", "merged", "", "", "", "", "", "1.80"],
    ]


@given(
    st.recursive(st.none() | st.text() | st.floats() | st.integers(), lambda x: st.lists(x) | st.dictionaries(NAMES, x))
)
def test_what_another_host_wrote_is_left_out(entry: object) -> None:
    assert fixed_rates.cells({"quiche": entry}) == [
        ["client", "packets", "server", "limit", "highest", "first drops", "no limit"]
    ]


def saved(path: Path, *ceilings: MeasuredCeiling) -> Path:
    stored.save(ceilings, path=path, now=NOW, measured_at="2026-11-22T08:00:00+00:00", seconds=1.0, busy_share=0.02)
    return path


def test_a_stored_calibration_holds_until_something_changes(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep" / "ceilings.json", ceiling(REQUESTS, transfer()), ceiling(QUICHE, transfer()))
    clients = (REQUESTS, QUICHE)

    def reasons(now: dict[str, str] = NOW, known: tuple[Client, ...] = clients) -> dict[str, str | None]:
        return stored.unknown(stored.present(known, path=path, now=now), [client.name for client in known])

    assert reasons() == {"requests": None, "quiche": None}
    for name, value in (("kernel", "6.12.1"), ("cpu", "4 x EPYC"), ("host", "sfo"), ("python", "3.12.0")):
        said = f"stale: {name} {NOW[name]} -> {value}"
        assert reasons({**NOW, name: value}) == {"requests": said, "quiche": said}
    newer = replace(QUICHE, packages={"upshift-h3get": "0.2.0"})
    assert reasons(known=(REQUESTS, newer)) == {"requests": None, "quiche": "stale: upshift-h3get 0.1.0 -> 0.2.0"}
    assert reasons(known=(*clients, Client("curl")))["curl"] == "not calibrated"


def test_a_calibration_that_failed_or_is_missing_or_unreadable_is_unknown(tmp_path: Path) -> None:
    path = saved(tmp_path / "ceilings.json", ceiling(QUICHE, fault="h3get is missing"))
    found = stored.present([QUICHE], path=path, now=NOW)
    assert stored.unknown(found, ["quiche"]) == {"quiche": "h3get is missing"}
    assert stored.present([QUICHE], path=tmp_path / "none.json", now=NOW) is None
    document = json.loads(path.read_text())
    for text, said in (
        ("{", "ceilings.json cannot be used: this is not valid JSON"),
        (json.dumps(document | {"schema": 1}), "ceilings.json is of another version of Upshift (schema 1, not 2)"),
        # Damaged by hand.
        (json.dumps(document | {"clients": []}), "ceilings.json cannot be used: field clients: "),
        (json.dumps(document | {"clients": {"quiche": 3}}), "ceilings.json cannot be used: field clients.quiche: "),
        (
            json.dumps(document | {"clients": {"quiche": {"versions": {}}}}),
            "ceilings.json cannot be used: field clients.q",
        ),
        (json.dumps(document | {"circumstances": None}), "ceilings.json cannot be used: field circumstances: "),
        (json.dumps(document | {"busy_share": "much"}), "ceilings.json cannot be used: field busy_share: "),
    ):
        path.write_text(text)
        [reason] = stored.unknown(stored.present([QUICHE], path=path, now=NOW), ["quiche"]).values()
        assert reason is not None and reason.startswith(said)
    assert stored.unknown(None, ["quiche"]) == {"quiche": "not calibrated"}


def test_the_folder_outlives_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UPSHIFT_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stored.calibration_file() == tmp_path / ".local/state/upshift/ceilings.json"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert stored.calibration_file() == tmp_path / "state/upshift/ceilings.json"
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "own"))
    assert stored.calibration_file() == tmp_path / "own/ceilings.json"


@pytest.mark.parametrize(
    ("own", "limits", "limit"),
    [
        ("0::/a/b\n", {"a": "150000 100000", "a/b": "max 100000"}, 1.5),
        ("1:cpu:/\n0::/a\n", {"a": "400000 100000", "": "50000 100000"}, 0.5),
        ("0::/\n", {"": "max 100000"}, None),
        ("0::/gone\n", {}, None),
        ("1:cpu:/\n", {}, None),
    ],
)
def test_a_limit_of_the_cgroup_makes_ceilings_stale(
    own: str, limits: dict[str, str], limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that may use half a CPU is slower, and its ceilings of four CPUs were taken for valid."""
    for name, text in limits.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cpu.max").write_text(f"{text}\n")
    kernel_file = environment.read
    monkeypatch.setattr(environment, "_CGROUPS", tmp_path)
    monkeypatch.setattr(environment, "read", lambda path: own if path == "/proc/self/cgroup" else kernel_file(path))
    assert environment.cpu_limit() == limit
    assert circumstances()["cpu"].partition(", limited to ")[2] == (f"{limit:g}" if limit else "")
