"""A run of a survey: subjects -> ledger -> visits -> records, results and filled targets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import core
from core.errors import UsageError
from core.files import store, targets
from core.outreach import arguments, ledger
from core.outreach.arguments import check_out, ledger_beside
from core.outreach.blocks import BlockLists, block_list_paths
from core.outreach.dns import Resolver
from core.outreach.ledger import Finished
from core.outreach.lists import identity, parse_shard
from core.outreach.pace import Lanes, TokenBucket
from core.reach import ANYWHERE, environment_prefixes
from core.system import signals
from core.system.this_host import check_ipv6
from core.terminal import Progress
from survey.access import Access, NotAskedError
from survey.lookups import confined
from survey.programs import start_here
from survey.subjects import Source, Subject
from survey.surveys import PLANNED, Context, Record, Remark, Site, Survey, SurveyOptions, Visit

_KNOWN = ("provider", "server_ip", "alt_svc", "url", "mime_type")
"""Fields of a subject besides domain and rank."""

_OF_SUBJECT = ("domain", "rank", "provider")
"""Fields that a record takes from its subject; the others form the document."""


def document_of(record: Any) -> dict[str, Any]:
    """The fields of a record (a dataclass) that do not come from its subject."""
    return {name: getattr(record, name) for name in _result_columns(record.__class__)}


@cache  # called thousands of times a second
def _result_columns(record_type: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(record_type) if column.name not in _OF_SUBJECT)


class SurveyLedger(ledger.Ledger):
    """An open ledger of a survey."""

    WHAT = "survey"

    def fill(self, subjects: Iterable[Subject]) -> int:
        """Writes the subjects into the ledger, all of them or none; returns how many.

        A broken list (UsageError) leaves no ledger behind, so the corrected list can use the same file.
        """
        with self._filling():
            return self._add(_entry(subject) for subject in subjects)

    def take(self) -> Iterator[Subject]:
        """Pending subjects in the order of the list, read lazily; each once per open ledger."""
        return map(_subject, self.entries())

    def records(self, record_type: Callable[..., Record]) -> Iterator[Record]:
        """The results as records, in the order of the list."""
        for entry, _, document in self.results():
            provider = entry.known.get("provider")
            subject = _subject(entry)
            yield record_type(domain=subject.domain, rank=entry.rank, provider=provider, **document)


def _entry(subject: Subject) -> ledger.LedgerEntry:
    known = {name: value for name in _KNOWN if (value := getattr(subject, name)) is not None}
    return ledger.LedgerEntry(domain=subject.key, rank=subject.rank, known=known)


def _subject(entry: ledger.LedgerEntry) -> Subject:
    mime_type = entry.known.get("mime_type")
    domain = entry.domain if mime_type is None else entry.domain.removesuffix(f" {mime_type}")
    return Subject(domain=domain, rank=entry.rank, **entry.known)


def check_targets_out(subjects: Source, out: Path, targets_out: Path | None) -> None:
    """Raises UsageError for an input without targets, or files that would overwrite each other."""
    if targets_out is None:
        return
    if not subjects.is_targets:
        raise UsageError(
            "this list has no targets to fill in", where="--targets-out", remedy="give a targets file, or leave it out"
        )
    if targets_out.resolve() in (subjects.path.resolve(), out.resolve()):
        raise UsageError("already used for the input or the results", where="--targets-out", remedy="give another file")
    targets.check_out(targets_out, "--targets-out")


def fill_targets(
    source: Path, out: Path, values: Mapping[str, Mapping[str, bool | int | str | None]], ports: Mapping[str, int] = {}
) -> None:
    """Writes the targets of `source`, all columns kept.

    Args:
        source: a targets file.
        out: the file to write, atomically.
        values: column -> domain -> value; other domains keep their values, and so do files at another host than the
            first of their domain, which alone was asked.
        ports: domain -> the port that answered, which may be another server than that of its URL.
    """
    table = targets.read(source, needs=("domain",))
    rows = [Subject(domain=row["domain"], url=row["url"]) for row in table.select(["domain", "url"]).to_pylist()]
    asked = {row.domain: row.origin for row in reversed(rows)}
    names = [r.domain if r.origin == asked[r.domain] and ports.get(r.domain, r.port) == r.port else "" for r in rows]
    columns = {}
    for column, by_domain in values.items():
        before = table.column(column).to_pylist()
        columns[column] = [by_domain.get(name, value) for name, value in zip(names, before, strict=True)]
    targets.write(out, targets.with_columns(table, columns))


FLUSH_S = 0.2
"""Interval of commits to the ledger: a kill loses at most the work of this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveySummary:
    """How a run ended."""

    records: list[Record]
    subjects: Source | None
    """What was read; None if the list was in the ledger already."""
    complaints: list[str]
    """What became wrong with block lists during the run; printed already."""
    remarks: list[Remark]


def plan_of(survey: Survey, options: SurveyOptions, settings: Any, path: Path) -> dict[str, Any]:
    """Options that affect the results, as JSON values, and the list: a resumed run must have the same."""
    own = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in survey.unplanned}
    own = {name: identity(value) if isinstance(value, Path) else value for name, value in own.items()}
    shared = {name: getattr(options, name) for name in PLANNED}
    return {
        "survey": survey.kind,
        "list": identity(path),
        "shard": list(parse_shard(options.shard)),
        **shared,
        **own,
    }


