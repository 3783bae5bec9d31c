"""Clocks of a fleet: a host is told that its clock is wrong only if it must be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vantage.fleet.inventory import Host
from vantage.fleet.readiness import clock_faults
from vantage.fleet.verdicts import Account, HostVerdict, Interval, account_of, offset, verdicts


def account(began: float, now: float) -> Account:
    return Account(began=began, now=now, synchronised=True, max_error_s=0.1)


def faults(offsets: dict[str, Interval], *, synchronised: bool = True, trusted: bool = False) -> dict[str, str]:
    """What is wrong with the clocks of hosts that told their time."""
    clock = {"clock": {"began": 0.0, "now": 0.0, "synchronised": synchronised, "max_error_s": 0.1}}
    hosts = {name: Host(name=name, address=name, trusted_clock=trusted, variables={}) for name in (*offsets, "away")}
    answered = {name: HostVerdict(fault=None, result=clock, clock_offset_s=own) for name, own in offsets.items()}
    return clock_faults({**answered, "away": HostVerdict(fault="unreachable", unreachable=True)}, hosts)


START, END = "1970-01-01T00:16:40+00:00", "1970-01-01T00:16:43.500000+00:00"  # 1000.0, 1003.5


def test_the_offset_lies_between_what_is_known() -> None:
    assert offset(account(1019.0, 1021.0), START, END) == (17.5, 19.0)
    assert offset(account(982.0, 984.0), START[:19], END[:26]) == (-19.5, -18.0), "UTC without a zone"


@pytest.mark.parametrize(
    ("offsets", "clauses"),
    [
        ({"a": (17.5, 19.0)}, {"a": "clock: it is 17.5 s or more ahead of that of this machine"}),
        ({"a": (-19.5, -18.0)}, {"a": "clock: it is 18.0 s or more behind that of this machine"}),
        ({"a": (2.8, 3.4), "b": (-0.2, 0.3)}, {}),
        ({"a": (-1.0, 9.0)}, {}),
        ({"a": (17.5, 19.0), "b": (-0.2, 0.3)}, {"a": "clock: it is 17.5 s or more ahead of that of this machine"}),
        (
            {"a": (3.0, 3.2), "b": (-3.4, -3.0), "c": (0.0, 0.1)},
            {
                "a": "clock: it is 6.0 s or more ahead of that of b",
                "b": "clock: it is 6.0 s or more behind that of a",
            },
        ),
    ],
)
def test_who_is_over_the_margin(offsets: dict[str, Interval], clauses: dict[str, str]) -> None:
    assert faults(offsets) == {
        host: f"{clause}, though its time daemon counts it as right within 0.1 s" for host, clause in clauses.items()
    }
    assert faults(offsets, trusted=True) == {}


def test_a_daemon_that_says_so_itself() -> None:
    [clause] = faults({"a": (18.0, 18.5)}, synchronised=False).values()
    assert clause.endswith(", and its time daemon does not count it as synchronised")


def test_the_offset_is_taken_from_the_command_that_told_the_time() -> None:
    def event(kind: str, res: dict[str, Any], **more: object) -> dict[str, Any]:
        return {"event": kind, "event_data": {"host": "a", "res": res, **more}}

    told = {
        "ansible_facts": {
            "fleet_result": {"clock": {"began": 1018.0, "now": 1021.5, "synchronised": True, "max_error_s": 0.1}}
        }
    }
    events = [
        event("runner_on_ok", {"cmd": ["upshift", "status"]}, start=START, end=END),
        event("runner_on_ok", told, start=END, end=END),
        {"event": "playbook_on_stats", "event_data": {"processed": {"a": 1}}},
    ]
    assert verdicts(["a"], events)["a"].clock_offset_s == (18.0, 18.0)


SYNCHRONISED = {"synchronised": True, "max_error_s": 0.1}


@pytest.mark.parametrize(
    "answer",
    [
        *(None, {}, {"clock": []}, {"clock": {"began": "x"}}, {"clock": {"began": {}, "now": 1.0}}, {"clock": 7}),
        *({"clock": {"began": began, "now": 1.0, **SYNCHRONISED}} for began in (math.nan, 2.0)),
    ],
)
def test_an_answer_without_sense_says_nothing_of_a_clock(answer: dict[str, Any] | None) -> None:
    """It is the host's, so it may be anything."""
    assert account_of(answer) is None
