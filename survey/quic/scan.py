"""A whole survey: subjects -> ledger -> visits -> rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import upshift
from survey.ledger import Finished, Ledger
from survey.pace import AddressPace, TokenBucket
from survey.quic.cause import NOT_ASKED, Cause
from survey.quic.negotiate import Negotiator
from survey.quic.record import QuicRecord
from survey.quic.visit import Limits, Visitor
from survey.resolve import Resolver
from survey.subjects import Subject, read_subjects
from upshift.blocks import BlockLists
from upshift.progress import Progress

FLUSH_S = 0.5
"""What is found goes into the ledger this often: at most so much is asked again after a kill."""

KNOWN = frozenset(f.name for f in fields(QuicRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user can set."""

    source: Path
    ledger: Path
    contact: str
    """Address (mail or web) that owners of the servers find in the user agent."""
    limits: Limits = field(default_factory=Limits)
    shard: tuple[int, int] = (1, 1)
    limit: int | None = None
    concurrency: int = 500
    """Domains under way."""
    rate_per_s: float = 200.0
    """Probes and handshakes together."""
    per_address_per_s: float = 5.0
    """Handshakes with one address."""
    handshakes: int = 16
    nameserver: str | None = None
    nameserver_port: int = 53
    ca_file: Path | None = None
    block_lists: Sequence[Path] = ()

    @property
    def user_agent(self) -> str:
        return f"upshift/{upshift.__version__} (+{self.contact})"

    def plan(self) -> dict[str, Any]:
        """What decides the results: a resumed survey must have the same."""
        size = self.source.stat().st_size
        chosen = {"shard": list(self.shard), "limit": self.limit, "input": f"{self.source.name}, {size} bytes"}
        return {"survey": "quic", **asdict(self.limits), **chosen}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the survey ended."""

    subjects: int
    faults: list[str]
    """Rows of the list that cannot be used."""
    passed_over: dict[str, int]
    complaints: list[str]
    seconds: float
    visited: int
    """In this call; the others had been done before."""
    dropped_answers: int
    """Answers to probes that our own kernel dropped: where there are any, `--rate` is too high for this host."""


def survey(options: Options, progress: Progress) -> Report:
    """Runs the survey, or goes on from its ledger. `records` then reads what was found.

    Raises:
        UsageError: a broken list, targets file, ledger or block list; a name server that is no address.
    """
    subjects = read_subjects(options.source, limit=options.limit, shard=options.shard)
    blocks = BlockLists(options.block_lists)
    ledger = Ledger(options.ledger, options.plan())
    try:
        if not ledger.filled:
            ledger.fill(subjects)
        total, before = ledger.counts()
        started = time.monotonic()
        dropped = asyncio.run(_visit_all(options, ledger, blocks, progress)) if sum(before.values()) < total else 0
        seconds = time.monotonic() - started
    finally:
        ledger.close()
    return Report(
        subjects=total,
        faults=[f"line {fault.line}: {fault.reason}: {fault.text!r}" for fault in subjects.faults],
        passed_over=dict(subjects.broken) | ({"duplicates": subjects.duplicates} if subjects.duplicates else {}),
        complaints=blocks.complaints,
        seconds=seconds,
        visited=total - sum(before.values()),
        dropped_answers=dropped,
    )


def records(options: Options) -> Iterator[QuicRecord]:
    """What the ledger holds, in the order of the list."""
    ledger = Ledger(options.ledger, options.plan())
    try:
        for _, _, document in ledger.results():
            yield QuicRecord(**{name: value for name, value in document.items() if name in KNOWN})
    finally:
        ledger.close()


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
            address_pace=AddressPace(options.per_address_per_s, 1),
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

    async with _visitor(options, blocks) as visitor:

        async def worker(own: Iterator[Subject]) -> None:
            for subject in own:
                record = await visitor.visit(subject)
                waiting.append((subject.domain, record.cause, asdict(record)))

        flusher = asyncio.create_task(flush_often())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(options.concurrency, total)):
                    group.create_task(worker(subjects))
        finally:
            flusher.cancel()
            flush()
        return visitor.negotiator.drops()
