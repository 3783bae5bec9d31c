"""Same object, same place: each difference within a measurement run under its own flag, and no honest cache accused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.evidence.identity import AGE_SLACK_S, with_identity
from core.domain import Download, Failure, IdentityFlag, Outcome
from tests.unit.analysis_factory import make_download

START = 1.8e9
NAMES = ("warmup", "BL", "BL2", "ECN", "SACK", "WS")
HEADERS = {"cf-cache-status": "HIT", "cf-ray": "2f-MUC", "age": "100", "etag": '"e"'}


def run(changes: Mapping[str, Mapping[str, Any]] | None = None, *, step_s: float = 10.0) -> list[Download]:
    """A run behind one honest edge, a download every `step_s`; `changes`: configuration -> fields that differ.

    The field `headers` is laid over the honest ones; a header that is None is left out.
    """
    found = []
    for position, name in enumerate(NAMES):
        fields = dict((changes or {}).get(name, {}))
        age = {"age": str(100 + int(step_s * position))}
        own = HEADERS | age | (fields.pop("headers", {}))
        headers = {key: value for key, value in own.items() if value is not None}
        base = {"started_at": START + step_s * position, "headers_s": 0.05, "response_headers": json.dumps(headers)}
        found.append(make_download(configuration=name, position=position, **(base | fields)))
    return found


def flags(downloads: list[Download]) -> dict[str, list[str]]:
    """Configuration -> its flags, where it has some."""
    told = {d.configuration: json.loads(d.identity_flags or "[]") for d in with_identity(downloads)}
    return {name: found for name, found in told.items() if found}


def test_an_honest_run_has_no_flag_and_says_where_it_came_from() -> None:
    found = with_identity(run())
    assert [d.identity_flags for d in found] == [None, "[]", "[]", "[]", "[]", "[]"]
    assert {(d.cache_state, d.edge, d.etag, d.identity_detail) for d in found} == {("hit", "MUC", '"e"', None)}
    assert [d.age_s for d in found] == [100, 110, 120, 130, 140, 150]


@pytest.mark.parametrize(
    ("fields", "flag", "said"),
    [
        ({"http_status": 503, "outcome": Outcome.FAILED}, IdentityFlag.STATUS, "503, most of the run had 200"),
        (
            {"outcome": Outcome.FAILED, "failure": Failure.CONTENT_CHANGED, "failure_detail": "another hash"},
            IdentityFlag.OBJECT,
            "another hash",
        ),
        ({"server_ip": "198.18.2.1"}, IdentityFlag.NETWORK, "198.18.2.1 in 198.18.2.0/24, most of the run had"),
        ({"headers": {"cf-cache-status": "MISS", "age": "0"}}, IdentityFlag.MISS, "after the warm-up"),
        ({"headers": {"cf-ray": "2f-FRA"}}, IdentityFlag.EDGE, "FRA, most of the run had MUC"),
        ({"headers": {"age": "3"}}, IdentityFlag.AGE, "Age 3 s, so stored 127 s later than most of the run's"),
        ({"headers": {"age": "500"}}, IdentityFlag.AGE, "Age 500 s, so stored 370 s earlier than most of the run's"),
        ({"headers": {"etag": '"f"'}}, IdentityFlag.ETAG, '"f", most of the run had "e"'),
    ],
)
def test_each_difference_has_its_own_flag(fields: Mapping[str, Any], flag: IdentityFlag, said: str) -> None:
    downloads = run({"ECN": fields})
    assert flags(downloads) == {"ECN": [flag]}
    detail = with_identity(downloads)[3].identity_detail
    assert detail is not None and detail.startswith(f"{flag}: ") and said in detail


def test_the_warm_up_is_not_compared() -> None:
    missed = {"cf-cache-status": "MISS", "age": "0", "cf-ray": "1-FRA", "etag": '"old"'}
    assert flags(run({"warmup": {"headers": missed}})) == {}


@pytest.mark.parametrize("name", ["cf-ray", "age", "etag", "cf-cache-status"])
def test_a_field_that_is_missing_accuses_nobody(name: str) -> None:
    assert flags(run({"SACK": {"headers": {name: None}}})) == {}


def test_two_tags_of_one_representation_are_equal() -> None:
    assert flags(run({"SACK": {"headers": {"etag": 'W/"e"'}}})) == {}


def test_addresses_of_one_network_are_one_place() -> None:
    assert flags(run({"SACK": {"server_ip": "198.18.1.77"}})) == {}
    inside = {name: {"prefix": "198.18.0.0/16"} for name in NAMES}
    inside["SACK"] = {"prefix": "198.18.0.0/16", "server_ip": "198.18.200.1"}
    assert flags(run(inside)) == {}
    assert flags(run({"SACK": {"server_ip": None}})) == {}
    six = {name: {"server_ip": "fd00:198:18:1::1"} for name in NAMES}
    assert flags(run(six | {"SACK": {"server_ip": "fd00:198:18:ff::1"}})) == {}


def test_where_nothing_is_cached_age_tells_nothing() -> None:
    nothing = {name: {"headers": {"age": "0", "cf-cache-status": None}} for name in NAMES}
    assert flags(run(nothing)) == {}


def test_a_copy_that_was_fetched_again_differs_from_there_on() -> None:
    refetched = {"SACK": {"headers": {"age": "5"}}, "WS": {"headers": {"age": "15"}}}
    assert flags(run(refetched)) == {"SACK": ["age_differs"], "WS": ["age_differs"]}


def test_no_response_no_flags() -> None:
    broken = {"http_status": None, "outcome": Outcome.FAILED, "response_headers": None}
    found = with_identity(run({"ECN": broken}))[3]
    assert (found.cache_state, found.identity_flags) == (None, None)


def test_headers_that_are_no_json_tell_nothing() -> None:
    for text in ("{", "[1]", "[" * 5000, None):
        found = with_identity([make_download(response_headers=text)])[0]
        assert (found.cache_state, found.identity_flags) == ("unknown", "[]")


@given(
    st.lists(st.floats(0.0, 60.0), min_size=len(NAMES), max_size=len(NAMES)),
    st.floats(0.0, 1e6),
    st.lists(st.floats(0.0, AGE_SLACK_S / 2 - 0.5), min_size=len(NAMES), max_size=len(NAMES)),
)
def test_an_honest_cache_is_never_accused(gaps_s: list[float], age_s: float, delays_s: list[float]) -> None:
    """Whatever the pauses: Age grows with time, in whole seconds, and responses take a while to come."""
    now, changes = START, {}
    stored = START - age_s
    for name, gap_s, delay_s in zip(NAMES, gaps_s, delays_s, strict=True):
        now += gap_s
        age = str(math.floor(now - stored))
        changes[name] = {"started_at": now, "headers_s": delay_s, "headers": {"age": age}}
    assert flags(run(changes)) == {}


@given(st.data())
def test_any_headers_can_be_judged(data: st.DataObject) -> None:
    texts = st.dictionaries(st.sampled_from([*HEADERS, "via", "x-cache"]), st.text(max_size=30))
    found = with_identity(run({name: {"headers": data.draw(texts)} for name in NAMES}))
    for download in found[1:]:
        assert set(json.loads(download.identity_flags or "[]")) <= {flag.value for flag in IdentityFlag}
        assert (download.identity_detail is None) == (download.identity_flags == "[]")
