"""Subjects, pace and ledger of the surveys."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import Target
from core.errors import PlaceError, UsageError
from core.files import store, targets
from core.outreach.ledger import LedgerEntry
from core.outreach.pace import LANES_KEPT, Lanes, TokenBucket
from survey.access import NotAskedError
from survey.engine import SurveyLedger, _work, check, run
from survey.options.record import OptionsRecord
from survey.subjects import Subject, Subjects
from survey.surveys import Context, SurveyOptions, each
from survey.surveys.options import OPTIONS, OptionsSettings
from tests.cells import Repeats

REPOSITORY = Path(__file__).resolve().parents[2]


def target(number: int, **values: object) -> Target:
    return Target(domain=f"d{number}.example", url=f"https://d{number}.example/f", rank=number, **values)  # type: ignore[arg-type]


def test_subjects_of_a_list_and_of_targets(tmp_path: Path) -> None:
    source = tmp_path / "list.csv"
    source.write_text("1,a.example\n2,b.example\n3,a.example\nx,y\n4,c.example\n")
    subjects = Subjects(source)
    assert list(subjects) == [Subject(domain=f"{c}.example", rank=n) for c, n in (("a", 1), ("b", 2), ("c", 4))]
    assert (subjects.is_targets, subjects.duplicates, sum(subjects.broken.values())) == (False, 1, 1)
    assert [fault.line for fault in subjects.faults] == [4]
    assert len(list(Subjects(source, limit=2))) == 2
    parts = [{s.domain for s in Subjects(source, shard=(n, 2))} for n in (1, 2)]
    assert parts[0] | parts[1] == {"a.example", "b.example", "c.example"}
    assert not parts[0] & parts[1]

    crawled = tmp_path / "targets.parquet"
    rows = [target(1, server_ip="198.18.0.1"), target(2)]
    store.write_rows(crawled, "targets", rows)
    (first, second) = Subjects(crawled)
    assert (first.server_ip, first.provider, second.server_ip, second.rank) == ("198.18.0.1", None, None, 2)
    mapped = tmp_path / "mapped.csv"
    targets.write_rows(mapped, [target(1, server_ip="198.18.0.1", asn=1, alt_svc="h3=:443"), target(2)])
    (first, second) = Subjects(mapped)
    assert (first.alt_svc, first.provider, second.alt_svc) == ("h3=:443", "other", "")
    by_hand = tmp_path / "by-hand.csv"
    targets.write_rows(by_hand, [target(1), target(2)])
    assert [subject.alt_svc for subject in Subjects(by_hand)] == [None, None], "nobody has read their headers"


@pytest.mark.parametrize("offer", [None, "h3=:443"])
def test_whether_a_target_was_crawled_is_told_by_its_own_row(tmp_path: Path, offer: str | None) -> None:
    """Of a list in which nobody offers HTTP/3 it was unknown what they offer, and a row by hand offered nothing."""
    targets.write_rows(
        tmp_path / "t.csv", [target(1, crawled_at=1.5, alt_svc=offer), target(2, crawled_at=2.5), target(3)]
    )
    assert [subject.alt_svc for subject in Subjects(tmp_path / "t.csv")] == [offer or "", "", None]


def test_subjects_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file not found"):
        Subjects(tmp_path / "none")
    downloads = tmp_path / "d.parquet"
    store.write_rows(downloads, "downloads", [])
    with pytest.raises(UsageError, match="holds downloads records of Upshift, not targets"):
        list(Subjects(downloads))
    store.write_rows(downloads, "targets", [])
    with pytest.raises(UsageError, match="the targets file is empty"):
        list(Subjects(downloads))
    downloads.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UsageError, match="not a readable Parquet"):
        list(Subjects(downloads))


@pytest.mark.parametrize(
    ("url", "host", "origin"),
    [
        (None, "a.example", "a.example"),
        ("https://www.a.example/f", "www.a.example", "www.a.example"),
        ("https://A.example.:443/f", "a.example", "a.example"),
        ("https://cdn.example:8443/f", "cdn.example", "cdn.example:8443"),
        ("http://a.example/f", "a.example", "a.example:80"),
        ("https://[x/f", "a.example", "a.example"),
        ("https://a.example:x/f", "a.example", "a.example"),
    ],
)
def test_a_target_is_asked_at_the_host_of_its_url(url: str | None, host: str, origin: str) -> None:
    subject = Subject(domain="a.example", url=url)
    assert (subject.host, subject.origin) == (host, origin)
    assert set(subject.names) == {"a.example", host}


def test_surveys_have_the_urls_of_targets(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("domain,url\na.example,https://www.a.example/f\n")
    assert [subject.host for subject in Subjects(tmp_path / "t.csv")] == ["www.a.example"]


def test_a_record_has_the_time_when_its_visit_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    time_now = 1000.0

    async def visit(_: Subject, record: Any) -> Any:
        nonlocal time_now
        time_now += 60
        if record.domain == "blocked.example":
            raise NotAskedError("blocked", "x")
        return replace(record, outcome="ok")

    finished: list[Any] = []
    subjects = iter([Subject(domain="a.example"), Subject(domain="blocked.example")])
    monkeypatch.setattr(time, "time", lambda: time_now)
    asyncio.run(_work(OPTIONS, visit, subjects, finished))
    assert [document["surveyed_at"] for _, _, document in finished] == [1060.0, 1120.0]


def test_a_full_disk_ends_the_survey_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is contacted whose result cannot be recorded, and what was not recorded is contacted again."""
    (tmp_path / "list").write_text("".join(f"d{n}.example\n" for n in range(200)))
    visited: list[str] = []

    async def visit(_: Context, subject: Subject, record: OptionsRecord) -> OptionsRecord:
        visited.append(subject.domain)
        await asyncio.sleep(0.02)
        return replace(record, outcome="ok", cname_chain="x" * 10_000)

    survey = replace(OPTIONS, visits=each(visit), kernel={}, visits_per_place=1)
    options = SurveyOptions(source=tmp_path / "list", out=tmp_path / "r", concurrency=1, nameserver="127.0.0.1")
    full = 1

    def record(ledger: SurveyLedger, finished: Any) -> None:
        nonlocal full
        pages = 1 if finished and full > 0 else 1_000_000
        full -= bool(finished)
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        plain(ledger, finished)

    plain = SurveyLedger.record
    monkeypatch.setattr(SurveyLedger, "record", record)
    subjects = check(survey, options, OptionsSettings())
    with pytest.raises(PlaceError, match=r"results cannot be written \(database or disk is full\).*free some space"):
        run(survey, options, OptionsSettings(), subjects, mock.Mock())
    assert 0 < len(visited) < 30
    summary = run(survey, options, OptionsSettings(), subjects, mock.Mock())
    assert [one.domain for one in summary.records] == [f"d{n}.example" for n in range(200)]


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now


