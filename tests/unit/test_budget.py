"""The account of IP bytes in a journal, and the budgets that a run has to fit into; `now` is given."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.domain import Target
from core.errors import UsageError
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.expected import IN_FLIGHT_BYTES, download_bytes, run_bytes, worst_run_bytes, worst_s
from downloader.campaign.plan import PlannedRun
from downloader.control.stop_pause import DAY_S, day_start
from downloader.execution.journal import Ended, Journal
from downloader.limits.budget import (
    BudgetGate,
    Spent,
    check_budgets,
    interrupted_bytes,
    network_of,
    reserved,
)
from downloader.schedule.schedule import State, Wait

NOON = 1_800_000_000 - 1_800_000_000 % DAY_S + DAY_S / 2
MIDNIGHT = NOON + DAY_S / 2

CLIENTS = [{"name": "BL", "client": "requests"}]
ASN = Target(domain="a.example", url="https://a.example/f", size_bytes=1_000_000, asn=64500)
SIBLING = Target(domain="b.example", url="https://b.example/f", size_bytes=1_000_000, asn=64500)
BARE = Target(domain="c.example", url="https://c.example/f", size_bytes=1_000_000)


def campaign(**budgets: Any) -> Campaign:
    document = {"name": "c", "lab": "anrw", "targets": "lab", "configurations": CLIENTS, "budgets": budgets}
    return from_document(document, Path("c.toml"))


NEEDED = run_bytes(campaign(), ASN)


def runs(*targets: Target) -> list[PlannedRun]:
    names = ("warmup", "BL")
    return [PlannedRun(number=n, iteration=1, target=t, configurations=names) for n, t in enumerate(targets)]


class Account:
    def __init__(self, journal: Journal, plan: list[PlannedRun], wanted: Campaign, vantage_points: int = 1) -> None:
        self.journal, self.plan, self.campaign = journal, plan, wanted
        self.gate = BudgetGate(wanted, journal.spent, vantage_points=vantage_points)

    def begin(self, run: PlannedRun, now: float) -> int:
        attempt = self.journal.begin(run.number, reserved(self.campaign, run.target, now))
        self.gate.began(run, attempt, now)
        return attempt

    def resolve(self, run: PlannedRun, attempt: int, address: str, now: float) -> str | None:
        """Why the run must end now that its address is known."""
        self.journal.spent.resolved(run.number, attempt, address, network_of(run.target, address))
        self.gate.resolved(run, attempt, address, now)
        cut = self.gate.cuts(run, now)
        return cut and cut.reason

    def interrupt(self, run: PlannedRun, ip_bytes: int, now: float) -> None:
        self.journal.interrupt(run.number, ended=Ended(ip_bytes=ip_bytes, at=now))

    def ask(self, run: PlannedRun, now: float) -> Wait | None:
        assert self.gate.holds(now) is None
        return self.gate.admits(run, now)


@pytest.fixture
def open_account(tmp_path: Path) -> Iterator[Any]:
    journals = []

    def make(wanted: Campaign, *targets: Target, vantage_points: int = 1, name: str = "A") -> Account:
        plan = runs(*targets)
        journals.append(Journal.open(tmp_path / name, plan, plan_hash="h"))
        return Account(journals[-1], plan, wanted, vantage_points)

    yield make
    for journal in journals:
        journal.close()


@pytest.mark.parametrize(
    ("budgets", "whose", "sibling_too"),
    [
        ({"domain": 2 * NEEDED}, "a.example", False),
        ({"as": 2 * NEEDED}, "AS64500", True),
        ({"campaign": 2 * NEEDED}, "the campaign", True),
    ],
)
def test_a_target_rests_until_midnight(open_account: Any, budgets: Any, whose: str, sibling_too: bool) -> None:
    account = open_account(campaign(**budgets), ASN, SIBLING)
    first, second = account.plan
    assert account.ask(first, NOON) is None
    account.begin(first, NOON)
    account.interrupt(first, NEEDED - 5, NOON + 9)
    assert account.ask(first, NOON + 10) is None, "what is left suffices by five bytes"
    account.begin(first, NOON + 10)
    account.interrupt(first, 6, NOON + 20)
    wait = account.ask(first, NOON + 30)
    assert wait is not None and wait.state is State.WAITING_FOR_BUDGET and wait.until == MIDNIGHT
    assert f"for {whose}" in wait.reason and "are left, and a measurement run needs" in wait.reason
    assert (account.ask(second, NOON + 30) is not None) == sibling_too
    assert account.ask(first, MIDNIGHT - 0.001) is not None
    assert account.ask(first, MIDNIGHT) is None, "the next day has its own budget"


def test_a_kill_gives_nothing_back(open_account: Any) -> None:
    """An attempt that is not settled counts with its worst case, in the next process, too."""
    wanted = campaign(domain=worst_run_bytes(campaign()) + NEEDED - 1)
    account = open_account(wanted, ASN)
    (run,) = account.plan
    account.begin(run, NOON)
    account.journal.close()
    again = open_account(wanted, ASN)
    assert again.ask(run, NOON + 60) is not None
    (entry,) = again.journal.spent.unsettled()
    assert (entry.ip_bytes, entry.settled, entry.address) == (worst_run_bytes(wanted), False, None)
    for _ in range(2):  # counted once, however often it is settled
        again.journal.spent.settle(entry.run, entry.attempt, 7)
        assert again.journal.spent.totals(NOON).campaign == 7
    assert not again.journal.spent.unsettled() and again.ask(run, NOON + 60) is None


def test_entering_and_recording_are_one_transaction(open_account: Any, tmp_path: Path) -> None:
    account = open_account(campaign(), ASN)
    (run,) = account.plan
    account.begin(run, NOON)
    with pytest.raises(AssertionError):
        account.journal.accept(run.number, [], ended=Ended(ip_bytes=1, at=NOON))
    assert [entry.settled for entry in account.journal.spent.entries()] == [False]
    with pytest.raises(sqlite3.IntegrityError):  # and an attempt has one row
        account.journal.spent.reserve(run.number, 1, reserved(account.campaign, ASN, NOON))


def test_an_attempt_over_midnight_counts_on_both_days(open_account: Any) -> None:
    account = open_account(campaign(), ASN)
    (run,) = account.plan
    account.begin(run, MIDNIGHT - 1)
    account.interrupt(run, 1000, MIDNIGHT + 1)
    totals = [account.journal.spent.totals(now).campaign for now in (NOON, MIDNIGHT, MIDNIGHT + DAY_S)]
    assert totals == [1000, 1000, 0]


def test_a_killed_attempt_counts_on_each_day_that_it_may_have_reached(open_account: Any) -> None:
    """Nobody knows when it ended: pauses, look-up and captures count, too, not only the downloads' time budgets."""
    wanted = replace(campaign(), order="published", published_quirks=("pauses",))
    account = open_account(wanted, ASN)
    account.begin(account.plan[0], MIDNIGHT - worst_s(wanted, ASN) + 1)
    (entry,) = account.journal.spent.unsettled()
    account.journal.spent.settle(entry.run, entry.attempt, 1000, exact=False)
    totals = [account.journal.spent.totals(now).campaign for now in (NOON, MIDNIGHT, MIDNIGHT + DAY_S)]
    assert totals == [1000, 1000, 0]


