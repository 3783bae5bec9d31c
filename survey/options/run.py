"""A whole survey: list -> ledger -> handshakes -> results."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from survey.fill import fill_targets
from survey.ledger import Finished, Ledger, document_of
from survey.options.probers import Probers, Start
from survey.options.record import KIND, OptionsRecord
from survey.options.visit import Visitor
from survey.subjects import Subject, Subjects, read_subjects
from upshift.errors import UsageError
from upshift.files import store
from upshift.outreach.blocks import BlockLists
from upshift.outreach.dns import Resolver
from upshift.outreach.lists import identity
from upshift.outreach.pace import Lanes, TokenBucket
from upshift.progress import Progress

COLUMNS = ("ecn", "sack", "window_scaling")
"""Of a target, what this survey finds out."""

TICK_S = 0.2
"""How often what is done is written down and shown: a kill costs the work of this time at most."""

VISITS_PER_SOCKET = 4
"""Domains under way per socket: most of them wait, for DNS or for the turn of their address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user can set."""

    source: Path
    out: Path
    ledger: Path
    targets_out: Path | None = None
    ports: Sequence[int] = (443, 80)
    ipv6: bool = False
    shard: tuple[int, int] = (1, 1)
    limit: int | None = None
    concurrency: int = 2_000
    rate_per_s: float = 1_000.0
    per_address: int = 2
    address_rate_per_s: float = 10.0
    timeout_s: float = 5.0
    again_after_s: float = 3.0
    probers: int = 1
    nameserver: str | None = None
    nameserver_port: int = 53
    block_lists: Sequence[Path] = ()

    def plan(self) -> dict[str, Any]:
        """What decides the results: a resumed survey must have the same."""
        return {
            "survey": KIND,
            "list": identity(self.source),
            "ports": list(self.ports),
            "ipv6": self.ipv6,
            "shard": list(self.shard),
            "limit": self.limit,
            "timeout_s": self.timeout_s,
            "again_after_s": self.again_after_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How the survey ended."""

    subjects: Subjects | None
    """What was read; None where the ledger had the list already."""
    complaints: list[str]
    """Block lists that became unreadable on the way."""
    records: list[OptionsRecord]


def survey(options: Options, start: Start, progress: Progress) -> Summary:
    """Runs the survey, or resumes it from its ledger, and writes the results.

    Args:
        options: what `survey.fill.check_targets_out` let pass.
        start: starts a program where the kernel's settings are right.

    Raises:
        UsageError: a broken list, ledger or block list; with file and line.
        PlaceError: this host cannot do it.
    """
    blocks = BlockLists(options.block_lists)
    ledger = Ledger(options.ledger, options.plan())
    try:
        subjects = None
        if not ledger.filled:
            subjects = read_subjects(options.source, limit=options.limit, shard=options.shard)
            ledger.fill(subjects)
        total, done = ledger.counts()
        if sum(done.values()) < total:
            allow_many_files(options.concurrency)
            asyncio.run(_visit_all(options, ledger, blocks, start, progress))
        records = list(ledger.records(OptionsRecord))
    finally:
        ledger.close()
    store.write_rows(options.out, KIND, records, OptionsRecord)
    if options.targets_out is not None:
        write_targets(options.source, options.targets_out, records)
    return Summary(subjects=subjects, complaints=blocks.complaints, records=records)


async def _visit_all(options: Options, ledger: Ledger, blocks: BlockLists, start: Start, progress: Progress) -> None:
    async with (
        Resolver(options.nameserver, port=options.nameserver_port) as resolver,
        Probers(start, count=options.probers, timeout_s=options.timeout_s) as probers,
    ):
        visitor = Visitor(
            resolver=resolver,
            probers=probers,
            blocks=blocks,
            names=TokenBucket(options.rate_per_s),
            handshakes=TokenBucket(options.rate_per_s),
            pace=Lanes(options.address_rate_per_s, options.per_address),
            sockets=asyncio.Semaphore(options.concurrency),
            ports=options.ports,
            ipv6=options.ipv6,
            again_after_s=options.again_after_s,
        )
        done: list[Finished] = []
        subjects = ledger.take()
        total, _ = ledger.counts()
        ticker = asyncio.create_task(_tick(ledger, done, progress))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(options.concurrency * VISITS_PER_SOCKET, total)):
                    group.create_task(_work(visitor, subjects, done))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            ticker.cancel()
            _write_down(ledger, done)
        total, outcomes = ledger.counts()
        _show(progress, total, outcomes)


async def _work(visitor: Visitor, subjects: Iterator[Subject], done: list[Finished]) -> None:
    """Visits one subject after another, until none is left."""
    for subject in subjects:
        record = await visitor.visit(subject)
        done.append((subject.domain, record.failure or record.outcome, document_of(record)))


async def _tick(ledger: Ledger, done: list[Finished], progress: Progress) -> None:
    total, outcomes = ledger.counts()
    while True:
        await asyncio.sleep(TICK_S)
        outcomes.update(outcome for _, outcome, _ in _write_down(ledger, done))
        _show(progress, total, outcomes)


def _write_down(ledger: Ledger, done: list[Finished]) -> list[Finished]:
    batch = done.copy()
    done.clear()
    ledger.finish(batch)
    return batch


def _show(progress: Progress, total: int, outcomes: Counter[str]) -> None:
    finished = sum(outcomes.values())
    note = ", ".join(f"{count} {cause}" for cause, count in outcomes.most_common())
    progress.update("shaking hands", done=finished, total=total, failed=finished - outcomes["ok"], note=note)


def allow_many_files(sockets: int) -> None:
    """Raises the limit of open files, which the probers inherit. Raises UsageError where it stays too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < sockets + 64:
        raise UsageError(
            f"this process may open {hard} files only", where="--concurrency", remedy=f"lower it to {max(1, hard - 64)}"
        )


def write_targets(source: Path, out: Path, records: Sequence[OptionsRecord]) -> None:
    """The targets file again, all columns kept, with `ecn`, `sack` and `window_scaling` filled in where known."""
    known = [record for record in records if record.outcome == "ok"]
    fill_targets(source, out, {name: {record.domain: getattr(record, name) for record in known} for name in COLUMNS})
