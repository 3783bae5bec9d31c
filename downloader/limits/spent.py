"""The account of a vantage point: IP bytes of each attempt of a measurement run, in its journal.

An attempt is entered with its worst case in the transaction that starts it, and corrected in the transaction that
records it. So a kill gives nothing back; the next start counts what the partial capture has (`Spent.unsettled`), and
entering it again is not possible, as an attempt has one row.
"""

from __future__ import annotations

import ipaddress
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from downloader.campaign.campaign import Campaign
from downloader.limits.expected import IN_FLIGHT_BYTES, download_bytes, with_overhead, worst_run_bytes
from upshift.domain import Download, Target

DAY_S = 86_400
"""A UTC day in Unix time, which has no leap seconds."""

TABLE = """
CREATE TABLE IF NOT EXISTS spent (
    run INTEGER NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, began REAL NOT NULL, ended REAL NOT NULL,
    network TEXT, address TEXT, bytes INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, attempt)
) STRICT;
CREATE INDEX IF NOT EXISTS spent_by_end ON spent (ended);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
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
    """False: `ip_bytes` is the worst case."""


@dataclass(frozen=True, slots=True)
class Totals:
    """IP bytes of a day."""

    domains: Mapping[str, int]
    networks: Mapping[str, int]
    campaign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What is entered before an attempt starts."""

    now: float
    latest_end: float
    network: str | None
    worst_bytes: int


def day_start(now: float) -> float:
    """Unix time of the last midnight UTC."""
    return now - now % DAY_S


def network_of(target: Target, address: str | None) -> str | None:
    """Whose budget a target's bytes count for: its origin AS, else the /24 or /48 of the server's address."""
    if target.asn is not None:
        return f"AS{target.asn}"
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:  # none, or a column that somebody filled with something else
        return None
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


def reserved(campaign: Campaign, target: Target, now: float) -> Reserved:
    """The entry of an attempt that starts now."""
    budgets_s = campaign.budget_for(target) * (len(campaign.configurations) + len(campaign.warmups))
    return Reserved(
        now=now,
        latest_end=now + budgets_s,
        network=network_of(target, None),
        worst_bytes=worst_run_bytes(campaign),
    )


def interrupted_bytes(campaign: Campaign, target: Target, captured: int, finished: Sequence[Download]) -> int:
    """IP bytes of an attempt that did not end by itself.

    Its capture may lack packets (tcpdump died first), so the bodies that clients reported count at least; and what the
    server had on its way when the client was killed never reached the capture.
    """
    told = sum(with_overhead(download.body_bytes) for download in finished if download.local_port is not None)
    return max(captured, told) + min(download_bytes(campaign, target), IN_FLIGHT_BYTES)


class Spent:
    """The table `spent` of a journal. Methods that write belong into a transaction of the journal."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

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

    def settle(self, run: int, attempt: int, ip_bytes: int, *, ended: float | None = None) -> None:
        """Enters what an attempt took; `ended` None leaves the latest possible end."""
        self._db.execute(
            "UPDATE spent SET bytes = ?, ended = COALESCE(?, ended), settled = 1 WHERE run = ? AND attempt = ?",
            (ip_bytes, ended, run, attempt),
        )

    def unsettled(self) -> list[Entry]:
        """Attempts that a kill ended."""
        return list(self._entries("WHERE NOT settled"))

    def entries(self) -> Iterator[Entry]:
        """All attempts, in order of time."""
        return self._entries("ORDER BY began")

    def _entries(self, rest: str) -> Iterator[Entry]:
        for run, attempt, began, ended, domain, url, network, address, ip_bytes, settled in self._db.execute(
            "SELECT run, attempt, began, ended, domain, url, network, address, bytes, settled"  # noqa: S608 - constants
            f" FROM spent JOIN runs ON number = run {rest}"
        ):
            yield Entry(
                run=run,
                attempt=attempt,
                began=began,
                ended=ended,
                domain=domain,
                url=url,
                network=network,
                address=address,
                ip_bytes=ip_bytes,
                settled=bool(settled),
            )

    def totals(self, now: float, *, without: tuple[int, int] = (-1, 0)) -> Totals:
        """The bytes of this UTC day. An attempt over midnight counts on both days, as its bytes are not dated.

        Args:
            without: run and attempt that are left out.
        """
        midnight = day_start(now)
        domains: dict[str, int] = {}
        networks: dict[str, int] = {}
        campaign = 0
        rows = self._db.execute(
            "SELECT domain, network, SUM(bytes) FROM spent JOIN runs ON number = run"
            " WHERE ended >= ? AND began < ? AND (run, attempt) != (?, ?) GROUP BY domain, network",
            (midnight, midnight + DAY_S, *without),
        )
        for domain, network, ip_bytes in rows:
            domains[domain] = domains.get(domain, 0) + ip_bytes
            if network is not None:
                networks[network] = networks.get(network, 0) + ip_bytes
            campaign += ip_bytes
        return Totals(domains, networks, campaign)