def test_an_attempt_counts_though_the_clock_was_set_back_over_midnight(open_account: Any) -> None:
    account = open_account(campaign(), ASN)
    (run,) = account.plan
    account.begin(run, MIDNIGHT + 5)
    account.interrupt(run, 1000, MIDNIGHT - 20)
    totals = [account.journal.spent.totals(now).campaign for now in (MIDNIGHT - 10, MIDNIGHT + 10, MIDNIGHT + DAY_S)]
    assert totals == [1000, 1000, 0]


def test_each_vantage_point_has_its_share(open_account: Any) -> None:
    account = open_account(campaign(**{"as": 3 * NEEDED}), ASN, SIBLING, vantage_points=3)
    first, second = account.plan
    assert account.ask(first, NOON) is None
    account.begin(first, NOON)
    account.interrupt(first, NEEDED, NOON)
    assert account.ask(second, NOON) is not None


@pytest.mark.parametrize("crawled", [None, "203.0.113.9"])
def test_without_an_as_the_network_counts_as_soon_as_it_is_known(open_account: Any, crawled: str | None) -> None:
    """Its first run is cut after the look-up, before anything is sent; then the target rests without a look-up."""
    account = open_account(campaign(**{"as": NEEDED}), BARE, Target(domain="d.example", url="https://d.example/f"))
    first, second = (account.plan[0], PlannedRun(number=1, iteration=1, target=BARE, configurations=("warmup", "BL")))
    attempt = account.begin(first, NOON)
    assert account.resolve(first, attempt, "192.0.2.7", NOON) is None
    account.interrupt(first, NEEDED, NOON + 1)
    assert account.journal.spent.totals(NOON).networks == {"192.0.2.0/24": NEEDED}
    other = PlannedRun(
        number=1,
        iteration=1,
        target=Target(domain="d.example", url="https://d.example/f", size_bytes=1_000_000, server_ip=crawled),
        configurations=("warmup", "BL"),
    )
    assert account.ask(other, NOON + 2) is None
    attempt = account.begin(other, NOON + 2)
    why = account.resolve(other, attempt, "192.0.2.200", NOON + 2)
    assert why is not None and "for 192.0.2.0/24 0 B are left" in why
    account.interrupt(other, 0, NOON + 3)
    wait = account.ask(other, NOON + 4)
    assert wait is not None and wait.until == MIDNIGHT
    assert account.ask(second, NOON + 4) is not None


