"""`upshift account`: what was fetched from whom, from the journals alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UsageError
from core.outreach.blocks import parse_blocked
from downloader.execution import capture
from downloader.execution.account import fetched, parse
from downloader.execution.engine import settle_killed
from downloader.execution.journal import Ended, Journal
from downloader.limits.budget import AccountEntry, Reserved
from tests.inspected import CONFIGURATIONS, START, make_campaign, plan
from tests.unit.test_budget import campaign as any_campaign
from tests.unit.test_capture_files import write
from upshift.cli import app

AGENT = "upshift/0.1 (Internet measurement; me@uni.edu)"


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """Two recorded runs, of an AS and of a network; and one attempt that was killed before it was settled."""
    folder = make_campaign(tmp_path / "c", runs=3, recorded=2)
    journal = Journal.open(folder / "vantage" / "MUC", plan(3), plan_hash="h")
    journal.set_meta("campaign", json.dumps({"user_agent": AGENT}))
    for run, address, network in ((0, "192.0.2.7", "AS64500"), (1, "198.51.100.9", "198.51.100.0/24")):
        began = START + 60.0 * run
        journal.spent.reserve(run, 1, Reserved(now=began, latest_end=began + 90, network=None, worst_bytes=9**9))
        journal.spent.resolved(run, 1, address, network)
        journal.spent.settle(run, 1, 250_000 + run, ended=began + 30)
    journal.begin(2, Reserved(now=START + 120.0, latest_end=START + 200.0, network="AS64500", worst_bytes=5_000_000))
    journal.spent.resolved(2, 1, "192.0.2.8", "AS64500")
    journal.close()
    return folder


def entry(address: str = "192.0.2.7") -> AccountEntry:
    return AccountEntry(
        run=0,
        attempt=1,
        began=0.0,
        ended=1.0,
        domain="xn--bcher-kva.example",
        url="https://cdn.example/",
        network=None,
        address=address,
        ip_bytes=1,
        settled=True,
    )


def test_a_name_in_any_script_is_that_of_the_journal() -> None:
    assert parse("Bücher.example")(entry()) and not parse("bucher.example")(entry())


@pytest.mark.parametrize("who", ["192.0.2.0/24", "192.0.2.7", "::ffff:192.0.2.0/120"])
@pytest.mark.parametrize("address", ["192.0.2.7", "::ffff:192.0.2.7", "64:ff9b::c000:207", "2002:c000:207::1"])
def test_a_prefix_is_that_of_a_block_list(who: str, address: str) -> None:
    """Whose server was behind NAT64 or 6to4 was told that nothing had been fetched, though an opt-out covers it."""
    assert parse(who)(entry(address)) and parse_blocked(who)[0].address(address)
    assert not parse("198.51.100.0/24")(entry(address))


@pytest.mark.parametrize(
    ("who", "runs"),
    [
        ("d0.example", [0]),
        ("D1.Example.", [1]),
        ("example", None),
        ("0.example", []),
        ("192.0.2.0/24", [0, 2]),
        ("192.0.2.8", [2]),
        ("192.0.2.7/24", [0, 2]),
        ("2001:db8::/32", []),
        ("AS64500", [0, 2]),
        ("as64500", [0, 2]),
        ("64500", [0, 2]),
        ("64501", []),
        ("not a name", None),
    ],
)
def test_who_asks(campaign: Path, who: str, runs: list[int] | None) -> None:
    if runs is None:
        with pytest.raises(UsageError, match="is neither a domain nor a prefix nor an AS number; write www"):
            parse(who)
        return
    assert [one.url for one in fetched(parse(who), [campaign])] == [f"https://d{n}.example/f" for n in runs]


def test_what_was_fetched(campaign: Path) -> None:
    (first, killed) = fetched(parse("AS64500"), [campaign])
    assert (first.user_agent, first.vantage, first.server_ip) == (AGENT, "MUC", "192.0.2.7")
    assert (first.began, first.ended, first.ip_bytes, first.exact) == (START, START + 30, 250_000, True)
    assert [request.configuration for request in first.requests] == list(CONFIGURATIONS)
    assert {request.local_ip for request in first.requests} == {"198.18.0.1"}
    assert all(request.at >= START and request.body_bytes > 30_000 for request in first.requests)
    assert (killed.ip_bytes, killed.exact, killed.requests) == (5_000_000, False, ())


def test_in_the_published_order_each_download_has_a_server_of_its_own(campaign: Path) -> None:
    """The account has the last one alone; the bytes of the others are in its sum."""
    with closing(sqlite3.connect(campaign / "vantage" / "MUC" / "journal.sqlite")) as db, db:
        about = json.dumps({"user_agent": AGENT, "order": "published"})
        db.execute("UPDATE meta SET value = ? WHERE key = 'campaign'", (about,))
        db.execute("UPDATE downloads SET record = json_set(record, '$.server_ip', '198.51.100.9')")
        db.execute(
            "UPDATE downloads SET record = json_set(record, '$.server_ip', '203.0.113.5')"
            " WHERE plan IN (SELECT id FROM plan WHERE run = 1 ORDER BY id LIMIT 2)"
        )
    (one,) = fetched(parse("203.0.113.0/24"), [campaign])
    assert (one.server_ip, one.exact, len(one.requests)) == ("203.0.113.5", False, 2)
    (one,) = fetched(parse("d1.example"), [campaign])
    assert (one.server_ip, one.exact) == ("203.0.113.5 198.51.100.9", True)
    assert [request.configuration for request in one.requests] == list(CONFIGURATIONS)


def test_what_a_power_cut_took_with_its_capture_stays_a_worst_case(campaign: Path) -> None:
    before = list(fetched(parse("AS64500"), [campaign]))
    with closing(Journal.open(campaign / "vantage" / "MUC", plan(3), plan_hash="h")) as journal:
        settle_killed(
            any_campaign(), journal, {run.number: run for run in plan(3)}, lambda run, _: campaign / "none.pcap"
        )
        assert journal.spent.unsettled() == []
    assert list(fetched(parse("AS64500"), [campaign])) == before


def test_an_estimate_is_at_most(campaign: Path) -> None:
    """What was on its way to an attempt that was interrupted, or killed in its capture, is in no capture."""
    partial = capture.part_names(campaign / "killed.pcap")[0]
    write(partial, [])
    with closing(Journal.open(campaign / "vantage" / "MUC", plan(3), plan_hash="h")) as journal:
        settle_killed(
            any_campaign(), journal, {run.number: run for run in plan(3)}, lambda run, _: campaign / "killed.pcap"
        )
        journal.begin(2, Reserved(now=START + 300.0, latest_end=START + 400.0, network=None, worst_bytes=5_000_000))
        journal.spent.resolved(2, 2, "192.0.2.8", "AS64500")
        journal.interrupt(2, ended=Ended(ip_bytes=1_234, at=START + 310.0, exact=False))
        assert journal.spent.unsettled() == []
    exact, killed, interrupted = fetched(parse("AS64500"), [campaign])
    assert exact.exact and not killed.exact and not interrupted.exact
    assert killed.ip_bytes < 5_000_000 and interrupted.ip_bytes == 1_234
    assert "at most 1234" in call("AS64500", campaign).output


def test_a_kill_after_its_capture_ended_says_nothing_of_what_the_capture_lacks(campaign: Path) -> None:
    """What the kernel dropped is told by tcpdump, in no file; and the packets may have gone by another interface."""
    whole = campaign / "whole.pcap"
    write(whole, [])
    with closing(Journal.open(campaign / "vantage" / "MUC", plan(3), plan_hash="h")) as journal:
        settle_killed(any_campaign(), journal, {run.number: run for run in plan(3)}, lambda *_: whole)
    _, killed = fetched(parse("AS64500"), [campaign])
    assert not killed.exact and 0 < killed.ip_bytes < 5_000_000


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ("spent SET began = 1e300", "AS64500"),
        ("spent SET ended = 1e18", "AS64500"),
        ("spent SET address = 'nowhere'", "192.0.2.0/24"),
        ("runs SET url = 'https://['", "d0.example"),
        ("downloads SET record = json_remove(record, '$.configuration')", "AS64500"),
    ],
)
def test_a_journal_without_sense_is_named(campaign: Path, change: str, asked: str) -> None:
    """It may come from a host that is not ours any more."""
    path = campaign / "vantage" / "MUC" / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE {change}")
    with pytest.raises(UsageError, match="this journal's rows make no sense") as caught:
        list(fetched(parse(asked), [campaign]))
    assert caught.value.where == str(path) and caught.value.sentence().isprintable()


def test_what_an_answer_holds_moves_no_cursor(campaign: Path) -> None:
    with closing(sqlite3.connect(campaign / "vantage" / "MUC" / "journal.sqlite")) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'campaign'", (json.dumps({"user_agent": "\x1b]0;x\x07"}),))
        db.execute("UPDATE runs SET url = ?", ("https://d0.example/\x1b[2J",))
    said = call("AS64500", campaign)
    assert said.exit_code == 0 and all(line.isprintable() for line in said.output.splitlines())


def test_what_an_opt_out_left_is_no_request(campaign: Path) -> None:
    """Only the first of the downloads that it ended may have run."""
    with closing(sqlite3.connect(campaign / "vantage" / "MUC" / "journal.sqlite")) as db, db:
        db.execute(
            "UPDATE downloads SET record = json_set(record, '$.failure', 'opted_out', '$.outcome', 'failed')"
            " WHERE plan IN (SELECT id FROM plan WHERE run = 0 ORDER BY id LIMIT -1 OFFSET 2)"
        )
    (first, _) = fetched(parse("AS64500"), [campaign])
    assert [request.configuration for request in first.requests] == list(CONFIGURATIONS)[:3]


def test_what_the_end_of_a_slot_left_is_no_request(campaign: Path) -> None:
    """A client's own failure `unknown` is one: its set-up time is known."""
    with closing(sqlite3.connect(campaign / "vantage" / "MUC" / "journal.sqlite")) as db, db:
        failed = "json_set(record, '$.failure', 'unknown', '$.outcome', 'failed', '$.setup_s', 0.1)"
        of_run_0 = "WHERE plan IN (SELECT id FROM plan WHERE run = 0 ORDER BY id"
        db.execute(f"UPDATE downloads SET record = {failed} {of_run_0} LIMIT 2)")
        silent = f"json_remove({failed}, '$.setup_s', '$.local_port')"
        db.execute(f"UPDATE downloads SET record = {silent} {of_run_0} LIMIT -1 OFFSET 3)")
    (first, _) = fetched(parse("AS64500"), [campaign])
    assert [request.configuration for request in first.requests] == list(CONFIGURATIONS)[:4]


