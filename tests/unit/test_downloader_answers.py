"""Reading clients' answers: whatever a program prints is a result or AnswerError, never another exception."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.evidence import rows
from core.domain import Failure, Outcome
from core.errors import UsageError
from core.reach import unmapped
from core.untrusted import file_name, last_line, scrub
from downloader import clients
from downloader.client import (
    AnswerError,
    ClientResult,
    DownloadRequest,
    common_arguments,
    crashed,
    parse_document,
    with_setup,
)
from downloader.execution.calls import RESOLVE, Caller, Reply, Resolution
from tests.unit.test_compose_inspect import connection, download, inspect_run

OK: dict[str, Any] = {
    "schema": 1,
    "client": "requests",
    "outcome": "ok",
    "failure": None,
    "failure_detail": None,
    "started_at": 1.5,
    "http_status": 200,
    "body_bytes": 3,
    "body_sha256": "ab",
    "last_byte_s": 1,
    "response_headers": {"server": "x\x1b[31my"},
    "quic": None,
}

REQUEST = DownloadRequest(
    url="https://a.example/",
    address="127.0.0.1",
    port=443,
    ca_file=Path("ca.pem"),
    budget_s=2.0,
    max_bytes=None,
    user_agent="u",
    allowed=(),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_good_answer() -> None:
    result = parse_document(json.dumps(OK))
    assert (result.outcome, result.last_byte_s, result.http_status) == (Outcome.OK, 1.0, 200)
    assert isinstance(result.last_byte_s, float)
    assert result.response_headers == {"server": "x [31my"}


def test_set_up_time_is_what_lies_between_call_and_first_packet() -> None:
    result = parse_document(json.dumps(OK))
    assert with_setup(result, called_at=1.25).setup_s == 0.25
    assert with_setup(result, called_at=2.0).setup_s is None, "the host's clock was set meanwhile"
    for why in ({"failure": "address_refused"}, {"failure": "network_unreachable", "failure_code": "no_route"}):
        refused = parse_document(json.dumps({**OK, "outcome": "failed", **why}))
        assert with_setup(refused, called_at=1.25).setup_s is None, "no packet was sent"


@given(st.text())
def test_any_text(text: str) -> None:
    with pytest.raises(AnswerError):
        parse_document(text)


@given(st.sampled_from([*sorted(OK), "tcp", "connect_s", "local_port", "alpn"]), JSON)
def test_any_value_of_a_field(name: str, value: Any) -> None:
    try:
        result = parse_document(json.dumps({**OK, name: value}))
    except AnswerError:
        return
    assert isinstance(result, ClientResult)
    assert (result.outcome is Outcome.OK) == (result.failure is None)


@given(st.dictionaries(st.text(), JSON))
def test_any_object(document: dict[str, Any]) -> None:
    with pytest.raises(AnswerError):
        parse_document(json.dumps({"schema": 1, **document}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"outcome": "fine"}, "unknown outcome: fine"),
        ({"outcome": "failed", "failure": "tired"}, "unknown failure: tired"),
        ({"outcome": "failed"}, "says failed with the cause None"),
        ({"failure": "stalled"}, "says ok with the cause stalled"),
        ({"body_sha256": None}, "without a time or a hash"),
        ({"body_bytes": -1}, "out of range"),
        ({"body_bytes": 10**400}, "out of range"),
        ({"last_byte_s": float("nan")}, "out of range"),
        ({"body_bytes": "3"}, "wrong type"),
        ({"started_at": None}, "wrong type"),
    ],
)
def test_contradictions(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        parse_document(json.dumps({**OK, **changes}))


COUNTS = ["packets_lost", "loss_episodes", "data_blocked_received", "stream_data_blocked_received", "window_bytes"]
WINDOWS = ["initial_max_data", "initial_max_stream_data_bidi_local"]
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from(["0x00000001", "0x\x1b[2J"]) | JSON,
        **dict.fromkeys(COUNTS, st.integers(min_value=0) | JSON),
        "transport_parameters": st.fixed_dictionaries(
            {}, optional={"local": st.dictionaries(st.sampled_from(WINDOWS), st.integers(min_value=0) | JSON) | JSON}
        )
        | JSON,
        "else": JSON,
    },
)


@given(st.sampled_from(["quic", "tcp"]), FACTS, st.sampled_from(["quic", "tcp"]))
def test_whatever_a_client_tells_of_its_connection_can_be_inspected(
    name: str, told: dict[str, Any], transport: str
) -> None:
    """A capture is inspected before its run is recorded: an error there would come again with each start."""
    try:
        result = parse_document(json.dumps({**OK, name: told}))
    except AnswerError:
        return
    facts = result.quic if name == "quic" else result.tcp
    assert facts is not None and all(text.isprintable() for text in facts.values() if isinstance(text, str))
    told_by = {"transport": transport, "connect_s": 0.01, "transport_detail": json.dumps(facts)}
    (row,) = inspect_run([download(**told_by)], [connection(protocol=transport)])
    assert row.kpis is not None
    columns = rows.downloads_schema()
    pa.table({kpi: pa.array([value], columns.field(kpi).type) for kpi, value in row.kpis.items()})


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"transport_parameters": "x"}, "quic.transport_parameters is of the wrong type"),
        ({"transport_parameters": {"local": [1]}}, "quic.transport_parameters is of the wrong type"),
        ({"transport_parameters": {"local": {"initial_max_data": "x"}}}, "quic.initial_max_data is of the wrong type"),
        ({"packets_lost": "many"}, "quic.packets_lost is of the wrong type"),
        ({"loss_episodes": 1.5}, "quic.loss_episodes is of the wrong type"),
        ({"window_bytes": -1}, "quic.window_bytes is out of range"),
    ],
)
def test_what_a_client_may_not_tell_of_its_connection(told: dict[str, Any], said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        parse_document(json.dumps({**OK, "quic": told}))


def test_what_a_client_tells_of_its_connection_is_kept() -> None:
    told = {"version": "0x1", "rtt_ms": 1.5, "gro": False, "options": ["ecn"], "packets_lost": 3}
    sides = {"local": {"initial_max_data": 5}, "peer": None}
    result = parse_document(json.dumps({**OK, "quic": {**told, "loss_episodes": None, "transport_parameters": sides}}))
    assert result.quic == {**told, "transport_parameters": sides}
    assert parse_document(json.dumps({**OK, "tcp": {"else": {"a": [float("nan")]}}})).tcp == {}, "nobody reads it"


class Interpreter:
    """A warm one whose look-up ends with this answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def ask(self, *_: Any, **__: Any) -> Reply:
        return Reply(returncode=0, stdout=json.dumps(self._answer), stderr="")