@given(
    rate=st.floats(0.5, 50_000),
    burst=st.floats(1, 50),
    rests=st.lists(st.floats(0, 0.5), min_size=1, max_size=200),
    stall_s=st.sampled_from([0.0, 1.0]),
)
def test_the_bucket_never_gives_more_than_rate_and_burst(
    rate: float, burst: float, rests: list[float], stall_s: float
) -> None:
    """Not even after the process could not run for a second, with many turns due."""
    time_now = Time()

    async def sleep(wait: float) -> None:
        nonlocal stall_s
        time_now.now += wait + stall_s
        stall_s = 0.0

    async def run() -> tuple[list[float], float]:
        bucket = TokenBucket(rate, burst=burst, clock=time_now.clock, sleep=sleep)
        given_at = []
        for rest in rests:
            time_now.now += rest / rate
            await bucket.turn()
            given_at.append(time_now.now)
        start = time_now.now
        for _ in range(10):
            await bucket.turn()
        return given_at, time_now.now - start

    given_at, ten = asyncio.run(run())
    for first in range(0, len(given_at), 7):
        for last in range(first, len(given_at), 5):
            span = given_at[last] - given_at[first]
            assert last - first + 1 <= rate * span + burst + 1e-3
    # And it does not waste any: asked again and again, turns come at the rate.
    assert ten <= 10 / rate + 1.0 + 1e-6