def test_of_two_targets_of_a_domain_only_the_one_whose_network_is_used_up_rests(open_account: Any) -> None:
    one, two = (Target(domain="c.example", url=f"https://{n}.c.example/f", size_bytes=1_000_000) for n in "ab")
    account = open_account(campaign(**{"as": NEEDED}), one, two)
    first, second = account.plan
    attempt = account.begin(first, NOON)
    assert account.resolve(first, attempt, "192.0.2.7", NOON) is None
    account.interrupt(first, NEEDED, NOON + 1)
    attempt = account.begin(second, NOON + 2)
    assert account.resolve(second, attempt, "198.51.100.7", NOON + 2) is None
    account.interrupt(second, 0, NOON + 3)
    assert account.ask(first, NOON + 4) is not None and account.ask(second, NOON + 4) is None


@pytest.mark.parametrize(
    ("target", "address", "network"),
    [
        (ASN, "192.0.2.7", "AS64500"),
        (BARE, "192.0.2.7", "192.0.2.0/24"),
        (BARE, "2001:db8:1:2::3", "2001:db8:1::/48"),
        (BARE, "::ffff:192.0.2.7", "192.0.2.0/24"),
        (BARE, None, None),
        (BARE, "not an address", None),
    ],
)
def test_networks(target: Target, address: str | None, network: str | None) -> None:
    assert network_of(target, address) == network