def resolved(answer: Any) -> Resolution:
    place: Any = SimpleNamespace(nameservers=(), allowed_prefixes=())
    caller = Caller(place, [], lambda: None)
    caller._warm = {RESOLVE: Interpreter(answer)}  # type: ignore[dict-item]
    return caller.resolve("a.example", family="ipv4")


LOOK_UP: dict[str, Any] = {
    "addresses": ["198.18.0.1"],
    "cnames": [],
    "dns_s": 0.1,
    "error": None,
    "code": None,
    "unreachable": False,
}


@pytest.mark.parametrize(
    "changes",
    [
        *({"addresses": wrong} for wrong in (["nonsense"], ["a"], [["198.18.0.1"]], [5], "198.18.0.1", ["fe80::1%x"])),
        *({"dns_s": wrong} for wrong in ("soon", -1.0, float("nan"), float("inf"), 10**400, [1])),
        {"code": "tired"},
    ],
)
def test_a_look_up_that_tells_nonsense_is_a_crash(changes: dict[str, Any]) -> None:
    found = resolved({**LOOK_UP, **changes})
    assert (found.addresses, found.dns_s, found.crashed) == ((), None, True)
    assert (found.error or "").startswith("the look-up failed: ")


def test_what_a_look_up_tells_is_kept_and_scrubbed() -> None:
    assert resolved(LOOK_UP).addresses == ("198.18.0.1",) and resolved({**LOOK_UP, "dns_s": 1}).dns_s == 1.0
    failed = resolved({**LOOK_UP, "addresses": [], "dns_s": None, "error": "\x1b[2Jno"})
    assert (failed.addresses, failed.dns_s, failed.error, failed.crashed) == ((), None, "[2Jno", False)


@given(st.sampled_from(sorted(LOOK_UP)), JSON)
def test_any_value_of_a_look_up(name: str, value: Any) -> None:
    assume(not (name == "unreachable" and value is True))  # which is the place's fault
    found = resolved({**LOOK_UP, name: value})
    assert found.crashed or all(map(unmapped, found.addresses))
    assert (found.error or "").isprintable() and isinstance(found.dns_s, float | None)


def test_a_challenge_page_with_status_200() -> None:
    result = parse_document(json.dumps({**OK, "response_headers": {"cf-mitigated": "challenge"}}))
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.CHALLENGE_PAGE)


def test_a_crash_keeps_the_last_line() -> None:
    stderr = "Traceback\n  File x\nValueError: \x1b[31mbad\u202e\n\n"
    result = crashed(stderr, why="exit code 1", started_at=2.0, request=REQUEST)
    assert (result.failure, result.failure_detail) == (Failure.CLIENT_CRASHED, "exit code 1: ValueError: [31mbad")
    assert crashed("", why="killed", started_at=2.0, request=REQUEST).failure_detail == "killed"


@given(st.text())
def test_scrubbed_text_is_one_safe_line(text: str) -> None:
    for safe in (scrub(text), last_line(text)):
        assert safe.isprintable() and len(safe) <= 300
        assert scrub(safe) == safe


@given(st.text())
def test_file_names_stay_inside(text: str) -> None:
    name = file_name(text)
    assert name and "/" not in name and not name.startswith((".", "-")) and len(name) <= 80 and name.isascii()


def test_arguments() -> None:
    told = ["--url", "https://a.example/", "--address", "127.0.0.1", "--port", "443", "--ca", "ca.pem"]
    assert common_arguments(REQUEST)[:8] == told


def test_client_options() -> None:
    quiche = clients.ALL["quiche"]
    assert quiche.parse_options({"max_data": 5}) == {"max_data": 5}
    with pytest.raises(UsageError, match=r"no option 'maxdata'; did you mean max_data\? use one of: max_data, "):
        quiche.parse_options({"maxdata": 5}, where="a.toml")
    for wrong in (0, -1, "5", True, 2.5):
        with pytest.raises(UsageError, match="not a whole number from 1"):
            quiche.parse_options({"max_data": wrong})
