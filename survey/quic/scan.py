"""A whole survey: subjects -> ledger -> visits -> rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import upshift
from survey.fill import check_targets_out, fill_targets
from survey.ledger import Finished, Ledger, document_of
from survey.quic.cause import NOT_ASKED, Cause
from survey.quic.negotiate import Negotiator
from survey.quic.record import QuicRecord
from survey.quic.visit import Limits, Visitor
from survey.subjects import Subject, read_subjects
from upshift.files import store
from upshift.outreach.blocks import BlockLists
from upshift.outreach.dns import Resolver
from upshift.outreach.lists import identity
from upshift.outreach.pace import Lanes, TokenBucket
from upshift.progress import Progress

FLUSH_S = 0.2
"""What is found goes into the ledger this often: at most so much is asked again after a kill."""

AT_ONCE_PER_ADDRESS = 4
"""Handshakes under way with one address."""

KIND = "survey_quic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user can set."""

    source: Path
    out: Path
    ledger: Path
    targets_out: Path | None = None
    contact: str
    """Address (mail or web) that owners of the servers find in the user agent."""
    limits: Limits = field(default_factory=Limits)
    shard: tuple[int, int] = (1, 1)
    limit: int | None = None
    concurrency: int = 2_000
    """Domains under way."""
    rate_per_s: float = 500.0
    """Probes and handshakes together; domains looked up, too."""
    address_rate_per_s: float = 10.0
    """Handshakes with one address."""
    handshakes: int = 16
    """Under way at once, with servers that answered the negotiation."""
    nameserver: str | None = None
    nameserver_port: int = 53
    ca_file: Path | None = None
    block_lists: Sequence[Path] = ()

    @property
    def user_agent(self) -> str:
        return f"upshift/{upshift.__version__} (+{self.contact})"

    def plan(self) -> dict[str, Any]:
        """What decides the results: a resumed survey must have the same."""
        which = {"list": identity(self.source), "shard": list(self.shard), "limit": self.limit}
        return {"survey": KIND, **which, **asdict(self.limits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How the survey ended."""

    records: list[QuicRecord]
    faults: list[str]
    """Rows of the list that cannot be used, the first ones."""
    passed_over: dict[str, int]
    """Reason -> rows."""
    complaints: list[str]
    """Block lists that became unreadable on the way."""
    dropped: int
    """Answers to probes that our own kernel dropped: where there are any, the rate is too high for this host."""


def survey(options: Options, progress: Progress) -> Summary:
    """Runs the survey, or goes on from its ledger, and writes the results.

    Raises:
        UsageError: a broken list, targets file, ledger or block list; a name server that is no address.
    """
    check_targets_out(options.source, options.out, options.targets_out)
    subjects = read_subjects(options.source, limit=options.limit, shard=options.shard)
    blocks = BlockLists(options.block_lists)
    ledger = Ledger(options.ledger, options.plan())
    dropped = 0
    try:
        if not ledger.filled:
            ledger.fill(subjects)
        total, before = ledger.counts()
        if sum(before.values()) < total:
            dropped = asyncio.run(_visit_all(options, ledger, blocks, progress))
        records = list(ledger.records(QuicRecord))
    finally:
        ledger.close()
    store.write_rows(options.out, KIND, records, QuicRecord)
    if options.targets_out is not None:
        known = ((record.domain, supports(record.cause)) for record in records)
        fill_targets(
            options.source, options.targets_out, {"quic": {d: value for d, value in known if value is not None}}
        )
    return Summary(
        records=records,
        faults=list(map(str, subjects.faults)),
        passed_over=dict(subjects.broken) | ({"duplicates": subjects.duplicates} if subjects.duplicates else {}),
        complaints=blocks.complaints,
        dropped=dropped,
    )


def supports(cause: str) -> bool | None:
    """The `quic` column of a target: None where the survey did not get as far as the server."""
    return None if cause in NOT_ASKED else cause == Cause.OK


@asynccontextmanager
async def _visitor(options: Options, blocks: BlockLists) -> AsyncIterator[Visitor]:
    async with AsyncExitStack() as stack:
        resolver = Resolver(options.nameserver, port=options.nameserver_port)
        yield Visitor(
            resolver=await stack.enter_async_context(resolver),
            negotiator=await stack.enter_async_context(Negotiator()),
            blocks=blocks,
            pace=TokenBucket(options.rate_per_s),
            address_pace=Lanes(options.address_rate_per_s, AT_ONCE_PER_ADDRESS),
            handshakes=asyncio.Semaphore(options.handshakes),
            limits=options.limits,
            user_agent=options.user_agent,
            ca_file=options.ca_file,
        )


async def _visit_all(options: Options, ledger: Ledger, blocks: BlockLists, progress: Progress) -> int:
    """Visits every subject that is not done; gives how many answers our kernel dropped."""
    total, outcomes = ledger.counts()
    waiting: list[Finished] = []
    subjects = ledger.take()

    def flush() -> None:
        ledger.finish(waiting)
        outcomes.update(outcome for _, outcome, _ in waiting)
        waiting.clear()
        done = sum(outcomes.values())
        unknown = sum(outcomes[cause] for cause in NOT_ASKED)
        progress.update("surveying QUIC", done=done, total=total, failed=unknown, note=f"ok {outcomes[Cause.OK]}")

    async def flush_often() -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            flush()

    logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic reports every fault of a server's there
    looked_up = TokenBucket(options.rate_per_s)
    async with _visitor(options, blocks) as visitor:

        async def worker(own: Iterator[Subject]) -> None:
            for subject in own:
                await looked_up.turn()
                record = await visitor.visit(subject)
                waiting.append((subject.domain, record.cause, document_of(record)))

        flusher = asyncio.create_task(flush_often())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(options.concurrency, total)):
                    group.create_task(worker(subjects))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            flusher.cancel()
            flush()
        return visitor.negotiator.drops()