def check(survey: Survey, options: SurveyOptions, settings: Any) -> Source:
    """What is to be surveyed. Raises UsageError for options that contradict each other, or an unreadable input."""
    survey.check(settings)
    parse_shard(options.shard)
    subjects = survey.subjects(options, settings)
    check_out(options.out, subjects.path)
    check_targets_out(subjects, options.out, options.targets_out)
    return subjects


def run(
    survey: Survey,
    options: SurveyOptions,
    settings: Any,
    subjects: Source,
    progress: Progress,
    *,
    site: Site | None = None,
) -> SurveySummary:
    """Runs a survey, or resumes it from its ledger, and writes its results.

    Args:
        survey: its description.
        options: those of every survey.
        settings: the survey's own options, a value of `Survey.settings`.
        subjects: what `check` returned.
        site: where its programs run; None: here.

    Raises:
        UsageError: a broken list, ledger or block list, with file and line.
        PlaceError: this host cannot run it.
    """
    blocks = BlockLists(block_list_paths(options.block_list, options.opt_out))
    plan = plan_of(survey, options, settings, subjects.path)
    ledger = SurveyLedger(ledger_beside(options.out, options.ledger), plan)
    remarks: list[Remark] = []
    try:
        if is_new := not ledger.filled:
            ledger.fill(subjects)
        total, done = ledger.counts()
        if done.total() < total:
            arguments.allow_many_files(options.concurrency, "--concurrency")
            work = _visit_all(survey, options, settings, ledger, blocks, progress, site or Site(start=start_here))
            remarks = signals.run(work)
        records = list(ledger.records(survey.record))
    finally:
        ledger.close()
    store.write_rows(options.out, survey.kind, records, survey.record)
    if options.targets_out is not None:
        ports = {record.domain: port for record in records if (port := getattr(record, "server_port", None))}
        fill_targets(options.source, options.targets_out, known(survey, records), ports)
    read = subjects if is_new else None
    return SurveySummary(records=records, subjects=read, complaints=blocks.complaints, remarks=remarks)


def known(survey: Survey, records: Sequence[Record]) -> dict[str, dict[str, bool | int | str | None]]:
    """Column of a target -> domain -> value, for records that have one (of `Survey.together`: one of them)."""
    values: dict[str, dict[str, bool | int | str | None]] = {column: {} for column in survey.targets}
    for record in records:
        own = {column: says(record) for column, says in survey.targets.items()}
        is_any = any(own[column] is not None for column in survey.together)
        for column, value in own.items():
            if value is not None or (is_any and column in survey.together):
                values[column][record.domain] = value
    return values


@asynccontextmanager
async def _context(
    survey: Survey, options: SurveyOptions, settings: Any, blocks: BlockLists, site: Site
) -> AsyncIterator[Context]:
    if options.ipv6:
        check_ipv6(environment_prefixes() or ANYWHERE)
    asked = Resolver(options.nameserver, port=options.nameserver_port)
    async with confined(asked) if survey.starts_programs else asked as resolver:
        access = Access(
            resolver=resolver,
            blocks=blocks,
            names=TokenBucket(options.rate),
            rate=TokenBucket(options.rate),
            lanes=Lanes(options.address_rate, options.per_address),
            places=asyncio.Semaphore(options.concurrency),
            ipv6=options.ipv6,
        )
        yield Context(
            options=options,
            settings=settings,
            access=access,
            start=site.start,
            prober=site.prober,
            user_agent=f"upshift/{core.__version__} (+{options.contact})",
        )


async def _visit_all(
    survey: Survey,
    options: SurveyOptions,
    settings: Any,
    ledger: SurveyLedger,
    blocks: BlockLists,
    progress: Progress,
    site: Site,
) -> list[Remark]:
    """Visits all pending subjects."""
    total, outcomes = ledger.counts()
    finished: list[Finished] = []

    def flush() -> None:
        ledger.record(finished)
        outcomes.update(outcome for _, outcome, _ in finished)
        finished.clear()
        _show(survey, progress, total, outcomes)

    async def flush_often() -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            flush()

    async with _context(survey, options, settings, blocks, site) as context, survey.visits(context) as visit:
        subjects = ledger.take()
        try:
            async with asyncio.TaskGroup() as both:  # nobody is contacted whose result cannot be recorded
                flusher = both.create_task(flush_often())
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(options.concurrency * survey.visits_per_place, total)):
                        group.create_task(_work(survey, visit, subjects, finished))
                flusher.cancel()
        except BaseExceptionGroup as faults:
            fault: BaseException = faults
            while isinstance(fault, BaseExceptionGroup):
                fault = fault.exceptions[0]
            raise fault from None
        finally:
            flush()
    return context.remarks


async def _work(survey: Survey, visit: Visit, subjects: Iterator[Subject], finished: list[Finished]) -> None:
    """Visits subjects one after another until none is left."""
    for subject in subjects:
        signals.check_cancelled()
        now = time.time()
        record = survey.record(domain=subject.domain, rank=subject.rank, provider=subject.provider, surveyed_at=now)
        try:
            record = await visit(subject, record)
        except NotAskedError as error:
            survey.refused(record, error)
        record.surveyed_at = time.time()  # when it ended; a visit has the time when it began
        finished.append((subject.key, survey.outcome(record), document_of(record)))


def _show(survey: Survey, progress: Progress, total: int, outcomes: Counter[str]) -> None:
    failed = sum(count for outcome, count in outcomes.items() if not survey.good(outcome))
    note = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    progress.update(f"survey {survey.name}", done=outcomes.total(), total=total, failed=failed, note=note)
