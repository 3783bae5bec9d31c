"""What was fetched from a domain, a prefix or an AS, and when: the answer to its operator, from journals alone."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.domain import Download, Failure
from core.errors import UsageError
from core.files.journal import JournalReader, open_journals
from core.outreach.blocks import Blocked
from core.outreach.lists import domain_of
from core.reach import unmapped_prefix
from core.untrusted import host_and_port, scrub
from downloader.campaign.campaign import Order
from downloader.limits.budget import AccountEntry, Spent

_AS = re.compile(r"(?:AS)?([0-9]{1,10})", re.IGNORECASE)

_NO_ROWS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What comes of records with other fields and values than ours: a journal from a host may hold anything."""

Selection = Callable[[AccountEntry], bool]
"""Whether an attempt is part of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One download."""

    at: float
    """Unix time of its first packet; of one that was not started, of its record."""
    configuration: str
    local_ip: str | None
    """The address from which it came, behind any address translation."""
    local_port: int | None
    body_bytes: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One attempt of a measurement run: downloads of one file, back to back."""

    folder: str
    vantage: str
    user_agent: str
    url: str
    network: str | None
    """AS of the target, or the /24 or /48 of the server."""
    server_ip: str
    """In the published order, in which each download has its own, those of who asks, separated by spaces."""
    began: float
    """Unix time."""
    ended: float
    ip_bytes: int
    """Both directions."""
    exact: bool
    """False: `ip_bytes` is the most that it can be, as the attempt was killed or interrupted, or its capture lacks
    packets, or as it had servers of others, too."""
    requests: tuple[RecordedRequest, ...]
    """Those that are recorded; a kill may have hit another one. Of those that an opt-out or its slot ended, the first,
    which may have run: the others sent nothing."""


def parse(text: str) -> Selection:
    """Who asks: `www.example.org` (with all names below it), `192.0.2.0/24` or an address, `AS64500` or `64500`.

    Names and prefixes are read as in block lists: a name in any script, a prefix with host bits, of IPv4 with the
    addresses of IPv6 that lead to it.

    Raises:
        UsageError: it is none of them.
    """
    if number := _AS.fullmatch(text):
        network = f"AS{int(number[1])}"
        return lambda entry: entry.network == network
    try:
        prefixes = Blocked(prefixes=frozenset([unmapped_prefix(ipaddress.ip_network(text, strict=False))]))
    except ValueError:
        pass
    else:
        return lambda entry: entry.address is not None and prefixes.address(entry.address)
    try:
        domain = domain_of(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither a domain nor a prefix nor an AS number",
            remedy="write www.example.org, 192.0.2.0/24 or AS64500",
        ) from None

    def is_below(entry: AccountEntry) -> bool:
        names = (entry.domain, host_and_port(entry.url)[0])
        return any(name == domain or name.endswith(f".{domain}") for name in names)

    return is_below


def fetched(selects: Selection, folders: Iterable[Path]) -> Iterator[Fetched]:
    """What was fetched, folder by folder, in order of time within each vantage point.

    Attempts that sent nothing to a server are left out.

    Raises:
        UsageError: a folder holds no campaign, or a journal what nobody's has.
    """
    for folder in folders:
        with open_journals(folder) as journals:
            for vantage, journal in journals.items():
                campaign = journal.document("campaign")
                agent, has_several = campaign.get("user_agent", ""), campaign.get("order") == Order.PUBLISHED
                try:
                    for entry in Spent(journal.db).entries():
                        servers = _servers(journal, entry, has_several=has_several)
                        asked = [server for server in servers if selects(replace(entry, address=server))]
                        if not asked:
                            continue
                        time.gmtime(entry.began), time.gmtime(entry.ended)
                        whole = len(asked) == len(servers)
                        # One without a server (published order) had no look-up that gave one.
                        sent = [one for one in _sent(journal.attempt(entry.run, entry.attempt)) if one.server_ip]
                        yield Fetched(
                            folder=str(folder),
                            vantage=vantage,
                            user_agent=agent,
                            url=entry.url,
                            network=entry.network,
                            server_ip=" ".join(asked),
                            began=entry.began,
                            ended=entry.ended,
                            ip_bytes=entry.ip_bytes,
                            exact=entry.settled and whole,
                            requests=tuple(_request(one) for one in sent if whole or one.server_ip in asked),
                        )
                except _NO_ROWS as error:
                    raise UsageError(
                        f"this journal's rows make no sense ({type(error).__name__}: {scrub(str(error))})",
                        where=str(journal.path),
                        remedy="copy it again, or leave its folder out",
                    ) from None


def _servers(journal: JournalReader, entry: AccountEntry, *, has_several: bool) -> list[str]:
    """The servers of an attempt. The account has the last one; in the published order each download has its own."""
    if entry.address is None:
        return []
    downloads = journal.attempt(entry.run, entry.attempt) if has_several else []
    return list(dict.fromkeys([*(one.server_ip for one in downloads if one.server_ip is not None), entry.address]))


def _sent(downloads: Sequence[Download]) -> list[Download]:
    """The downloads of an attempt in their order, without those that were left when an opt-out or its slot ended it."""
    # Of a client that answers, even with the failure `unknown`, the set-up time is known.
    silent = [d.failure == Failure.UNKNOWN and d.setup_s is None and d.local_port is None for d in downloads]
    cut = [is_silent or d.failure == Failure.OPTED_OUT for d, is_silent in zip(downloads, silent, strict=True)]
    ended = cut.index(True) if True in cut else len(downloads)
    return list(downloads[: ended + 1])


def _request(download: Download) -> RecordedRequest:
    return RecordedRequest(
        at=download.started_at,
        configuration=download.configuration,
        local_ip=download.local_ip,
        local_port=download.local_port,
        body_bytes=download.body_bytes,
        outcome=download.outcome,
    )
