"""A whole crawl: list -> ledger -> visits -> targets."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import core
from core.domain import PageObject
from core.errors import UpshiftError, UsageError, not_found
from core.files import store, targets
from core.outreach.arguments import allow_many_files
from core.outreach.blocks import BlockLists
from core.outreach.dns import Resolver
from core.outreach.ledger import LedgerEntry
from core.outreach.lists import TopList, identity
from core.system import signals
from core.terminal import Progress
from crawler.exchange import CrawlOutcome
from crawler.ledger import CrawlLedger
from crawler.policy import AGENT, Throttle
from crawler.visit import CrawlLimits

OLDEST_SCRAPY = (2, 19)
"""First version in which responses without a body have the server's address (Scrapy's pull request 8048)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlOptions:
    """The user's options."""

    source: Path
    out: Path
    ledger: Path
    contact: str
    """Address (mail or web) that site owners find in the user agent."""
    limits: CrawlLimits = field(default_factory=CrawlLimits)
    shard: tuple[int, int] = (1, 1)
    limit: int | None = None
    workers: int = 200
    rate_per_s: float = 2.0
    per_address: int = 1
    timeout_s: float = 15.0
    nameserver: str | None = None
    nameserver_port: int = 53
    ca_file: Path | None = None
    block_lists: Sequence[Path] = ()

    @property
    def user_agent(self) -> str:
        return f"{AGENT}/{core.__version__} (+{self.contact})"

    def plan(self) -> dict[str, Any]:
        """Options that affect the results: a resumed crawl must have the same."""
        limits = asdict(self.limits) | {"shard": list(self.shard), "limit": self.limit}
        if not self.limits.objects:
            del limits["objects"]  # a crawl for large files has the plan that it had before there were others
        return limits | {"list": identity(self.source)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlSummary:
    """How the crawl ended."""

    domains: int
    outcomes: Counter[str]
    list_form: str | None
    broken_rows: Counter[str]
    named_faults: list[str]
    duplicates: int | None
    """Rows of domains that the list had before; None if it was in the ledger already."""
    complaints: list[str]
    objects: Counter[str]
    """Of a crawl for objects: measured, lower bounds, skipped, and causes."""

    @property
    def with_file(self) -> int:
        return self.outcomes[CrawlOutcome.FOUND]


def crawl(options: CrawlOptions, progress: Progress) -> CrawlSummary:
    """Runs the crawl, or resumes it from its ledger, and writes the targets or objects.

    Raises:
        UsageError: a broken list, ledger, or block list; with file and line.
    """
    if not options.source.is_file():
        raise not_found(options.source)
    blocks = BlockLists(options.block_lists)
    ledger = CrawlLedger(options.ledger, options.plan())
    try:
        rows = TopList(options.source)
        listed = _of_targets(options.source) if options.limits.objects and targets.is_table(options.source) else rows
        duplicates = None if ledger.filled else ledger.fill(listed, shard=options.shard, limit=options.limit)
        _visit_all(options, ledger, blocks, progress)
        objects = Counter[str]()
        if options.limits.objects:
            store.write_rows(options.out, "objects", _counted(ledger.objects(), objects))
        else:
            targets.write_rows(options.out, ledger.targets())
        domains, outcomes = ledger.counts()
    finally:
        ledger.close()
    return CrawlSummary(
        domains=domains,
        outcomes=outcomes,
        list_form=rows.form,
        broken_rows=rows.broken,
        named_faults=list(map(str, rows.faults)),
        duplicates=duplicates,
        complaints=blocks.complaints,
        objects=objects,
    )


def _of_targets(path: Path) -> Iterator[LedgerEntry]:
    """The domains of a `targets` file, with provider where it was mapped."""
    for row in targets.values(path, ("domain", "rank")):
        known = {"provider": row["provider"]} if row["provider"] else {}
        yield LedgerEntry(domain=row["domain"], rank=row["rank"], known=known)


def _counted(rows: Iterator[PageObject], counts: Counter[str]) -> Iterator[PageObject]:
    """The same rows; counts those with a size, bounds, causes, and what was skipped."""
    for row in rows:
        if row.size_bytes is not None:
            counts["measured"] += 1
            counts["lower bounds"] += row.size_is_lower_bound
        elif not row.is_page:  # causes of pages are outcomes of domains
            counts[row.failure or "unknown"] += 1
        counts["skipped"] += row.skipped
        yield row


def settings(options: CrawlOptions) -> dict[str, Any]:
    """Scrapy's settings: only what this crawl uses; Scrapy's other middleware is off."""
    return {
        "LOG_ENABLED": False,
        "LOG_INSTALL_ROOT_HANDLER": False,
        "TELNETCONSOLE_ENABLED": False,
        "EXTENSIONS_BASE": {},
        "SPIDER_MIDDLEWARES_BASE": {},
        "DOWNLOADER_MIDDLEWARES_BASE": {
            "crawler.spider.GateMiddleware": 100,
            "scrapy.downloadermiddlewares.defaultheaders.DefaultHeadersMiddleware": 400,
            "scrapy.downloadermiddlewares.useragent.UserAgentMiddleware": 500,
        },
        "USER_AGENT": options.user_agent,
        "DEFAULT_REQUEST_HEADERS": {"Accept": "*/*", "Accept-Encoding": "identity"},
        "DNS_RESOLVER": "crawler.policy.Pins",
        "DOWNLOAD_HANDLERS": {
            **dict.fromkeys(("http", "https"), "crawler.spider.ShortIdleHandler"),
            **dict.fromkeys(("file", "ftp", "s3", "data")),
        },
        "DOWNLOAD_VERIFY_CERTIFICATES": True,
        "DOWNLOAD_DELAY": 0,  # `crawler.policy` limits the rate: per address, with Crawl-delay
        "CONCURRENT_REQUESTS": 0,  # the number of workers is the limit
        "CONCURRENT_REQUESTS_PER_DOMAIN": max(8, options.per_address),
        "DOWNLOAD_MAXSIZE": 0,  # downloads are stopped, never cancelled: a cancelled one loses its response
        "DOWNLOAD_WARNSIZE": 0,
        "DOWNLOAD_FAIL_ON_DATALOSS": False,
        "COOKIES_ENABLED": False,
        "RETRY_ENABLED": False,
        "ROBOTSTXT_OBEY": False,  # crawler.visit and crawler.spider obey it, per origin and for our agent name
    }


def _visit_all(options: CrawlOptions, ledger: CrawlLedger, blocks: BlockLists, progress: Progress) -> None:
    total, before = ledger.counts()
    if sum(before.values()) >= total:
        return
    if options.ca_file is not None:  # Twisted uses OpenSSL's trust roots, and OpenSSL reads this variable
        os.environ["SSL_CERT_FILE"] = str(options.ca_file)
    import scrapy
    from scrapy.crawler import CrawlerProcess

    from crawler.spider import FileSpider

    if tuple(map(int, scrapy.version_info[:2])) < OLDEST_SCRAPY:
        raise UsageError(
            f"Scrapy {scrapy.__version__} does not report the address that answered a HEAD request",
            where="upshift crawl",
            remedy="install Scrapy 2.19 or newer: pip install -U scrapy",
        )
    for name in ("scrapy", "twisted", "protego"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    allow_many_files(options.workers, "--workers", each=2)  # a connection, and an idle one of the host before
    faults: list[BaseException] = []

    def on_done(outcomes: Counter[str]) -> None:
        files = outcomes[CrawlOutcome.FOUND]
        done = sum(outcomes.values())
        failed = done - files - outcomes[CrawlOutcome.NO_FILE]
        causes = ", ".join(
            f"{count} {cause}"
            for cause, count in outcomes.most_common()
            if cause not in (CrawlOutcome.FOUND, CrawlOutcome.NO_FILE)
        )
        progress.update("crawling domains", done=done, total=total, failed=failed, note=f"found {files}; {causes}")

    process = CrawlerProcess(settings(options))
    process.crawl(
        FileSpider,
        ledger=ledger,
        limits=options.limits,
        resolver=Resolver(options.nameserver, port=options.nameserver_port),
        blocks=blocks,
        pace=Throttle(options.rate_per_s, options.per_address),
        workers=options.workers,
        timeout_s=options.timeout_s,
        faults=faults,
        on_done=on_done,
    )
    with _interruptible(faults):
        process.start(install_signal_handlers=False)
    if faults:
        raise faults[0]
    total, after = ledger.counts()
    if sum(after.values()) < total:
        raise UpshiftError(
            f"the crawl stopped with {total - sum(after.values())} domains left",
            where=str(options.ledger),
            remedy="run the same command again to resume",
        )


@contextlib.contextmanager
def _interruptible(faults: list[BaseException]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the reactor and are added to `faults`.

    Python's own KeyboardInterrupt is lost if it is raised within a callback: a Twisted Deferred catches it.
    """
    from twisted.internet import reactor

    def end() -> None:
        faults.insert(0, KeyboardInterrupt())
        cast(Any, reactor).crash()

    with signals.handled_by(lambda _number, _frame: reactor.callFromThread(end)):
        yield
