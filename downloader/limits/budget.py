"""Budgets, and the account by which they are kept: IP bytes of each attempt of a measurement run, in the journal.

A target rests until midnight UTC where its next measurement run does not fit. Each of K vantage points has 1/K of each
budget, so the sum holds without any exchange between them.

An attempt is entered with its worst case in the transaction that starts it, and corrected in the transaction that
records it. So a kill gives nothing back; the next start counts what the partial capture has (`Spent.unsettled`), and
entering it again is not possible, as an attempt has one row.
"""

from __future__ import annotations

import ipaddress
import sqlite3
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from core.domain import Download, Target, TargetKey
from core.errors import UsageError
from core.files.disk import size_text
from core.reach import unmapped
from downloader.campaign.campaign import Campaign
from downloader.campaign.expected import (
    IN_FLIGHT_BYTES,
    download_bytes,
    run_bytes,
    with_overhead,
    worst_run_bytes,
    worst_s,
)
from downloader.campaign.plan import PlannedRun
from downloader.control.stop_pause import DAY_S, day_start
from downloader.schedule.schedule import Cut, Gate, State, Wait

_MOST_S = 86_400
"""Longest time budget of a download that clients take (rust/clientkit/src/arguments.rs)."""

TABLE = """
CREATE TABLE IF NOT EXISTS spent (
    run INTEGER NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, began REAL NOT NULL, ended REAL NOT NULL,
    network TEXT, address TEXT, bytes INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, attempt)
) STRICT;
CREATE INDEX IF NOT EXISTS spent_unsettled ON spent (settled) WHERE NOT settled;
"""


_KNOWN, _WORST_CASE, _AT_MOST = 1, 2, 3
"""What `settled` holds of an attempt that is over: with what it took, with the worst case as nobody knows, or with what
a capture has that may lack packets and the most that these can be. Journals of an older Upshift have no `_AT_MOST`."""

_LAST = 2**63 - 1
"""Largest row id of SQLite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountEntry:
    """One attempt."""

    run: int
    """Number of the measurement run."""
    attempt: int
    began: float
    """Unix time."""
    ended: float
    """Unix time; of one that is not settled the latest possible."""
    domain: str
    url: str
    network: str | None
    """See `network_of`; None: not known, and nothing was sent to a server."""
    address: str | None
    """The server's address; None: nothing was sent to a server."""
    ip_bytes: int
    settled: bool
    """False: `ip_bytes` is the most that it can be."""


