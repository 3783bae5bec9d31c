"""Reading clients' answers: whatever a program prints is a result or AnswerError, never another exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import Failure, Outcome
from core.errors import UsageError
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
    refused = parse_document(json.dumps({**OK, "outcome": "failed", "failure": "address_refused"}))
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
        ({"body_bytes": "3"}, "wrong type"),
        ({"started_at": None}, "wrong type"),
    ],
)
def test_contradictions(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        parse_document(json.dumps({**OK, **changes}))


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