@pytest.mark.parametrize(
    ("budgets", "vantage_points", "said"),
    [
        (
            {"domain": NEEDED - 1},
            1,
            r"field budgets.domain: there are .* a day for a.example, and one .* needs",
        ),
        ({"as": 3 * NEEDED - 1}, 3, r"field budgets.as: each of 3 vantage points has .* a day for its AS, and one"),
        (
            {"campaign": 2},
            2,
            r"field budgets.campaign: each of 2 .* 1 B a day for the campaign, .*; raise it",
        ),
    ],
)
def test_a_budget_below_one_run_is_one_sentence(budgets: Any, vantage_points: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_budgets(campaign(**budgets), [ASN], vantage_points=vantage_points)
    enough = dict.fromkeys(budgets, vantage_points * NEEDED)
    check_budgets(campaign(**enough), [ASN], vantage_points=vantage_points)


def test_an_automatic_budget_of_more_than_a_day_is_one_sentence() -> None:
    """The Rust clients would refuse it, with each download."""
    slow = replace(campaign(), slowest_mbit=1.8e-4)
    with pytest.raises(
        UsageError, match=r"field slowest_mbit: a download of a.example may take 88895 s, and 86400 s is"
    ):
        check_budgets(slow, [ASN], vantage_points=1)
    check_budgets(replace(slow, slowest_mbit=1.9e-4), [ASN], vantage_points=1)
    check_budgets(replace(slow, budget_s=3600.0), [ASN], vantage_points=1)


def test_bytes_of_an_interrupted_attempt() -> None:
    """What was on its way at the kill is not in the capture; a capture that lacks packets does not make it less."""
    wanted = campaign()
    assert interrupted_bytes(wanted, ASN, 500, []) == 500 + download_bytes(wanted, ASN)
    large = Target(domain="l.example", url="https://l.example/f", size_bytes=20_000_000)
    assert interrupted_bytes(wanted, large, 500, []) == 500 + IN_FLIGHT_BYTES
    assert day_start(NOON) == NOON - DAY_S / 2


def test_the_fullest_budgets_are_told(tmp_path: Path) -> None:
    wanted, plan, told = campaign(), runs(ASN, BARE), dict[str, tuple[str, int, int]]()
    with contextlib.closing(Journal.open(tmp_path, plan, plan_hash="x")) as journal:

        def tell(budget: str, *rest: Any) -> None:
            told[budget] = rest

        gate = BudgetGate(wanted, journal.spent, vantage_points=2, tell=tell)
        gate.holds(NOON)
        gate.admits(plan[0], NOON)
        assert told == {"campaign": ("the campaign", 0, 250_000_000_000)}, "no AS and no domain has used anything"
        attempt = journal.begin(0, reserved(wanted, ASN, NOON))
        journal.spent.resolved(0, attempt, "192.0.2.7", "AS64500")
        journal.interrupt(0, ended=Ended(ip_bytes=700, at=NOON))
        gate.holds(NOON)
        gate.admits(plan[1], NOON)
        assert told["as"] == ("AS64500", 700, 25_000_000_000)
        assert told["domain"] == ("a.example", 700, 500_000_000) and told["campaign"][1] == 700


def test_the_account_of_a_day_is_the_same_added_up_bit_by_bit(tmp_path: Path) -> None:
    """Over two days, with entries that are settled late, in another order, or over midnight."""
    draw, plan = random.Random(4), runs(ASN, SIBLING, BARE)
    with contextlib.closing(Journal.open(tmp_path, plan, plan_hash="h")) as journal:
        kept, now, waiting = journal.spent, MIDNIGHT - 3_000, list[tuple[int, int]]()
        for attempt in range(1, 200):
            now += draw.uniform(0, 60)
            run = draw.choice(plan)
            journal.spent.reserve(run.number, attempt, reserved(campaign(), run.target, now))
            waiting.append((run.number, attempt))
            if len(waiting) > 3 or draw.random() < 0.5:
                number, one = waiting.pop(draw.randrange(len(waiting)))
                journal.spent.settle(number, one, draw.randrange(10_000), ended=now)
            without = waiting[-1] if waiting and draw.random() < 0.3 else (-1, 0)
            found, fresh = kept.totals(now, without=without), Spent(journal._db).totals(now, without=without)
            whole = journal._db.execute(
                "SELECT TOTAL(bytes) FROM spent WHERE ended >= ? AND began < ? AND (run, attempt) != (?, ?)",
                (day_start(now), day_start(now) + DAY_S, *without),
            ).fetchone()[0]
            assert found.campaign == fresh.campaign == whole
            assert dict(found.domains) == dict(fresh.domains) and dict(found.networks) == dict(fresh.networks)
            domain, network = found.most
            assert found.domains.get(domain, 0) == max(found.domains.values(), default=0)
            assert network is None or found.networks[network] == max(found.networks.values())
        assert now > MIDNIGHT