@dataclass(slots=True)
class Totals:
    """IP bytes of a day, as they are added."""

    domains: ChainMap[str, int] = field(default_factory=ChainMap)
    networks: ChainMap[str, int] = field(default_factory=ChainMap)
    campaign: int = 0
    most: tuple[str, str | None] = ("", None)
    """The domain and the network with most."""

    def add(self, domain: str, network: str | None, ip_bytes: int) -> None:
        """Adds the bytes of an attempt."""
        self.campaign += ip_bytes
        self.domains[domain] = self.domains.get(domain, 0) + ip_bytes
        most_domain, most_network = self.most
        if network is not None:
            self.networks[network] = self.networks.get(network, 0) + ip_bytes
            if most_network is None or self.networks[network] >= self.networks[most_network]:
                most_network = network
        if self.domains[domain] >= self.domains.get(most_domain, 0):
            most_domain = domain
        self.most = (most_domain, most_network)

    def copy(self) -> Totals:
        """The same, to be added to; it shares what is there, so it costs nothing."""
        return Totals(self.domains.new_child(), self.networks.new_child(), self.campaign, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What is entered before an attempt starts."""

    now: float
    latest_end: float
    network: str | None
    worst_bytes: int


def network_of(target: Target, address: str | None) -> str | None:
    """Whose budget a target's bytes count for: its origin AS, else the /24 or /48 of the server's address."""
    if target.asn is not None:
        return f"AS{target.asn}"
    try:
        ip = unmapped(address or "")
    except ValueError:  # none, or a column that somebody filled with something else
        return None
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


def reserved(campaign: Campaign, target: Target, now: float) -> Reserved:
    """The entry of an attempt that starts now."""
    return Reserved(
        now=now,
        latest_end=now + worst_s(campaign, target),
        network=network_of(target, None),
        worst_bytes=worst_run_bytes(campaign),
    )


def interrupted_bytes(campaign: Campaign, target: Target, captured: int, finished: Sequence[Download]) -> int:
    """IP bytes of an attempt that did not end by itself.

    Its capture may lack packets (tcpdump died first), so the bodies that clients reported count at least; and what the
    server had on its way when the client was killed never reached the capture.
    """
    reported = sum(with_overhead(download.body_bytes) for download in finished if download.local_port is not None)
    return max(captured, reported) + min(download_bytes(campaign, target), IN_FLIGHT_BYTES)


class Spent:
    """The table `spent` of a journal. Methods that write belong into a transaction of the journal."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._midnight = -1.0
        self._until = 0
        """Row id up to which the entries of that day are in `_settled`."""
        self._settled = Totals()

    def reserve(self, run: int, attempt: int, entry: Reserved) -> None:
        """Enters the worst case of an attempt that is about to start."""
        self._db.execute(
            "INSERT INTO spent (run, attempt, began, ended, network, bytes) VALUES (?, ?, ?, ?, ?, ?)",
            (run, attempt, entry.now, entry.latest_end, entry.network, entry.worst_bytes),
        )

    def resolved(self, run: int, attempt: int, address: str, network: str | None) -> None:
        """Enters the server's address, before anything is sent to it."""
        self._db.execute(
            "UPDATE spent SET address = ?, network = ? WHERE run = ? AND attempt = ?", (address, network, run, attempt)
        )

    def settle(
        self, run: int, attempt: int, ip_bytes: int | None, *, ended: float | None = None, exact: bool = True
    ) -> None:
        """Enters what an attempt took; None leaves the worst case, and the latest possible end.

        Args:
            exact: False if `ip_bytes` is the most that it can be.
        """
        settled = _WORST_CASE if ip_bytes is None else _KNOWN if exact else _AT_MOST
        self._db.execute(
            "UPDATE spent SET bytes = COALESCE(?, bytes), ended = COALESCE(?, ended), settled = ?"
            " WHERE run = ? AND attempt = ?",
            (ip_bytes, ended, settled, run, attempt),
        )

    def unsettled(self) -> list[AccountEntry]:
        """Attempts that a kill ended."""
        return list(self._entries("WHERE NOT settled"))

    def entries(self) -> Iterator[AccountEntry]:
        """All attempts, in order of time."""
        return self._entries("ORDER BY began")

    def _entries(self, rest: str) -> Iterator[AccountEntry]:
        names = [field.name for field in fields(AccountEntry)]
        for row in self._db.execute(
            "SELECT run, attempt, began, ended, domain, url, network, address, bytes, settled = ?"  # noqa: S608
            f" FROM spent JOIN runs ON number = run {rest}",
            (_KNOWN,),
        ):
            values = dict(zip(names, row, strict=True))
            yield AccountEntry(**values | {"settled": bool(values["settled"])})

    def totals(self, now: float, *, without: tuple[int, int] = (-1, 0)) -> Totals:
        """The bytes of this UTC day. An attempt over midnight counts on both days, as its bytes are not dated.

        What is settled does not change any more, so it is added up once: the cost does not grow with the day.

        Args:
            without: run and attempt, not settled yet, that are left out.
        """
        if (midnight := day_start(now)) != self._midnight:
            self._midnight, self._until, self._settled = midnight, 0, Totals()
        first = self._db.execute(
            "SELECT rowid - 1 FROM spent WHERE NOT settled AND settled = 0 ORDER BY rowid LIMIT 1"  # by its index
        ).fetchone()
        (until,) = first or self._db.execute("SELECT COALESCE(MAX(rowid), 0) FROM spent").fetchone()
        for entry in self._day(self._until, until, (-1, 0)):
            self._settled.add(*entry)
        self._until = max(self._until, until)
        totals = self._settled.copy()
        for entry in self._day(self._until, _LAST, without):
            totals.add(*entry)
        return totals

    def _day(self, after: int, until: int, without: tuple[int, int]) -> Iterator[tuple[str, str | None, int]]:
        """Domain, network and bytes of the day's entries with row ids above `after`, up to `until`."""
        return self._db.execute(
            # NOT INDEXED: by row id, whatever else is known.
            "SELECT domain, network, SUM(bytes) FROM spent NOT INDEXED JOIN runs ON number = run"
            " WHERE spent.rowid > ? AND spent.rowid <= ? AND (run, attempt) != (?, ?)"
            # Where the clock was set back meanwhile, an attempt ended before it began.
            " AND MAX(began, ended) >= ? AND MIN(began, ended) < ? GROUP BY domain, network",
            (after, until, *without, self._midnight, self._midnight + DAY_S),
        )


class _BudgetPart(NamedTuple):
    """What one vantage point has of one budget."""

    field: str
    whose: str
    most: int
    spent: int


class BudgetGate(Gate):
    """Admits runs whose expected bytes fit into what is left today. The account itself is the journal's.

    Args:
        vantage_points: number of those in the plan, wherever they run.
        tell: told of each budget, before each choice and by `look`, its name, whose it is, the bytes used and the most
            bytes; of those for an AS and a domain the one that is used most.
    """

    def __init__(
        self,
        campaign: Campaign,
        spent: Spent,
        *,
        vantage_points: int,
        tell: Callable[[str, str, int, int], object] = lambda *_: None,
    ) -> None:
        self._campaign, self._spent, self._count, self._tell = campaign, spent, vantage_points, tell
        self._addresses: dict[TargetKey, str] = {}
        """Target -> its last address, which may be in another network than the crawl's, where its AS is not known."""
        self._totals: Totals | None = None
        self._cut: Cut | None = None

    def holds(self, now: float) -> None:  # noqa: ARG002
        self._totals = None  # read once for each choice

    def look(self, now: float) -> Totals:
        """Tells what is spent."""
        totals = self._spent.totals(now)
        domain, network = totals.most
        for share in _shares(self._campaign, domain, network, totals, self._count):
            if share.whose:
                self._tell(share.field, share.whose, share.spent, share.most)
        return totals

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        if self._totals is None:
            self._totals = self.look(now)
        address = self._addresses.get(run.target.key, run.target.server_ip)
        network = network_of(run.target, address)
        why = self._refusal(run.target, network, self._totals)
        return None if why is None else Wait(State.WAITING_FOR_BUDGET, why, day_start(now) + DAY_S)

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:  # noqa: ARG002
        self._cut = None

    def resolved(self, run: PlannedRun, attempt: int, address: str, now: float) -> None:
        """Checks a target whose AS is not known again, as its network is known only now."""
        network = network_of(run.target, address)
        if run.target.asn is not None or network is None:
            return
        self._addresses[run.target.key] = address
        why = self._refusal(run.target, network, self._spent.totals(now, without=(run.number, attempt)))
        self._cut = None if why is None else Cut(why)

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:  # noqa: ARG002
        return self._cut

    def _refusal(self, target: Target, network: str | None, totals: Totals) -> str | None:
        needed = run_bytes(self._campaign, target)
        for share in _shares(self._campaign, target.domain, network, totals, self._count):
            if share.spent + needed > share.most:
                left = size_text(max(share.most - share.spent, 0))
                return (
                    f"of today's {size_text(share.most)} for {share.whose} {left} are left, and a measurement run "
                    f"needs {size_text(needed)}"
                )
        return None


def _shares(
    campaign: Campaign, domain: str, network: str | None, totals: Totals, vantage_points: int
) -> Iterator[_BudgetPart]:
    budgets = campaign.budgets
    yield _BudgetPart("campaign", "the campaign", budgets.campaign // vantage_points, totals.campaign)
    if network is not None:
        yield _BudgetPart("as", network, budgets.network // vantage_points, totals.networks.get(network, 0))
    yield _BudgetPart("domain", domain, budgets.domain // vantage_points, totals.domains.get(domain, 0))


def check_budgets(campaign: Campaign, targets: Sequence[Target], *, vantage_points: int) -> None:
    """Raises UsageError if a measurement run does not fit into a budget of which nothing is spent yet, or if a download
    may take longer than clients can be told.
    """
    nothing = Totals()
    for target in targets:
        if (budget_s := campaign.budget_for(target)) > _MOST_S:
            raise UsageError(
                f"a download of {target.domain} may take {budget_s:.0f} s, and {_MOST_S} s is the limit",
                where=f"{campaign.path}: field slowest_mbit",
                remedy="raise it, or lower max_bytes",
            )
        needed = run_bytes(campaign, target)
        for share in _shares(campaign, target.domain, "its AS", nothing, vantage_points):
            if needed > share.most:
                each = f"each of {vantage_points} vantage points has" if vantage_points > 1 else "there are"
                raise UsageError(
                    f"{each} {size_text(share.most)} a day for {share.whose}, and one measurement run of "
                    f"{target.domain} needs {size_text(needed)}",
                    where=f"{campaign.path}: field budgets.{share.field}",
                    remedy="raise it, or lower max_bytes",
                )