def test_what_was_not_resolved_is_no_request(campaign: Path) -> None:
    """In the published order each download has a look-up of its own; one without an address sends nothing."""
    with closing(sqlite3.connect(campaign / "vantage" / "MUC" / "journal.sqlite")) as db, db:
        about = json.dumps({"user_agent": AGENT, "order": "published"})
        db.execute("UPDATE meta SET value = ? WHERE key = 'campaign'", (about,))
        db.execute(
            "UPDATE downloads SET record = json_set(json_remove(record, '$.server_ip'), '$.failure', 'dns_error',"
            " '$.outcome', 'failed') WHERE plan IN (SELECT id FROM plan WHERE run = 0 ORDER BY id LIMIT 2)"
        )
    (first,) = fetched(parse("d0.example"), [campaign])
    assert [request.configuration for request in first.requests] == list(CONFIGURATIONS)[2:]


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, ["account", *map(str, words)])


def test_the_command(campaign: Path) -> None:
    said = call("AS64500", campaign)
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[1].split() == [
        *("2023-11-14", "22:13:20", "22:13:50", "MUC", "5", "250000", "198.18.0.1", "192.0.2.7", "https://d0.example/f")
    ]
    assert "at most 5000000" in lines[2]
    assert lines[3:] == [f"user agent: {AGENT}", "AS64500: 2 measurement runs, 5 requests recorded, 5.25 MB"]
    document = json.loads(call("198.51.100.9", campaign, "--json").output)
    assert (document["ip_bytes"], document["requests"]) == (250_001, 5)
    assert document["fetched"][0]["requests"][0]["outcome"] == "ok"
    nothing = call("AS1", campaign)
    assert (nothing.exit_code, nothing.output) == (0, "AS1: 0 measurement runs, 0 requests recorded, 0 B\n")


def test_folders_without_a_plan_or_a_campaign(tmp_path: Path) -> None:
    journal = tmp_path / "c" / "vantage" / "MUC" / "journal.sqlite"
    journal.parent.mkdir(parents=True)
    journal.touch()  # killed before the plan was in it
    assert not list(fetched(parse("AS1"), [tmp_path / "c"]))
    with pytest.raises(UsageError, match="this folder holds no campaign"):
        list(fetched(parse("AS1"), [tmp_path]))
