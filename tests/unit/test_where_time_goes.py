"""Where the time of a measurement run goes: parts, the journal that keeps them, and their shares for people."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from core.domain import Failure, Outcome
from core.domain.download import Counts
from core.files.journal import JournalReader
from downloader.client import ClientResult
from downloader.control.reporter import Reporter
from downloader.control.status import lines
from downloader.execution.attempt import Part, Parts
from downloader.execution.journal import Journal

RESULT = ClientResult(
    outcome=Outcome.OK, failure=None, failure_detail=None, started_at=1.0, setup_s=0.25, last_byte_s=2.0
)


def test_each_moment_belongs_to_one_part() -> None:
    ticks = iter([0.0, 1.0, 1.5, 5.0])
    parts = Parts(clock=lambda: next(ticks))
    with parts.on(Part.SETTINGS):
        pass
    parts.called(RESULT, 2.75)
    found = parts.end()
    assert (found["settings"], found["set_up"], found["download"], found["client_end"]) == (0.5, 0.25, 2.0, 0.5)
    assert found["rest"] == 5.0 - 0.5 - 2.75 and sum(found.values()) == 5.0


def test_a_download_that_is_not_whole_lasts_to_its_end() -> None:
    parts = Parts(clock=lambda: 0.0)
    parts.called(replace(RESULT, last_byte_s=None, setup_s=None), 3.0)
    assert parts.seconds[Part.DOWNLOAD] == 3.0 and parts.seconds[Part.CLIENT_END] == 0.0
    cut = replace(RESULT, outcome=Outcome.CENSORED, failure=Failure.TIME_BUDGET, setup_s=None, last_byte_s=0.5)
    parts.called(cut, 40.0)  # a server that stalls is no work of the client
    assert parts.seconds[Part.DOWNLOAD] == 43.0 and parts.seconds[Part.CLIENT_END] == 0.0
    parts.called(replace(RESULT, last_byte_s=9.0), 1.0)  # a client that lies cannot make a part negative
    assert all(seconds >= 0 for seconds in parts.seconds.values()) and sum(parts.seconds.values()) == 44.0


def test_the_journal_keeps_them_and_one_of_an_older_upshift_gets_the_table(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, [], plan_hash="x")
    journal.db.execute("DROP TABLE times")
    assert list(journal.times()) == []
    journal.close()
    with closing(JournalReader(tmp_path / "journal.sqlite")) as reader:
        assert list(reader.times()) == []
    journal = Journal.open(tmp_path, [], plan_hash="x")
    journal.db.execute("INSERT INTO runs (number, iteration, domain, url) VALUES (0, 1, 'a', 'b')")
    for attempt, seconds in ((1, 0.5), (2, 1.0), (2, 1.5)):
        journal.took(0, attempt, {"journal": seconds})
    assert list(journal.times()) == [{"journal": 0.5}, {"journal": 1.5}]
    journal.close()


def test_the_status_shows_shares_of_all_vantage_points(tmp_path: Path) -> None:
    with Reporter(tmp_path, campaign="c") as reporter:
        earlier = {"A": [{"download": 90.0, "settle": 1.0}]}
        reporter.begin(plan_sha256="p", versions={}, counts={name: Counts(planned=1) for name in "AB"}, times=earlier)
        reporter.vantage_point("B").took({"download": 5.0, "settle": 3.9, "rest": 0.1})
        shown = lines(reporter.status(), 0.0, running=True)
    [row] = [line for line in shown if line.startswith("time ")]
    assert row.split(maxsplit=1)[1] == "download 95%, settle 5%"
    assert all(a != b for a, b in pairwise(shown))