def test_addresses_have_places_and_a_rate() -> None:
    async def run() -> tuple[int, float, float]:
        pace = Lanes(200.0, 2)
        most = at_once = 0

        async def one(address: str) -> None:
            nonlocal most, at_once
            async with pace.turn(address):
                at_once += address == "a"
                most = max(most, at_once)
                await asyncio.sleep(0.03 if address == "a" else 0)
                at_once -= address == "a"

        start = time.monotonic()
        await asyncio.gather(*(one("a") for _ in range(21)))
        same = time.monotonic() - start
        start = time.monotonic()
        await asyncio.gather(*(one(str(n)) for n in range(LANES_KEPT + 50)))
        await asyncio.sleep(0.02)
        await one("last")
        assert len(pace._lanes) < LANES_KEPT
        return most, same, time.monotonic() - start

    most, same, other = asyncio.run(run())
    assert most == 2
    assert same >= 0.099
    assert other < 20


def test_an_address_keeps_its_rate_however_long_its_turns_wait_for_the_total_rate() -> None:
    """Turns of one address would else collect in the line of all, and be granted together."""

    async def run() -> list[float]:
        total, pace = TokenBucket(200.0, burst=1), Lanes(20.0, 10)
        given_at = []

        async def one(name: str) -> None:
            async with pace.turn(name, then=total.turn):
                if name == "a":
                    given_at.append(time.monotonic())

        await asyncio.gather(*(one(str(n)) for n in range(60)), *(one("a") for _ in range(5)))
        return given_at

    given_at = asyncio.run(run())
    assert len(given_at) == 5
    assert all(after - before >= 0.03 for before, after in pairwise(given_at)), given_at


def test_the_ledger_gives_each_subject_once_and_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "l.sqlite"
    ledger = SurveyLedger(path, {"a": 1})
    assert not ledger.filled
    subjects = [Subject(domain=f"d{n}.example", rank=n, provider="x", server_ip="i", alt_svc="h3") for n in range(2500)]
    assert ledger.fill([*subjects, subjects[0]]) == 2500
    assert list(ledger.take()) == subjects
    ledger.record([("d0.example", "ok", {"ecn": True}), ("d1.example", "failed", {})])
    ledger.record([("d0.example", "failed", {}), *()])
    with pytest.raises(UsageError, match="another survey is using this ledger"):
        SurveyLedger(path, {"a": 1})
    ledger.close()
    with pytest.raises(UsageError, match="belongs to another survey: a changed; use the options of the first start"):
        SurveyLedger(path, {"a": 2})
    again = SurveyLedger(path, {"a": 1})
    assert again.filled
    assert next(again.take()) == subjects[2]
    assert again.counts() == (2500, {"ok": 1, "failed": 1})
    known = {"provider": "x", "server_ip": "i", "alt_svc": "h3"}
    entries = [LedgerEntry(domain=f"d{n}.example", rank=n, known=known) for n in range(2)]
    assert list(again.results()) == [(entries[0], "ok", {"ecn": True}), (entries[1], "failed", {})]
    assert list(again.results("ok")) == [(entries[0], "ok", {"ecn": True})]
    again.close()
    path.write_bytes(b"hello, this is no database at all" * 40)
    with pytest.raises(UsageError, match="not a valid ledger of a survey"):
        SurveyLedger(path, {})


WORKER = """
import sys, time
from pathlib import Path
from survey.engine import SurveyLedger
ledger = SurveyLedger(Path(sys.argv[1]), {})
for subject in ledger.take():
    print(subject.domain, flush=True)
    time.sleep(0.001)
    ledger.record([(subject.domain, "ok", {})])
"""


@pytest.mark.thorough
def test_killed_again_and_again_no_finished_subject_is_given_again(tmp_path: Path, repeats: Repeats) -> None:
    path = tmp_path / "l.sqlite"
    ledger = SurveyLedger(path, {})
    kills = repeats(quick=2, soak=50)
    count = 80 * kills
    ledger.fill(Subject(domain=f"d{n}.example") for n in range(count))
    ledger.close()
    generator = random.Random(1)
    given_out: list[str] = []
    for number in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(generator.randrange(1, 60))] if number < kills else []
        if number < kills:
            child.send_signal(signal.SIGKILL)
        said, _ = child.communicate()
        given_out += "".join([*lines, said]).split()
    assert set(given_out) == {f"d{n}.example" for n in range(count)}
    assert len(given_out) <= count + kills  # each kill costs at most the one that was begun
